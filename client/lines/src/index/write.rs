//! Makes an index of the DWARF of a file, in one pass over its units.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use hashbrown::{HashMap, HashSet};
use serde::Serialize;

use super::{
    BETWEEN, Head, LISTS_IN_PART, Listed, MAGIC, NAME, Named, Part, StoredUnit, TYPES_IN_PART, VERSION,
    each_address, each_scope, each_type, each_variable,
};
use crate::dwarf::Dwarf;
use crate::error::{LinesError, Result};
use crate::image::Image;
use crate::model::{Location, Lookup, Places, Range, ScopeKind, Source as _, Type, TypeId, Unit};
use crate::value::Value;

/// Types that lead to each other without a name between them, at most.
const DEPTH_MAX: usize = 64;

/// The parts of an index that is being made.
#[derive(Default)]
struct Parts {
    bytes: Vec<u8>,
}

impl Parts {
    fn add(&mut self, value: &impl Serialize) -> Result<Part> {
        Ok(self.append(&Packed::new(value)?))
    }

    fn append(&mut self, packed: &Packed) -> Part {
        let part = Part { start: self.bytes.len(), compressed: packed.compressed.len(), raw: packed.raw };
        self.bytes.extend(&packed.compressed);
        part
    }
}

/// A part by itself.
struct Packed {
    raw: usize,
    compressed: Vec<u8>,
}

impl Packed {
    fn new(value: &impl Serialize) -> Result<Self> {
        let raw = postcard::to_stdvec(value).map_err(unwritten)?;
        Ok(Self { raw: raw.len(), compressed: lz4_flex::block::compress(&raw) })
    }
}

/// The table of types.
#[derive(Default)]
struct Types {
    table: Vec<Type>,
    numbers: HashMap<Type, u64>,
    named: Vec<Named>,
    names: HashMap<(String, String), u64>,
    /// Those of the current unit.
    known: HashMap<TypeId, TypeId>,
    defined: Vec<(u64, u64)>,
    open: Vec<TypeId>,
}

impl Types {
    fn number(&mut self, ty: Type) -> u64 {
        let next = self.table.len() as u64;
        *self.numbers.entry(ty).or_insert_with_key(|ty| {
            self.table.push(ty.clone());
            next
        })
    }

    fn name(&mut self, keyword: &str, name: &str) -> u64 {
        let next = self.named.len() as u64;
        let key = (keyword.to_owned(), name.to_owned());
        *self.names.entry(key).or_insert_with(|| {
            self.named.push(Named { keyword: keyword.to_owned(), name: name.to_owned(), types: Vec::new() });
            next
        })
    }

    /// A type with all that it leads to.
    fn take(&mut self, dwarf: &Dwarf<'_>, id: TypeId) -> Result<TypeId> {
        let taken = self.shallow(dwarf, id, 0)?;
        // Structures with a name are open ends; the table would be deeper than the stack otherwise.
        while let Some(id) = self.open.pop() {
            let mut ty = dwarf.ty(id)?;
            self.references(dwarf, &mut ty, 0)?;
            let Type::Composite { keyword, name: Some(name), bytes: Some(_), .. } = &ty else { continue };
            let name = self.name(keyword, name);
            let number = self.number(ty);
            self.defined.push((name, number));
            if let Some(named) = usize::try_from(name).ok().and_then(|name| self.named.get_mut(name))
                && !named.types.contains(&number)
            {
                named.types.push(number);
            }
        }
        Ok(taken)
    }

    fn shallow(&mut self, dwarf: &Dwarf<'_>, id: TypeId, depth: usize) -> Result<TypeId> {
        if let Some(known) = self.known.get(&id) {
            return Ok(*known);
        }
        if depth > DEPTH_MAX {
            return Err(LinesError::new("types lead to each other without end"));
        }
        // A type that is not understood costs the values of that type only.
        let mut ty = dwarf.ty(id).unwrap_or_else(|error| Type::Other(error.message().to_owned()));
        let taken = if let Type::Composite { keyword, name: Some(name), bytes, .. } = &ty {
            if bytes.is_some() {
                self.open.push(id);
            }
            TypeId(NAME | self.name(keyword, name))
        } else {
            self.references(dwarf, &mut ty, depth)?;
            TypeId(self.number(ty))
        };
        self.known.insert(id, taken);
        Ok(taken)
    }

