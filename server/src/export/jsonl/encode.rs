//! A chunk as JSON lines, or as syslog messages with a JSON text.

use std::ops::Range;

use kprobed_event::format::{JsonLines, Progress};

use super::super::read::{Reader, cursor_of};
use super::super::{Chunk, ChunkItem, Sent, SinkError};
use super::syslog;

/// Which lines a chunk has become.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The end of each line, in bytes.
    pub(super) ends: Vec<usize>,
    /// Numbers of the lines with events.
    events: Vec<Range<usize>>,
}

impl Lines {
    /// What became of a chunk of which these lines were too large for the receiver.
    pub(super) fn sent(&self, too_large: &[usize]) -> Sent {
        let is_event = |line: &&usize| self.events.iter().any(|range| range.contains(line));
        Sent {
            dropped: too_large.iter().filter(is_event).count() as u64,
            reason: if too_large.is_empty() {
                String::new()
            } else {
                "the line is larger than a datagram may be: use a stream socket or a file".to_owned()
            },
        }
    }
}

/// Makes lines of chunks.
#[derive(Debug)]
pub(super) struct Encoder {
    reader: Reader,
    lines: JsonLines,
    hostname: String,
    is_syslog: bool,
}

impl Encoder {
    pub(super) fn new(hostname: &str, is_syslog: bool) -> Self {
        Self {
            reader: Reader::default(),
            lines: JsonLines::of_host(hostname),
            hostname: hostname.to_owned(),
            is_syslog,
        }
    }

    /// Whether lines are messages of syslog.
    pub(super) const fn is_syslog(&self) -> bool {
        self.is_syslog
    }

    /// Appends the lines of a chunk.
    pub(super) fn encode(&mut self, chunk: &Chunk, buffer: &mut Vec<u8>) -> Result<Lines, SinkError> {
        let (mut ends, mut events) = (Vec::new(), Vec::new());
        for item in &chunk.items {
            match item {
                ChunkItem::Epoch { cursor, may_miss } => {
                    self.reader.begin_epoch();
                    self.line(buffer, &mut ends, |lines, line| {
                        lines.push_epoch(line, &cursor_of(cursor), *may_miss);
                    });
                }
                // Not asked for.
                ChunkItem::Watermark(_) => {}
                ChunkItem::Loss(loss) => {
                    let loss = self.reader.loss(loss);
                    self.line(buffer, &mut ends, |lines, line| lines.push_loss(line, &loss));
                }
                ChunkItem::Events(delivery) => {
                    let batch =
                        self.reader.batch(delivery).map_err(|error| SinkError::new("read events", error))?;
                    let first = ends.len();
                    for row in batch.rows() {
                        self.line(buffer, &mut ends, |lines, line| lines.push(line, &row));
                    }
                    events.push(first..ends.len());
                }
            }
        }
        if let Some(end) = &chunk.end {
            let walked = &chunk.walked;
            let progress = Progress {
                read: walked.places,
                events: walked.selected,
                not_selected: walked.not_selected,
                expired: walked.expired,
            };
            self.line(buffer, &mut ends, |lines, line| lines.push_progress(line, &cursor_of(end), progress));
        }
        Ok(Lines { ends, events })
    }

    fn line(
        &mut self,
        buffer: &mut Vec<u8>,
        ends: &mut Vec<usize>,
        push: impl FnOnce(&mut JsonLines, &mut Vec<u8>),
    ) {
        if self.is_syslog {
            syslog::begin(buffer, &self.hostname);
        }
        push(&mut self.lines, buffer);
        if self.is_syslog {
            // A message does not include the line break.
            buffer.pop();
        }
        ends.push(buffer.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_too_large_are_told_apart() {
        let lines = Lines { ends: vec![5, 9, 14, 20], events: vec![0..1, 1..2] };
        assert_eq!(lines.sent(&[]), Sent::default());
        let sent = lines.sent(&[1, 2, 3]);
        assert_eq!(sent.dropped, 1);
        assert!(sent.reason.contains("datagram"), "{}", sent.reason);
    }
}
