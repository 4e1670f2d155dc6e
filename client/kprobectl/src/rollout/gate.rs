//! Gates of a roll-out: limits that must hold before the next wave.
//!
//! Owns the notation (`loss<=0.1%`), the defaults, and exact comparison. It never reads a host.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The figure that a gate limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Metric {
    /// Probes of a host that are not as wanted.
    Errors,
    /// Checks of `kprobectl doctor` that fail, and did not before the change.
    Health,
    /// Events of a probe that were lost.
    Loss,
    /// Hits of a probe that the kernel skipped.
    Misses,
    /// Hits of a probe per second: the load on the tasks that hit it.
    Hits,
    /// CPU time of the daemon during the soak.
    Cpu,
}

/// Limit of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// A number.
    Count(u64),
    /// Millionths of hits, or of the time of one core.
    Share(u32),
    /// Per second.
    Rate(u64),
}

/// One gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Gate {
    pub(crate) metric: Metric,
    /// Absent: the gate is disabled.
    pub(crate) limit: Option<Limit>,
}

/// Why a text is not a gate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum GateError {
    /// Unknown name or form.
    #[error(
        "`{0}` is not a gate: write `errors<=N`, `health<=N`, `loss<=P%`, `misses<=P%`, `hits<=N/s` or `cpu<=P%`, or `NAME=off`"
    )]
    Form(String),
    /// A limit of another kind.
    #[error("`{limit}` is not a limit of `{metric}`: write {wanted}")]
    Limit {
        /// The text of the limit.
        limit: String,
        /// The gate.
        metric: &'static str,
        /// The notation that it takes.
        wanted: &'static str,
    },
}

/// Decimal places of a percentage; a share is kept in millionths.
const DIGITS: usize = 4;

/// All of it, in millionths.
const WHOLE: u32 = 1_000_000;

impl Metric {
    pub(crate) const ALL: [Self; 6] =
        [Self::Errors, Self::Health, Self::Loss, Self::Misses, Self::Hits, Self::Cpu];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Errors => "errors",
            Self::Health => "health",
            Self::Loss => "loss",
            Self::Misses => "misses",
            Self::Hits => "hits",
            Self::Cpu => "cpu",
        }
    }

    const fn default_limit(self) -> Limit {
        match self {
            Self::Errors | Self::Health => Limit::Count(0),
            Self::Loss | Self::Misses => Limit::Share(1_000),
            Self::Hits => Limit::Rate(100_000),
            Self::Cpu => Limit::Share(WHOLE / 4),
        }
    }

    const fn wanted(self) -> &'static str {
        match self {
            Self::Errors | Self::Health => "a number, such as `0`",
            Self::Loss | Self::Misses => {
                "a number or a percentage with at most four digits behind the point, such as `0.1%`"
            }
            Self::Hits => "a number a second, such as `100000/s`",
            Self::Cpu => "a percentage of one core with at most four digits behind the point, such as `25%`",
        }
    }

    fn limit(self, text: &str) -> Result<Limit, GateError> {
        let found = match self {
            Self::Errors | Self::Health => number(text).map(Limit::Count),
            Self::Loss | Self::Misses => match text.strip_suffix('%') {
                Some(percent) => share(percent).filter(|share| *share <= WHOLE).map(Limit::Share),
                None => number(text).map(Limit::Count),
            },
            Self::Hits => text.strip_suffix("/s").and_then(number).map(Limit::Rate),
            // A daemon has several threads: more than all of one core can be allowed.
            Self::Cpu => text.strip_suffix('%').and_then(share).map(Limit::Share),
        };
        let wrong =
            || GateError::Limit { limit: text.to_owned(), metric: self.name(), wanted: self.wanted() };
        found.ok_or_else(wrong)
    }
}

fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// Millionths out of a percentage.
fn share(percent: &str) -> Option<u32> {
    let (whole, rest) = percent.split_once('.').unwrap_or((percent, "0"));
    if rest.is_empty() || rest.len() > DIGITS || !rest.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let millionths =
        number(whole)?.checked_mul(10_000)?.checked_add(number(&format!("{rest:0<DIGITS$}"))?)?;
    u32::try_from(millionths).ok()
}

impl Limit {
    /// Whether a count out of `of` passes.
    pub(crate) fn covers(self, count: u64, of: u64) -> bool {
        match self {
            Self::Count(limit) | Self::Rate(limit) => count <= limit,
            Self::Share(share) => u128::from(count) * u128::from(WHOLE) <= u128::from(of) * u128::from(share),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Rate(rate) => write!(f, "{rate}/s"),
            Self::Share(share) => {
                let rest = format!("{:04}", share % 10_000);
                let rest = rest.trim_end_matches('0');
                let point = if rest.is_empty() { "" } else { "." };
                write!(f, "{}{point}{rest}%", share / 10_000)
            }
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            Some(limit) => write!(f, "{}<={limit}", self.metric.name()),
            None => write!(f, "{}=off", self.metric.name()),
        }
    }
}

