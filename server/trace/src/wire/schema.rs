//! Schema messages: the `EventSchema` of a schema. Back again is with the clients' code, in `kprobed_event`.
//!
//! Owns the mapping of field types. Never assigns a schema number: the source table does.

use kprobed_event::{Projected, notation_message};
use kprobed_proto::v1;

use crate::decode::{Base, FieldKind, FieldSchema, Schema};
use kprobed_lang::model::{ProbeName, ProbeUid};

/// The message of a schema, with the fields that a projection keeps. Number 0 is for schemas
/// outside of streams.
pub fn schema_message(
    schema_id: u32,
    name: &ProbeName,
    uid: ProbeUid,
    schema: &Schema,
    projected: Option<&Projected>,
) -> v1::EventSchema {
    let wanted = |index: usize| projected.is_none_or(|projected| projected.fields.contains(&index));
    v1::EventSchema {
        schema_id,
        probe: name.to_string(),
        probe_uid: uid.0,
        is_return: schema.is_return,
        fields: (0..)
            .zip(&schema.fields)
            .filter(|(index, _)| wanted(*index))
            .map(|(_, field)| field_message(field))
            .collect(),
    }
}

fn field_message(field: &FieldSchema) -> v1::EventField {
    let (kind, width) = match field.kind {
        FieldKind::Unsigned { bytes } => (v1::FieldType::Unsigned, bytes.into()),
        FieldKind::Signed { bytes } => (v1::FieldType::Signed, bytes.into()),
        FieldKind::Char => (v1::FieldType::Char, 1),
        FieldKind::Symbol => (v1::FieldType::Symbol, 8),
        FieldKind::String | FieldKind::SymbolName => (v1::FieldType::String, 0),
    };
    let base = match field.base {
        Some(Base::Hex) => v1::FieldBase::Hex,
        Some(Base::Decimal) => v1::FieldBase::Decimal,
        None => v1::FieldBase::Unspecified,
    };
    let (notation, names) = notation_message(&field.notation);
    v1::EventField {
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
