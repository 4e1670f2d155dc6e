//! Syntax tree of a prototype, with the position of every part.
//!
//! Owns the tree, and the spelling of types and steps. Never parses.

use std::fmt;

use super::super::Span;
use super::super::ast::{MemoryAddress, Name, Width};

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

/// The type of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atom {
    /// `u8` to `u64`.
    U(Width),
    /// `s8` to `s64`.
    S(Width),
    /// `x8` to `x64`.
    X(Width),
    /// `char`.
    Char,
    /// `short`.
    Short,
    /// `int`.
    Int,
    /// `long`.
    Long,
    /// `size_t`.
    SizeT,
    /// `symbol`: an address, shown as a symbol.
    Symbol,
    /// `string`: text up to its NUL.
    String,
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
    /// Every atom with its spelling.
    pub const ALL: [(&'static str, Self); 19] = [
        ("u8", Self::U(Width::W8)),
        ("u16", Self::U(Width::W16)),
        ("u32", Self::U(Width::W32)),
        ("u64", Self::U(Width::W64)),
        ("s8", Self::S(Width::W8)),
        ("s16", Self::S(Width::W16)),
        ("s32", Self::S(Width::W32)),
        ("s64", Self::S(Width::W64)),
        ("x8", Self::X(Width::W8)),
        ("x16", Self::X(Width::W16)),
        ("x32", Self::X(Width::W32)),
        ("x64", Self::X(Width::W64)),
        ("char", Self::Char),
        ("short", Self::Short),
        ("int", Self::Int),
        ("long", Self::Long),
        ("size_t", Self::SizeT),
        ("symbol", Self::Symbol),
        ("string", Self::String),
    ];

    /// The atom of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, atom)| *atom)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, atom)| *atom == self).map_or("", |(name, _)| name)
    }

    /// Bytes of one element, by which an index counts. A string counted as 4 in 2018.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::U(width) | Self::S(width) | Self::X(width) => width.bytes() as u64,
            Self::Char => 1,
            Self::Short => 2,
            Self::Int | Self::String => 4,
            Self::Long | Self::SizeT | Self::Symbol => 8,
        }
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unsigned = if self.unsigned { "unsigned " } else { "" };
        write!(f, "{unsigned}{}", self.atom.name())?;
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
