//! Event schema: a probe, and the fields of its events.
//!
//! Owns the checked form of a schema: its types and widths fit together; and the mapping of fields to messages and
//! back. What a notation shows is in [`kprobed_filter::Notation`]: filters know it too. Never holds values: columns do.

use kprobed_filter::{Base, FieldKind, FieldSchema, Names, Notation};

use crate::MalformedError;
use crate::api;

/// The fields of one probe's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    id: u32,
    probe: String,
    probe_uid: i64,
    is_return: bool,
    fields: Vec<FieldSchema>,
    /// The place of the call stack among the fields: the last one, if there is one.
    stack: Option<usize>,
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
    pub fn fields(&self) -> &[FieldSchema] {
        &self.fields
    }

    /// The place of the call stack among the fields, which is then the last one.
    #[inline]
    pub(crate) fn stack(&self) -> Option<usize> {
        self.stack
    }

    /// The same probe with other fields.
    pub(crate) fn with_fields(&self, fields: Vec<FieldSchema>) -> Self {
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
            .map(|field| read(&schema.probe, field))
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

/// Reads a field message of the API.
fn read(probe: &str, field: api::EventField) -> Result<FieldSchema, MalformedError> {
    // No type has so many.
    let bytes = u8::try_from(field.width).unwrap_or(u8::MAX);
    let kind = match (field.r#type(), bytes) {
        (api::FieldType::Unsigned, 1 | 2 | 4 | 8) => FieldKind::Unsigned { bytes },
        (api::FieldType::Signed, 1 | 2 | 4 | 8) => FieldKind::Signed { bytes },
        (api::FieldType::Char, 1) => FieldKind::Char,
        (api::FieldType::Symbol, 8) => FieldKind::Symbol,
        (api::FieldType::String, 0) => FieldKind::String,
        _ => {
            let api::EventField { name, r#type, width, .. } = field;
            let message =
                format!("field `{name}` of `{probe}` has type {type} with a width of {width} bytes");
            return Err(MalformedError(message));
        }
    };
    let base = match field.base() {
        api::FieldBase::Hex => Some(Base::Hex),
        api::FieldBase::Decimal => Some(Base::Decimal),
        api::FieldBase::Unspecified => None,
    };
    Ok(FieldSchema {
        notation: notation(&field),
        name: field.name,
        kind,
        base,
        array_len: Some(field.array_length).filter(|length| *length != 0),
        fault_detected: field.fault_detected,
        // Only the kernel's filters need to know more.
        may_fault: true,
        is_lower_half: false,
    })
}

/// The message of a field.
pub fn field_message(field: &FieldSchema) -> api::EventField {
    let (kind, width) = match field.kind {
        FieldKind::Unsigned { bytes } => (api::FieldType::Unsigned, bytes.into()),
        FieldKind::Signed { bytes } => (api::FieldType::Signed, bytes.into()),
        FieldKind::Char => (api::FieldType::Char, 1),
        FieldKind::Symbol => (api::FieldType::Symbol, 8),
        FieldKind::String | FieldKind::SymbolName => (api::FieldType::String, 0),
    };
    let base = match field.base {
        Some(Base::Hex) => api::FieldBase::Hex,
        Some(Base::Decimal) => api::FieldBase::Decimal,
        None => api::FieldBase::Unspecified,
    };
    let (notation, names) = notation_message(&field.notation);
    api::EventField {
        name: field.name.clone(),
        r#type: kind.into(),
        width,
        base: base.into(),
        array_length: field.array_len.unwrap_or(0),
        fault_detected: field.fault_detected,
        notation: notation.into(),
        names,
    }
}

/// How people write the numbers of a field. A notation that this version does not know, or whose table of names is too
/// long, shows them as they are.
fn notation(field: &api::EventField) -> Notation {
    use api::FieldNotation as N;
    match field.notation() {
        N::Unspecified => Notation::Number,
        N::Errno => Notation::Errno,
        N::Names => {
            let names = field.names.iter().map(|name| (name.number, name.name.as_str()));
            Names::new(names).map_or(Notation::Number, Notation::Names)
        }
        N::NetworkOrder => Notation::NetworkOrder,
        N::Ipv4 => Notation::Ipv4,
        N::Ipv6 => Notation::Ipv6,
        N::Device => Notation::Device,
        N::Octal => Notation::Octal,
        N::Bool => Notation::Bool,
        N::Stack => Notation::Stack,
        N::OpenFlags => Notation::OpenFlags,
    }
}

/// The notation in a message, and the names of numbers.
pub(crate) fn notation_message(notation: &Notation) -> (api::FieldNotation, Vec<api::NumberName>) {
    use api::FieldNotation as N;
    let kind = match notation {
        Notation::Number | Notation::Symbol | Notation::Computed => N::Unspecified,
        Notation::Errno => N::Errno,
        Notation::Names(names) => {
            let message = |(number, name): (i64, &str)| api::NumberName { number, name: name.to_owned() };
            return (N::Names, names.iter().map(message).collect());
        }
        Notation::NetworkOrder => N::NetworkOrder,
        Notation::Ipv4 => N::Ipv4,
        Notation::Ipv6 => N::Ipv6,
        Notation::Device => N::Device,
        Notation::Octal => N::Octal,
        Notation::Bool => N::Bool,
        Notation::Stack => N::Stack,
        Notation::OpenFlags => N::OpenFlags,
    };
    (kind, Vec::new())
}

fn stack_of(fields: &[FieldSchema]) -> Option<usize> {
    let is_stack = |field: &FieldSchema| field.notation == Notation::Stack && field.kind == FieldKind::String;
    fields.last().filter(|field| is_stack(field)).map(|_| fields.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notations_are_read_again() {
        let names = Names::new([(-1, "NONE"), (1, "ONE"), (1, "UNO")]).unwrap();
        for notation in [
            Notation::Number,
            Notation::Errno,
            Notation::Names(names),
            Notation::NetworkOrder,
            Notation::Ipv4,
            Notation::Ipv6,
            Notation::Device,
            Notation::Octal,
            Notation::Bool,
            Notation::Stack,
            Notation::OpenFlags,
        ] {
            let (kind, names) = notation_message(&notation);
            let mut field = api::EventField { names, ..Default::default() };
            field.set_notation(kind);
            assert_eq!(super::notation(&field), notation);
        }
        let unknown = api::EventField { notation: 99, ..Default::default() };
        assert_eq!(notation(&unknown), Notation::Number);
        let many = (0..129).map(|number| api::NumberName { number, name: "N".to_owned() }).collect();
        let mut too_many = api::EventField { names: many, ..Default::default() };
        too_many.set_notation(api::FieldNotation::Names);
        assert_eq!(notation(&too_many), Notation::Number);
    }
}
