//! Values and byte strings as text, without the formatting machinery.
//!
//! Owns how values are shown: as the kernel's own trace shows them, except that strings are quoted and escaped as by
//! [`Escaped`].

use std::io::Write as _;

use kprobed_filter::{FieldSchema, Notation, Position, push_ipv6, swapped};

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
pub(crate) fn push_value(buffer: &mut Vec<u8>, value: &Value<'_>) {
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
        Value::Char(b'\'') => buffer.extend_from_slice(br"'\''"),
        Value::Char(byte) => {
            buffer.push(b'\'');
            push_escaped(buffer, &[*byte]);
            buffer.push(b'\'');
        }
        Value::Fault => buffer.extend_from_slice(b"(fault)"),
    }
}

/// Appends a value as people write it.
#[inline]
pub(super) fn push_shown(buffer: &mut Vec<u8>, field: &FieldSchema, value: &Value<'_>) {
    if field.notation == Notation::Number {
        return push_value(buffer, value);
    }
    match (value, field.notation.position()) {
        (Value::Unsigned { value: bits, base: base @ Base::Hex }, _)
            if field.notation.is_in_network_order() =>
        {
            push_value(
                buffer,
                &Value::Unsigned { value: swapped(*bits, field.kind.value_bytes()), base: *base },
            );
        }
        (Value::Fault, _) => push_value(buffer, value),
        (_, Some(Position::Instead)) => {
            if !push_name(buffer, field, value) {
                push_value(buffer, value);
            }
        }
        (_, _) => {
            push_number(buffer, value);
            let number_end = buffer.len();
            buffer.extend_from_slice(b" (");
            if push_name(buffer, field, value) {
                buffer.push(b')');
            } else {
                buffer.truncate(number_end);
            }
        }
    }
}

/// Appends a number that may have a name: an error in a field without sign is the negative number that it is.
fn push_number(buffer: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Unsigned { value: bits, .. } if *bits > LAST_PAGE => push_signed(buffer, *bits as i64),
        _ => push_value(buffer, value),
    }
}

/// What is above is an error, and no pointer (include/linux/err.h:IS_ERR_VALUE).
const LAST_PAGE: u64 = u64::MAX - 4095;

/// Appends what people write for a value. Returns false, and appends nothing, if that is the value itself.
#[inline]
pub fn push_name(buffer: &mut Vec<u8>, field: &FieldSchema, value: &Value<'_>) -> bool {
    let bits = match value {
        Value::Unsigned { value, .. } => *value,
        Value::Signed { value, .. } => value.cast_unsigned(),
        Value::List(list) if field.notation == Notation::Ipv6 && list.len() == 16 => {
            let mut address = [0; 16];
            for (place, byte) in address.iter_mut().zip(list.iter()) {
                let Value::Unsigned { value, .. } = byte else { return false };
                *place = value.to_le_bytes()[0];
            }
            push_ipv6(buffer, address);
            return true;
        }
        _ => return false,
    };
    field.notation.push(buffer, bits, field.kind.value_bytes())
}

/// Whether a value is a negative number or an error.
#[inline]
pub(super) fn is_error(field: &FieldSchema, value: &Value<'_>) -> bool {
    match value {
        Value::Signed { value, .. } => *value < 0,
        Value::Unsigned { value, .. } => field.notation == Notation::Errno && *value > LAST_PAGE,
        _ => false,
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

    fn shown(value: &Value<'_>) -> String {
        match value {
            Value::Unsigned { value, base: Base::Decimal } => value.to_string(),
            Value::Unsigned { value, base: Base::Hex } => format!("0x{value:x}"),
            Value::Signed { value, base: Base::Decimal } => value.to_string(),
            Value::Signed { value, base: Base::Hex } => {
                format!("{}0x{:x}", if *value < 0 { "-" } else { "" }, value.unsigned_abs())
            }
            Value::Char(b'\'') => r"'\''".to_owned(),
            Value::Char(byte) => format!("'{}'", Escaped(&[*byte])),
            Value::Symbol(symbol) => symbol.to_string(),
            Value::Bytes(bytes) => format!("{:#}", Escaped(bytes)),
            Value::List(_) | Value::Fault => unreachable!(),
        }
    }

    proptest! {
        #[test]
        fn the_same_as_with_the_formatting_machinery(bits: u64, bytes in prop_oneof![proptest::collection::vec(any::<u8>(), 0..20), "[ -~]{0,20}".prop_map(String::into_bytes)]) {
            for value in any_value(bits, &bytes) {
                let mut buffer = Vec::new();
                push_value(&mut buffer, &value);
                prop_assert_eq!(String::from_utf8(buffer).unwrap(), shown(&value));
                prop_assert_eq!(shown(&value), value.to_string());
            }
            let mut buffer = Vec::new();
            push_escaped(&mut buffer, &bytes);
            // Quotes need no escape outside of quotes; the slow path handles them all the same.
            prop_assert_eq!(String::from_utf8(buffer).unwrap(), Escaped(&bytes).to_string());
        }
    }
}
