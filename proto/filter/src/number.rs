//! Numbers as the kernel parses them, and as kprobed writes them.
//!
//! Follows lib/kstrtox.c (`kstrtoull`, `kstrtoll`, `simple_strtoull`), the same from 5.10 to 7.3: a number
//! may have one `+`, `0x` or a leading zero gives its base, and the whole text must belong to it.

/// Radix and the digits that follow the prefix (lib/kstrtox.c:_parse_integer_fixup_radix with base 0).
fn split_radix(text: &str) -> (u32, &str) {
    let bytes = text.as_bytes();
    if bytes.first() != Some(&b'0') {
        return (10, text);
    }
    match bytes.get(1) {
        Some(b'x' | b'X') if bytes.get(2).is_some_and(u8::is_ascii_hexdigit) => (16, &text[2..]),
        _ => (8, text),
    }
}

/// Base-0 digits without a sign, to the end of the text.
fn digits(text: &str) -> Option<u64> {
    let (radix, digits) = split_radix(text);
    // The standard parser also takes a sign here, which the kernel does not.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// `kstrtoul(text, 0)`.
pub fn unsigned(text: &str) -> Option<u64> {
    digits(text.strip_prefix('+').unwrap_or(text))
}

/// `kstrtol(text, 0)`.
pub fn signed(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(rest) => 0i64.checked_sub_unsigned(digits(rest)?),
        None => i64::try_from(unsigned(text)?).ok(),
    }
}

/// Whether `kstrtoul(text, 0)` says `ERANGE` and not `EINVAL`: it does if the leading digits are
/// too large a number, whatever follows.
pub fn unsigned_is_too_large(text: &str) -> bool {
    let (radix, rest) = split_radix(text.strip_prefix('+').unwrap_or(text));
    let length = rest.bytes().take_while(|b| char::from(*b).is_digit(radix)).count();
    length > 0 && u64::from_str_radix(&rest[..length], radix).is_err()
}

/// The same of `kstrtol(text, 0)`, with its sign, for a text that is only a number.
pub fn signed_is_too_large(text: &str) -> bool {
    match text.strip_prefix('-') {
        // The kernel takes one sign.
        Some(rest) if rest.starts_with('+') => false,
        Some(rest) => unsigned_is_too_large(rest) || digits(rest).is_some() && signed(text).is_none(),
        None => unsigned_is_too_large(text) || unsigned(text).is_some() && signed(text).is_none(),
    }
}

/// `kstrtoul(text, 10)`, of the index in `$stackN` and `$argN`.
pub fn decimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    if digits.starts_with(['+', '-']) { None } else { digits.parse().ok() }
}

/// `simple_strtoul(text, &tail, 0)`: the number at the start (0 without one) and what follows it.
///
/// A number that is too large wraps, as it does in the kernel.
pub fn leading(text: &str) -> (u64, &str) {
    let (radix, rest) = split_radix(text);
    let length = rest.bytes().take_while(|b| char::from(*b).is_digit(radix)).count();
    let (number, tail) = rest.split_at(length);
    if number.is_empty() {
        return (0, text);
    }
    let add = |value: u64, digit: u32| value.wrapping_mul(radix.into()).wrapping_add(u64::from(digit));
    (number.chars().filter_map(|digit| digit.to_digit(radix)).fold(0, add), tail)
}

/// The shorter of decimal and hexadecimal, so that a canonical text is never longer than what the user wrote:
/// the kernel limits the length of an expression.
pub fn shortest(value: u64) -> String {
    let decimal = value.to_string();
    let hex = format!("{value:#x}");
    if hex.len() <= decimal.len() { hex } else { decimal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_reads() {
        assert_eq!(unsigned("0x10"), Some(16));
        assert_eq!(unsigned("010"), Some(8));
        assert_eq!(unsigned("+4"), Some(4));
        assert_eq!(unsigned("0"), Some(0));
        for bad in ["", "+", "-1", "0x", "08", "1a", "++1", "0x+1", "18446744073709551616", " 1"] {
            assert_eq!(unsigned(bad), None, "{bad:?}");
        }
        assert_eq!(signed("-0x8000000000000000"), Some(i64::MIN));
        assert_eq!(signed("-0x8000000000000001"), None);
        assert_eq!(signed("0x8000000000000000"), None);
        assert_eq!(signed("-+1"), None);
        assert!(!signed_is_too_large("-+8") && !signed_is_too_large("-+99999999999999999999"));
        assert!(signed_is_too_large("-0x8000000000000001") && signed_is_too_large("0x8000000000000000"));
        assert!(signed_is_too_large("-99999999999999999999") && !signed_is_too_large("-0x8000000000000000"));
        assert_eq!(leading("10@3"), (10, "@3"));
        assert_eq!(leading("a/16"), (0, "a/16"));
        assert_eq!(leading("0x"), (0, "x"));
        assert_eq!(leading("18446744073709551615@"), (u64::MAX, "@"));
        assert_eq!(leading("18446744073709551619@"), (3, "@"));
        assert_eq!(leading("0x20000000000000002/8"), (2, "/8"));
    }

    #[test]
    fn canonical_numbers_are_never_longer() {
        for value in [0u64, 9, 10, 0xfff, 0x10000, u64::from(u32::MAX), u64::MAX, 1 << 40] {
            let short = shortest(value);
            assert_eq!(unsigned(&short), Some(value));
            for other in [value.to_string(), format!("{value:#x}"), format!("0{value:o}")] {
                assert!(short.len() <= other.len());
            }
        }
    }
}
