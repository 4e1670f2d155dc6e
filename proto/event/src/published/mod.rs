//! Published log: the events of a host as messages with subjects, as in a stream of NATS JetStream.
//!
//! Owns the names ([`Subjects`], the headers) and the form of a payload ([`frames`],
//! [`read_frames`]): messages of `StreamEvents`, each preceded by its length, with everything that
//! a [`Decoder`](crate::Decoder) needs. The daemon writes it and clients read it. Never opens a
//! connection.
//!
//! A part of the log is published as one message for each probe and some 256 KiB of its events, one
//! for its gaps if there are any, and, once all of those are stored, one that ends the part: it
//! lists the ids of the others ([`PARTS`]) and has the account. A reader that takes only complete
//! parts, and each log position once, sees every event exactly once, whatever was published again.
//!
//! Other messages have subjects of their own. States of probes are in another stream, which keeps
//! one message for each subject: a late reader finds the present state of all probes. A sign of
//! life is in no stream: it is for the readers at that moment, so that an idle host stores nothing.
//!
//! ```text
//! PREFIX.HOST.GROUP.EVENT           events of a probe: its schema, then batches in log order
//! PREFIX.HOST.loss                  gaps, each after a `Progress` with its log position
//! PREFIX.HOST.ledger                the end of a part: `Started`, `Epoch` if another run of the
//!                                   daemon begins, `Watermark`, `Progress`
//! PREFIX.HOST.profile.GROUP.EVENT   how often a probe was hit: a `HitProfile`
//! PREFIX_alive.HOST                 a sign of life, not stored: as the end of a part, without one.
//!                                   Everything before its watermark is in the stream, up to the
//!                                   message AFTER
//! PREFIX_state.HOST.GROUP.EVENT     the state of a probe: a `WatchProbesResponse`
//! PREFIX_state.HOST                 after all of those: a `ProbeRoster`
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
/// Events in the message; in a ledger message, of the part.
pub const EVENTS: &str = "Kprobed-Events";
/// Ledger message: number of log positions that the part covers, the sum of its terms.
pub const READ: &str = "Kprobed-Read";
/// Ledger message: events that the exporter's settings do not select.
pub const NOT_SELECTED: &str = "Kprobed-Not-Selected";
/// Ledger message: events that had expired from the history, or were never in it.
pub const EXPIRED: &str = "Kprobed-Expired";
/// Ledger message: events that are too large for a message.
pub const DROPPED: &str = "Kprobed-Dropped";
/// Ledger message: the ids of the messages of the part, with spaces between.
pub const PARTS: &str = "Kprobed-Parts";
/// Sign of life: the message of the stream that ended the last part. 0: the stream has none.
pub const AFTER: &str = "Kprobed-After";
/// Messages other than events: the boot of the host.
pub const BOOT: &str = "Kprobed-Boot";
/// State: the number of the change, as the token of a watch. Messages with the same number are
/// equal.
pub const CHANGE: &str = "Kprobed-Change";
/// The id by which JetStream recognises repeats.
pub const MESSAGE_ID: &str = "Nats-Msg-Id";

/// Suffix of the prefix for messages that are not stored: no stream of events has them.
const ALIVE: &str = "_alive";
/// Suffix of the prefix for the stream of states.
const STATE: &str = "_state";

/// Topic of a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Events of a probe, `GROUP/EVENT`.
    Events(String),
    /// Gaps.
    Loss,
    /// The end of a part.
    Ledger,
    /// A sign of life: no event happened, and none earlier will follow.
    Alive,
    /// How often a probe, `GROUP/EVENT`, was hit.
    Profile(String),
    /// The state of a probe, `GROUP/EVENT`.
    State(String),
    /// All probes that have a state.
    Roster,
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

