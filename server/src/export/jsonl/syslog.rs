//! The header of a syslog message (RFC 5424).

/// Facility `local0` (16), severity `informational` (6).
const PRIORITY: u8 = 16 * 8 + 6;

/// Longest HOSTNAME of the header, in bytes (RFC 5424, 6).
const HOSTNAME_BYTES: usize = 255;

/// Appends the header of a message whose text follows. Its time is in the text, as exactly as it
/// was measured: the header has none (NILVALUE), and the receiver puts its own there.
pub(super) fn begin(buffer: &mut Vec<u8>, hostname: &str) {
    buffer.extend_from_slice(format!("<{PRIORITY}>1 - ").as_bytes());
    let name = hostname.bytes().filter(u8::is_ascii_graphic).take(HOSTNAME_BYTES);
    let before = buffer.len();
    buffer.extend(name);
    if buffer.len() == before {
        buffer.push(b'-');
    }
    buffer.extend_from_slice(b" kprobed - - - ");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_the_standard() {
        let head = |hostname: &str| {
            let mut buffer = Vec::new();
            begin(&mut buffer, hostname);
            String::from_utf8(buffer).unwrap()
        };
        assert_eq!(head("web1.example"), "<134>1 - web1.example kprobed - - - ");
        assert_eq!(head("a b\n"), "<134>1 - ab kprobed - - - ");
        assert_eq!(head(""), "<134>1 - - kprobed - - - ");
    }
}
