//! Guarded writes to the daemon's own events: each directly follows a check that the event is the
//! daemon's.
//!
//! Owns that check. The kernel has no write that asks for the identity of an event, except for
//! deletion. Between the check and the write another program can take the name; so everything that
//! is written here concerns only the daemon's instance, and after switching on the event is checked
//! again, and switched off if it is not the daemon's. Refuses filters with which the kernel would harm the host, as
//! [`kprobed_trace::filter::harm`] decides. Never defines or deletes an event.

use std::sync::Arc;

use super::aggregation::of_others;
use super::observed::{ObservedEvent, lost};
use super::probe::Probe;
use super::source::read_format;
use crate::error::Error;
use kprobed_host::tracefs::format::Format;
use kprobed_host::tracefs::{Instance, KprobeList, OwnEvent, Presence, Tracefs, TracefsError};
use kprobed_lang::model::ProbeName;
use kprobed_trace::decode::Schema;
use kprobed_trace::filter::{Filter, FilterCode, FilterError, Proofs, harm};

/// What the kernel has under the name of a probe, by a list that was just read.
pub(super) fn presence(
    tracefs: &Tracefs,
    list: &KprobeList,
    probe: &Probe,
) -> Result<Presence, TracefsError> {
    match &probe.own {
        Some(own) => tracefs.presence_in(list, own),
        None if tracefs.has_event(probe.name.group(), probe.name.event()) => Ok(Presence::Foreign),
        None => Ok(Presence::Absent),
    }
}

/// Refuses if the event of that name is not ours.
pub(super) fn require(presence: Presence, name: &ProbeName) -> Result<(), Error> {
    if presence.is_ours() { Ok(()) } else { Err(missing(presence, name)) }
}

/// The error if this is found under the name, instead of our event.
pub(super) fn missing(presence: Presence, name: &ProbeName) -> Error {
    let lost = lost(&ObservedEvent::Lost(presence));
    Error::not_in_kernel(name, &lost.reason, &lost.hint)
}

/// Switches the event of a probe on or off in an instance, and with it its call stacks, if they are to be recorded: for
/// what the filter in force lets through.
pub(super) fn set_enabled(instance: &Instance, probe: &Probe, on: bool) -> Result<(), TracefsError> {
    let name = &probe.name;
    if !probe.spec.stack {
        return instance.set_enabled(name, on);
    }
    if !on {
        return instance.disable_with_stacks(name);
    }
    match stack_condition(probe, &instance.filter(name)?) {
        Some(condition) => instance.enable_with_stacks(name, &condition),
        None => instance.set_enabled(name, true),
    }
}

/// For which records of a probe the call stack is recorded, if the kernel has this filter of it: for all that the
/// filter and the list of threads let through. Absent if it has no stacks.
pub(super) fn stack_condition(probe: &Probe, filter: &str) -> Option<String> {
    of_others(filter, probe.schema.as_ref().filter(|_| probe.spec.stack)?)
}

/// Switches our event on or off in our instance. Does nothing if what has its name is not ours.
pub(super) fn switch(
    tracefs: &Tracefs,
    instance: &Instance,
    (probe, own): (&Probe, &OwnEvent),
    on: bool,
) -> Result<(), TracefsError> {
    if !tracefs.presence(own)?.is_ours() {
        return Ok(());
    }
    set_enabled(instance, probe, on)?;
    if on && tracefs.presence(own)? == Presence::Foreign {
        set_enabled(instance, probe, false)?;
    }
    Ok(())
}

/// Switches the event of a probe off in our instance, and clears the filter of one of the host: nothing is left of it
/// there, and no handler writes it any more. Does nothing if what was found under its name is not ours.
pub(super) fn end(instance: &Instance, probe: &Probe, found: Presence) -> Result<(), TracefsError> {
    switch_off(instance, probe, found)?;
    if found.is_ours() && probe.is_of_host() {
        instance.clear_filter_and_settle(&probe.name)?;
        instance.await_tracepoints()?;
    }
    Ok(())
}