    fn references(&mut self, dwarf: &Dwarf<'_>, ty: &mut Type, depth: usize) -> Result<()> {
        let mut outcome = Ok(());
        each_type(ty, &mut |id| {
            if outcome.is_ok() {
                match self.shallow(dwarf, *id, depth + 1) {
                    Ok(taken) => *id = taken,
                    Err(error) => outcome = Err(error),
                }
            }
        });
        outcome
    }
}

/// Makes an index: what [`DebugInfo::from_index`] reads instead of the file and its supplementary and split
/// ones.
///
/// [`DebugInfo::from_index`]: crate::DebugInfo::from_index
pub fn write_index<'a>(
    image: &'a Image<'a>,
    supplementary: Option<&'a Image<'a>>,
    split: &'a [Image<'a>],
) -> Result<Vec<u8>> {
    let dwarf = Dwarf::new(image, supplementary, split)?;
    let mut frames: Vec<(Range, Value)> = Vec::new();
    dwarf.each_frame(|range, value| frames.push((range, value)));
    frames.sort_by_key(|(range, _)| range.start);
    let count = dwarf.units();
    thread::scope(|scope| {
        let (send_read, read) = sync_channel(UNITS_WAITING);
        let (send_taken, taken) = sync_channel(UNITS_WAITING);
        // What keeps units that were read is of one thread.
        scope.spawn(move || read_units(Dwarf::new(image, supplementary, split), count, &send_read));
        let frames = &frames;
        let packed =
            scope.spawn(move || taken.iter().map(|unit| Packed::new(&stored(unit, frames))).collect());
        let lists = Lists::of(&dwarf, &read, &send_taken);
        // Both end with what they wait for.
        drop((read, send_taken));
        let packed: Result<Vec<Packed>> = packed.join().map_err(|_panic| unwritten("a thread ended"))?;
        // Where a unit cannot be written, the lists say only that it is not wanted.
        let packed = packed?;
        lists?.written(image, &packed)
    })
}

/// Units on their way from one thread to the next, at most.
const UNITS_WAITING: usize = 8;

/// Reads all units, until they are not wanted any more.
fn read_units(dwarf: Result<Dwarf<'_>>, count: usize, to: &SyncSender<Result<Unit>>) {
    match dwarf {
        Ok(dwarf) => {
            let mut units = (0..count).map(|number| dwarf.read_unit(number));
            while units.next().is_some_and(|unit| to.send(unit).is_ok()) {}
        }
        Err(error) => drop(to.send(Err(error))),
    }
}

/// What units have in common: types, and the lists in which units are looked up.
#[derive(Default)]
struct Lists {
    types: Types,
    functions: Lookup,
    paths: Lookup,
    /// For each unit, the structures that it defines.
    defined: Vec<Vec<(u64, u64)>>,
}

impl Lists {
    /// Collects them, and hands the units on.
    fn of(dwarf: &Dwarf<'_>, units: &Receiver<Result<Unit>>, to: &SyncSender<Unit>) -> Result<Self> {
        let mut lists = Self::default();
        let Self { types, functions, paths, defined } = &mut lists;
        for (number, unit) in units.iter().enumerate() {
            let mut unit = unit?;
            types.known.clear();
            let mut outcome = Ok(());
            each_variable(&mut unit, &mut |variable| {
                let taken = variable.ty.map(|ty| types.take(dwarf, ty)).transpose();
                variable.ty = taken.unwrap_or_else(|error| {
                    outcome = Err(error);
                    None
                });
            });
            outcome?;
            for function in &mut unit.functions {
                functions.add(&function.name, number);
                each_scope(&mut function.scope, &mut |scope| {
                    if let ScopeKind::Inlined(copy) = &scope.kind {
                        functions.add(&copy.name, number);
                    }
                });
            }
            unit.files.iter().for_each(|path| paths.add(path, number));
            defined.push(std::mem::take(&mut types.defined));
            to.send(unit).map_err(unwritten)?;
        }
        Ok(lists)
    }

