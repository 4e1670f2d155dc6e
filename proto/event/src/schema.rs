//! Event schema: names, types and widths of a probe's fields.
//!
//! Owns the checked form of a schema: its types and widths fit together. Never holds values:
//! columns do.

use kprobed_filter::Notation;

use crate::MalformedError;
use crate::api;
use crate::notation::notation;

/// The fields of one probe's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    id: u32,
    probe: String,
    probe_uid: i64,
    is_return: bool,
    fields: Vec<Field>,
    /// The place of the call stack among the fields: the last one, if there is one.
    stack: Option<usize>,
}

/// One field of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, unique within the event.
    pub name: String,
    /// The type of its values.
    pub kind: FieldKind,
    /// Number of values in an array. 0: not an array.
    pub array_length: u32,
    /// Whether the daemon detects a faulted read from memory and reports it as a fault. If not,
    /// values are unproven.
    pub fault_detected: bool,
    /// How people write its numbers.
    pub notation: Notation,
}

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// Unsigned integer.
    Unsigned(Width, Base),
    /// Two's complement integer.
    Signed(Width, Base),
    /// One byte, meant as a character.
    Char,
    /// Kernel address, meant to be shown as a symbol.
    Symbol,
    /// Bytes of any length, mostly but not always UTF-8.
    String,
}

/// Size of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// One byte.
    W1,
    /// Two bytes.
    W2,
    /// Four bytes.
    W4,
    /// Eight bytes.
    W8,
}

/// How an integer is meant to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// `42`
    Decimal,
    /// `0x2a`
    Hex,
}

impl Width {
    /// Size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::W1 => 1,
            Self::W2 => 2,
            Self::W4 => 4,
            Self::W8 => 8,
        }
    }

    fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            1 => Some(Self::W1),
            2 => Some(Self::W2),
            4 => Some(Self::W4),
            8 => Some(Self::W8),
            _ => None,
        }
    }
}

impl FieldKind {
    /// Name for people and in output, such as `u32`, `x64`, `string`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unsigned(width, Base::Decimal) => ["u8", "u16", "u32", "u64"][width as usize],
            Self::Unsigned(width, Base::Hex) => ["x8", "x16", "x32", "x64"][width as usize],
            Self::Signed(width, _) => ["s8", "s16", "s32", "s64"][width as usize],
            Self::Char => "char",
            Self::Symbol => "symbol",
            Self::String => "string",
        }
    }

    /// Size of one value; `None` if values differ in length.
    #[inline]
    pub(crate) fn width(self) -> Option<Width> {
        match self {
            Self::Unsigned(width, _) | Self::Signed(width, _) => Some(width),
            Self::Char => Some(Width::W1),
            Self::Symbol => Some(Width::W8),
            Self::String => None,
        }
    }

    fn new(kind: api::FieldType, base: api::FieldBase, width: u32) -> Option<Self> {
        let base = match base {
            api::FieldBase::Hex => Base::Hex,
            api::FieldBase::Decimal | api::FieldBase::Unspecified => Base::Decimal,
        };
        match (kind, width) {
            (api::FieldType::Unsigned, _) => {
                Width::from_bytes(width).map(|width| Self::Unsigned(width, base))
            }
            (api::FieldType::Signed, _) => Width::from_bytes(width).map(|width| Self::Signed(width, base)),
            (api::FieldType::Char, 1) => Some(Self::Char),
            (api::FieldType::Symbol, 8) => Some(Self::Symbol),
            (api::FieldType::String, 0) => Some(Self::String),
            _ => None,
        }
    }
}

impl Field {
    /// How many values one event has.
    pub(crate) fn values_per_row(&self) -> usize {
        (self.array_length as usize).max(1)
    }

    /// Type for people, such as `u32` or `string[4]`.
    pub fn type_name(&self) -> String {
        match self.array_length {
            0 => self.kind.name().to_owned(),
            length => format!("{}[{length}]", self.kind.name()),
        }
    }

    /// Reads a field message of the API.
    fn new(probe: &str, field: api::EventField) -> Result<Self, MalformedError> {
        let kind = FieldKind::new(field.r#type(), field.base(), field.width).ok_or_else(|| {
            MalformedError::BadField {
                probe: probe.to_owned(),
                field: field.name.clone(),
                kind: field.r#type,
                width: field.width,
            }
        })?;
        Ok(Self {
            notation: notation(&field),
            name: field.name,
            kind,
            array_length: field.array_length,
            fault_detected: field.fault_detected,
        })
    }
}

impl Schema {
    /// Identifies the schema within its stream.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// `GROUP/EVENT`.
    pub fn probe(&self) -> &str {
        &self.probe
    }

    /// The probe's uid.
    pub fn probe_uid(&self) -> i64 {
        self.probe_uid
    }

    /// Whether the events come from a return probe.
    pub fn is_return(&self) -> bool {
        self.is_return
    }

    /// The fields, in the order of the definition.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The place of the call stack among the fields, which is then the last one.
    #[inline]
    pub(crate) fn stack(&self) -> Option<usize> {
        self.stack
    }

    /// The same probe with other fields.
    pub(crate) fn with_fields(&self, fields: Vec<Field>) -> Self {
        let Self { id, probe_uid, is_return, .. } = *self;
        Self { id, probe: self.probe.clone(), probe_uid, is_return, stack: stack_of(&fields), fields }
    }

    /// Names of fields whose faults the daemon cannot detect.
    pub fn unproven(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().filter(|field| !field.fault_detected).map(|field| field.name.as_str())
    }
}

impl TryFrom<api::EventSchema> for Schema {
    type Error = MalformedError;

    fn try_from(schema: api::EventSchema) -> Result<Self, MalformedError> {
        let fields = schema
            .fields
            .into_iter()
            .map(|field| Field::new(&schema.probe, field))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            stack: stack_of(&fields),
            id: schema.schema_id,
            probe: schema.probe,
            probe_uid: schema.probe_uid,
            is_return: schema.is_return,
            fields,
        })
    }
}

fn stack_of(fields: &[Field]) -> Option<usize> {
    let is_stack = |field: &Field| field.notation == Notation::Stack && field.kind == FieldKind::String;
    fields.last().filter(|field| is_stack(field)).map(|_| fields.len() - 1)
}
