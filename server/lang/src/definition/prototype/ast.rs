//! Syntax tree of a prototype, with the position of every part.
//!
//! Owns the tree, and the spelling of types and steps. Never parses.

use std::fmt;

use super::super::Span;
use super::super::ast::{BaseType, MemoryAddress, Name, Width};

/// `FUNCTION(PARAMETER, PARAMETER, ...)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prototype {
    /// The function.
    pub function: Name,
    /// What is recorded, in order. A parameter can have several fields, and `NULL` none.
    pub fields: Vec<Field>,
    /// The whole prototype.
    pub span: Span,
}

/// A field of the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// How it is read and shown.
    pub ty: FieldType,
    /// The source of its value.
    pub source: Source,
    /// The parameter of the function in whose place it stands, from 1.
    pub parameter: u32,
    /// All of it.
    pub span: Span,
}

/// `[unsigned] ATOM[COUNT]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldType {
    /// `unsigned` precedes it.
    pub unsigned: bool,
    /// The element.
    pub atom: Atom,
    /// An array of this many, at least 1.
    pub count: Option<u64>,
    /// All of it.
    pub span: Span,
}

/// The word for the element of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Atom {
    /// `u8`, `short`, `string` and so on.
    pub name: &'static str,
    /// The type that an argument has for it, without `unsigned` before it.
    pub base: BaseType,
}

/// The source of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// `NAME`, `NAME+OFFSET`, `NAME[INDEX]` and chains of both: the parameter, or memory reached
    /// from it.
    Parameter {
        /// The name of the field.
        name: Name,
        /// What follows the name.
        steps: Vec<Step>,
    },
    /// `NAME=ADDRESS` or `ADDRESS`: memory at a fixed address, which is `0xADDRESS` or `$SYMBOL`.
    Fixed {
        /// The name of the field, if there is one.
        name: Option<Name>,
        /// The address.
        address: MemoryAddress,
        /// The position of the address.
        span: Span,
    },
}

/// One step from a parameter to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What it does.
    pub kind: StepKind,
    /// Its position.
    pub span: Span,
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// `+N`: N bytes further.
    Add(u64),
    /// `[N]`: N elements further, and read there.
    Index(u64),
}

impl Atom {
    /// Every atom.
    pub const ALL: [Self; 19] = [
        Self::of("u8", BaseType::Unsigned(Width::W8)),
        Self::of("u16", BaseType::Unsigned(Width::W16)),
        Self::of("u32", BaseType::Unsigned(Width::W32)),
        Self::of("u64", BaseType::Unsigned(Width::W64)),
        Self::of("s8", BaseType::Signed(Width::W8)),
        Self::of("s16", BaseType::Signed(Width::W16)),
        Self::of("s32", BaseType::Signed(Width::W32)),
        Self::of("s64", BaseType::Signed(Width::W64)),
        Self::of("x8", BaseType::Hex(Width::W8)),
        Self::of("x16", BaseType::Hex(Width::W16)),
        Self::of("x32", BaseType::Hex(Width::W32)),
        Self::of("x64", BaseType::Hex(Width::W64)),
        Self::of("char", BaseType::Char),
        Self::of("short", BaseType::Signed(Width::W16)),
        Self::of("int", BaseType::Signed(Width::W32)),
        Self::of("long", BaseType::Signed(Width::W64)),
        Self::of("size_t", BaseType::Unsigned(Width::W64)),
        Self::of("symbol", BaseType::Symbol),
        Self::of("string", BaseType::String),
    ];

    const fn of(name: &'static str, base: BaseType) -> Self {
        Self { name, base }
    }

    /// The atom of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name == name)
    }

    /// Bytes of one element, by which an index counts. A string counted as 4 in 2018.
    pub fn bytes(self) -> u64 {
        self.base.bytes().into()
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unsigned = if self.unsigned { "unsigned " } else { "" };
        write!(f, "{unsigned}{}", self.atom.name)?;
        self.count.map_or(Ok(()), |count| write!(f, "[{count}]"))
    }
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(bytes) => write!(f, "+{bytes}"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}