/// Why a payload cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the payload is not a sequence of stream messages: {0}")]
pub struct FrameError(#[from] prost::DecodeError);

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
        let kind = match topic {
            Topic::Alive => ALIVE,
            Topic::Roster | Topic::State(_) => STATE,
            _ => "",
        };
        let mut subject = format!("{}{kind}.", self.prefix);
        push_token(&mut subject, host);
        match topic {
            Topic::Loss => subject.push_str(".loss"),
            Topic::Ledger => subject.push_str(".ledger"),
            Topic::Alive | Topic::Roster => {}
            Topic::Events(probe) | Topic::State(probe) => push_probe(&mut subject, probe),
            Topic::Profile(probe) => {
                subject.push_str(".profile");
                push_probe(&mut subject, probe);
            }
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

    /// Subjects of the stream of states, for all hosts.
    pub fn states(&self) -> String {
        format!("{}{STATE}.>", self.prefix)
    }

    /// The states of all probes of a host.
    pub fn states_of(&self, host: &str) -> String {
        format!("{}.*.*", self.of(host, &Topic::Roster))
    }

    /// How often the probes of all hosts were hit.
    pub fn profiles(&self) -> String {
        format!("{}.*.profile.*.*", self.prefix)
    }

    /// The rosters of all hosts.
    pub fn rosters(&self) -> String {
        format!("{}{STATE}.*", self.prefix)
    }

    /// The ends of parts of all hosts.
    pub fn ledgers(&self) -> String {
        format!("{}.*.ledger", self.prefix)
    }

    /// The host and the topic of a subject. Absent if it is not one of these subjects.
    pub fn read(&self, subject: &str) -> Option<(String, Topic)> {
        let (kind, rest) = subject.strip_prefix(&self.prefix)?.split_once('.')?;
        let words: Vec<&str> = rest.split('.').collect();
        let (host, topic) = match (kind, words.as_slice()) {
            ("", [host, "loss"]) => (host, Topic::Loss),
            ("", [host, "ledger"]) => (host, Topic::Ledger),
            ("", [host, group, event]) => (host, Topic::Events(probe(group, event)?)),
            ("", [host, "profile", group, event]) => (host, Topic::Profile(probe(group, event)?)),
            (ALIVE, [host]) => (host, Topic::Alive),
            (STATE, [host]) => (host, Topic::Roster),
            (STATE, [host, group, event]) => (host, Topic::State(probe(group, event)?)),
            _ => return None,
        };
        Some((token(host)?, topic))
    }
}

impl Subjects {
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
            parts: value(PARTS)
                .map(|ids| ids.split(' ').map(ToOwned::to_owned).collect())
                .unwrap_or_default(),
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

/// A payload of messages.
pub fn frames(messages: &[StreamEventsResponse]) -> Vec<u8> {
    messages.iter().flat_map(prost::Message::encode_length_delimited_to_vec).collect()
}

/// The messages of a payload.
///
/// # Errors
/// See [`FrameError`].
pub(crate) fn read_frames(mut payload: bytes::Bytes) -> Result<Vec<StreamEventsResponse>, FrameError> {
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
        let probe = || "kprobes/open".to_owned();
        assert_eq!(subjects.of("web1", &Topic::Profile(probe())), "kprobed.web1.profile.kprobes.open");
        assert_eq!(subjects.of("web1", &Topic::State(probe())), "kprobed_state.web1.kprobes.open");
        assert_eq!(subjects.of("web1", &Topic::Roster), "kprobed_state.web1");
        assert_eq!(subjects.of("web1", &Topic::Alive), "kprobed_alive.web1");
        for other in [
            "kprobed",
            "kprobed.a",
            "other.a.loss",
            "kprobed.a.b",
            "kprobed.a.b.c.d",
            "kprobed.a%2.loss",
            "kprobed_state",
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
            let probe = || format!("{group}/{event}");
            let of_probes = [Topic::Events(probe()), Topic::Profile(probe()), Topic::State(probe())];
            for topic in of_probes.into_iter().chain([Topic::Loss, Topic::Ledger, Topic::Alive, Topic::Roster]) {
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
            prop_assert_eq!(read_frames(frames(&messages).into()).unwrap(), messages);
        }
    }
}
