//! Durations, points in time, sizes, limits and values of the API as command-line arguments.
//!
//! Owns their notation. A time of day and a duration never look alike: a colon makes it a time of day.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// Reads a duration such as `500ms`, `10s` or `1h 30m`, as documents have them.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    kprobed_document::read_duration(text)
        .ok_or_else(|| format!("`{text}` is not a duration: write `500ms`, `10s` or `1h 30m`"))
}

/// Reads how long to wait for something.
pub(crate) fn time_limit(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => {
            Err(format!("`{text}` leaves no time for an answer: write how long to wait, such as `30s`"))
        }
        limit => Ok(limit),
    }
}

/// Reads a point in time: how long ago it was (`10m`), a time of day (`07:00`, the last such
/// moment), or a date and time. A time without a zone is in the local one.
pub(crate) fn point_in_time(text: &str) -> Result<Timestamp, String> {
    moment(text, &Zoned::now())
}

/// The same, for this time and zone.
pub(crate) fn moment(text: &str, now: &Zoned) -> Result<Timestamp, String> {
    let text = text.trim();
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let zone = now.time_zone();
    // Before a time of day, which the library finds in a date and time too.
    if let Ok(time) = text.parse::<DateTime>() {
        return instant(time, zone).ok_or_else(|| format!("`{text}` is out of range"));
    }
    // `10-30` is a time with an offset for the library, and most likely a mistake: without a colon
    // nothing is a time of day.
    if text.contains(':')
        && let Ok(time) = text.parse::<Time>()
    {
        let today = now.date();
        let last = today
            .yesterday()
            .into_iter()
            .chain([today])
            .map(|date| date.to_datetime(time))
            .filter_map(|shown| Some((shown, instant(shown, zone)?)))
            // Clocks that are set forward skip an hour of one day.
            .filter(|(shown, instant)| zone.to_datetime(*instant) == *shown)
            .map(|(_, instant)| instant)
            .filter(|instant| *instant <= now.timestamp())
            .max();
        return last.ok_or_else(|| format!("`{text}` is before all time"));
    }
    let ago = duration(text).map_err(|_neither| {
        format!(
            "`{text}` is not a point in time: write how long ago (`10m`), a time of day (`07:00`), or a date and time \
             (`2026-01-31T12:00`, in UTC with a `Z` behind it)"
        )
    })?;
    now.timestamp().checked_sub(ago).map_err(|_out_of_range| format!("`{text}` ago is before all time"))
}

/// The instant of a local time in a zone. If clocks show it twice, it is the first one, so that a
/// range from there misses nothing.
fn instant(time: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    zone.to_ambiguous_timestamp(time).compatible().ok()
}

/// Reads the length of an interval: a duration of whole seconds, at least one.
pub(crate) fn step(text: &str) -> Result<u32, String> {
    let duration = duration(text)?;
    u32::try_from(duration.as_secs())
        .ok()
        .filter(|seconds| *seconds > 0 && duration.subsec_nanos() == 0)
        .ok_or_else(|| format!("`{text}` is not a number of whole seconds: write `1s`, `5m` or `1d`"))
}

/// Reads a number of bytes such as `65536`, `64KiB`, `16MiB` or `1GiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = [("KiB", 10), ("MiB", 20), ("GiB", 30)]
        .into_iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
        .unwrap_or((text, 0));
    let number = digits.trim_end().parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.ok_or_else(|| {
        format!("`{text}` is not a number of bytes: write `65536`, `64KiB`, `16MiB` or `1GiB`")
    })
}

/// Reads a value of the API by its name. Each has a name and a help.
pub(crate) fn named<T: Copy + Default + Send + Sync + 'static, const N: usize>(
    values: [(&'static str, T, &'static str); N],
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(values.map(|(name, _, help)| PossibleValue::new(name).help(help)));
    names.map(move |text| {
        let value = values.iter().find(|(name, ..)| *name == text);
        value.map(|(_, value, _)| *value).unwrap_or_default()
    })
}

/// A number, or a share of a total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Count(u64),
    /// Millionths.
    Share(u32),
}

impl Limit {
    /// Whether this many of a total are allowed.
    pub(crate) fn covers(self, count: u64, total: u64) -> bool {
        match self {
            Self::Count(limit) => count <= limit,
            Self::Share(share) => u128::from(count) * 1_000_000 <= u128::from(total) * u128::from(share),
        }
    }

    /// Millionths out of a percentage with up to four decimal places.
    fn share(percent: &str) -> Option<Self> {
        let (whole, rest) = percent.split_once('.').unwrap_or((percent, "0"));
        if rest.is_empty() || rest.len() > 4 {
            return None;
        }
        let share = number(whole)?.checked_mul(10_000)?.checked_add(number(&format!("{rest:0<4}"))?)?;
        u32::try_from(share).ok().filter(|share| *share <= 1_000_000).map(Self::Share)
    }
}

