//! Values and byte strings as text, without the formatting machinery.
//!
//! Owns nothing but speed: it never writes anything other than `Display` of [`Value`] and
//! [`Escaped`], and tests check that.

use std::io::Write as _;

use super::digits::{push_decimal, push_hex, push_signed};
use crate::{Address, Base, Escaped, Value};

/// Appends a text of unknown origin, escaped.
#[inline]
pub(super) fn push_escaped(buffer: &mut Vec<u8>, bytes: &[u8]) {
    if is_plain(bytes) {
        buffer.extend_from_slice(bytes);
    } else {
        // Writing to memory cannot fail.
        write!(buffer, "{}", Escaped(bytes)).ok();
    }
}

#[inline]
fn push_quoted(buffer: &mut Vec<u8>, bytes: &[u8]) {
    if is_plain(bytes) {
        buffer.push(b'"');
        buffer.extend_from_slice(bytes);
        buffer.push(b'"');
    } else {
        write!(buffer, "{:#}", Escaped(bytes)).ok();
    }
}

/// Nearly all texts are.
#[inline]
fn is_plain(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b' '..=b'~') && *byte != b'\\' && *byte != b'"')
}

/// Appends a kernel address.
#[inline]
pub(super) fn push_address(buffer: &mut Vec<u8>, address: Address<'_>) {
    match address.text {
        Some(text) => buffer.extend_from_slice(text.as_bytes()),
        None => push_hex(buffer, address.address),
    }
}

/// Appends a value.
#[inline]
pub(super) fn push_value(buffer: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Unsigned { value, base: Base::Decimal } => push_decimal(buffer, *value),
        Value::Unsigned { value, base: Base::Hex } => push_hex(buffer, *value),
        Value::Signed { value, base: Base::Decimal } => push_signed(buffer, *value),
        Value::Signed { value, base: Base::Hex } => {
            if *value < 0 {
                buffer.push(b'-');
            }
            push_hex(buffer, value.unsigned_abs());
        }
        Value::Symbol(address) => push_address(buffer, *address),
        Value::Bytes(bytes) => push_quoted(buffer, bytes),
        Value::List(list) => {
            buffer.push(b'{');
            for (index, value) in list.iter().enumerate() {
                if index > 0 {
                    buffer.push(b',');
                }
                push_value(buffer, &value);
            }
            buffer.push(b'}');
        }
        Value::Char(_) | Value::Fault => {
            write!(buffer, "{value}").ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_value(bits: u64, bytes: &[u8]) -> [Value<'_>; 8] {
        let address = |text| Value::Symbol(Address { address: bits, text });
        [
            Value::Unsigned { value: bits, base: Base::Decimal },
            Value::Unsigned { value: bits, base: Base::Hex },
            Value::Signed { value: bits as i64, base: Base::Decimal },
            Value::Signed { value: bits as i64, base: Base::Hex },
            Value::Char(bits.to_le_bytes()[0]),
            address(None),
            address(Some("vfs_read+0x0/0x10 [m]")),
            Value::Bytes(bytes),
        ]
    }

    proptest! {
        #[test]
        fn the_same_as_display(bits: u64, bytes in prop_oneof![proptest::collection::vec(any::<u8>(), 0..20), "[ -~]{0,20}".prop_map(String::into_bytes)]) {
            for value in any_value(bits, &bytes) {
                let mut buffer = Vec::new();
                push_value(&mut buffer, &value);
                prop_assert_eq!(String::from_utf8(buffer).unwrap(), value.to_string());
            }
            let mut buffer = Vec::new();
            push_escaped(&mut buffer, &bytes);
            // Quotes need no escape outside of quotes; the slow path handles them all the same.
            prop_assert_eq!(String::from_utf8(buffer).unwrap(), Escaped(&bytes).to_string());
        }
    }
}
