//! The OpenMetrics 1.0 text format.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

use super::super::metrics::{Family, Kind, Metrics, Point, Value};

/// The figures in the text format of OpenMetrics 1.0.
///
/// # Errors
/// None that the library documents: it writes into memory.
pub(super) fn text(figures: Metrics) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scraped(figures)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Scraped(Metrics);

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.families().iter().try_for_each(|family| of_family(&mut encoder, family))
    }
}

fn of_family(encoder: &mut DescriptorEncoder<'_>, family: &Family<'_>) -> fmt::Result {
    if family.points.is_empty() {
        return Ok(());
    }
    let name = family.name.replace('.', "_");
    let kind = match family.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
    };
    let mut metric = encoder.encode_descriptor(&name, family.help, None, kind)?;
    for Point { labels, value } in &family.points {
        if labels.is_empty() {
            return sample(&mut metric, family.kind, *value);
        }
        let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, &**value)).collect();
        sample(&mut metric.encode_family(&labels)?, family.kind, *value)?;
    }
    Ok(())
}

fn sample(metric: &mut MetricEncoder<'_>, kind: Kind, value: Value) -> fmt::Result {
    /// Without an exemplar.
    const NONE: Option<&Exemplar<[(&str, &str); 0], u64>> = None;
    match (kind, value) {
        (Kind::Counter, Value::Count(count)) => metric.encode_counter(&count, NONE),
        (Kind::Counter, Value::Number(number)) => metric.encode_counter(&number, NONE),
        (Kind::Gauge, Value::Count(count)) => metric.encode_gauge(&count),
        (Kind::Gauge, Value::Number(number)) => metric.encode_gauge(&number),
    }
}
