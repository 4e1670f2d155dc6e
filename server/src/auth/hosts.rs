//! Hosts of a command: how many hosts a client asks for the same thing, as it says.
//!
//! Owns the header. A guard against a pattern that matches a whole fleet, and not against an attacker, who
//! can ask each host for itself.

use kprobed_proto::HOSTS_HEADER;
use tonic::codegen::http::HeaderMap;

/// The number in a request; 1 if it has none. What is no number is more than any limit.
pub fn hosts_of_command(headers: &HeaderMap) -> u64 {
    let Some(value) = headers.get(HOSTS_HEADER) else { return 1 };
    value.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tonic::codegen::http::HeaderValue;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_more_than_any_limit() {
        let of = |text: &str| {
            hosts_of_command(&HeaderMap::from_iter([(
                HOSTS_HEADER.parse().unwrap(),
                HeaderValue::from_bytes(text.as_bytes()).unwrap(),
            )]))
        };
        assert_eq!([of("480"), of("1"), of("0")], [480, 1, 0]);
        assert!(["", "-1", "many", "\u{ff}", "99999999999999999999"].iter().all(|text| of(text) == u64::MAX));
        assert_eq!(hosts_of_command(&HeaderMap::new()), 1);
    }
}
