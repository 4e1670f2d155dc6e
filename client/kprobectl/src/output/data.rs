//! Values that several outputs print: bytes as text or hex, one-line text, names of API enums.

use kprobed_client::api::{Arming, CheckStatus};
use kprobed_client::event::Escaped;

use super::style::Tone;

/// Bytes in hexadecimal, with blanks between them.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// Text that keeps to its line and does nothing to a terminal. Backslashes stay as they are.
pub(crate) fn one_line(text: &str) -> String {
    if text.chars().any(char::is_control) { Escaped(text.as_bytes()).to_string() } else { text.to_owned() }
}

/// So many of what has this name: `1 host`, `3 hosts`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
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
