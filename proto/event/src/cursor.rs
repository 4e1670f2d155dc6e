//! Cursor: a position in the log of a host.
//!
//! Owns its notation, so that programs can keep it in files: `BOOT:EPOCH:SEQUENCE`. Never says
//! whether a daemon still has that position.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::api;

/// The position of a stream: the client has seen everything before it. [`FromStr`] and
/// [`fmt::Display`] are inverse to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The boot that the events belong to. Anything but white space.
    pub boot_id: String,
    /// The run of the daemon. Later runs have larger numbers.
    pub epoch: u64,
    /// The next event; counts from 0 in each epoch.
    pub sequence: u64,
}

/// Error for a text that is not a cursor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a cursor: write `BOOT:EPOCH:SEQUENCE`")]
pub struct CursorError(pub String);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.boot_id, self.epoch, self.sequence)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let read = || {
            let (rest, sequence) = text.rsplit_once(':')?;
            let (boot_id, epoch) = rest.rsplit_once(':')?;
            let boot_id = Some(boot_id).filter(|boot_id| !boot_id.contains(char::is_whitespace))?;
            Some(Self { boot_id: boot_id.to_owned(), epoch: number(epoch)?, sequence: number(sequence)? })
        };
        read().ok_or_else(|| CursorError(text.to_owned()))
    }
}

/// Digits and nothing else: the standard library takes a sign too.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

impl From<api::Cursor> for Cursor {
    fn from(cursor: api::Cursor) -> Self {
        Self { boot_id: cursor.boot_id, epoch: cursor.epoch, sequence: cursor.sequence }
    }
}

impl From<Cursor> for api::Cursor {
    fn from(cursor: Cursor) -> Self {
        Self { boot_id: cursor.boot_id, epoch: cursor.epoch, sequence: cursor.sequence }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_cursor() {
        for text in ["", "a", "a:1", "a:1:", "a:+1:2", "a:1:-2", "a b:1:2", "a:1:99999999999999999999"] {
            assert_eq!(text.parse::<Cursor>(), Err(CursorError(text.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn reading_and_writing_are_inverse(boot_id in "[0-9a-f-]{0,36}", epoch: u64, sequence: u64) {
            let cursor = Cursor { boot_id, epoch, sequence };
            prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }

        #[test]
        fn no_text_can_panic(text in any::<String>()) {
            if let Ok(cursor) = text.parse::<Cursor>() {
                prop_assert_eq!(cursor.to_string().parse(), Ok(cursor));
            }
        }
    }
}
