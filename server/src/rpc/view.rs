//! What a subscriber asks for, from the wire.

use kprobed_proto::v1;
use tonic::Status;

use super::labels;
use super::status::{self, filter_status};
use crate::filter::Filter;
use crate::model::Glob;
use crate::pipeline::{Order, Overflow, Pace, QueueLimits, View};
use crate::wire::Projection;

pub(super) fn of(
    selection: Option<v1::EventSelection>,
    fields: Vec<String>,
    delivery: Option<v1::Delivery>,
) -> Result<View, Status> {
    let selection = selection.unwrap_or_default();
    let delivery = delivery.unwrap_or_default();
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
    let filter = match selection.filter.trim() {
        "" => None,
        _ => {
            Some(Filter::parse(&selection.filter).map_err(|error| filter_status(&selection.filter, &error))?)
        }
    };
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    Ok(View {
        probes: selection.probes.into_iter().map(Glob::new).collect(),
        labels: labels::selector("selection.label_selector", &selection.label_selector)?,
        filter,
        sample_one_in: selection.sample_one_in,
        projection: Projection::new(fields),
        order,
        pace,
        limits: QueueLimits {
            events: or(delivery.queue_events, defaults.events),
            bytes: or(delivery.queue_bytes, defaults.bytes),
            overflow,
        },
        max_events_per_second: delivery.max_events_per_second,
    })
}

fn known<T, E>(value: Result<T, E>, field: &'static str) -> Result<T, Status> {
    value.map_err(|_unknown| {
        status::invalid(
            field,
            &format!("`{field}` has a value that this version of the daemon does not know"),
        )
    })
}

#[cfg(test)]
mod tests {
    use kprobed_client::Error;

    use super::*;

    fn selecting(label_selector: &str) -> Result<View, Status> {
        let selection =
            v1::EventSelection { label_selector: label_selector.to_owned(), ..Default::default() };
        of(Some(selection), Vec::new(), None)
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
