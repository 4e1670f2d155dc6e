//! Selected sources: those that a subscription selects now, and what of its request none of them
//! has.
//!
//! Owns the judgement of filters and field names by their fields. While no source is selected,
//! every name is accepted: subscriptions also cover future probes. Never filters an event.

use std::fmt::Write as _;
use std::sync::Arc;

use kprobed_proto::v1;
use kprobed_proto::v1::stream_start::Start;

use kprobed_control::Registry;
use kprobed_control::error::{self, Error, Reason};
use kprobed_host::kernel::nearest_name;
use kprobed_trace::decode::Schema;
use kprobed_trace::filter::{Filter, FilterError, KernelFilterFeatures};
use kprobed_trace::pipeline::{Hub, View};
use kprobed_trace::wire::{COMMON_FIELDS, Projection};

/// Most sources whose fields a hint lists.
const LISTED_SOURCES: usize = 4;
/// Most fields of each that a hint lists.
const LISTED_FIELDS: usize = 12;

/// A probe and its fields.
pub(super) struct Selected {
    pub(super) name: String,
    pub(super) schema: Arc<Schema>,
}

/// Selected probes that the kernel has.
pub(super) fn probes(registry: &Registry, view: &View) -> Vec<Selected> {
    let of = |probe: &kprobed_control::Probe| {
        Some(Selected { name: probe.name.to_string(), schema: Arc::clone(probe.schema.as_ref()?) })
    };
    let selected = |probe: &&Arc<kprobed_control::Probe>| {
        view.selects(&probe.name, &probe.spec.labels) && view.permits(&probe.name, probe.uid)
    };
    registry.all().iter().filter(selected).filter_map(|probe| of(probe)).collect()
}

/// What the filter of a stream means for each probe that is selected now; nothing without a filter.
pub(super) fn filters(
    registry: &Registry,
    hub: &Hub,
    view: &View,
    features: KernelFilterFeatures,
) -> Vec<v1::ProbeFilter> {
    let Some(filter) = &view.filter else { return Vec::new() };
    let judged = |Selected { name: probe, schema }: Selected| match hub.binder().bind(view, &probe, &schema) {
        Ok(bound) => {
            let pushed = bound.kernel_text(features);
            let kernel_filter = pushed.text.unwrap_or_default();
            let unproven = unproven(filter, &schema);
            v1::ProbeFilter { probe, problem: None, kernel_filter, exact: pushed.exact, unproven }
        }
        Err(error) => {
            v1::ProbeFilter { probe, problem: Some(error::of_filter(&error)), ..Default::default() }
        }
    };
    probes(registry, view).into_iter().map(judged).collect()
}

/// Fields that a filter compares and of which nothing shows whether they were read.
fn unproven(filter: &Filter, schema: &Schema) -> Vec<String> {
    let is_compared = |wanted: &str| {
        let mut found = false;
        filter.fields(&mut |name, _span| found |= name == wanted);
        found
    };
    let unproven = schema.fields.iter().filter(|field| !field.fault_detected);
    unproven.map(|field| field.name.clone()).filter(|name| is_compared(name)).collect()
}

/// Refuses a filter that no selected source can have, and a name that is not a field of any of
/// them. `text` is the filter as the client wrote it.
pub(super) fn judge(
    registry: &Registry,
    hub: &Hub,
    view: &View,
    text: &str,
    start: Option<&v1::StreamStart>,
) -> Result<(), Error> {
    // A resumed stream was judged when it began, and the probe may have gone since.
    let goes_on = matches!(start.and_then(|start| start.start.as_ref()), Some(Start::Cursor(_)));
    let names = !goes_on && !view.projection.is_everything();
    if view.filter.is_none() && !names {
        return Ok(());
    }
    let sources = probes(registry, view);
    filter_of(&sources, |one| hub.binder().bind(view, &one.name, &one.schema).map(drop))
        .map_err(|error| Error::filter(text, &error))?;
    if names { fields_of(&sources, &view.projection) } else { Ok(()) }
}

/// Why no source can have a filter. An error for one source says nothing about the others: their
/// fields can have other types.
fn filter_of(
    sources: &[Selected],
    bind: impl Fn(&Selected) -> Result<(), FilterError>,
) -> Result<(), FilterError> {
    let mut problem: Option<FilterError> = None;
    for source in sources {
        match bind(source) {
            Ok(()) => return Ok(()),
            // A mistake takes precedence over a field that this source lacks.
            Err(error)
                if problem.as_ref().is_none_or(FilterError::is_unknown_field)
                    && !error.is_unknown_field() =>
            {
                problem = Some(error);
            }
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    problem.map_or(Ok(()), Err)
}

fn fields_of(sources: &[Selected], projection: &Projection) -> Result<(), Error> {
    let schemas: Vec<&Schema> = sources.iter().map(|source| &*source.schema).collect();
    projection.unknown(&schemas).map_or(Ok(()), |name| Err(unknown_field(sources, name)))
}

fn unknown_field(sources: &[Selected], name: &str) -> Error {
    let names = |source: &Selected| -> Vec<String> {
        source.schema.fields.iter().map(|field| field.name.clone()).collect()
    };
    let message = match sources {
        [only] => format!("`{}` has no field `{name}`", only.name),
        _ => format!("none of the {} selected probes has a field `{name}`", sources.len()),
    };
    let all: Vec<String> = sources.iter().flat_map(names).collect();
    let mut hint = String::new();
    if let Some(nearest) = nearest_name(name, all.iter().map(String::as_str).chain(COMMON_FIELDS)) {
        write!(hint, "did you mean `{nearest}`? ").ok();
    }
    for source in sources.iter().take(LISTED_SOURCES) {
        write!(hint, "`{}` has {}; ", source.name, listed(&names(source))).ok();
    }
    if sources.len() > LISTED_SOURCES {
        write!(hint, "`kprobectl get NAME` lists the fields of others; ").ok();
    }
    write!(hint, "all events have {}", listed(&COMMON_FIELDS)).ok();
    Error::unknown(Reason::UNKNOWN_FIELD, ("fields", name), message, &hint)
}

/// Names, and how many were left out.
fn listed(names: &[impl AsRef<str>]) -> String {
    if names.is_empty() {
        return "no fields of its own".to_owned();
    }
    let shown: Vec<_> = names.iter().take(LISTED_FIELDS).map(|name| format!("`{}`", name.as_ref())).collect();
    let mut text = shown.join(", ");
    if names.len() > LISTED_FIELDS {
        write!(text, " and {} more", names.len() - LISTED_FIELDS).ok();
    }
    text
}

#[cfg(test)]
mod tests;
