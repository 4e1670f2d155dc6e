//! Schema of a probe's events: names, types and sizes of its fields.

use crate::Notation;

/// The fields of an event, without those that all events have and without hidden ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// In the order of the definition.
    pub fields: Vec<FieldSchema>,
    /// Whether the events come from a return probe.
    pub is_return: bool,
}

/// One field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSchema {
    /// Name.
    pub name: String,
    /// What a value is.
    pub kind: FieldKind,
    /// How an integer is meant to be shown. Absent for what is not shown as an integer.
    pub base: Option<Base>,
    /// How many values a row has. Absent: one, and the field is not an array.
    pub array_len: Option<u32>,
    /// Whether an unreadable value is marked, or cannot occur. False: the value is unproven. It may
    /// be what was in the ring buffer before, without any sign of it.
    pub fault_detected: bool,
    /// Whether a value can be marked as unreadable.
    pub may_fault: bool,
    /// How people write its numbers.
    pub notation: Notation,
    /// Whether the kernel records it as 64 bits without a sign, of which these are the lower: an argument of a system
    /// call.
    pub is_lower_half: bool,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// Unsigned integer.
    Unsigned {
        /// Its size: 1, 2, 4 or 8.
        bytes: u8,
    },
    /// Two's complement integer.
    Signed {
        /// Its size: 1, 2, 4 or 8.
        bytes: u8,
    },
    /// One byte that is meant as a character.
    Char,
    /// Kernel address of 8 bytes that is meant to be shown as a symbol.
    Symbol,
    /// Bytes of any number, not necessarily UTF-8.
    String,
    /// Kernel address of 8 bytes in the record, and the name of its symbol everywhere else: a text that the daemon
    /// makes, because the kernel cannot do it safely (`symstr`).
    SymbolName,
}

/// How an integer is meant to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Decimal.
    Decimal,
    /// Hexadecimal.
    Hex,
}

impl Schema {
    /// Whether every number is shown as it is recorded.
    pub fn is_shown_as_recorded(&self) -> bool {
        let is_number =
            |notation: &Notation| matches!(notation, Notation::Number | Notation::Stack | Notation::Symbol);
        let is_plain = |field: &FieldSchema| is_number(&field.notation) && !field.is_lower_half;
        self.fields.iter().all(is_plain)
    }
}

impl FieldSchema {
    /// A field of one value, which is shown as it is recorded, and marked if it could not be read.
    pub fn new(name: &str, kind: FieldKind) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            base: None,
            array_len: None,
            fault_detected: true,
            may_fault: true,
            notation: Notation::Number,
            is_lower_half: false,
        }
    }

    /// How many values one event has.
    #[inline]
    pub fn values_per_row(&self) -> usize {
        self.array_len.map_or(1, |length| length as usize)
    }

    /// Type for people, such as `u32`, `x64` or `string[4]`.
    pub fn type_name(&self) -> String {
        let name = match (self.kind, self.base) {
            (FieldKind::Unsigned { bytes }, Some(Base::Hex)) => format!("x{}", 8 * u32::from(bytes)),
            (FieldKind::Unsigned { bytes }, _) => format!("u{}", 8 * u32::from(bytes)),
            (FieldKind::Signed { bytes }, _) => format!("s{}", 8 * u32::from(bytes)),
            (FieldKind::Char, _) => "char".to_owned(),
            (FieldKind::Symbol, _) => "symbol".to_owned(),
            (FieldKind::String | FieldKind::SymbolName, _) => "string".to_owned(),
        };
        match self.array_len {
            None => name,
            Some(length) => format!("{name}[{length}]"),
        }
    }
}

impl FieldKind {
    /// Whether its values are texts in a column.
    pub const fn is_text(self) -> bool {
        matches!(self, Self::String | Self::SymbolName)
    }

    /// Size of a value in a column in bytes; 0 for texts.
    #[inline]
    pub const fn value_bytes(self) -> usize {
        match self {
            Self::Unsigned { bytes } | Self::Signed { bytes } => bytes as usize,
            Self::Char => 1,
            Self::Symbol => 8,
            Self::String | Self::SymbolName => 0,
        }
    }
}
