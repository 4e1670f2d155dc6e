//! Compiled format of an event: the copy steps that decode its records.
//!
//! Owns every decision that can be made once for an event: the kind of each field, what the declared type of a
//! tracepoint's field says beyond size and sign, the order of the descriptors, and which hidden argument guards which
//! field. Never reads a record: `row` and `gather` run the steps.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::columns::{ADDRESS_BYTES, Columns};
use super::companion::{self, Role};
use super::computed::{self, Formula};
use super::dynamic::Guard;
use super::gather::WINDOW_BYTES;
use super::path::{self, PathPlan};
use super::stack;
use super::{Base, FieldKind, FieldSchema, Notation, Schema};
use kprobed_host::tracefs::format::{Field, Format, Presentation, Shape};
use kprobed_lang::definition::computed::Computed;
use kprobed_lang::definition::path::PathField;

/// Largest size of a record: descriptors have 16 bits for an offset.
const RECORD_BYTES_MAX: usize = 1 << 16;

/// Facts about an event's fields that its format does not show.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Fields that are not read from memory (registers, constants), so that they cannot fault.
    pub infallible: HashSet<String>,
    /// Fields that may not hold what their names say, even if they could be read.
    pub unproven: HashSet<String>,
    /// Fields with addresses that are shown as symbol names.
    pub named: HashSet<String>,
    /// How people write the numbers of fields. Of the fields of a tracepoint their declarations say more.
    pub notations: HashMap<String, Notation>,
    /// Whether the call stack is recorded with each event.
    pub stack: bool,
    /// All arguments of the definition by name, if it also has `$arg*`: every other field is a
    /// parameter, and cannot fault.
    pub besides_parameters: Option<HashSet<String>>,
    /// Fields that are computed of others, which are shown in their place.
    pub computed: Vec<Computed>,
    /// Paths that are joined of others, which are shown in their place.
    pub paths: Vec<PathField>,
}

impl CompileOptions {
    fn is_infallible(&self, name: &str) -> bool {
        let is_parameter = self.besides_parameters.as_ref().is_some_and(|others| !others.contains(name));
        is_parameter || self.infallible.contains(name)
    }
}

/// How the records of one event are decoded.
#[derive(Clone, Debug)]
pub struct CompiledFormat {
    pub(super) id: u16,
    pub(super) schema: Arc<Schema>,
    pub(super) head: Head,
    /// One for each field of the schema.
    pub(super) steps: Vec<Step>,
    /// Size in bytes of the fixed part of this event's records.
    pub(super) fixed_bytes: usize,
    /// Whether all steps are copies without guards, within a window.
    pub(super) is_fixed: bool,
}

/// Offsets of the fields that are not in the schema, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) flags: usize,
    pub(super) preempt_count: usize,
    pub(super) pid: usize,
    pub(super) ip: Option<usize>,
    pub(super) return_ip: Option<usize>,
}

/// How one field of a record becomes the next row of its column.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) at: usize,
    pub(super) action: Action,
    /// The field could not be read if any of these guards shows a fault.
    pub(super) guards: Vec<Guard>,
}

/// Action of a step.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Numbers, as they are.
    Copy { bytes: usize },
    /// An address that is shown as a symbol name.
    Address,
    /// Text in the fixed part.
    Characters { bytes: usize },
    /// String of a dynamic event.
    Argument { next_at: Option<usize> },
    /// Array of strings of a dynamic event.
    ArgumentArray { count: usize, next_at: Option<usize> },
    /// Dynamic data of a tracepoint.
    Data { relative: bool, is_text: bool },
    /// Call stack, which has a record of its own.
    Stack,
    /// A number of this size by a formula.
    Computed { formula: Box<Formula>, bytes: usize },
    /// The text of a whole path.
    Path(Box<PathPlan>),
}

/// Why records of a format cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CompileError(String);

