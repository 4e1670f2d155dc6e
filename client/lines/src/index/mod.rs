//! A compact form of the debug information of one kernel or one module.
//!
//! Layout: [`MAGIC`], the version and the length of the head (4 bytes each, little-endian), the head, and
//! then the parts, each compressed on its own: symbols, the lists in which units are looked up, the units,
//! and the types, of which all units share one table. A part is read when it is needed.
//!
//! A structure with a name is referred to by that name: units declare what others define. If units define
//! different structures of one name, each unit has its own.

mod write;

use std::cell::OnceCell;
use std::rc::Rc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{LinesError, Result};
use crate::image::Identity;
use crate::model::{
    Inlined, Kept, Places, Range, Scope, ScopeKind, Source, Type, TypeId, Unit, Variable, has_components,
    once,
};
use crate::symbols::Symbols;
use crate::value::Value;

pub use write::write_index;

const MAGIC: &[u8; 8] = b"kpdlines";

/// Another form is another version: an index is made anew, it is not converted.
const VERSION: u32 = 2;

/// LZ4 makes data smaller by this factor at most.
const GROWTH_MAX: usize = 256;

/// Types in one part.
const TYPES_IN_PART: usize = 2048;

/// Lists of units in one part.
const LISTS_IN_PART: usize = 256;

/// Marks the number of a name, as opposed to that of a type.
const NAME: u64 = 1 << 31;

/// The bits of a number; those above hold the unit whose names count.
const NUMBER_BITS: u32 = 32;

/// Where a part is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Part {
    start: usize,
    compressed: usize,
    raw: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    build_id: Vec<u8>,
    module: Option<String>,
    symbols: Part,
    functions: Listed,
    paths: Listed,
    names: Part,
    /// For each unit, the types that names have in it, where units differ.
    chosen: Part,
    types: Vec<Part>,
    units: Vec<Part>,
}

/// A unit with the frame rules of its code. Each address counts from the one before it, as [`each_address`] finds them.
#[derive(Debug, Serialize, Deserialize)]
struct StoredUnit {
    unit: Unit,
    frames: Vec<(Range, Value)>,
}

/// The structures of one name.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Named {
    keyword: String,
    name: String,
    /// Their numbers among the types.
    types: Vec<u64>,
}

/// Units by names.
#[derive(Debug, Serialize, Deserialize)]
struct Listed {
    /// One text: the names in their order, with [`BETWEEN`] between them.
    names: Part,
    /// For each name the numbers of its units.
    units: Vec<Part>,
}

/// What no name has.
const BETWEEN: char = '\0';

/// An index, read part by part.
pub(crate) struct Index<'a> {
    head: Head,
    parts: &'a [u8],
    symbols: Symbols,
    functions: OnceCell<String>,
    paths: OnceCell<String>,
    names: OnceCell<Vec<Named>>,
    chosen: OnceCell<Vec<Vec<(u64, u64)>>>,
    types: Kept<Vec<Type>, { usize::MAX }>,
    units: Kept<Loaded, { usize::MAX }>,
}

/// A unit that has been read.
struct Loaded {
    unit: Rc<Unit>,
    frames: Vec<(Range, Value)>,
}

fn damaged() -> LinesError {
    LinesError::new("the index is damaged").hint("make it again from the file with debug information")
}

/// The head of an index, and its parts.
fn head(bytes: &[u8]) -> Result<(Head, &[u8])> {
    let rest = bytes
        .strip_prefix(MAGIC)
        .ok_or_else(|| LinesError::new("the file is not an index of debug information"))?;
    let (version, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(LinesError::new(format!(
            "the index has version {version}, and this program reads version {VERSION}"
        ))
        .hint("make it again from the file with debug information"));
    }
    let (length, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_too_large| damaged())?;
    let (head, parts) = rest.split_at_checked(length).ok_or_else(damaged)?;
    Ok((postcard::from_bytes(head).map_err(|_error| damaged())?, parts))
}

/// Whether bytes begin as an index does.
pub(crate) fn is_index(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

impl Identity {
    /// Reads it, without what the file or the index says of code.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        if !is_index(bytes) {
            return Self::of_elf(bytes);
        }
        let (head, _) = head(bytes)?;
        Ok(Self { build_id: head.build_id, module: head.module, is_split: false })
    }
}

