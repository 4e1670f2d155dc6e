//! OTLP metrics: the families that Prometheus scrapes, with the same labels and values.
//!
//! A report that fails is not repeated: the next one has the sums.

use std::time::{Duration, SystemTime};

use kprobed_otlp::metrics::metric::Data;
use kprobed_otlp::metrics::number_data_point::Value as PointValue;
use kprobed_otlp::metrics::{AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum};
use tonic::transport::Channel;

use super::answer::read;
use super::connection::Connection;
use super::nanoseconds;
use super::request::{Origin, Signal as _};
use super::resource::{Host, scope};
use super::value::{attribute, text};
use crate::export::SinkError;
use crate::export::metrics::{Family, Kind, Metrics, Point, Sources, Value};
use crate::shutdown::Tasks;
use kprobed_trace::pipeline::View;

/// How long a receiver may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reports the figures of `sources` every `interval`, until the daemon stops.
pub async fn report(
    (connection, host): (Connection, Host),
    (sources, selection): (Sources, View),
    interval: Duration,
    tasks: Tasks,
) {
    let start = SystemTime::now();
    let mut open = None;
    let mut fails = false;
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = tasks.stopping().cancelled() => return,
        }
        let once = once((&connection, &host), &mut open, (&sources, &selection), start);
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(TIMEOUT, once) => {
                let late = || SinkError::new("export metrics", format_args!("no answer within {} s", TIMEOUT.as_secs()));
                outcome.unwrap_or_else(|_| Err(late()))
            }
            () = tasks.stopping().cancelled() => return,
        };
        match &outcome {
            Ok(()) if fails => tracing::info!("the OTLP receiver accepts metrics again"),
            Err(error) if !fails => {
                tracing::warn!(%error, "cannot send metrics; the next report has their sums");
            }
            _ => {}
        }
        fails = outcome.is_err();
        if fails {
            open = None;
        }
    }
}

/// Makes one report. `open` is the connection, once there is one.
async fn once(
    (connection, host): (&Connection, &Host),
    open: &mut Option<Channel>,
    (sources, selection): (&Sources, &View),
    start: SystemTime,
) -> Result<(), SinkError> {
    let channel = match open {
        Some(channel) => channel.clone(),
        None => open.insert(connection.open().await?).clone(),
    };
    let figures = sources.read(selection).await.map_err(|error| SinkError::new("read the ledger", error))?;
    let metrics = metrics(&figures, nanoseconds(start), nanoseconds(SystemTime::now()));
    let origin = Origin { resource: host.resource(), scope: scope(None) };
    let sent = read(Metric::NAME, u64::MAX, Metric::export((connection, channel), origin, metrics).await)?;
    if sent.dropped > 0 { Err(SinkError::new("export metrics", sent.reason)) } else { Ok(()) }
}

/// The figures as metrics. Times are in nanoseconds since 1970.
fn metrics(figures: &Metrics, start_ns: u64, now_ns: u64) -> Vec<Metric> {
    let families = figures.families();
    let shown = families.iter().filter(|family| !family.points.is_empty());
    shown.map(|family| metric(family, start_ns, now_ns)).collect()
}

fn metric(family: &Family<'_>, start_ns: u64, now_ns: u64) -> Metric {
    let is_sum = family.kind == Kind::Counter;
    // A gauge has no beginning.
    let start_ns = if is_sum { start_ns } else { 0 };
    let data_points = family.points.iter().map(|point| data_point(point, start_ns, now_ns)).collect();
    let data = if is_sum {
        Data::Sum(Sum {
            data_points,
            aggregation_temporality: AggregationTemporality::Cumulative.into(),
            is_monotonic: true,
        })
    } else {
        Data::Gauge(Gauge { data_points })
    };
    Metric {
        name: family.name.to_owned(),
        description: family.help.to_owned(),
        unit: unit(family.name).to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

/// The unit as UCUM writes it, from the name's end.
fn unit(name: &str) -> &'static str {
    match name.rsplit(['.', '_']).next() {
        Some("bytes") => "By",
        Some("seconds") => "s",
        Some("events") => "{event}",
        _ => "1",
    }
}

fn data_point(point: &Point<'_>, start_ns: u64, now_ns: u64) -> NumberDataPoint {
    let value = match point.value {
        Value::Count(count) => PointValue::AsInt(i64::try_from(count).unwrap_or(i64::MAX)),
        Value::Number(number) => PointValue::AsDouble(number),
    };
    NumberDataPoint {
        attributes: point.labels.iter().map(|(name, value)| attribute(*name, text(&**value))).collect(),
        start_time_unix_nano: start_ns,
        time_unix_nano: now_ns,
        value: Some(value),
        ..NumberDataPoint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::metrics::samples::figures;

    #[test]
    fn metrics_are_the_figures() {
        let metrics = metrics(&figures(2), 5, 9);
        let find = |name: &str| metrics.iter().find(|metric| metric.name == name).unwrap();
        let hits = find("kprobed.probe.hits");
        let Some(Data::Sum(sum)) = &hits.data else { panic!("{hits:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality() == AggregationTemporality::Cumulative);
        let point = &sum.data_points[0];
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (5, 9));
        assert_eq!(point.value, Some(PointValue::AsInt(13)));
        assert_eq!(point.attributes, [attribute("probe", text("kprobes/p1"))]);
        let bytes = find("kprobed.buffer.bytes");
        let Some(Data::Gauge(gauge)) = &bytes.data else { panic!("{bytes:?}") };
        assert_eq!((bytes.unit.as_str(), gauge.data_points[0].value), ("By", Some(PointValue::AsInt(8192))));
        assert_eq!(find("kprobed.tls.not_after.timestamp_seconds").unit, "s");
        // As many points as a scrape has samples.
        let families = figures(2);
        let points: usize = families.families().iter().map(|family| family.points.len()).sum();
        let sent = metrics.iter().map(|metric| match &metric.data {
            Some(Data::Sum(sum)) => sum.data_points.len(),
            Some(Data::Gauge(gauge)) => gauge.data_points.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(sent.sum::<usize>(), points);
    }
}