impl CompileError {
    /// One of the common fields is missing, or has another offset or size than in all known
    /// kernels.
    fn common(name: &str) -> Self {
        Self(format!("`{name}` is not where and what it should be"))
    }

    /// A field ends outside of any possible record.
    fn outside(name: &str) -> Self {
        Self(format!("field `{name}` lies outside of any record"))
    }

    /// A field that is made of others lacks such a number or text.
    pub(super) fn part(name: &str) -> Self {
        Self(format!("there is no `{name}` of which a field could be made"))
    }
}

impl CompiledFormat {
    /// Compiles a format. An event with the addresses of a probe is a dynamic event, whose
    /// arguments can fault; any other is a tracepoint, which copies its arguments.
    pub fn compile(format: &Format, options: &CompileOptions) -> Result<Self, CompileError> {
        let (head, arguments) = head(format)?;
        let of_probe = head.ip.is_some();
        let (mut fields, mut steps, mut guards) = (Vec::new(), Vec::<Step>::new(), Vec::new());
        for (field, next_at) in arguments.iter().zip(next_descriptors(arguments)) {
            let name = &field.name;
            match companion::role(name) {
                Role::User => {
                    fields.push(schema_of(field, &format.name, of_probe, options)?);
                    let action = action_of(field, of_probe, next_at, options);
                    steps.push(Step { at: field.offset, action, guards: Vec::new() });
                }
                // Of another version.
                Role::Unknown => return Err(CompileError(format!("hidden argument `{name}` is not known"))),
                Role::End | Role::Guard { .. } if !of_probe || field.shape != Shape::DataLoc => {
                    return Err(CompileError(format!("hidden argument `{name}` is not a string of a probe")));
                }
                Role::End => {}
                Role::Guard { field: target } => {
                    // The descriptor of a guard tells something only together with the next one.
                    let is_last = || CompileError(format!("nothing comes after the guard `{name}`"));
                    let next_at = next_at.ok_or_else(is_last)?;
                    guards.push((target, Guard { at: field.offset, next_at }, field));
                }
            }
        }
        for (target, guard, field) in guards {
            match (fields.get_mut(target), steps.get_mut(target)) {
                (Some(schema), Some(step))
                    if matches!(step.action, Action::Copy { .. } | Action::Address) =>
                {
                    (schema.fault_detected, schema.may_fault) = (true, true);
                    step.guards.push(guard);
                }
                // A field that does not exist, or that shows its faults itself.
                _ => {
                    let name = &field.name;
                    return Err(CompileError(format!("there is no number for `{name}` to guard")));
                }
            }
        }
        for field in fields.iter_mut().filter(|field| options.unproven.contains(&field.name)) {
            field.fault_detected = false;
        }
        let mut made = computed::made(&options.computed, &fields, &steps)?;
        made.extend(path::made(&options.paths, &fields, &steps)?);
        computed::fold(&made, &mut fields, &mut steps);
        if options.stack {
            fields.push(stack::field());
            steps.push(Step { at: 0, action: Action::Stack, guards: Vec::new() });
        }
        let is_return = head.return_ip.is_some();
        let schema = Arc::new(Schema { fields, is_return });
        let fixed_bytes = fixed_bytes(format)?;
        let is_fixed = fixed_bytes <= WINDOW_BYTES
            && steps.iter().all(|step| matches!(step.action, Action::Copy { .. }) && step.guards.is_empty());
        Ok(Self { id: format.id, schema, head, steps, fixed_bytes, is_fixed })
    }

    /// `common_type` of the records that it decodes.
    pub const fn id(&self) -> u16 {
        self.id
    }

    /// The schema of the decoded columns.
    pub const fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Whether a record with the call stack follows each of its records.
    pub fn has_stack(&self) -> bool {
        self.steps.last().is_some_and(|step| matches!(step.action, Action::Stack))
    }

    /// Columns without rows. The plan decodes only into columns that it made.
    pub fn columns(&self) -> Columns {
        Columns::new(Arc::clone(&self.schema))
    }
}

