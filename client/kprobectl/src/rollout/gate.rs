//! Gates of a roll-out: limits that must hold before the next wave.
//!
//! Owns the notation (`loss<=0.1%`), the defaults, and exact comparison. It never reads a host.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::state::shown_as_serialized;
use crate::quantity::Limit;

/// The figure that a gate limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// Probes of a host that are not as wanted.
    Errors,
    /// Events of a probe that were lost, of its hits.
    Loss,
    /// Hits of a probe that the kernel skipped, of all.
    Misses,
    /// Hits of a probe per second: the load on the tasks that hit it.
    Hits,
}

shown_as_serialized!(Metric);

/// A figure of a host: a count, the total that it is a part of, and the probe that it is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    pub(super) count: u64,
    /// 0 if it is a part of nothing.
    pub(super) of: u64,
    /// Empty: it is of all.
    pub(super) probe: String,
}

/// One gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Gate {
    pub(super) metric: Metric,
    /// Absent: the gate is disabled.
    pub(super) limit: Option<Limit>,
}

impl Metric {
    const ALL: [Self; 4] = [Self::Errors, Self::Loss, Self::Misses, Self::Hits];

    fn default_limit(self) -> Limit {
        match self {
            Self::Errors => Limit::Count(0),
            Self::Loss | Self::Misses => Limit::Share(1_000),
            Self::Hits => Limit::Count(100_000),
        }
    }

    /// Whether the figure is a part of a total, which a percentage can limit.
    fn is_part(self) -> bool {
        matches!(self, Self::Loss | Self::Misses)
    }

    /// The unit of a count.
    fn unit(self) -> &'static str {
        if self == Self::Hits { "/s" } else { "" }
    }

    fn limit(self, text: &str) -> Option<Limit> {
        let limit = text.strip_suffix(self.unit())?.parse().ok()?;
        (self.is_part() || matches!(limit, Limit::Count(_))).then_some(limit)
    }

    /// A figure as text.
    pub(crate) fn shown(self, figure: &Figure) -> String {
        let Figure { count, of, probe } = figure;
        let amount =
            if self.is_part() { format!("{count} of {of}") } else { format!("{count}{}", self.unit()) };
        if probe.is_empty() { amount } else { format!("{amount} of {probe}") }
    }
}

impl Figure {
    /// Whether its share is larger, or its count if it is a part of nothing.
    pub(super) fn is_worse_than(&self, other: &Self) -> bool {
        let share = |one: &Self, other: &Self| u128::from(one.count) * u128::from(other.of.max(1));
        share(self, other) > share(other, self)
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { metric, limit } = self;
        match limit {
            Some(limit) => write!(f, "{metric}<={limit}{}", metric.unit()),
            None => write!(f, "{metric}=off"),
        }
    }
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a gate: write `errors<=N`, `loss<=P%`, `misses<=P%`, `hits<=N/s` or `NAME=off`; loss and misses can be numbers too, and percentages have at most four decimal places"
            )
        };
        let (name, limit) = match text.split_once("<=") {
            Some((name, limit)) => (name, Some(limit)),
            None => (text.strip_suffix("=off").ok_or_else(wrong)?, None),
        };
        let is_named = |metric: &Metric| metric.to_string() == name.trim();
        let metric = Metric::ALL.into_iter().find(is_named).ok_or_else(wrong)?;
        let limit = limit.map(|limit| metric.limit(limit.trim()).ok_or_else(wrong)).transpose()?;
        Ok(Self { metric, limit })
    }
}

impl TryFrom<String> for Gate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Gate> for String {
    fn from(gate: Gate) -> Self {
        gate.to_string()
    }
}

/// All gates of a roll-out: one for each metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Gates(Vec<Gate>);

impl Gates {
    /// The defaults, replaced by the given gates. Of several for one metric, the last one counts.
    pub(crate) fn with(given: &[Gate]) -> Self {
        let given = Self(given.to_vec());
        Self(Metric::ALL.map(|metric| given.gate(metric)).to_vec())
    }

    /// The gate of a metric: the default if none was given.
    pub(super) fn gate(&self, metric: Metric) -> Gate {
        let default = Gate { metric, limit: Some(metric.default_limit()) };
        self.0.iter().rev().find(|gate| gate.metric == metric).copied().unwrap_or(default)
    }
}

impl fmt::Display for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gates: Vec<_> = self.0.iter().map(Gate::to_string).collect();
        f.write_str(&gates.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn notation() {
        let gate = |text: &str| text.parse::<Gate>().map(|gate| gate.to_string());
        for text in [
            "errors<=0",
            "loss<=0.1%",
            "misses<=7",
            "hits<=1000000/s",
            "loss=off",
            "misses<=100%",
            "misses<=0.5%",
        ] {
            assert_eq!(gate(text).unwrap(), text);
        }
        assert_eq!(gate("loss <= 0.1000%").unwrap(), "loss<=0.1%");
        for text in ["", "loss", "loss<0.1%", "lost<=1", "loss=on", "cost<=1"].into_iter().chain([
            "errors<=1%",
            "hits<=5",
            "loss<=0.00001%",
            "loss<=101%",
            "misses<=-1",
            "loss<=.5%",
            "loss<=1.%",
            "misses<=%",
            "loss<=429496.7296%",
        ]) {
            assert!(gate(text).unwrap_err().starts_with(&format!("`{text}` is not a gate")), "{text}");
        }
        let gates = Gates::with(&["loss=off".parse().unwrap(), "hits<=5/s".parse().unwrap()]);
        assert_eq!(gates.to_string(), "errors<=0, loss=off, misses<=0.1%, hits<=5/s");
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(metric in 0..Metric::ALL.len(), limit in any::<u64>(), kind in 0..3) {
            let metric = Metric::ALL[metric];
            let limit = match (kind, metric.is_part()) {
                (0, _) => None,
                (1, true) => Some(Limit::Share(u32::try_from(limit % 1_000_001).unwrap())),
                _ => Some(Limit::Count(limit)),
            };
            let gate = Gate { metric, limit };
            prop_assert_eq!(gate.to_string().parse::<Gate>().unwrap(), gate);
        }

        #[test]
        fn no_text_is_too_odd(text in "(errors|loss|misses|hits)?(<=)?[<=0-9.%/sof]{0,24}") {
            if let Ok(gate) = text.parse::<Gate>() {
                prop_assert_eq!(gate.to_string().parse::<Gate>().unwrap(), gate);
            }
        }
    }
}