impl<'a> Index<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self> {
        let (head, parts) = head(bytes)?;
        let mut symbols: Symbols = part(parts, head.symbols)?;
        symbols.sort();
        Ok(Self {
            head,
            parts,
            symbols,
            functions: OnceCell::new(),
            paths: OnceCell::new(),
            names: OnceCell::new(),
            chosen: OnceCell::new(),
            types: Kept::default(),
            units: Kept::default(),
        })
    }

    fn loaded(&self, number: usize) -> Result<Rc<Loaded>> {
        self.units.get(number, || self.load(number))
    }

    fn load(&self, number: usize) -> Result<Loaded> {
        let place = self.head.units.get(number).ok_or_else(damaged)?;
        let mut stored: StoredUnit = part(self.parts, *place)?;
        let mut last = 0_u64;
        each_address(&mut stored, &mut |address| {
            // The sign is the lowest bit, so that small steps in both directions are short.
            let step = (*address >> 1) ^ (*address & 1).wrapping_neg();
            last = last.wrapping_add(step);
            *address = last;
        });
        each_variable(&mut stored.unit, &mut |variable| {
            variable.ty = variable.ty.map(|ty| with_unit(ty, number));
        });
        Ok(Loaded { unit: Rc::new(stored.unit), frames: stored.frames })
    }

    /// The type of this number of the table.
    fn numbered(&self, number: u64) -> Result<Type> {
        let number = usize::try_from(number).map_err(|_too_large| damaged())?;
        let chunk = number / TYPES_IN_PART;
        let read = || part(self.parts, *self.head.types.get(chunk).ok_or_else(damaged)?);
        let types = self.types.get(chunk, read)?;
        types.get(number % TYPES_IN_PART).cloned().ok_or_else(damaged)
    }

    fn names(&self) -> Result<&Vec<Named>> {
        once(&self.names, || part(self.parts, self.head.names))
    }

    /// The structure that a name means in a unit.
    fn by_name(&self, number: u64, unit: usize) -> Result<Type> {
        let named = usize::try_from(number)
            .ok()
            .and_then(|number| self.names().ok()?.get(number))
            .ok_or_else(damaged)?;
        let chosen = once(&self.chosen, || part(self.parts, self.head.chosen))?.get(unit);
        let chosen = chosen.into_iter().flatten().filter(|(name, _)| *name == number);
        let mut own: Vec<u64> = chosen.map(|(_, own)| *own).collect();
        own.sort_unstable();
        own.dedup();
        let types = if own.is_empty() { &named.types } else { &own };
        match types.as_slice() {
            [only] => self.numbered(*only),
            [] => Ok(Type::Composite {
                keyword: named.keyword.clone(),
                name: Some(named.name.clone()),
                bytes: None,
                members: Vec::new(),
            }),
            several => {
                let (count, text) = (several.len(), format!("{} {}", named.keyword, named.name));
                let defined = if own.is_empty() { "none" } else { "all" };
                Err(LinesError::new(format!(
                    "{count} different structures are named `{text}`, and this source defines {defined} of them"
                )))
            }
        }
    }

    fn functions(&self) -> Result<&str> {
        Ok(once(&self.functions, || part(self.parts, self.head.functions.names))?)
    }

    /// The units of the names of a list that fit.
    fn units(&self, listed: &Listed, names: &str, fits: impl Fn(&str) -> bool) -> Result<Vec<usize>> {
        let mut units = Vec::new();
        let (mut lists, mut known): (Vec<Vec<u32>>, _) = (Vec::new(), None);
        for (number, _) in names.split_terminator(BETWEEN).enumerate().filter(|(_, name)| fits(name)) {
            let chunk = number / LISTS_IN_PART;
            if known.replace(chunk) != Some(chunk) {
                lists = part(self.parts, *listed.units.get(chunk).ok_or_else(damaged)?)?;
            }
            let list = lists.get(number % LISTS_IN_PART).ok_or_else(damaged)?;
            units.extend(list.iter().map(|number| *number as usize));
        }
        units.sort_unstable();
        units.dedup();
        Ok(units)
    }
}

/// A number of a type together with the unit whose names it counts on.
const fn with_unit(ty: TypeId, unit: usize) -> TypeId {
    TypeId(ty.0 & ((1 << NUMBER_BITS) - 1) | (unit as u64) << NUMBER_BITS)
}