    /// The index with these units.
    fn written(mut self, image: &Image<'_>, units: &[Packed]) -> Result<Vec<u8>> {
        // Where units agree, the name is enough.
        for defined in &mut self.defined {
            defined.retain(|(name, _)| {
                let named = usize::try_from(*name).ok().and_then(|name| self.types.named.get(name));
                named.is_some_and(|named| named.types.len() > 1)
            });
        }
        let mut parts = Parts::default();
        let table = self.types.table.chunks(TYPES_IN_PART);
        let head = Head {
            build_id: image.build_id().to_vec(),
            module: image.module().map(str::to_owned),
            units: units.iter().map(|unit| parts.append(unit)).collect(),
            symbols: parts.add(&image.symbols)?,
            functions: self.functions.written(&mut parts)?,
            paths: self.paths.written(&mut parts)?,
            names: parts.add(&self.types.named)?,
            chosen: parts.add(&self.defined)?,
            types: table.map(|chunk| parts.add(&chunk)).collect::<Result<_>>()?,
        };
        let head = postcard::to_stdvec(&head).map_err(unwritten)?;
        let length = u32::try_from(head.len()).map_err(unwritten)?;
        Ok([MAGIC.as_slice(), &VERSION.to_le_bytes(), &length.to_le_bytes(), &head, &parts.bytes].concat())
    }
}

fn unwritten(error: impl std::fmt::Display) -> LinesError {
    LinesError::new(format!("cannot write the index: {error}"))
}

impl Lookup {
    fn written(self, parts: &mut Parts) -> Result<Listed> {
        let mut sorted: Vec<(String, Vec<u32>)> = self.units.into_iter().collect();
        sorted.sort();
        let (names, lists): (Vec<String>, Vec<Vec<u32>>) = sorted.into_iter().unzip();
        Ok(Listed {
            names: parts.add(&names.join(&BETWEEN.to_string()))?,
            units: lists.chunks(LISTS_IN_PART).map(|chunk| parts.add(&chunk)).collect::<Result<_>>()?,
        })
    }
}

/// A unit with the rules of the frames of its code.
fn stored(unit: Unit, frames: &[(Range, Value)]) -> StoredUnit {
    let (mut own, mut next) = (Vec::new(), 0);
    let ranges = unit.functions.iter().flat_map(|function| &function.scope.ranges);
    let mut ranges: Vec<Range> = ranges.copied().collect();
    ranges.sort_by_key(|range| range.start);
    for range in ranges {
        // A rule is taken once, though many functions of a file may claim the same addresses.
        let first = frames.partition_point(|(frame, _)| frame.end <= range.start).max(next);
        let end = frames.partition_point(|(frame, _)| frame.start < range.end);
        own.extend_from_slice(frames.get(first..end).unwrap_or_default());
        next = next.max(end);
    }
    let mut unit = unit;
    forget_ids(&mut unit);
    let mut stored = StoredUnit { unit, frames: own };
    let mut last = 0_u64;
    each_address(&mut stored, &mut |address| {
        let step = address.wrapping_sub(last).cast_signed();
        last = *address;
        *address = ((step << 1) ^ (step >> 63)).cast_unsigned();
    });
    stored
}

/// Takes the ids from the variables that no pointer needs.
fn forget_ids(unit: &mut Unit) {
    let mut needed = HashSet::new();
    each_variable(unit, &mut |variable| {
        let locations: Vec<&Location> = match &variable.places {
            Places::Nowhere => Vec::new(),
            Places::Always(location) => vec![location],
            Places::At(places) => places.iter().map(|(_, location)| location).collect(),
        };
        for location in locations {
            if let Location::PointerTo { variable, .. } = location {
                needed.insert(*variable);
            }
        }
    });
    each_variable(unit, &mut |variable| {
        if !needed.contains(&variable.id) {
            variable.id = 0;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Declaration, Function, Scope};

    #[test]
    fn functions_at_the_same_addresses_have_each_rule_once() {
        let frame = |start: u64| (Range { start, end: start + 0x10 }, Value::Register(7));
        let frames = [frame(0x10), frame(0x20), frame(0x30), frame(0x80)];
        let function = |start, end| {
            let (declared, ranges) = (Declaration { file: 0, line: 1 }, vec![Range { start, end }]);
            let scope = Scope { kind: ScopeKind::Body, ranges, variables: Vec::new(), scopes: Vec::new() };
            Function { name: "f".to_owned(), declared, entry: None, scope }
        };
        let mut functions = vec![function(0x38, 0x50), function(0x18, 0x28), function(0x40, 0x10)];
        functions.extend((0..1000).map(|_| function(0x10, 0x30)));
        let unit = Unit { functions, ..Unit::default() };
        assert_eq!(stored(unit, &frames).frames.len(), 3);
    }
}
