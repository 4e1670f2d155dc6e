//! What a definition means on one build of the kernel: which parameter a register holds, which
//! member lies at an offset, which instruction at a place. On another build the same text can arm
//! and record another quantity: this tells whether it would.
//!
//! Owns the fingerprint of a definition ([`capture()`]), its comparison with that of another build
//! ([`compare()`]), and the line as it would have to be there ([`port()`]). Plain functions over
//! facts: no I/O, nothing is stored or decided here.
//!
//! What each part of a definition must have meant:
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
//! What nothing tells (memory behind a `void *`, behind `@SYM`, behind a register inside a
//! function) is [`Origin::Unknown`] or [`Read::Unknown`]: it is the same on the same build only.

mod capture;
mod chain;
mod code;
mod compare;
mod layout;
mod port;
#[cfg(test)]
mod tests;
mod type_name;

pub use capture::{Subject, capture};
pub use code::{Code, Line};
pub use compare::{Difference, DifferenceKind, compare, means_the_same_elsewhere};
pub use layout::Slot;
pub use port::port;

use serde::{Deserialize, Serialize};

/// The format in which meanings are stored. One of another format is not read: see
/// [`Meaning::from_json`].
const VERSION: u32 = 1;

/// What a definition means on one build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meaning {
    version: u32,
    /// The kernel.
    pub kernel: Build,
    /// The module that its place is in; absent for the kernel itself.
    pub module: Option<Build>,
    /// Whether all of it is known. Not so while its module is not loaded.
    pub complete: bool,
    /// Where the place is: `FUNCTION+0xOFFSET`.
    pub location: String,
    /// The prototype of the function in C; absent where the kernel shows none.
    pub prototype: Option<String>,
    /// What is recorded, in order.
    pub parts: Vec<Part>,
    /// The code that the meaning depends on; absent if it does not.
    pub code: Option<Code>,
}

/// A build of the kernel or of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// `uname -r` of the kernel; the name of a module.
    pub name: String,
    /// Build id in hexadecimal. Absent where it was linked without one: then no two are known to be
    /// the same.
    pub id: Option<String>,
}

/// One value that is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The name of the field.
    pub argument: String,
    /// The expression as it was written.
    pub written: String,
    /// The path of members if it was written by name: then only names and types matter.
    pub named: bool,
    /// Where it begins.
    pub origin: Origin,
    /// What is read of memory from there, in order.
    pub reads: Vec<Read>,
}

/// Where a value begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A parameter of the function.
    Parameter {
        /// N of the `$argN` that it was read from.
        word: u32,
        /// Which of the words of the parameter that is, from 0.
        part: u32,
        /// Its name.
        name: String,
        /// Its type, without names that C gives to types.
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
    /// What the code has made of it: see [`Meaning::code`].
    Code,
    /// The same on every kernel.
    Fixed,
    /// Nothing tells.
    Unknown {
        /// Why not.
        why: String,
    },
}

/// What is read of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Read {
    /// Members of a structure.
    Members {
        /// The structure, as C names it.
        structure: String,
        /// Distance from its beginning, in bytes.
        offset: i32,
        /// The members that are read, all or a part of each.
        slots: Vec<Slot>,
    },
    /// An element of what a pointer to numbers points to.
    Elements {
        /// Its type.
        ty: String,
        /// Distance from where it points to, in bytes.
        offset: i32,
    },
    /// Nothing tells.
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
    /// Whether both are of the same builds, so that the same text means the same.
    pub fn is_of_same_build(&self, other: &Self) -> bool {
        let same_module = match (&self.module, &other.module) {
            (None, None) => true,
            (Some(module), Some(other)) => module.is(other),
            _ => false,
        };
        self.complete && other.complete && self.kernel.is(&other.kernel) && same_module
    }

    /// Whether a part of it depends on more than names: on a build of which nothing is known, it
    /// may mean anything.
    pub fn is_raw(&self) -> bool {
        let is_raw = |part: &Part| !part.named && (part.origin != Origin::Fixed || !part.reads.is_empty());
        self.code.is_some() || self.parts.iter().any(is_raw)
    }

    /// As it is stored.
    ///
    /// # Errors
    /// None that a value of this type has.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Reads what was stored. Absent for another format, and for what is damaged: what the
    /// definition meant is unknown then.
    pub fn from_json(text: &str) -> Option<Self> {
        let read: Self = serde_json::from_str(text).ok()?;
        (read.version == VERSION).then_some(read)
    }
}
