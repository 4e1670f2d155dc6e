//! Subscriptions: conversion of what a subscriber asks for.
//!
//! Owns which requests are refused. Never delivers an event.

use std::time::Duration;

use kprobed_proto::v1;

use super::messages::{known, selector};
use kprobed_control::error::Error;
use kprobed_lang::model::Glob;
use kprobed_trace::filter::Filter;
use kprobed_trace::pipeline::{Order, Overflow, Pace, QueueLimits, View};
use kprobed_trace::wire::Projection;

/// The shortest heartbeat: limits how often the daemon wakes up for a subscriber without events.
const SHORTEST_HEARTBEAT: Duration = Duration::from_millis(10);

/// Most globs of probes, and most names of fields. A stream compares them for as long as it lasts.
const MOST_NAMES: usize = 1000;

fn require_few(field: &'static str, names: &[String]) -> Result<(), Error> {
    if names.len() > MOST_NAMES {
        let message = format!("`{field}` has at most {MOST_NAMES} entries; {} are requested", names.len());
        return Err(Error::bad_argument(field, message));
    }
    Ok(())
}

pub(super) fn of(
    selection: Option<v1::EventSelection>,
    fields: Vec<String>,
    delivery: Option<v1::Delivery>,
) -> Result<View, Error> {
    let selection = selection.unwrap_or_default();
    let delivery = delivery.unwrap_or_default();
    require_few("selection.probes", &selection.probes)?;
    require_few("fields", &fields)?;
    let defaults = QueueLimits::default();
    let order = match known(v1::EventOrder::try_from(delivery.order), "delivery.order")? {
        v1::EventOrder::Unspecified | v1::EventOrder::PerCpu => Order::PerCpu,
        v1::EventOrder::Time => Order::Time,
    };
    let pace = match known(v1::Pace::try_from(delivery.pace), "delivery.pace")? {
        v1::Pace::Unspecified => Pace::Balanced,
        v1::Pace::Latency => Pace::Latency,
        v1::Pace::Throughput => Pace::Throughput,
    };
    let overflow = match known(v1::OverflowPolicy::try_from(delivery.overflow), "delivery.overflow")? {
        v1::OverflowPolicy::Unspecified | v1::OverflowPolicy::DropOldest => Overflow::DropOldest,
        v1::OverflowPolicy::DropNewest => Overflow::DropNewest,
        v1::OverflowPolicy::Disconnect => Overflow::Disconnect,
    };
    let heartbeat = match (delivery.heartbeat_ms, order) {
        (0, _) => None,
        (ms, Order::Time) => Some(Duration::from_millis(ms.into()).max(SHORTEST_HEARTBEAT)),
        (_, Order::PerCpu) => {
            let message = "`delivery.heartbeat_ms` is how often watermarks come, and only a stream in the order of time has them: \
                           set `delivery.order` to EVENT_ORDER_TIME, or `delivery.heartbeat_ms` to 0";
            return Err(Error::bad_argument("delivery.heartbeat_ms", message));
        }
    };
    let filter = match selection.filter.trim() {
        "" => None,
        _ => {
            Some(Filter::parse(&selection.filter).map_err(|error| Error::filter(&selection.filter, &error))?)
        }
    };
    let events = if delivery.queue_events == 0 { defaults.events } else { delivery.queue_events };
    Ok(View {
        probes: selection.probes.into_iter().map(Glob::new).collect(),
        labels: selector("selection.label_selector", &selection.label_selector)?,
        filter,
        sample_one_in: selection.sample_one_in,
        projection: Projection::new(fields),
        order,
        pace,
        // How many bytes they are depends on the caller.
        limits: QueueLimits { events, overflow, ..defaults },
        max_events_per_second: delivery.max_events_per_second,
        heartbeat,
        permits: None,
    })
}

#[cfg(test)]
mod tests {
    use kprobed_client::Error;
    use tonic::Status;

    use super::*;

    fn selecting(label_selector: &str) -> Result<View, Status> {
        let selection =
            v1::EventSelection { label_selector: label_selector.to_owned(), ..Default::default() };
        of(Some(selection), Vec::new(), None).map_err(Status::from)
    }

    #[test]
    fn a_heartbeat_is_of_watermarks() {
        let asked = |order: v1::EventOrder, heartbeat_ms| {
            of(
                None,
                Vec::new(),
                Some(v1::Delivery { order: order.into(), heartbeat_ms, ..Default::default() }),
            )
        };
        let beat = |heartbeat_ms| asked(v1::EventOrder::Time, heartbeat_ms).unwrap().heartbeat;
        assert_eq!([0, 1, 250].map(beat), [None, Some(SHORTEST_HEARTBEAT), Some(Duration::from_millis(250))]);
        assert_eq!(asked(v1::EventOrder::PerCpu, 0).unwrap().heartbeat, None);
        let Error::Rpc(refused) = Error::from(Status::from(asked(v1::EventOrder::PerCpu, 250).unwrap_err()))
        else {
            panic!("no status of the API")
        };
        assert_eq!(refused.code, tonic::Code::InvalidArgument);
        assert_eq!(refused.fields[0].field, "delivery.heartbeat_ms");
    }

    #[test]
    fn very_many_names_are_refused() {
        let names = |count: usize| vec![String::new(); count];
        let selecting = |count| v1::EventSelection { probes: names(count), ..Default::default() };
        assert!(of(Some(selecting(MOST_NAMES)), names(MOST_NAMES), None).is_ok());
        let refused = of(Some(selecting(MOST_NAMES + 1)), Vec::new(), None).unwrap_err();
        assert_eq!(refused.field.as_deref(), Some("selection.probes"));
        let refused = of(None, names(MOST_NAMES + 1), None).unwrap_err();
        assert_eq!(refused.field.as_deref(), Some("fields"));
    }

    #[test]
    fn a_selector_of_labels_is_read_as_in_listings() {
        assert!(selecting("").unwrap().is_of_everything());
        let view = selecting("team in (net, storage),!tier").unwrap();
        assert_eq!(view.labels.to_string(), "team in (net,storage),!tier");
        assert!(!view.is_of_everything());
        let Error::Rpc(refused) = Error::from(selecting("team=a,tier in 2").unwrap_err()) else {
            panic!("no status of the API")
        };
        assert_eq!((refused.code, refused.reason.as_str()), (tonic::Code::InvalidArgument, "BAD_LABEL"));
        assert_eq!(refused.fields[0].field, "selection.label_selector");
        let found = &refused.diagnostics.as_ref().unwrap();
        let diagnostic = &found.diagnostics[0];
        assert_eq!(found.text, "team=a,tier in 2");
        assert_eq!((diagnostic.span_start, diagnostic.span_end), (15, 15));
        assert!(!diagnostic.hint.is_empty());
    }
}