/// Separates the fields that are not in the schema from the others.
fn head(format: &Format) -> Result<(Head, &[Field]), CompileError> {
    let common = |name: &'static str, size: usize| {
        let field = format.common.iter().find(|field| field.name == name);
        let field = field.filter(|field| field.shape == Shape::Scalar { size });
        field.map(|field| field.offset).ok_or_else(|| CompileError::common(name))
    };
    if common("common_type", 2)? != 0 {
        return Err(CompileError::common("common_type"));
    }
    let address = |field: &Field| match field.shape {
        Shape::Scalar { size: 8 } => Ok(Some(field.offset)),
        _ => Err(CompileError(format!("address `{}` does not have 8 bytes", field.name))),
    };
    // The names are reserved: no argument can have them
    // (kernel/trace/trace_probe.c:reserved_field_names).
    let (ip, return_ip, arguments) = match format.fields.as_slice() {
        [first, rest @ ..] if first.name == "__probe_ip" => (address(first)?, None, rest),
        [first, second, rest @ ..] if first.name == "__probe_func" && second.name == "__probe_ret_ip" => {
            (address(first)?, address(second)?, rest)
        }
        all => (None, None, all),
    };
    let head = Head {
        flags: common("common_flags", 1)?,
        preempt_count: common("common_preempt_count", 1)?,
        pid: common("common_pid", 4)?,
        ip,
        return_ip,
    };
    Ok((head, arguments))
}

/// For each field, the offset of the first descriptor after it.
fn next_descriptors(fields: &[Field]) -> Vec<Option<usize>> {
    let mut next = None;
    let mut all: Vec<_> = fields
        .iter()
        .rev()
        .map(|field| match field.shape {
            Shape::DataLoc | Shape::DataLocArray { .. } => next.replace(field.offset),
            Shape::Scalar { .. } | Shape::Array { .. } | Shape::RelLoc => next,
        })
        .collect();
    all.reverse();
    all
}

fn schema_of(
    field: &Field,
    event: &str,
    of_probe: bool,
    options: &CompileOptions,
) -> Result<FieldSchema, CompileError> {
    let name = field.name.clone();
    let is_lower_half = !of_probe && is_lower_half(field);
    let (kind, count) = match field.shape {
        _ if is_lower_half => (FieldKind::Signed { bytes: 4 }, None),
        _ if is_named(field, options) => (FieldKind::SymbolName, None),
        Shape::Array { count: 0, .. } => return Err(CompileError(format!("array `{name}` has no length"))),
        Shape::Array { .. } if field.is_text() => (FieldKind::String, None),
        Shape::Array { element_size, count } => (number(field, element_size)?, Some(count)),
        Shape::Scalar { size } => (number(field, size)?, None),
        Shape::DataLocArray { count } => (FieldKind::String, Some(count)),
        Shape::DataLoc | Shape::RelLoc => (FieldKind::String, None),
    };
    let base = match (kind, field.presentation) {
        (FieldKind::Char | FieldKind::Symbol | FieldKind::String | FieldKind::SymbolName, _) => None,
        (_, Presentation::Hex) => Some(Base::Hex),
        _ if !of_probe && (is_pointer(field) || is_flags(field)) => Some(Base::Hex),
        _ => Some(Base::Decimal),
    };
    let array_len = match count.map(u32::try_from) {
        None => None,
        Some(Ok(count)) => Some(count),
        Some(Err(_)) => return Err(CompileError::outside(&name)),
    };
    // A string in the fixed part is always there.
    let may_fault = kind == FieldKind::String && !matches!(field.shape, Shape::Array { .. });
    let fault_detected = kind == FieldKind::String || !of_probe || options.is_infallible(&name);
    let notation = match options.notations.get(&name) {
        Some(notation) => notation.clone(),
        None if of_probe => Notation::Number,
        None => declared_notation(field, event),
    };
    Ok(FieldSchema { name, kind, base, array_len, fault_detected, may_fault, notation, is_lower_half })
}

