//! Cursors of the spool: positions in the log of a host's events.
//!
//! Owns the position that a client keeps in order to resume. Never knows of files.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The identity of one boot of a host: a UUID that the kernel draws at boot
/// (drivers/char/random.c:proc_do_uuid, `boot_id`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(pub [u8; 16]);

/// Error for a text that is not a boot id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not a boot id: 32 hexadecimal digits, in groups of 8, 4, 4, 4 and 12 with hyphens between them"
)]
pub struct BootIdError(String);

impl FromStr for BootId {
    type Err = BootIdError;

    /// Takes the text of `/proc/sys/kernel/random/boot_id`, without blanks around it.
    fn from_str(text: &str) -> Result<Self, BootIdError> {
        let number = u128::from_str_radix(&text.replace('-', ""), 16).ok();
        let id = number.map(|number| Self(number.to_be_bytes()));
        // Other digits and other places of hyphens are not written so.
        let id = id.filter(|id| id.to_string() == text.to_ascii_lowercase());
        id.ok_or_else(|| BootIdError(text.to_owned()))
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&at) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// A position between two events of one run of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The boot that the run was in.
    pub boot_id: BootId,
    /// The run: nanoseconds since 1970 when it began, or one more than the previous run if the
    /// clock was set back.
    pub epoch: u64,
    /// Number of events of that run before this position, which is the number of the next event.
    pub sequence: u64,
}

/// Position at which a reader begins. A reader of the spool begins with the entry that has the first of these events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryStart {
    /// The first event after this cursor.
    Cursor(Cursor),
    /// The first event of this time or later, in nanoseconds since 1970.
    SinceWall(u64),
    /// The last selected events, this many of them.
    Last(u64),
    /// The oldest event.
    Oldest,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn boot_ids_are_those_of_the_kernel() {
        let text = "0b5f3a52-3c1b-4a0e-9d5e-6f1c2d3e4f50";
        let id: BootId = text.parse().unwrap();
        assert_eq!(id.0[..5], [0x0b, 0x5f, 0x3a, 0x52, 0x3c]);
        assert_eq!(id.to_string(), text);
        let no_digit = text.replace('a', "g");
        for bad in ["", "0b5f3a523c1b4a0e9d5e6f1c2d3e4f50", &text[1..], &no_digit, &text.replace('-', "0")] {
            assert_eq!(bad.parse::<BootId>(), Err(BootIdError(bad.to_owned())));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
        #[test]
        fn boot_ids_read_as_they_are_written(bytes: [u8; 16], any in ".{0,40}") {
            let id = BootId(bytes);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            if let Ok(id) = any.parse::<BootId>() {
                prop_assert_eq!(id.to_string(), any.to_lowercase());
            }
        }
    }
}
