//! Values that several outputs print: bytes as text or hex, one-line text, names of API enums.

use kprobed_client::api::{Arming, Dialect};
use kprobed_client::event::Escaped;
use serde::ser::{Serialize, SerializeMap as _, Serializer};

/// Bytes as a string, or as `{"hex": "…"}` when they are not UTF-8.
pub(super) struct Text<'a>(pub(super) &'a [u8]);

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(self.0) {
            return serializer.serialize_str(text);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("hex", &hex(self.0, ""))?;
        map.end()
    }
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8], separator: &str) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(separator)
}

/// Text that keeps to its line and does nothing to a terminal. Backslashes stay as they are.
pub(super) fn one_line(text: &str) -> String {
    if text.chars().any(char::is_control) { Escaped(text.as_bytes()).to_string() } else { text.to_owned() }
}

/// The name of a dialect, if one was read.
pub(super) fn dialect(dialect: Dialect) -> Option<&'static str> {
    match dialect {
        Dialect::Unspecified => None,
        Dialect::Kernel => Some("kernel"),
        Dialect::Dialect2009 => Some("2009"),
        Dialect::Prototype => Some("prototype"),
    }
}

/// How a probe is armed, if that is known.
pub(super) fn arming(arming: Arming) -> Option<&'static str> {
    match arming {
        Arming::Unspecified => None,
        Arming::Ftrace => Some("ftrace"),
        Arming::Breakpoint => Some("breakpoint"),
        Arming::Optimised => Some("jump"),
    }
}
