//! Chain of digests: each entry is digested with the digest of the one before it, so that a change of
//! any entry changes all that follow.
//!
//! Owns the computation, `SHA-256(digest of the one before, as 32 bytes, then the text of the
//! record)`, and the verification. A chain alone does not show that its end was cut off: an auditor
//! compares with a [`Head`] that was noted elsewhere.

use std::fmt;
use std::str::FromStr;

use ring::digest::{Context, SHA256};
use thiserror::Error;

use crate::record::Record;

/// A digest of an entry and all before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a digest or a head.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not {1}")]
pub struct BadDigest(String, &'static str);

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let bad = || BadDigest(text.to_owned(), "a digest: write its 64 hexadecimal digits");
        let mut digest = [0; 32];
        hex::decode_to_slice(text, &mut digest).map_err(|_not_hex| bad())?;
        Ok(Self(digest))
    }
}

impl TryFrom<&[u8]> for Digest {
    type Error = BadDigest;

    fn try_from(bytes: &[u8]) -> Result<Self, BadDigest> {
        let digest = bytes
            .try_into()
            .map_err(|_other_length| BadDigest(hex::encode(bytes), "a digest, which has 32 bytes"))?;
        Ok(Self(digest))
    }
}

/// The end of a log: its last entry. All zero for a log without entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Head {
    /// The number of the entry.
    pub sequence: u64,
    /// Its digest.
    pub digest: Digest,
}

impl Head {
    /// The head after an entry with this text.
    #[must_use]
    pub fn then(self, text: &str) -> Self {
        let mut context = Context::new(&SHA256);
        context.update(&self.digest.0);
        context.update(text.as_bytes());
        let mut digest = Digest::default();
        for (byte, computed) in digest.0.iter_mut().zip(context.finish().as_ref()) {
            *byte = *computed;
        }
        Self { sequence: self.sequence.saturating_add(1), digest }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.sequence, self.digest)
    }
}

impl FromStr for Head {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let bad = || BadDigest(text.to_owned(), "the head of an audit log: write SEQUENCE:DIGEST");
        let (sequence, digest) = text.split_once(':').ok_or_else(bad)?;
        let sequence = sequence.parse().map_err(|_not_a_number| bad())?;
        Ok(Self { sequence, digest: digest.parse()? })
    }
}

/// Where and how a log is not what was written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Broken(String);

/// Verification of entries in their order.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    head: Head,
    noted: Option<Head>,
}

impl Chain {
    /// Begins after an entry; with the default, at the beginning of the log. `noted` is compared with
    /// the entry of its number.
    ///
    /// # Errors
    /// [`Broken`] if that is the very entry after which it begins, and differs.
    pub fn after(head: Head, noted: Option<Head>) -> Result<Self, Broken> {
        let chain = Self { head, noted };
        chain.compare()?;
        Ok(chain)
    }

    /// Verifies the next entry.
    ///
    /// # Errors
    /// [`Broken`], in what way.
    pub fn verify(&mut self, sequence: u64, text: &str, stored: Digest) -> Result<Record, Broken> {
        let next = self.head.then(text);
        if sequence != next.sequence {
            return Err(Broken(format!(
                "entry {sequence} follows entry {}: entries were removed, added or moved",
                self.head.sequence
            )));
        }
        if stored != next.digest {
            return Err(Broken(format!(
                "entry {sequence} has the digest {stored}, and its text gives {}: it, or one before it, was changed",
                next.digest
            )));
        }
        let record = Record::parse(text).map_err(|error| Broken(format!("entry {sequence}: {error}")))?;
        if record.sequence != sequence {
            return Err(Broken(format!("entry {sequence} says that it is entry {}", record.sequence)));
        }
        self.head = next;
        self.compare()?;
        Ok(record)
    }

