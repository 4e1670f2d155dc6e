//! Event schema: a probe, and the fields of its events.
//!
//! Owns the checked form of a schema: its types and widths fit together. Never holds values:
//! columns do.

use kprobed_filter::{Base, FieldKind, FieldSchema, Notation};

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

fn stack_of(fields: &[FieldSchema]) -> Option<usize> {
    let is_stack = |field: &FieldSchema| field.notation == Notation::Stack && field.kind == FieldKind::String;
    fields.last().filter(|field| is_stack(field)).map(|_| fields.len() - 1)
}