fn number(field: &Field, size: usize) -> Result<FieldKind, CompileError> {
    let bytes = match size {
        1 => 1,
        2 => 2,
        4 => 4,
        8 => 8,
        bytes => {
            return Err(CompileError(format!("field `{}` has values of {bytes} bytes", field.name)));
        }
    };
    Ok(match field.presentation {
        Presentation::Char => FieldKind::Char,
        Presentation::Symbol => FieldKind::Symbol,
        _ if field.signed => FieldKind::Signed { bytes },
        _ => FieldKind::Unsigned { bytes },
    })
}

/// Whether the field is an address that is shown as a symbol name.
fn is_named(field: &Field, options: &CompileOptions) -> bool {
    field.shape == Shape::Scalar { size: ADDRESS_BYTES } && options.named.contains(&field.name)
}

fn action_of(field: &Field, of_probe: bool, next_at: Option<usize>, options: &CompileOptions) -> Action {
    let is_text = field.is_text();
    match field.shape {
        _ if is_named(field, options) => Action::Address,
        Shape::Scalar { .. } if !of_probe && is_lower_half(field) => Action::Copy { bytes: 4 },
        Shape::Array { .. } if is_text => Action::Characters { bytes: field.size },
        Shape::Scalar { .. } | Shape::Array { .. } => Action::Copy { bytes: field.size },
        Shape::DataLoc if of_probe => Action::Argument { next_at },
        Shape::DataLoc => Action::Data { relative: false, is_text },
        Shape::RelLoc => Action::Data { relative: true, is_text },
        Shape::DataLocArray { count } => Action::ArgumentArray { count, next_at },
    }
}

fn fixed_bytes(format: &Format) -> Result<usize, CompileError> {
    format.common.iter().chain(&format.fields).try_fold(0, |bytes, field| {
        let end = field.offset.checked_add(field.size).filter(|end| *end <= RECORD_BYTES_MAX);
        end.map(|end| bytes.max(end)).ok_or_else(|| CompileError::outside(&field.name))
    })
}

/// Whether the field is an `int` in 64 bits without a sign, as those of system calls are
/// (kernel/trace/trace_syscalls.c:syscall_enter_define_fields): the caller leaves anything in the upper half.
fn is_lower_half(field: &Field) -> bool {
    field.shape == Shape::Scalar { size: 8 } && !field.signed && matches!(words(field), "int" | "pid_t")
}

/// Whether the field is an argument of a system call that is bits: its format shows all of them in hexadecimal.
fn is_flags(field: &Field) -> bool {
    field.shape == Shape::Scalar { size: 8 } && !field.signed && field.name.ends_with("flags")
}

/// Whether the field is a pointer.
fn is_pointer(field: &Field) -> bool {
    field.shape == Shape::Scalar { size: 8 } && field.type_text.ends_with('*')
}

/// How people write the numbers of a tracepoint's field, by its declared type, in this event.
fn declared_notation(field: &Field, event: &str) -> Notation {
    let Shape::Scalar { size } = field.shape else { return Notation::Number };
    match (words(field), size) {
        ("__be16", 2) | ("__be32", 4) | ("__be64", 8) => Notation::NetworkOrder,
        ("dev_t", 4) => Notation::Device,
        ("umode_t", 2 | 8) => Notation::Octal,
        ("bool", 1) => Notation::Bool,
        // What a system call returned.
        ("long", 8) if field.name == "ret" && event.starts_with("sys_exit") => Notation::Errno,
        _ if is_flags(field) && matches!(event, "sys_enter_open" | "sys_enter_openat") => Notation::OpenFlags,
        _ => Notation::Number,
    }
}

fn words(field: &Field) -> &str {
    field.type_text.strip_prefix("const ").unwrap_or(&field.type_text)
}
