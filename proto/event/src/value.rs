//! Value of an event's field.
//!
//! Owns what a value can be. Never owns the bytes of a string.

use std::fmt;
use std::ops::Range;

use kprobed_filter::Base;

use crate::api;
use crate::column::ColumnView;
use crate::format::push_value;

/// One value of an event.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// An unsigned integer.
    Unsigned {
        /// The value.
        value: u64,
        /// How to show it.
        base: Base,
    },
    /// A signed integer.
    Signed {
        /// The value.
        value: i64,
        /// How to show it.
        base: Base,
    },
    /// One byte, meant as a character.
    Char(u8),
    /// A kernel address.
    Symbol(Address<'a>),
    /// A string. It need not be UTF-8.
    Bytes(&'a [u8]),
    /// The values of an array.
    List(List<'a>),
    /// The memory could not be read.
    Fault,
}

/// A kernel address and its name. `Display` writes the name, or else the address in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// The address.
    pub address: u64,
    /// `SYMBOL+0xOFFSET/0xSIZE`, with ` [MODULE]` for modules, if it is known.
    pub text: Option<&'a str>,
}

impl<'a> Address<'a> {
    /// Looks the name up among symbols that are sorted by address.
    pub(crate) fn find(address: u64, symbols: &'a [api::Symbol]) -> Self {
        let text = symbols
            .binary_search_by_key(&address, |symbol| symbol.address)
            .ok()
            .and_then(|index| symbols.get(index))
            .map(|symbol| symbol.text.as_str());
        Self { address, text }
    }
}

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text {
            Some(text) => f.write_str(text),
            None => write!(f, "0x{:x}", self.address),
        }
    }
}

/// The values of an array.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    column: ColumnView<'a>,
    start: usize,
    length: usize,
    symbols: &'a [api::Symbol],
}

impl<'a> List<'a> {
    pub(crate) fn new(column: ColumnView<'a>, range: Range<usize>, symbols: &'a [api::Symbol]) -> Self {
        Self { column, start: range.start, length: range.len(), symbols }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The values, in order. None of them is a list.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let Self { column, start, length, symbols } = *self;
        (start..start + length).map(move |index| column.named(index, symbols))
    }
}

impl Value<'_> {
    /// Whether this is a fault, or a list with one in it.
    pub fn has_fault(&self) -> bool {
        match self {
            Self::Fault => true,
            Self::List(list) => list.iter().any(|value| value.has_fault()),
            _ => false,
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        push_value(&mut text, self);
        f.write_str(&String::from_utf8_lossy(&text))
    }
}
