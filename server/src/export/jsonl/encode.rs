//! A chunk as JSON lines.

use kprobed_event::format::{JsonLines, Progress};

use super::super::read::{Reader, cursor_of};
use super::super::{Chunk, ChunkItem, SinkError};

/// Makes lines of chunks.
#[derive(Debug)]
pub(super) struct Encoder {
    reader: Reader,
    lines: JsonLines,
}

impl Encoder {
    pub(super) fn new(hostname: &str) -> Self {
        Self { reader: Reader::default(), lines: JsonLines::of_host(hostname) }
    }

    /// Appends the lines of a chunk.
    pub(super) fn encode(&mut self, chunk: &Chunk, buffer: &mut Vec<u8>) -> Result<(), SinkError> {
        for item in &chunk.items {
            match item {
                Item::Epoch { cursor, may_miss } => {
                    self.reader.begin_epoch();
                    self.lines.push_epoch(buffer, &cursor_of(cursor), *may_miss);
                }
                // Not asked for, or not in a chunk.
                Item::Watermark(_) | Item::CaughtUp(_) | Item::Progress(_) | Item::Mark(_) => {}
                Item::Loss(loss) => self.lines.push_loss(buffer, &self.reader.loss(loss)),
                Item::Batch(delivery) => {
                    let batch =
                        self.reader.batch(delivery).map_err(|error| SinkError::new("read events", error))?;
                    for row in batch.rows() {
                        self.lines.push(buffer, &row);
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
            self.lines.push_progress(buffer, &cursor_of(end), progress);
        }
        Ok(())
    }
}
