//! Digits of numbers: decimal and hexadecimal, appended to a buffer.
//!
//! Owns nothing but speed: it writes what `std::fmt` would write, and never makes a string of its
//! own for a number.

/// Digits of 64 bits in decimal, at most.
const LONGEST: usize = 20;

/// Appends a number in decimal.
#[inline]
pub(super) fn push_decimal(buffer: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0_u8; LONGEST];
    let mut start = LONGEST;
    for place in digits.iter_mut().rev() {
        *place = b'0' + (value % 10) as u8;
        start -= 1;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    buffer.extend_from_slice(digits.get(start..).unwrap_or_default());
}

/// Appends a number with its sign in decimal.
#[inline]
pub(super) fn push_signed(buffer: &mut Vec<u8>, value: i64) {
    if value < 0 {
        buffer.push(b'-');
    }
    push_decimal(buffer, value.unsigned_abs());
}

/// Appends `0x` and a number in hexadecimal, without zeros in front.
#[inline]
pub(super) fn push_hex(buffer: &mut Vec<u8>, value: u64) {
    let mut digits = *b"0x0000000000000000";
    let length = (64 - value.leading_zeros()).div_ceil(4).max(1) as usize;
    for (place, digit) in digits.iter_mut().skip(2).zip((0..length).rev()) {
        *place = hex_digit((value >> (4 * digit) & 0xf) as u8);
    }
    buffer.extend_from_slice(digits.get(..2 + length).unwrap_or_default());
}

/// The digit of a number below 16.
#[inline]
pub(super) fn hex_digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'a' + value - 10 }
}

/// Appends a number in `N` decimal digits, with zeros in front; what does not fit is cut off in
/// front.
#[inline]
pub(super) fn push_padded<const N: usize>(buffer: &mut Vec<u8>, mut value: u64) {
    let mut digits = [b'0'; N];
    for place in digits.iter_mut().rev() {
        *place = b'0' + (value % 10) as u8;
        value /= 10;
    }
    buffer.extend_from_slice(&digits);
}

/// Appends nanoseconds as seconds with six digits after the point.
#[inline]
pub(super) fn push_seconds(buffer: &mut Vec<u8>, ns: u64) {
    push_decimal(buffer, ns / 1_000_000_000);
    buffer.push(b'.');
    push_padded::<6>(buffer, ns % 1_000_000_000 / 1_000);
}

/// Appends a duration with the largest unit that has a digit before the point.
pub(super) fn push_duration(buffer: &mut Vec<u8>, ns: u64) {
    let (digits, unit, name): (_, _, &[u8]) = match ns {
        0..1_000 => (0, 1, b"ns"),
        1_000..1_000_000 => (1, 1_000, b"us"),
        1_000_000..1_000_000_000 => (2, 1_000_000, b"ms"),
        _ => (3, 1_000_000_000, b"s"),
    };
    push_decimal(buffer, ns / unit);
    let rest = ns % unit * 1_000 / unit;
    if digits > 0 {
        buffer.push(b'.');
    }
    match digits {
        0 => {}
        1 => push_padded::<1>(buffer, rest / 100),
        2 => push_padded::<2>(buffer, rest / 10),
        _ => push_padded::<3>(buffer, rest),
    }
    buffer.extend_from_slice(name);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pushed(push: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut buffer = Vec::new();
        push(&mut buffer);
        String::from_utf8(buffer).unwrap()
    }

    #[test]
    fn durations_have_a_unit() {
        for (ns, text) in [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.0us"),
            (12_399, "12.3us"),
            (999_999, "999.9us"),
            (1_000_000, "1.00ms"),
            (45_678_901, "45.67ms"),
            (1_000_000_000, "1.000s"),
            (3_600_000_000_000, "3600.000s"),
            (u64::MAX, "18446744073.709s"),
        ] {
            assert_eq!(pushed(|buffer| push_duration(buffer, ns)), text);
        }
    }

    proptest! {
        #[test]
        fn digits_are_those_of_the_standard_library(value: u64, shift in 0..64_u32) {
            // Small numbers are rare among random ones.
            let value = value >> shift;
            prop_assert_eq!(pushed(|buffer| push_decimal(buffer, value)), value.to_string());
            prop_assert_eq!(pushed(|buffer| push_signed(buffer, value as i64)), (value as i64).to_string());
            prop_assert_eq!(pushed(|buffer| push_hex(buffer, value)), format!("0x{value:x}"));
            prop_assert_eq!(pushed(|buffer| push_padded::<6>(buffer, value)), format!("{:06}", value % 1_000_000));
        }
    }
}
