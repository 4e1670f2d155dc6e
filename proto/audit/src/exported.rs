//! Exported entries: an entry of the log as one line of JSON, as exporters send it to other systems.
//!
//! Owns the form of the line, and finding such lines among others, such as events. A line has all that
//! is needed to verify it: the number, the digest of the entry before, the digested text and its digest.
//! Never judges whether lines make a whole log: see [`Evidence`](crate::Evidence).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::chain::{Digest, Head};

/// An entry on its way to another system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedEntry {
    /// Its number.
    pub sequence: u64,
    /// The digest of the entry before it, with which its own was computed.
    pub before: Digest,
    /// Its digest.
    pub digest: Digest,
    /// The digested text.
    pub record: String,
}

/// What a line says about the audit log of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportedLine {
    /// An entry.
    Entry {
        /// The host.
        host: String,
        /// The entry.
        entry: ExportedEntry,
    },
    /// The head at the end of a chunk.
    Head {
        /// The host.
        host: String,
        /// Its head at that time.
        head: Head,
    },
    /// Nothing: it is an event, or of another program.
    Other,
}

/// A line that says that it is an entry, and is none.
#[derive(Debug, Error)]
#[error("it is not an entry of an audit log: {0}")]
pub struct UnreadableLine(#[from] serde_json::Error);

/// The type of lines with entries.
const ENTRY: &str = "audit";

/// The type of lines that end a chunk.
const END: &str = "progress";

/// How a line with an entry begins as the exporter writes it. Other programs may have written it anew.
const BEGIN: &str = r#"{"type":"audit""#;

/// A line with an entry.
#[derive(Serialize, Deserialize)]
struct EntryLine<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    host: Cow<'a, str>,
    sequence: u64,
    before: Digest,
    digest: Digest,
    #[serde(borrow)]
    record: Cow<'a, str>,
}

/// What tells lines apart. Other fields of theirs may be anything.
#[derive(Deserialize)]
struct AnyLine<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
}

/// The end of a chunk, as far as it is about the audit log.
#[derive(Deserialize)]
struct EndLine<'a> {
    #[serde(borrow)]
    host: Cow<'a, str>,
    #[serde(borrow)]
    audit_head: Cow<'a, str>,
}

impl ExportedEntry {
    /// The end of the log with this entry.
    #[must_use]
    pub const fn head(&self) -> Head {
        Head { sequence: self.sequence, digest: self.digest }
    }

    /// The end of the log before this entry.
    #[must_use]
    pub const fn after(&self) -> Head {
        Head { sequence: self.sequence.saturating_sub(1), digest: self.before }
    }

    /// Its object, without the end of a line.
    ///
    /// # Errors
    /// None that is known: all fields are text and numbers.
    pub fn to_line(&self, host: &str) -> Result<String, serde_json::Error> {
        let Self { sequence, before, digest, record } = self;
        serde_json::to_string(&EntryLine {
            r#type: ENTRY.into(),
            host: host.into(),
            sequence: *sequence,
            before: *before,
            digest: *digest,
            record: record.into(),
        })
    }
}

impl ExportedLine {
    /// Reads a line.
    ///
    /// # Errors
    /// [`UnreadableLine`] for an entry that is malformed. What is about something else is
    /// [`ExportedLine::Other`], whatever it looks like.
    pub fn read(line: &str) -> Result<Self, UnreadableLine> {
        let line = line.trim();
        // Most lines are events, which need not be parsed for this. An array could pass for an object.
        if !line.starts_with('{') || !line.contains(r#""audit"#) {
            return Ok(Self::Other);
        }
        let of_type = match serde_json::from_str::<AnyLine<'_>>(line) {
            Ok(any) => any.r#type,
            Err(error) if line.starts_with(BEGIN) => return Err(error.into()),
            Err(_not_an_object_of_ours) => return Ok(Self::Other),
        };
        match of_type.as_ref() {
            ENTRY => {
                let EntryLine { host, sequence, before, digest, record, .. } = serde_json::from_str(line)?;
                let record = record.into_owned();
                let entry = ExportedEntry { sequence, before, digest, record };
                Ok(Self::Entry { host: host.into_owned(), entry })
            }
            END => {
                let end = serde_json::from_str::<EndLine<'_>>(line).ok();
                let head = end.and_then(|end| Some((end.host.into_owned(), end.audit_head.parse().ok()?)));
                Ok(head.map_or(Self::Other, |(host, head)| Self::Head { host, head }))
            }
            _ => Ok(Self::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(record: &str) -> ExportedEntry {
        let before = Head { sequence: 6, digest: Digest([1; 32]) };
        let head = before.then(record);
        ExportedEntry {
            sequence: head.sequence,
            before: before.digest,
            digest: head.digest,
            record: record.to_owned(),
        }
    }

    #[test]
    fn a_line_has_the_digested_text_word_for_word() {
        let line = entry(r#"{"sequence":7,"reason":"a\nb"}"#).to_line("web1").unwrap();
        let (before, digest) = ("01".repeat(32), entry(r#"{"sequence":7,"reason":"a\nb"}"#).digest);
        let expected = format!(
            r#"{{"type":"audit","host":"web1","sequence":7,"before":"{before}","digest":"{digest}","record":"{{\"sequence\":7,\"reason\":\"a\\nb\"}}"}}"#
        );
        assert_eq!(line, expected);
    }

    #[test]
    fn other_lines_are_left_out_and_broken_entries_are_not() {
        for other in [
            "",
            "not JSON with \"audit\"",
            r#"{"type":"event","probe":"audit","fields":{"path":"\"type\":\"audit\""}}"#,
            r#"{"type":"event","fields":{"type":"audit"}}"#,
            r#"{"type":"progress","host":"a","audit_head":"x"}"#,
            r#"{"type":"progress","audit_head":null}"#,
            r#"{"audit":1}"#,
            r#"["audit"]"#,
        ] {
            assert_eq!(ExportedLine::read(other).unwrap(), ExportedLine::Other, "{other}");
        }
        for broken in [r#"{"type":"audit""#, r#"{"type":"audit"}"#, r#"{ "host":"a", "type": "audit" }"#] {
            ExportedLine::read(broken).unwrap_err();
        }
        let head = Head::default().then("a");
        let end = format!(r#"{{"type":"progress","host":"a","read":5,"audit_head":"{head}"}}"#);
        assert_eq!(ExportedLine::read(&end).unwrap(), ExportedLine::Head { host: "a".to_owned(), head });
    }

    proptest! {
        #[test]
        fn entries_come_back(host: String, record: String, controls in "[\\x00-\\x22\\\\]{0,8}") {
            for record in [record, controls] {
                let entry = entry(&record);
                let line = entry.to_line(&host).unwrap();
                prop_assert!(!line.contains('\n'));
                // Also if another program has written the object anew, with its fields in another order.
                let value: serde_json::Value = serde_json::from_str(&line).unwrap();
                for line in [line, value.to_string(), format!("  {}\r", serde_json::to_string_pretty(&value).unwrap())] {
                    let read = ExportedLine::read(&line).unwrap();
                    prop_assert_eq!(read, ExportedLine::Entry { host: host.clone(), entry: entry.clone() });
                }
            }
        }

        #[test]
        fn no_text_can_panic(text: String, inner in "[{}\":,a-z0-9]{0,60}") {
            drop(ExportedLine::read(&text));
            drop(ExportedLine::read(&format!("{{\"type\":\"audit\"{inner}}}")));
            drop(ExportedLine::read(&format!("{{\"type\":\"progress\",\"audit_head\":{inner}}}")));
        }
    }
}