/// Switches the event of a probe off in our instance. Does nothing if what was found under its name is not ours.
pub(super) fn switch_off(instance: &Instance, probe: &Probe, found: Presence) -> Result<(), TracefsError> {
    if found.is_ours() {
        set_enabled(instance, probe, false)?;
    }
    Ok(())
}

/// Sets the filter of a probe in our instance; empty removes it. Does nothing if what has its name is not ours.
pub(super) fn set_filter(
    tracefs: &Tracefs,
    instance: &Instance,
    own: &OwnEvent,
    probe: &Probe,
) -> Result<(), TracefsError> {
    if tracefs.presence(own)?.is_ours() {
        let filter = kernel_filter(tracefs, &own.name, &probe.spec.filter, probe.schema.as_ref())?;
        instance.set_filter(&own.name, &filter)?;
    }
    Ok(())
}

/// Refuses a filter with which the kernel would harm the host.
pub(super) fn refuse_harm(tracefs: &Tracefs, event: &ProbeName, filter: &str) -> Result<(), Error> {
    let harm = harm(filter, &read_format(tracefs, event)?);
    harm.map_or(Ok(()), |found| Err(Error::refused_filter("filter", filter, &found)))
}

/// Refuses a filter that the kernel has taken for another one. It ignores an operator with nothing behind it (since a
/// fix of 2026 it refuses it), and cuts a number to the size of the field.
pub(super) fn refuse_misread(
    field: &'static str,
    filter: &str,
    schema: Option<&Arc<Schema>>,
) -> Result<(), Error> {
    let found = match Filter::parse(filter) {
        Err(found) => Some(found).filter(FilterError::is_cut_off),
        Ok(parsed) => schema
            .and_then(|schema| parsed.check_for_kernel(schema, None).err())
            .filter(|found| found.code == FilterCode::IllegalIntval),
    };
    found.map_or(Ok(()), |found| Err(Error::refused_filter(field, filter, &found)))
}

/// The filter of a probe as the kernel gets it: over what it records, which is not always what is shown. It lets
/// nothing pass because of a value that could not be read.
pub(super) fn kernel_filter(
    tracefs: &Tracefs,
    name: &ProbeName,
    filter: &str,
    shown: Option<&Arc<Schema>>,
) -> Result<String, TracefsError> {
    if filter.is_empty() { Ok(String::new()) } else { Ok(proofs(tracefs, name, shown)?.certain(filter)) }
}

/// The filter over what the kernel records, without a proof that anything was read.
///
/// # Errors
/// For a comparison that is possible only with what is shown.
pub(super) fn recorded_filter(filter: &str, shown: Option<&Arc<Schema>>) -> Result<String, FilterError> {
    let unknown = Schema { fields: Vec::new(), is_return: false };
    // What the daemon cannot parse is for the kernel to say.
    let Ok(parsed) = Filter::parse(filter) else { return Ok(filter.to_owned()) };
    let recorded = parsed.for_kernel(shown.map_or(&unknown, AsRef::as_ref))?;
    Ok(recorded.map_or_else(|| filter.to_owned(), |recorded| recorded.to_string()))
}

/// What shows that the fields of an event were read. The daemon records no event whose format it cannot read.
fn proofs(tracefs: &Tracefs, name: &ProbeName, shown: Option<&Arc<Schema>>) -> Result<Proofs, TracefsError> {
    let format = tracefs.format_text(name.group(), name.event())?;
    Ok(Format::parse(&format).map(|format| Proofs::of(&format).of_shown(shown)).unwrap_or_default())
}

/// The filter of a probe as it was written, of what the kernel has.
pub(super) fn written_filter(tracefs: &Tracefs, probe: &Probe, kernel: String) -> String {
    let wanted = &probe.spec.filter;
    let is_as_written = probe.schema.as_ref().is_none_or(|schema| schema.is_shown_as_recorded());
    if kernel.is_empty() || is_as_written && kernel == *wanted {
        return kernel;
    }
    // Without its format the event is gone, or is another program's.
    let Ok(proofs) = proofs(tracefs, &probe.name, probe.schema.as_ref()) else { return kernel };
    if proofs.certain(wanted) == kernel { wanted.clone() } else { proofs.written(&kernel) }
}