impl FromStr for Gate {
    type Err = GateError;

    fn from_str(text: &str) -> Result<Self, GateError> {
        let wrong = || GateError::Form(text.to_owned());
        let named = |name: &str| {
            Metric::ALL.into_iter().find(|metric| metric.name() == name.trim()).ok_or_else(wrong)
        };
        if let Some((name, limit)) = text.split_once("<=") {
            let metric = named(name)?;
            return Ok(Self { metric, limit: Some(metric.limit(limit.trim())?) });
        }
        match text.split_once('=') {
            Some((name, "off")) => Ok(Self { metric: named(name)?, limit: None }),
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Gate {
    type Error = GateError;

    fn try_from(text: String) -> Result<Self, GateError> {
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
        let one = |metric: Metric| {
            let default = Gate { metric, limit: Some(metric.default_limit()) };
            given.iter().rev().find(|gate| gate.metric == metric).copied().unwrap_or(default)
        };
        Self(Metric::ALL.into_iter().map(one).collect())
    }

    /// The limit of a metric; none if that gate is disabled.
    pub(crate) fn limit(&self, metric: Metric) -> Option<Limit> {
        self.0.iter().rev().find(|gate| gate.metric == metric).and_then(|gate| gate.limit)
    }

    /// Whether each metric has exactly one gate.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.iter().map(|gate| gate.metric).eq(Metric::ALL)
    }
}

impl fmt::Display for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, gate) in self.0.iter().enumerate() {
            write!(f, "{}{gate}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
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
            "health<=2",
            "loss<=0.1%",
            "misses<=7",
            "hits<=1000000/s",
            "loss=off",
            "misses<=100%",
            "cpu<=25%",
            "cpu<=0.5%",
            "cpu<=400%",
        ] {
            assert_eq!(gate(text).unwrap(), text);
        }
        assert_eq!(gate("loss <= 0.1000%").unwrap(), "loss<=0.1%");
        for text in ["", "loss", "loss<0.1%", "lost<=1", "loss=on", "cost<=1"] {
            assert!(matches!(gate(text), Err(GateError::Form(_))), "{text}");
        }
        for text in
            ["errors<=1%", "hits<=5", "loss<=0.00001%", "loss<=101%", "misses<=-1", "loss<=.5%", "loss<=1.%"]
                .into_iter()
                .chain(["cpu<=25", "cpu<=1/s", "cpu<=%", "cpu<=429496.7296%"])
        {
            assert!(matches!(gate(text), Err(GateError::Limit { .. })), "{text}");
        }
        let gates = Gates::with(&["loss=off".parse().unwrap(), "hits<=5/s".parse().unwrap()]);
        assert_eq!(gates.to_string(), "errors<=0, health<=0, loss=off, misses<=0.1%, hits<=5/s, cpu<=25%");
    }

    #[test]
    fn shares_are_exact() {
        let limit = Limit::Share(1_000);
        assert!(limit.covers(1, 1000) && !limit.covers(1, 999) && !limit.covers(u64::MAX, u64::MAX));
        assert!(limit.covers(0, 0) && !limit.covers(1, 0));
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(metric in 0_usize..Metric::ALL.len(), limit in any::<u64>(), kind in 0..3) {
            let metric = Metric::ALL[metric];
            let limit = match (kind, metric) {
                (0, _) => None,
                (_, Metric::Hits) => Some(Limit::Rate(limit)),
                (_, Metric::Cpu) => Some(Limit::Share(u32::try_from(limit >> 32).unwrap())),
                (1, Metric::Loss | Metric::Misses) => Some(Limit::Share(u32::try_from(limit % 1_000_001).unwrap())),
                _ => Some(Limit::Count(limit)),
            };
            let gate = Gate { metric, limit };
            prop_assert_eq!(gate.to_string().parse::<Gate>().unwrap(), gate);
        }

        #[test]
        fn no_text_is_too_odd(text in "(errors|health|loss|misses|hits|cpu)?(<=)?[<=0-9.%/sof]{0,24}") {
            if let Ok(gate) = text.parse::<Gate>() {
                prop_assert_eq!(gate.to_string().parse::<Gate>().unwrap(), gate);
            }
        }

        #[test]
        fn a_percentage_of_a_core_is_what_it_says(
            whole in 0_u64..=4000, rest in 0_u64..10_000, used in 0..u64::MAX / 2, time in 1..u64::MAX / 2,
        ) {
            let gate: Gate = format!("cpu<={whole}.{rest:04}%").parse().unwrap();
            prop_assert_eq!(gate.metric, Metric::Cpu);
            // Without a division: used / time <= (whole + rest / 10000) / 100.
            let is_within = u128::from(used) * 1_000_000 <= u128::from(time) * u128::from(whole * 10_000 + rest);
            prop_assert_eq!(gate.limit.unwrap().covers(used, time), is_within);
        }
    }
}