/// Reads a part.
fn part<T: DeserializeOwned>(parts: &[u8], place: Part) -> Result<T> {
    let end = place.start.checked_add(place.compressed).ok_or_else(damaged)?;
    let compressed = parts.get(place.start..end).ok_or_else(damaged)?;
    if place.raw > compressed.len().saturating_mul(GROWTH_MAX) {
        return Err(damaged());
    }
    let raw = lz4_flex::block::decompress(compressed, place.raw).map_err(|_error| damaged())?;
    postcard::from_bytes(&raw).map_err(|_error| damaged())
}

fn ends(range: &mut Range, visit: &mut dyn FnMut(&mut u64)) {
    visit(&mut range.start);
    visit(&mut range.end);
}

/// Calls with each address of a unit's code, in an order that the addresses do not change.
fn each_address(stored: &mut StoredUnit, visit: &mut dyn FnMut(&mut u64)) {
    stored.unit.rows.iter_mut().for_each(|row| visit(&mut row.address));
    stored.frames.iter_mut().for_each(|(frame, _)| ends(frame, visit));
    for function in &mut stored.unit.functions {
        function.entry.iter_mut().for_each(&mut *visit);
        each_scope(&mut function.scope, &mut |scope| {
            scope.ranges.iter_mut().for_each(|of| ends(of, visit));
            if let ScopeKind::Inlined(Inlined { entry: Some(entry), .. }) = &mut scope.kind {
                visit(entry);
            }
        });
    }
    each_variable(&mut stored.unit, &mut |variable| {
        if let Places::At(places) = &mut variable.places {
            for (of, _) in places {
                ends(of, visit);
            }
        }
    });
}

fn each_scope(scope: &mut Scope, visit: &mut dyn FnMut(&mut Scope)) {
    visit(scope);
    scope.scopes.iter_mut().for_each(|inner| each_scope(inner, visit));
}

fn each_variable(unit: &mut Unit, visit: &mut dyn FnMut(&mut Variable)) {
    unit.globals.iter_mut().for_each(&mut *visit);
    for function in &mut unit.functions {
        each_scope(&mut function.scope, &mut |scope| scope.variables.iter_mut().for_each(&mut *visit));
    }
}

/// Calls with each type that a type refers to.
fn each_type(ty: &mut Type, visit: &mut dyn FnMut(&mut TypeId)) {
    match ty {
        Type::Alias { to, .. } | Type::Pointer { to } | Type::Array { of: to, .. } => {
            to.iter_mut().for_each(visit);
        }
        Type::Composite { members, .. } => {
            for member in members {
                member.ty.iter_mut().for_each(&mut *visit);
            }
        }
        Type::Number { .. } | Type::Enumeration { .. } | Type::Other(_) => {}
    }
}

impl Source for Index<'_> {
    fn build_id(&self) -> &[u8] {
        &self.head.build_id
    }

    fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    fn unit(&self, number: usize) -> Result<Rc<Unit>> {
        Ok(Rc::clone(&self.loaded(number)?.unit))
    }

    fn units_of_function(&self, name: &str, _all: bool) -> Result<Vec<usize>> {
        self.units(&self.head.functions, self.functions()?, |has| has == name)
    }

    fn units_of_file(&self, path: &str) -> Result<Vec<usize>> {
        let paths: &String = once(&self.paths, || part(self.parts, self.head.paths.names))?;
        self.units(&self.head.paths, paths, |has| has_components(has, path))
    }

    fn ty(&self, id: TypeId) -> Result<Type> {
        let unit = usize::try_from(id.0 >> NUMBER_BITS).map_err(|_too_large| damaged())?;
        let number = id.0 & ((1 << NUMBER_BITS) - 1);
        let mut ty =
            if number & NAME == 0 { self.numbered(number)? } else { self.by_name(number & !NAME, unit)? };
        each_type(&mut ty, &mut |of| *of = with_unit(*of, unit));
        Ok(ty)
    }

    fn frame_address(&self, unit: usize, address: u64) -> Result<Value> {
        let loaded = self.loaded(unit)?;
        let rule = loaded.frames.iter().find(|(range, _)| range.has(address));
        rule.map(|(_, value)| value.clone())
            .ok_or_else(|| LinesError::new("the place of the frame at this instruction is not known"))
    }

    fn function_names(&self) -> Result<Vec<String>> {
        Ok(self.functions()?.split_terminator(BETWEEN).map(str::to_owned).collect())
    }
}
