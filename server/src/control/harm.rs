//! Refusal of filters with which the kernel would harm the host.
//!
//! Owns the check before every write of a filter: for a probe, an attached event, an aggregation.
//! Never decides what does harm: that is [`kprobed_trace::filter::harm`].

use super::ControlError;
use super::source::read_format;
use kprobed_host::tracefs::Tracefs;
use kprobed_lang::model::ProbeName;
use kprobed_trace::filter::harm;

/// Refuses a filter with which the kernel would harm the host.
pub(super) fn refuse_harm(tracefs: &Tracefs, event: &ProbeName, filter: &str) -> Result<(), ControlError> {
    if filter.is_empty() {
        return Ok(());
    }
    harm(filter, &read_format(tracefs, event)?).map_or(Ok(()), |found| {
        Err(ControlError::HarmfulFilter { filter: filter.to_owned(), found: Box::new(found) })
    })
}
