//! What debug information says, as plain values: the same from DWARF and from an index.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::symbols::Symbols;
use crate::value::{Value, bounded};

/// Addresses from `start` up to, and without, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Whether one of the ranges has this address.
pub(crate) fn contain(ranges: &[Range], address: u64) -> bool {
    ranges.iter().any(|range| range.has(address))
}

impl Range {
    /// Whether an address is in it.
    pub(crate) fn has(self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// The value of a cell, which is read when it is first needed.
pub(crate) fn once<T>(cell: &OnceCell<T>, read: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = read()?;
    Ok(cell.get_or_init(|| value))
}

/// Parts that were read, by their number: `MOST` at most, and then none of them.
pub(crate) struct Kept<T, const MOST: usize>(RefCell<HashMap<usize, Rc<T>>>);

impl<T, const MOST: usize> Default for Kept<T, MOST> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T, const MOST: usize> Kept<T, MOST> {
    /// The part of a number, which is read if it is not kept.
    pub(crate) fn get(&self, number: usize, read: impl FnOnce() -> Result<T>) -> Result<Rc<T>> {
        let known = self.0.borrow().get(&number).cloned();
        known.map_or_else(|| Ok(self.keep(number, read()?)), Ok)
    }

    pub(crate) fn keep(&self, number: usize, part: T) -> Rc<T> {
        let mut kept = self.0.borrow_mut();
        if kept.len() >= MOST {
            kept.clear();
        }
        let part = Rc::new(part);
        kept.insert(number, Rc::clone(&part));
        part
    }
}

/// The units that have each name.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    pub(crate) units: HashMap<String, Vec<u32>>,
}

impl Lookup {
    /// Adds a unit; units come in their order.
    pub(crate) fn add(&mut self, name: &str, unit: usize) {
        let unit = u32::try_from(unit).unwrap_or(u32::MAX);
        match self.units.get_mut(name) {
            Some(units) if units.last() == Some(&unit) => {}
            Some(units) => units.push(unit),
            None => drop(self.units.insert(name.to_owned(), vec![unit])),
        }
    }
}

/// One compilation unit.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Unit {
    /// Paths of sources; those of the kernel are relative to its tree.
    pub(crate) files: Vec<String>,
    /// Functions with code, and those that are inlined.
    pub(crate) functions: Vec<Function>,
    pub(crate) globals: Vec<Variable>,
    /// The statements, in the order of the file.
    pub(crate) rows: Vec<Row>,
}

/// A line of a source that has an instruction of its own. Line 0 ends a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) address: u64,
    pub(crate) file: u32,
    pub(crate) line: u32,
}

/// Where something is declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Declaration {
    pub(crate) file: u32,
    pub(crate) line: u32,
}

/// A function as it is declared, and its code, if it has code of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) declared: Declaration,
    /// The address that callers call; absent if there is no own code.
    pub(crate) entry: Option<u64>,
    pub(crate) scope: Scope,
}

/// What a scope is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum ScopeKind {
    /// The body of a function with its own code.
    Body,
    /// A block within a function.
    Block,
    /// A copy of another function.
    Inlined(Inlined),
}

/// A copy of a function in another one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Inlined {
    pub(crate) name: String,
    pub(crate) declared: Declaration,
    pub(crate) called: Declaration,
    /// The address at which the copy begins.
    pub(crate) entry: Option<u64>,
}

/// Code in which variables are visible.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Scope {
    pub(crate) kind: ScopeKind,
    pub(crate) ranges: Vec<Range>,
    pub(crate) variables: Vec<Variable>,
    #[serde(deserialize_with = "bounded")]
    pub(crate) scopes: Vec<Scope>,
}

/// A variable or a parameter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Variable {
    /// Identifies it for what points to it without having an address.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) is_parameter: bool,
    pub(crate) declared: Declaration,
    pub(crate) ty: Option<TypeId>,
    pub(crate) places: Places,
}

/// Where a variable lives.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Places {
    /// Nowhere: the compiler has removed it.
    Nowhere,
    /// At one place, or as one value.
    Always(Location),
    /// By the address of the code; the first that fits.
    At(Vec<(Range, Location)>),
}

/// Where the bytes of a variable are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Location {
    /// In memory at this address.
    Memory(Value),
    /// Nowhere, but this is the value.
    Value(Value),
    /// Nowhere, but these are the bytes.
    Bytes(Vec<u8>),
    /// In parts, from the least significant one.
    Pieces(Vec<Piece>),
    /// A pointer that is nowhere, to a variable (by its id) plus bytes.
    PointerTo { variable: u64, offset: i64 },
    /// Not understood; the text says why.
    Unknown(String),
}

/// A part of a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) bits: u64,
    /// `None`: this part is nowhere.
    #[serde(deserialize_with = "bounded")]
    pub(crate) location: Option<Location>,
}

/// A type of one source of debug information.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct TypeId(pub(crate) u64);

/// A type.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Type {
    /// A number, a character or a truth value.
    Number {
        name: String,
        bytes: u64,
        signed: bool,
    },
    /// Another name of a type, or `const`, `volatile` and their kin.
    Alias {
        prefix: String,
        name: Option<String>,
        to: Option<TypeId>,
    },
    Pointer {
        to: Option<TypeId>,
    },
    /// A structure or a union. Without a size, only a declaration.
    Composite {
        keyword: String,
        name: Option<String>,
        bytes: Option<u64>,
        members: Vec<Member>,
    },
    /// The number of elements of each dimension, the outermost first; absent if it is not known.
    Array {
        of: Option<TypeId>,
        counts: Vec<Option<u64>>,
    },
    Enumeration {
        name: Option<String>,
        bytes: u64,
        signed: bool,
    },
    /// A type that a probe cannot show; its name.
    Other(String),
}

/// A member of a structure.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Absent for a structure whose members belong to the outer one.
    pub(crate) name: Option<String>,
    pub(crate) ty: Option<TypeId>,
    /// From the beginning of the structure.
    pub(crate) bit_offset: u64,
    /// Of a bit-field.
    pub(crate) bit_width: Option<u8>,
}

/// Debug information of one kernel or of one module, as the resolution reads it.
pub(crate) trait Source {
    /// Empty if the file has none.
    fn build_id(&self) -> &[u8];
    fn symbols(&self) -> &Symbols;
    /// The unit of this number, whole.
    fn unit(&self, number: usize) -> Result<Rc<Unit>>;
    /// The units with code or with copies of a function of this name. Without `all`, a global function of
    /// this name may be enough: others of the same name, private to their sources, are left out.
    fn units_of_function(&self, name: &str, all: bool) -> Result<Vec<usize>>;
    /// The units with lines of a source file.
    fn units_of_file(&self, path: &str) -> Result<Vec<usize>>;
    fn ty(&self, id: TypeId) -> Result<Type>;
    /// The canonical frame address at an address of a unit.
    fn frame_address(&self, unit: usize, address: u64) -> Result<Value>;
    /// The names of all functions.
    fn function_names(&self) -> Result<Vec<String>>;
}

/// Whether a path ends with these components.
pub(crate) fn has_components(path: &str, wanted: &str) -> bool {
    let wanted = wanted.trim_start_matches("./");
    !wanted.is_empty()
        && path
            .strip_suffix(wanted)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('/') || wanted.starts_with('/'))
}
