//! Computed fields: one column in place of the parts that the kernel records.
//!
//! Owns where the parts are in a record. The rule is in the definition: see `kprobed_lang::definition::computed`. If
//! one of the parts could not be read, the field could not either; if one is unproven, the field is.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use kprobed_lang::definition::BaseType;
use kprobed_lang::definition::computed::{Computed, PARTS_MAX, bits};

use super::compiled::{Action, CompileError, Step};
use super::row::{DecodeError, range};
use super::{Base, FieldKind, FieldSchema, Notation};

/// A rule, and where its parts are.
#[derive(Clone, Debug)]
pub(super) struct Formula {
    rule: Computed,
    parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    at: usize,
    bytes: u8,
    signed: bool,
}

impl Formula {
    /// The value in a record. `None`: there is none, since a divisor is 0.
    pub(super) fn value(&self, record: &[u8]) -> Result<Option<u64>, DecodeError> {
        let mut values = [0; PARTS_MAX];
        for (value, part) in values.iter_mut().zip(&self.parts) {
            let read = range(record, part.at, usize::from(part.bytes))?;
            let number = read.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
            *value = bits(number, 0, part.bytes.saturating_mul(8), part.signed);
        }
        Ok(self.rule.value(values.get(..self.parts.len()).unwrap_or_default()))
    }
}

/// A field that is made of others.
pub(super) struct Made {
    /// Those.
    pub(super) parts: Vec<String>,
    pub(super) field: FieldSchema,
    pub(super) step: Step,
}

/// Puts each field that is made where the first of its parts is, and takes all parts away.
pub(super) fn fold(made: &[Made], fields: &mut Vec<FieldSchema>, steps: &mut Vec<Step>) {
    if made.is_empty() {
        return;
    }
    let mut waiting: Vec<_> = made.iter().collect();
    let recorded = std::mem::take(fields).into_iter().zip(std::mem::take(steps));
    for (field, step) in recorded {
        let is_part_of = |made: &Made| made.parts.contains(&field.name);
        for Made { field, step, .. } in waiting.extract_if(.., |made| is_part_of(made)) {
            fields.push(field.clone());
            steps.push(step.clone());
        }
        if !made.iter().any(is_part_of) {
            fields.push(field);
            steps.push(step);
        }
    }
}

/// The fields of rules, with their parts.
pub(super) fn made(
    rules: &[Computed],
    fields: &[FieldSchema],
    steps: &[Step],
) -> Result<Vec<Made>, CompileError> {
    let mut made = Vec::new();
    for rule in rules {
        let (mut parts, mut guards) = (Vec::new(), Vec::new());
        let mut fault_detected = true;
        for name in rule.parts() {
            let missing = || CompileError::part(name);
            let index = fields.iter().position(|field| field.name == *name).ok_or_else(missing)?;
            let (Some(field), Some(step)) = (fields.get(index), steps.get(index)) else {
                return Err(missing());
            };
            let (bytes, signed) = match field.kind {
                FieldKind::Unsigned { bytes } => (bytes, false),
                FieldKind::Signed { bytes } => (bytes, true),
                _ => return Err(missing()),
            };
            if field.array_len.is_some() || !matches!(step.action, Action::Copy { .. }) {
                return Err(missing());
            }
            parts.push(Part { at: step.at, bytes, signed });
            guards.extend(step.guards.iter().copied());
            fault_detected &= field.fault_detected;
        }
        // One that divides has no value for a divisor of 0.
        let may_fault = rule.divides() || !guards.is_empty();
        let bytes = rule.base_type().bytes();
        let (kind, base) = match rule.base_type() {
            BaseType::Signed(_) => (FieldKind::Signed { bytes }, Base::Decimal),
            BaseType::Hex(_) => (FieldKind::Unsigned { bytes }, Base::Hex),
            _ => (FieldKind::Unsigned { bytes }, Base::Decimal),
        };
        let field = FieldSchema {
            base: Some(base),
            fault_detected,
            may_fault,
            notation: Notation::Computed,
            ..FieldSchema::new(rule.name(), kind)
        };
        let formula = Box::new(Formula { rule: rule.clone(), parts });
        let action = Action::Computed { formula, bytes: usize::from(bytes) };
        made.push(Made { parts: rule.parts().to_vec(), field, step: Step { at: 0, action, guards } });
    }
    Ok(made)
}
