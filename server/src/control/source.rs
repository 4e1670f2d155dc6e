//! From the kernel's description of an event to a source of events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::ControlError;
use crate::decode::{Plan, PlanOptions};
use crate::definition::{FetchKind, MemoryAddress, ProbeDefinition};
use crate::model::{ProbeName, ProbeUid};
use crate::pipeline::EventSource;
use crate::tracefs::Tracefs;
use crate::tracefs::format::Format;

/// Schemas are numbered through the whole life of the daemon.
static NEXT_SCHEMA_ID: AtomicU32 = AtomicU32::new(1);

/// Reads how the kernel describes an event, and makes a source of it.
pub(super) fn event_source(
    tracefs: &Tracefs,
    uid: ProbeUid,
    name: &ProbeName,
    options: &PlanOptions,
) -> Result<(u16, Arc<EventSource>), ControlError> {
    let text = tracefs.format_text(name.group(), name.event())?;
    let bad = |reason: String| ControlError::Format { name: name.clone(), reason };
    let format = Format::parse(&text).map_err(|error| bad(error.to_string()))?;
    let plan = Plan::compile(&format, options).map_err(|error| bad(error.to_string()))?;
    let schema_id = NEXT_SCHEMA_ID.fetch_add(1, Ordering::Relaxed);
    Ok((format.id, Arc::new(EventSource::new(schema_id, uid, name.clone(), plan))))
}

/// What the format of a probe does not say: which fields cannot fault, since they are registers, the stack pointer, immediates, and kernel variables.
pub(super) fn plan_options(definition: &ProbeDefinition) -> PlanOptions {
    let infallible = |kind: &FetchKind| {
        matches!(
            kind,
            FetchKind::Register(_)
                | FetchKind::StackNth(_)
                | FetchKind::Stack
                | FetchKind::Argument(_)
                | FetchKind::Retval
                | FetchKind::Immediate(_)
                | FetchKind::Memory(MemoryAddress::Symbol { .. })
        ) || matches!(kind, FetchKind::Btf { members, .. } if members.is_empty())
    };
    let infallible = definition
        .args
        .iter()
        .filter(|argument| infallible(&argument.fetch.kind))
        .filter_map(|argument| Some(argument.name.as_ref()?.text.clone()))
        .collect();
    PlanOptions { infallible }
}