    fn compare(&self) -> Result<(), Broken> {
        match self.noted {
            Some(noted) if noted.sequence == self.head.sequence && noted.digest != self.head.digest => {
                Err(Broken(format!(
                    "entry {} had the digest {} when it was noted, and has {} now: the log was rewritten",
                    noted.sequence, noted.digest, self.head.digest
                )))
            }
            _ => Ok(()),
        }
    }

    /// The last entry that was verified.
    pub const fn head(&self) -> Head {
        self.head
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{Action, Entry};

    fn log(length: u64) -> Vec<(u64, String, Digest)> {
        let mut head = Head::default();
        (1..=length)
            .map(|sequence| {
                let entry = Entry::new(Action::Changed, format!("uid:{sequence}"));
                let text = Record { sequence, time_unix_nano: sequence, entry }.to_text().unwrap();
                head = head.then(&text);
                (sequence, text, head.digest)
            })
            .collect()
    }

    fn verify(log: &[(u64, String, Digest)], noted: Option<Head>) -> Result<Head, Broken> {
        let mut chain = Chain::after(Head::default(), noted)?;
        for (sequence, text, digest) in log {
            chain.verify(*sequence, text, *digest)?;
        }
        Ok(chain.head())
    }

    /// As `printf` and `sha256sum` compute it: an auditor needs no program of ours.
    #[test]
    fn the_digest_is_that_of_the_bytes() {
        let head = Head::default().then("a");
        let expected = "41a0370c3d9f42773a59e8e01651911cf43b1e3f66944cbb690029debc4eb647";
        assert_eq!(head.digest.to_string(), expected);
        assert_eq!(head.to_string().parse::<Head>().unwrap(), head);
    }

    #[test]
    fn a_log_as_it_was_written_is_verified() {
        let log = log(20);
        let head = Head { sequence: 20, digest: log[19].2 };
        assert_eq!(verify(&log, None).unwrap(), head);
        assert_eq!(verify(&log, Some(Head { sequence: 7, digest: log[6].2 })).unwrap(), head);
        let wrong = Head { sequence: 7, digest: log[7].2 };
        let rewritten = verify(&log, Some(wrong)).unwrap_err().to_string();
        assert!(
            rewritten.starts_with("entry 7 had the digest ") && rewritten.ends_with("the log was rewritten")
        );
    }

    #[test]
    fn a_rewritten_log_is_consistent_but_not_what_was_noted() {
        let noted = Head { sequence: 3, digest: log(3)[2].2 };
        let mut head = Head::default();
        let mut rewritten = log(3);
        for (sequence, text, digest) in &mut rewritten {
            *text = text.replace("uid:2", "uid:9");
            head = head.then(text);
            (*sequence, *digest) = (head.sequence, head.digest);
        }
        assert!(verify(&rewritten, None).is_ok());
        let error = verify(&rewritten, Some(noted)).unwrap_err().to_string();
        assert!(error.starts_with("entry 3 had the digest ") && error.ends_with("the log was rewritten"));
    }

    #[test]
    fn heads_are_read_with_a_reason() {
        for bad in ["", "7", "x:00", "7:00", "-1:00"] {
            let error = bad.parse::<Head>().unwrap_err().to_string();
            assert!(error.contains(" is not "), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_change_of_a_log_is_found(
            length in 2_u64..20, at in any::<prop::sample::Index>(), byte in any::<prop::sample::Index>(), how in 0..4,
        ) {
            let mut log = log(length);
            let index = at.index(log.len());
            match how {
                0 => {
                    let place = byte.index(log[index].1.len());
                    let mut text = log[index].1.clone().into_bytes();
                    text[place] = if text[place] == b'x' { b'y' } else { b'x' };
                    log[index].1 = String::from_utf8(text).unwrap();
                }
                1 if index + 1 < log.len() => drop(log.remove(index)),
                2 => log[index].2.0[byte.index(32)] ^= 1,
                _ if index + 1 < log.len() => log.swap(index, index + 1),
                _ => log[index].0 += 1,
            }
            prop_assert!(verify(&log, None).is_err());
        }
    }
}
