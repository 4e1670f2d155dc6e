//! Values that several outputs print: bytes in hexadecimal, one-line text, counts, times, names of API enums.

use std::fmt::Display;

use jiff::Timestamp;
use kprobed_client::api::{Arming, CheckStatus};
use kprobed_client::event::Escaped;

use super::terminal::Tone;

/// Bytes in hexadecimal, with blanks between them.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// Whether an instruction at an offset holds the byte at another one.
pub(crate) fn covers(offset: u32, code: &[u8], byte: u32) -> bool {
    byte.checked_sub(offset).is_some_and(|inside| inside == 0 || (inside as usize) < code.len())
}

/// Text that keeps to its line and does nothing to a terminal. Backslashes stay as they are.
pub(crate) fn one_line(text: &str) -> String {
    if text.chars().any(char::is_control) { Escaped(text.as_bytes()).to_string() } else { text.to_owned() }
}

/// So many of what has this name: `1 host`, `3 hosts`.
pub(crate) fn counted<N: Copy + Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    format!("{number} {noun}{}", if number == N::from(1) { "" } else { "s" })
}

/// Items with what they have in common, in the order in which the first of each came.
pub(super) fn grouped<T: Copy, K: PartialEq>(
    items: impl IntoIterator<Item = T>,
    common: impl Fn(T) -> K,
) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for item in items {
        let common = common(item);
        let same = groups.iter_mut().find(|(known, _)| *known == common);
        match same {
            Some((_, items)) => items.push(item),
            None => groups.push((common, vec![item])),
        }
    }
    groups
}

/// How a probe is armed, if that is known.
pub(crate) fn arming(arming: Arming) -> Option<&'static str> {
    match arming {
        Arming::Unspecified => None,
        Arming::Ftrace => Some("ftrace"),
        Arming::Breakpoint => Some("breakpoint"),
        Arming::Optimised => Some("jump"),
    }
}

/// The word for the status of a check, and its colour.
pub(crate) const fn check_status(status: CheckStatus) -> (&'static str, Tone) {
    match status {
        CheckStatus::Ok => ("ok", Tone::Good),
        CheckStatus::Warning => ("warning", Tone::Doubtful),
        CheckStatus::Failed => ("failed", Tone::Bad),
        CheckStatus::Unspecified => ("unknown", Tone::Plain),
    }
}

/// A time of the API.
pub(crate) fn to_proto_time(time: Timestamp) -> prost_types::Timestamp {
    // The API wants nanoseconds that count upward, also before 1970.
    let nanoseconds = time.as_nanosecond();
    let second = nanoseconds.div_euclid(1_000_000_000);
    prost_types::Timestamp {
        seconds: i64::try_from(second).unwrap_or_default(),
        nanos: i32::try_from(nanoseconds.rem_euclid(1_000_000_000)).unwrap_or_default(),
    }
}

/// The instant of a time of the API. `None` when there is none, or none that exists.
pub(crate) fn instant(time: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
    Timestamp::new(time?.seconds, time?.nanos).ok()
}

/// The same in RFC 3339.
pub(crate) fn rfc3339(time: Option<&prost_types::Timestamp>) -> Option<String> {
    Some(instant(time)?.to_string())
}

/// The same for people: to the second.
pub(crate) fn moment(time: Option<&prost_types::Timestamp>) -> Option<String> {
    rfc3339(Some(&prost_types::Timestamp { nanos: 0, ..*time? }))
}

/// Milliseconds since 1970 in RFC 3339, with all three digits.
pub(super) fn rfc3339_ms(ms: u64) -> String {
    let time = Timestamp::from_millisecond(i64::try_from(ms).unwrap_or_default()).unwrap_or_default();
    format!("{time:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_both_ways() {
        for text in ["2026-01-31T12:00:00Z", "1969-12-31T23:59:59.5Z"] {
            let proto = to_proto_time(text.parse().unwrap());
            assert!((0..1_000_000_000).contains(&proto.nanos));
            assert_eq!(rfc3339(Some(&proto)).as_deref(), Some(text));
            let to_the_second = text.replace(".5Z", "Z");
            assert_eq!(moment(Some(&proto)), Some(to_the_second));
        }
        assert_eq!(rfc3339_ms(1_500), "1970-01-01T00:00:01.500Z");
        assert_eq!(rfc3339(Some(&prost_types::Timestamp { seconds: i64::MAX, nanos: 0 })), None);
    }
}
