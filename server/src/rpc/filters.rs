//! Filters of subscriptions, judged for the probes that there are.

use kprobed_proto::v1;
use tonic::Status;

use super::status::{filter_diagnostic, filter_status};
use crate::control::Registry;
use crate::filter::{BoundFilter, Filter, FilterError, KernelFilterFeatures};
use crate::pipeline::{Hub, View};

/// Refuses a filter that no selected probe can have. While there is none, every filter may be right.
pub(super) fn judge(registry: &Registry, hub: &Hub, view: &View, text: &str) -> Result<(), Status> {
    let Some(filter) = &view.filter else { return Ok(()) };
    let mut problem = None;
    for bound in bound(registry, hub, view, filter) {
        match bound.1 {
            Ok(_) => return Ok(()),
            // A mistake that is one for every probe is worth more than a field that one of them lacks.
            Err(error) if !error.is_unknown_field() => return Err(filter_status(text, &error)),
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    problem.map_or(Ok(()), |error| Err(filter_status(text, &error)))
}

/// What a filter is for each selected probe.
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
    registry
        .all()
        .iter()
        .filter(|probe| view.selects(&probe.name, &probe.labels))
        .filter_map(|probe| {
            let name = probe.name.to_string();
            let bound = hub.binder().bind_to(filter, &name, probe.schema.as_ref()?);
            Some((name, bound))
        })
        .collect()
}
