//! The daemon's own threads in aggregations: how the kernel leaves them out, and counts what it left out.
//!
//! Owns the filter that finds these threads. A hist trigger runs for threads that the instance excludes too
//! (kernel/trace/trace.h: `__event_trigger_test_discard` calls triggers before it looks at `set_event_notrace_pid`),
//! so that only its own filter can leave them out. Never changes a filter of a client.

use super::plan::{Role, Table, both, one_row};
use crate::error::Error;
use kprobed_lang::model::ProbeName;
use kprobed_trace::decode::Schema;

/// The names of all threads of the daemon begin with this. A list of thread ids would miss a thread that is started
/// later; a name is inherited by a thread from the one that starts it, before it runs.
const NAME_PREFIX: &str = "kprobed";

/// The filter that finds them, unless fields of the events hide both names that the kernel has for the name of a
/// thread.
fn of_schema(schema: &Schema) -> Option<String> {
    let is_hidden = |name: &str| schema.fields.iter().any(|field| field.name == name);
    let name = ["COMM", "comm"].into_iter().find(|name| !is_hidden(name))?;
    Some(format!("{name} ~ \"{NAME_PREFIX}*\""))
}

/// A filter for other threads only. Absent if fields of the events hide the name of the thread.
pub(crate) fn of_others(filter: &str, schema: &Schema) -> Option<String> {
    Some(both(filter, &format!("!({})", of_schema(schema)?)))
}

/// The same for an aggregation, which finds them by how the events of a probe show the name of their thread. A field of
/// the probe hides the kernel's field of the same name.
///
/// # Errors
/// When fields of the probe hide both names that the kernel has for it.
pub(super) fn condition(spec: &str, probe: &ProbeName, schema: &Schema) -> Result<String, Error> {
    of_schema(schema).ok_or_else(|| {
        let message = format!(
            "the fields `COMM` and `comm` of `{probe}` hide the name of the thread, so that kprobed's own threads \
             cannot be left out: set `include_self`, or rename one of the fields"
        );
        Error::bad_argument(format!("{spec}.include_self"), message)
    })
}

/// A filter for other threads than those that the condition finds, if they are to be left out.
pub(super) fn left_out_of(filter: String, condition: Option<&str>) -> String {
    match condition {
        Some(condition) => both(&filter, &format!("!({condition})")),
        None => filter,
    }
}

/// The table of the events that pass the filter and are left out.
pub(super) fn table(probe: &ProbeName, condition: &str, filter: &str, number: u64) -> Table {
    one_row(probe, format!("kprobed_{number}o"), both(filter, condition), Role::Own)
}
