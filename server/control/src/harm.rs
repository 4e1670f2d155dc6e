//! Refusal of filters with which the kernel would harm the host.
//!
//! Owns the check before every write of a filter: for a probe, an aggregation.
//! Never decides what does harm: that is [`kprobed_trace::filter::harm`].

use super::source::read_format;
use crate::error::Error;
use kprobed_host::tracefs::Tracefs;
use kprobed_lang::model::ProbeName;
use kprobed_trace::filter::harm;

/// Refuses a filter with which the kernel would harm the host.
pub(super) fn refuse_harm(tracefs: &Tracefs, event: &ProbeName, filter: &str) -> Result<(), Error> {
    if filter.is_empty() {
        return Ok(());
    }
    let harm = harm(filter, &read_format(tracefs, event)?);
    harm.map_or(Ok(()), |found| Err(Error::refused_filter("filter", filter, &found)))
}
