//! Notation of durations: `90s`, `2h`, `1d 12h`.
//!
//! Owns its units. Never limits a duration, except to the largest that the API can hold.

use std::fmt::Write as _;
use std::time::Duration;

/// Units, longest first, in nanoseconds. A day has 24 hours.
const UNITS: [(&str, u128); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Reads a duration. Absent if the text is not a duration.
pub fn read_duration(text: &str) -> Option<Duration> {
    let mut total: u128 = 0;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, behind) = rest.split_at(digits);
        let end = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let (_, nanoseconds) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(number.parse::<u128>().ok()?.checked_mul(*nanoseconds)?)?;
        rest = behind.trim_start();
    }
    let second = 1_000_000_000;
    let nanoseconds = u32::try_from(total % second).ok()?;
    // The API holds seconds as 64 bits with sign.
    let seconds = i64::try_from(total / second).ok()?;
    Some(Duration::new(seconds.unsigned_abs(), nanoseconds))
}

/// Writes a duration in the longest units, without a loss.
pub fn write_duration(duration: Duration) -> String {
    let mut rest = duration.as_nanos();
    let mut text = String::new();
    for (name, nanoseconds) in UNITS {
        let number = rest / nanoseconds;
        rest %= nanoseconds;
        if number > 0 {
            let blank = if text.is_empty() { "" } else { " " };
            write!(text, "{blank}{number}{name}").ok();
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_what_people_write() {
        for (text, seconds) in
            [("90s", 90), ("2h", 7200), ("1h30m", 5400), (" 1d 12h ", 129_600), ("0s", 0), ("1m 1m", 120)]
        {
            assert_eq!(read_duration(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "2", "h", "-1s", "1.5h", "2 h", "1y", "1h,", "99999999999999999999d"] {
            assert_eq!(read_duration(wrong), None, "{wrong}");
        }
        assert_eq!(write_duration(Duration::from_millis(5_400_250)), "1h 30m 250ms");
        assert_eq!(write_duration(Duration::ZERO), "0s");
    }
}
