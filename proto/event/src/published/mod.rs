//! Published log: the events of a host as messages with subjects, as in a stream of NATS JetStream.
//!
//! Owns the names ([`Subjects`], the headers) and the form of a payload ([`read_frames`]): messages of
//! `StreamEvents`, each preceded by its length, with everything that a [`Decoder`](crate::Decoder)
//! needs: `Started` first, which names the host, and before a batch its schema, which names the probe
//! and its uid. The daemon writes it and clients read it. Never opens a connection.
//!
//! Messages are published in the order of the log. The events of one probe from one batch are one
//! message, or several if the server does not allow one as large; the place of the batch and the
//! first row are in headers. What was not acknowledged is published again, from the last account on:
//! the same messages have the same ids ([`MESSAGE_ID`]), which a server drops as long as it knows
//! them, and a reader that takes each row of the log once ([`HostLog`]) sees every event once.
//!
//! A sign of life is in no stream: it is for the readers at that moment, so that an idle host stores
//! nothing.
//!
//! ```text
//! PREFIX.HOST.GROUP.EVENT           events of a probe: its schema, then a batch
//! PREFIX.HOST.loss                  a gap, before the events that follow it
//! PREFIX.HOST.epoch                 another run of the daemon begins
//! PREFIX.HOST.ledger                the account of what was published since the last one, and the
//!                                   `Watermark`
//! PREFIX_alive.HOST                 a sign of life, not stored: as an account, without one.
//!                                   Everything before its watermark is in the stream, up to the
//!                                   message AFTER
//! ```

mod log;

pub use log::{HostLog, LogError, Received};

use std::fmt::Write as _;

use prost::Message as _;
use thiserror::Error;

use crate::api::StreamEventsResponse;

/// Position in the log of its host at which the message begins: `BOOT:EPOCH:SEQUENCE`.
pub const FIRST: &str = "Kprobed-First";
/// Position at which it ends. For a ledger message: everything before is published.
pub const END: &str = "Kprobed-End";
/// Events in the message; in a ledger message, since the last one.
pub const EVENTS: &str = "Kprobed-Events";
/// How many events of this run of the daemon were published before the message. Those that the reader of
/// all messages of a host does not have are missing.
pub const BEFORE: &str = "Kprobed-Before";
/// Events: how many rows of the probe the batch has before these.
pub const ROW: &str = "Kprobed-Row";
/// Ledger message: number of log positions that it covers, the sum of its terms.
pub const READ: &str = "Kprobed-Read";
/// Ledger message: events that the exporter's settings do not select.
pub const NOT_SELECTED: &str = "Kprobed-Not-Selected";
/// Ledger message: events that had expired from the history, or were never in it.
pub const EXPIRED: &str = "Kprobed-Expired";
/// Ledger message: events that are too large for a message.
pub const DROPPED: &str = "Kprobed-Dropped";
/// Sign of life: the last ledger message of the stream. 0: the stream has none.
pub const AFTER: &str = "Kprobed-After";
/// The id by which JetStream recognises repeats.
pub const MESSAGE_ID: &str = "Nats-Msg-Id";

/// Suffix of the prefix for messages that are not stored: no stream of events has them.
const ALIVE: &str = "_alive";

/// Topic of a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Events of a probe, `GROUP/EVENT`.
    Events(String),
    /// A gap.
    Loss,
    /// Another run of the daemon.
    Epoch,
    /// An account.
    Ledger,
    /// A sign of life: no event happened, and none earlier will follow.
    Alive,
}

/// Subjects, which all begin with one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subjects {
    prefix: String,
}

/// Why a text cannot be the prefix of subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it must be words of letters, digits, `-` and `_` with dots between")]
pub struct PrefixError;

impl Subjects {
    /// Subjects that begin with `prefix`.
    ///
    /// # Errors
    /// See [`PrefixError`].
    pub fn new(prefix: &str) -> Result<Self, PrefixError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let good = prefix.split('.').all(|word| !word.is_empty() && word.chars().all(is_plain));
        if good { Ok(Self { prefix: prefix.to_owned() }) } else { Err(PrefixError) }
    }

    /// The subject of a topic of a host.
    pub fn of(&self, host: &str, topic: &Topic) -> String {
        let kind = if *topic == Topic::Alive { ALIVE } else { "" };
        let mut subject = format!("{}{kind}.", self.prefix);
        push_token(&mut subject, host);
        match topic {
            Topic::Loss => subject.push_str(".loss"),
            Topic::Epoch => subject.push_str(".epoch"),
            Topic::Ledger => subject.push_str(".ledger"),
            Topic::Alive => {}
            Topic::Events(probe) => push_probe(&mut subject, probe),
        }
        subject
    }

    /// All subjects of a host.
    pub fn of_host(&self, host: &str) -> String {
        let mut subject = format!("{}.", self.prefix);
        push_token(&mut subject, host);
        subject.push_str(".>");
        subject
    }

    /// Subjects of the stream of events, for all hosts.
    pub fn events(&self) -> String {
        format!("{}.>", self.prefix)
    }

    /// The accounts of all hosts.
    pub fn ledgers(&self) -> String {
        format!("{}.*.ledger", self.prefix)
    }

    /// The host and the topic of a subject. Absent if it is not one of these subjects.
    pub fn read(&self, subject: &str) -> Option<(String, Topic)> {
        let (kind, rest) = subject.strip_prefix(&self.prefix)?.split_once('.')?;
        let words: Vec<&str> = rest.split('.').collect();
        let (host, topic) = match (kind, words.as_slice()) {
            ("", [host, "loss"]) => (host, Topic::Loss),
            ("", [host, "epoch"]) => (host, Topic::Epoch),
            ("", [host, "ledger"]) => (host, Topic::Ledger),
            ("", [host, group, event]) => (host, Topic::Events(probe(group, event)?)),
            (ALIVE, [host]) => (host, Topic::Alive),
            _ => return None,
        };
        Some((token(host)?, topic))
    }

    /// A received message, with its host. `value` returns the value of a header. Absent if another
    /// program has published it.
    pub fn received(
        &self,
        subject: &str,
        value: impl Fn(&str) -> Option<String>,
        payload: bytes::Bytes,
    ) -> Option<(String, Received)> {
        let (host, topic) = self.read(subject)?;
        let received = Received {
            topic,
            id: value(MESSAGE_ID)?,
            first: value(FIRST)?.parse().ok()?,
            end: value(END)?.parse().ok()?,
            events: value(EVENTS)?.parse().ok()?,
            before: value(BEFORE)?.parse().ok()?,
            row: value(ROW).map_or(Ok(0), |row| row.parse()).ok()?,
            after: value(AFTER).and_then(|after| after.parse().ok()),
            payload,
        };
        Some((host, received))
    }
}

