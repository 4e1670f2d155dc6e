//! NATS messages with entries of the audit log, on a subject of their own.
//!
//! Owns what is in them, lines as a file of JSON Lines has them, and where the stream is in the log. Never
//! publishes.

use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use kprobed_audit::{ExportedEntry, Head};
use kprobed_event::published::{AUDIT_SENT, MESSAGE_ID, Subjects, Topic};

use super::connection::causes;
use super::messages::Outgoing;
use crate::export::SinkError;

/// A message, and how many entries it has.
#[derive(Debug)]
pub(super) struct EntryMessage {
    pub(super) message: Outgoing,
    pub(super) entries: u64,
}

/// The entries of one message.
struct Gathered {
    first: u64,
    last: Head,
    entries: u64,
    lines: String,
}

/// The messages of entries, of at most so many bytes unless one entry has more.
///
/// # Errors
/// None that is known: an entry is text and numbers.
pub(super) fn messages(
    (subjects, host): (&Subjects, &str),
    max_bytes: usize,
    entries: &[ExportedEntry],
) -> Result<Vec<EntryMessage>, SinkError> {
    let mut all: Vec<Gathered> = Vec::new();
    for entry in entries {
        let line = entry.to_line(host).map_err(|error| SinkError::new("write an audit entry", error))?;
        let has_room = |gathered: &&mut Gathered| gathered.lines.len() + line.len() < max_bytes;
        if let Some(gathered) = all.last_mut().filter(has_room) {
            gathered.last = entry.head();
            gathered.entries += 1;
            gathered.lines.push_str(&line);
            gathered.lines.push('\n');
        } else {
            let lines = format!("{line}\n");
            all.push(Gathered { first: entry.sequence, last: entry.head(), entries: 1, lines });
        }
    }
    let subject = subjects.of(host, &Topic::Audit);
    let message = |Gathered { first, last, entries, lines }| {
        // The same entries have the same id, however often they are sent.
        let id = format!("{subject}:{first}-{last}");
        let headers = vec![(MESSAGE_ID, id.clone()), (AUDIT_SENT, last.to_string())];
        let payload = lines.into();
        EntryMessage {
            message: Outgoing { subject: subject.clone(), id, headers, payload, events: 0 },
            entries,
        }
    };
    Ok(all.into_iter().map(message).collect())
}

/// The last entry of a host that a stream has. Absent if it has none.
///
/// # Errors
/// A server that does not answer, or a message of another program.
pub(super) async fn last(stream: &Stream, subject: &str) -> Result<Option<Head>, SinkError> {
    let action = || format!("read the last message of `{subject}`");
    let message = match stream.get_last_raw_message_by_subject(subject).await {
        Ok(message) => message,
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(None),
        Err(error) => return Err(SinkError::new(action(), causes(&error))),
    };
    let head = message.headers.get(AUDIT_SENT).and_then(|head| head.as_str().parse().ok());
    head.map(Some).ok_or_else(|| {
        let why = format!(
            "its header `{AUDIT_SENT}` does not name an entry: something else has published it. Purge the subject, or use another prefix"
        );
        SinkError::new(action(), why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_in_as_few_messages_as_fit() {
        let subjects = Subjects::new("kprobed").unwrap();
        let mut head = Head::default();
        let entries: Vec<ExportedEntry> = (1..=10)
            .map(|sequence| {
                let record = "x".repeat(if sequence == 5 { 2000 } else { 100 });
                let before = head.digest;
                head = head.then(&record);
                ExportedEntry { sequence, before, digest: head.digest, record }
            })
            .collect();
        let messages = messages((&subjects, "web1"), 1000, &entries).unwrap();
        let counts: Vec<u64> = messages.iter().map(|message| message.entries).collect();
        assert_eq!(counts, [3, 1, 1, 3, 2]);
        let text: Vec<u8> = messages.iter().flat_map(|message| message.message.payload.to_vec()).collect();
        let lines: Vec<String> = entries.iter().map(|entry| entry.to_line("web1").unwrap()).collect();
        assert_eq!(String::from_utf8(text).unwrap(), format!("{}\n", lines.join("\n")));
        let last = &messages[4].message;
        assert_eq!(
            (last.subject.as_str(), last.headers[1].1.clone()),
            ("kprobed.web1.audit", head.to_string())
        );
    }
}
