//! Meaning of a definition on one build of the kernel: which parameter a register holds, which
//! member is at an offset, which instruction at a place. On another build the same text can arm and
//! record another quantity: comparing meanings shows whether it would.
//!
//! Owns the fingerprint of a definition ([`capture()`]), its comparison with that of another build
//! ([`compare()`]), and the line that would record the same there ([`port()`]). Plain functions
//! over facts: never reads or stores anything, and decides nothing.
//!
//! The meaning that is kept of each part of a definition:
//!
//! | written | meaning |
//! |---|---|
//! | `%di` to `%r9`, `$argN`, `$stackN` at an entry | the parameter passed there: its name and type |
//! | `+N(...)` of a pointer to a structure | the members that are read: path, offset, size, type |
//! | `+N(...)` of a pointer to a number | that element |
//! | `$retval`, `%ax` in a return probe | the result: its type |
//! | a name (`file->f_flags`, `$arg*`) | the name and its type, wherever it lies |
//! | anything inside a function | the code from the function's start to there |
//! | registers at the entry of a function without types | the code of the whole function |
//! | `$comm`, `\IMM`, `@SYM` | itself |
//!
//! What cannot be known (memory behind a `void *`, at `@SYM`, or at a register inside a function)
//! is [`Origin::Unknown`] or [`Read::Unknown`]: it is the same on the same build only.

mod capture;
mod chain;
mod code;
mod compare;
mod layout;
mod notation;
mod port;
#[cfg(test)]
mod tests;

pub use capture::{Subject, capture};
pub use code::{Code, Line};
pub use compare::{Difference, DifferenceKind, compare, meaning_change, means_the_same_elsewhere};
pub use layout::Slot;
pub use notation::notations;
pub use port::port;

use serde::{Deserialize, Serialize};

/// The format in which meanings are stored. Another format is not read: see [`Meaning::from_value`].
const VERSION: u32 = 2;

/// The meaning of a definition on one build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meaning {
    version: u32,
    /// The kernel.
    pub kernel: Build,
    /// The module that its place is in; absent for the kernel itself.
    pub module: Option<Build>,
    /// Whether all of it is known. False while its module is not loaded.
    pub complete: bool,
    /// The place: `FUNCTION+0xOFFSET`.
    pub location: String,
    /// The name of its function, by which the place is known whatever its form. Empty while it is not
    /// known.
    pub function: String,
    /// Whether it was written as an address, which says less than any name: it is of one boot, and its
    /// module is not in it.
    pub by_address: bool,
    /// The prototype of the function in C; absent if the kernel shows none.
    pub prototype: Option<String>,
    /// The recorded values, in order.
    pub parts: Vec<Part>,
    /// The code that the meaning depends on; absent if it does not.
    pub code: Option<Code>,
}

/// A build of the kernel or of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// `uname -r` of the kernel; the name of a module.
    pub name: String,
    /// Build id in hexadecimal. Absent if it was linked without one: then no two builds are known
    /// to be the same.
    pub id: Option<String>,
}

/// One recorded value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The name of the field.
    pub argument: String,
    /// The expression as it was written.
    pub written: String,
    /// Whether it was written by name: then only names and types matter.
    pub named: bool,
    /// The origin of the value.
    pub origin: Origin,
    /// The reads of memory from there, in order.
    pub reads: Vec<Read>,
}

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A parameter of the function.
    Parameter {
        /// N of the `$argN` from which it was read.
        word: u32,
        /// Which of the words of the parameter that is, from 0.
        part: u32,
        /// Its name.
        name: String,
        /// Its type, with `typedef` names replaced.
        ty: String,
        /// Its declaration in C.
        declaration: String,
    },
    /// The result of the function.
    Result {
        /// Its type, as above.
        ty: String,
        /// Its type in C.
        declaration: String,
    },
    /// What the code has computed: see [`Meaning::code`].
    Code,
    /// The same on every kernel.
    Fixed,
    /// Not known.
    Unknown {
        /// Why not.
        why: String,
    },
}

/// A read of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Read {
    /// Members of a structure.
    Members {
        /// The structure, as C names it.
        structure: String,
        /// Distance from its beginning, in bytes.
        offset: i32,
        /// The members that are read, completely or in part.
        slots: Vec<Slot>,
    },
    /// An element of an array of numbers that a pointer points to.
    Elements {
        /// Its type.
        ty: String,
        /// Distance from the target of the pointer, in bytes.
        offset: i32,
    },
    /// Not known.
    Unknown {
        /// Why not.
        why: String,
    },
}

impl Build {
    /// Whether both are known to be the same build.
    pub fn is(&self, other: &Self) -> bool {
        self.id.is_some() && self == other
    }
}

impl Meaning {
    /// Whether both are of the same builds and about the same function, so that the same text means the
    /// same.
    pub fn is_of_same_build(&self, other: &Self) -> bool {
        let same_module = match (&self.module, &other.module) {
            (None, None) => true,
            (Some(module), Some(other)) => module.is(other),
            _ => false,
        };
        self.complete
            && other.complete
            && self.kernel.is(&other.kernel)
            && same_module
            && self.is_of_same_function(other)
    }

    /// Whether both are about the same function. A place that was written with a name can be moved into a
    /// module, or out of one.
    pub fn is_of_same_function(&self, other: &Self) -> bool {
        let module = |meaning: &Self| meaning.module.as_ref().map(|module| module.name.clone());
        self.function == other.function && (!self.by_address || module(self) == module(other))
    }

    /// Whether a part of it depends on more than names: on a build of which nothing is known, its
    /// meaning is not known.
    pub fn is_raw(&self) -> bool {
        let is_raw = |part: &Part| !part.named && (part.origin != Origin::Fixed || !part.reads.is_empty());
        self.code.is_some() || self.parts.iter().any(is_raw)
    }

    /// Reads a stored meaning. Absent for another format, and for a damaged one: the meaning is
    /// then unknown.
    pub fn from_value(value: serde_json::Value) -> Option<Self> {
        let read: Self = serde_json::from_value(value).ok()?;
        (read.version == VERSION).then_some(read)
    }
}
