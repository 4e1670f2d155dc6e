//! Conversion of times: those of the API, RFC 3339.

use jiff::Timestamp;

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
