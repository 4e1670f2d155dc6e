//! Filters of subscriptions, judged for each selected probe.
//!
//! Owns the messages about them. Never filters an event.

use kprobed_proto::v1;

use super::selected::{self, Selected};
use super::status::filter_diagnostic;
use crate::control::Registry;
use kprobed_trace::filter::{BoundFilter, Filter, FilterError, KernelFilterFeatures};
use kprobed_trace::pipeline::{Hub, View};

/// The verdict on a filter for each selected probe.
pub(super) fn of_probes(
    registry: &Registry,
    hub: &Hub,
    view: &View,
    features: KernelFilterFeatures,
) -> Vec<v1::ProbeFilter> {
    let Some(filter) = &view.filter else { return Vec::new() };
    bound(registry, hub, view, filter)
        .into_iter()
        .map(|(probe, bound)| match bound {
            Ok(bound) => {
                let pushed = bound.kernel_text(features);
                v1::ProbeFilter {
                    probe,
                    problem: None,
                    kernel_filter: pushed.text.unwrap_or_default(),
                    exact: pushed.exact,
                }
            }
            Err(error) => v1::ProbeFilter {
                probe,
                problem: Some(filter_diagnostic(&error)),
                kernel_filter: String::new(),
                exact: false,
            },
        })
        .collect()
}

fn bound(
    registry: &Registry,
    hub: &Hub,
    view: &View,
    filter: &Filter,
) -> Vec<(String, Result<BoundFilter, FilterError>)> {
    let bind = |Selected { name, schema }: Selected| {
        let bound = hub.binder().bind_to(filter, &name, &schema);
        (name, bound)
    };
    selected::probes(registry, view).into_iter().map(bind).collect()
}
