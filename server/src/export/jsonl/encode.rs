//! A chunk as JSON lines, or as syslog messages with a JSON text.

use kprobed_event::format::{JsonLines, Progress};

use super::super::read::{Reader, cursor_of};
use super::super::{Chunk, ChunkItem, SinkError};
use super::syslog;

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

    /// Appends the lines of a chunk. Returns the end of each line.
    pub(super) fn encode(&mut self, chunk: &Chunk, buffer: &mut Vec<u8>) -> Result<Vec<usize>, SinkError> {
        let mut ends = Vec::new();
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
                    for row in batch.rows() {
                        self.line(buffer, &mut ends, |lines, line| lines.push(line, &row));
                    }
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
        Ok(ends)
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