fn number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = match text.strip_suffix('%') {
            Some(percent) => Self::share(percent),
            None => number(text).map(Self::Count),
        };
        found.ok_or_else(|| {
            format!(
                "`{text}` is neither a number nor a percentage: write `3`, `5%` or `0.1%`, at most `100%`"
            )
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Share(share) => {
                let rest = format!(".{:04}", share % 10_000);
                write!(f, "{}{}%", share / 10_000, rest.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Central Europe, without a data base of zones.
    fn zone() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    fn at(now: &str, text: &str) -> Result<String, String> {
        let now = now.parse::<Timestamp>().unwrap().to_zoned(zone());
        moment(text, &now).map(|time| time.to_string())
    }

    #[test]
    fn durations() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_mins(90)));
        assert_eq!(duration("2d"), Ok(Duration::from_hours(48)));
        for text in ["-1s", "1s ago", "1y", "ten", "", "07:00:00", "7:00", "1d 07:00:00"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_limit_leaves_time() {
        assert_eq!(time_limit("500ms"), Ok(Duration::from_millis(500)));
        for text in ["0s", "0ms", "0h 0m"] {
            assert!(time_limit(text).unwrap_err().contains("such as `30s`"), "{text}");
        }
    }

    #[test]
    fn steps_are_whole_seconds() {
        assert_eq!((step("5m"), step("1s"), step("1d")), (Ok(300), Ok(1), Ok(86_400)));
        for text in ["0s", "500ms", "1500ms", "-5m", "five", "200000d"] {
            assert!(step(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!((bytes("17"), bytes("64KiB"), bytes("2 GiB")), (Ok(17), Ok(65_536), Ok(2 << 30)));
        for text in ["", "-1", "64k", "MiB", "99999999999GiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_of_day_is_the_last_such_moment() {
        let noon = "2026-01-31T12:00:00+01:00";
        for (text, expected) in [
            ("07:00:00", "2026-01-31T06:00:00Z"),
            ("07:00", "2026-01-31T06:00:00Z"),
            ("12:00:00", "2026-01-31T11:00:00Z"),
            ("12:00:00.000001", "2026-01-30T11:00:00.000001Z"),
            ("23:59:59.999999", "2026-01-30T22:59:59.999999Z"),
        ] {
            assert_eq!(at(noon, text).as_deref(), Ok(expected), "{text}");
        }
        // Clocks go back at 03:00: half past two is twice, and the first one is taken.
        assert_eq!(at("2026-10-25T12:00:00+01:00", "02:30").as_deref(), Ok("2026-10-25T00:30:00Z"));
        // Clocks go forward at 02:00: that day has no half past two.
        assert_eq!(at("2026-03-29T12:00:00+02:00", "02:30").as_deref(), Ok("2026-03-28T01:30:00Z"));
        // In between, 02:45 was there once.
        assert_eq!(at("2026-10-25T02:30:00+01:00", "02:45").as_deref(), Ok("2026-10-25T00:45:00Z"));
    }

    #[test]
    fn dates_durations_and_zones() {
        let noon = "2026-01-31T12:00:00+01:00";
        for (text, expected) in [
            ("2026-01-30T07:00:00", "2026-01-30T06:00:00Z"),
            ("2026-01-30 07:00:00.123456", "2026-01-30T06:00:00.123456Z"),
            ("2026-07-01T07:00", "2026-07-01T05:00:00Z"),
            ("2026-01-30T07:00:00Z", "2026-01-30T07:00:00Z"),
            ("2026-01-30T07:00:00.000000001Z", "2026-01-30T07:00:00.000000001Z"),
            ("2026-01-30T07:00:00-05:00", "2026-01-30T12:00:00Z"),
            ("2026-01-30", "2026-01-29T23:00:00Z"),
            ("7h", "2026-01-31T04:00:00Z"),
            ("10m", "2026-01-31T10:50:00Z"),
        ] {
            assert_eq!(at(noon, text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_says_what_to_write() {
        let noon = "2026-01-31T12:00:00+01:00";
        for text in ["", "yesterday", "25:00", "07:60", "1y", "-7h", "12", "1.5", "2026-02-30", "10-30"] {
            let error = at(noon, text).unwrap_err();
            assert!(error.contains(&format!("`{text}`")) && error.contains("`10m`"), "{error}");
        }
    }

    #[test]
    fn limits() {
        let covers = |text: &str, count, total| text.parse::<Limit>().unwrap().covers(count, total);
        assert!(covers("5%", 5, 100) && !covers("5%", 6, 100) && !covers("5%", 1, 19) && covers("0", 0, 1));
        assert!(covers("3", 3, 3) && !covers("3", 4, 1000) && covers("100%", 7, 7));
        let wrong =
            ["", "%", "101%", "-1", "+1", "x", "1.5", "0.00001%", ".5%", "1.%", "-1%", "429496.7296%"];
        for wrong in wrong {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_are_exact() {
        let limit = Limit::Share(1_000);
        assert!(limit.covers(1, 1000) && !limit.covers(1, 999) && !limit.covers(u64::MAX, u64::MAX));
        assert!(limit.covers(0, 0) && !limit.covers(1, 0));
    }

    proptest! {
        #[test]
        fn a_percentage_is_what_it_says(
            whole in 0_u64..=99, rest in 0_u64..10_000, count in 0..u64::MAX / 2, total in 1..u64::MAX / 2,
        ) {
            let limit: Limit = format!("{whole}.{rest:04}%").parse().unwrap();
            prop_assert_eq!(limit.to_string().parse(), Ok(limit));
            // Without a division: count / total <= (whole + rest / 10000) / 100.
            let is_within = u128::from(count) * 1_000_000 <= u128::from(total) * u128::from(whole * 10_000 + rest);
            prop_assert_eq!(limit.covers(count, total), is_within);
        }
    }
}