/// Appends the name of a probe, always as two words, so that it is never taken for another subject.
fn push_probe(subject: &mut String, probe: &str) {
    let (group, event) = probe.split_once('/').unwrap_or(("", probe));
    subject.push('.');
    push_token(subject, group);
    subject.push('.');
    push_token(subject, event);
}

/// The name of the probe that two words encode.
fn probe(group: &str, event: &str) -> Option<String> {
    Some(format!("{}/{}", token(group)?, token(event)?))
}

/// Appends a name as one word of a subject. Bytes that have a meaning in subjects become `%XX`, and
/// no name at all `%`.
fn push_token(subject: &mut String, name: &str) {
    if name.is_empty() {
        subject.push('%');
    }
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            subject.push(byte.into());
        } else {
            // Writing to a string cannot fail.
            write!(subject, "%{byte:02X}").ok();
        }
    }
}

/// The name that a word encodes.
fn token(word: &str) -> Option<String> {
    if word == "%" {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(word.len());
    let mut parts = word.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        let is_hex = code.bytes().all(|byte| byte.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(code, 16).ok().filter(|_| is_hex)?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok().filter(|name| !name.is_empty())
}

/// The messages of a payload.
///
/// # Errors
/// Why it is not a sequence of them.
pub(crate) fn read_frames(
    mut payload: bytes::Bytes,
) -> Result<Vec<StreamEventsResponse>, prost::DecodeError> {
    let mut messages = Vec::new();
    while !payload.is_empty() {
        messages.push(StreamEventsResponse::decode_length_delimited(&mut payload)?);
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api;
    use crate::api::stream_events_response::Message;

    #[test]
    fn subjects_are_by_host_group_and_probe() {
        let subjects = Subjects::new("kprobed").unwrap();
        let probe = Topic::Events("kprobes/open".to_owned());
        assert_eq!(subjects.of("web1", &probe), "kprobed.web1.kprobes.open");
        assert_eq!(subjects.of("web1.example.org", &Topic::Ledger), "kprobed.web1%2Eexample%2Eorg.ledger");
        assert_eq!(subjects.of("", &Topic::Loss), "kprobed.%.loss");
        assert_eq!(subjects.of("web1", &Topic::Alive), "kprobed_alive.web1");
        for other in [
            "kprobed",
            "kprobed.a",
            "other.a.loss",
            "kprobed.a.b",
            "kprobed.a.b.c.d",
            "kprobed.a%2.loss",
            "kprobed_state.web1",
            "kprobed_alive.a.b",
        ] {
            assert_eq!(subjects.read(other), None, "{other}");
        }
        for bad in ["", ".", "a..b", "a b", "a.*", "a.>", "\u{e4}"] {
            assert_eq!(Subjects::new(bad), Err(PrefixError), "{bad}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]
        #[test]
        fn every_name_comes_back(host in any::<String>(), group in "[^/]*", event in any::<String>()) {
            let subjects = Subjects::new("a.b").unwrap();
            let events = Topic::Events(format!("{group}/{event}"));
            for topic in [events, Topic::Loss, Topic::Epoch, Topic::Ledger, Topic::Alive] {
                let subject = subjects.of(&host, &topic);
                let plain = |c: char| c.is_ascii_graphic() && c != '*' && c != '>';
                prop_assert!(subject.chars().all(plain), "{}", subject);
                prop_assert_eq!(subjects.read(&subject), Some((host.clone(), topic)));
            }
        }

        #[test]
        fn no_text_and_no_bytes_can_panic(text in "[a.%2E>*\u{e4} ]{0,20}", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Subjects::new(&text).map(|subjects| subjects.read(&text)).ok();
            let other = format!("b.{text}");
            prop_assert_eq!(Subjects::new("a").unwrap().read(&other), None);
            drop(Subjects::new("a").unwrap().read(&format!("a.{text}")));
            read_frames(bytes.into()).ok();
        }

        #[test]
        fn payloads_come_back(places in proptest::collection::vec(any::<u64>(), 0..10)) {
            let message = |watermark_ns| StreamEventsResponse {
                message: Some(Message::Watermark(api::Watermark { watermark_ns, late_events: 0 })),
            };
            let messages: Vec<_> = places.into_iter().map(message).collect();
            let frames = messages.iter().flat_map(prost::Message::encode_length_delimited_to_vec);
            prop_assert_eq!(read_frames(frames.collect::<Vec<_>>().into()).unwrap(), messages);
        }
    }
}
