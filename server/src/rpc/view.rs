//! What a subscriber asks for, from the wire.

use kprobed_proto::v1;
use tonic::Status;

use super::status::filter_status;
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
        labels: selection.labels.into_iter().collect(),
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

fn known<T, E>(value: Result<T, E>, field: &str) -> Result<T, Status> {
    value.map_err(|_unknown| {
        Status::invalid_argument(format!("`{field}` has a value that this version does not know"))
    })
}
