//! The JSON Lines exporter: one object a line, to a file, a pipe, standard output or a unix socket.
//!
//! Owns the lines and their output. The last line of each chunk has its end in the log, so a file
//! is its own cursor: every event is in it once, however the daemon ended. Pipes and sockets do not
//! acknowledge: what was on its way when the receiver ended is not sent again.

mod file;
mod resume;
mod socket;

use kprobed_event::format::{JsonLines, Progress};

use self::file::{LogFile, Stdout};
use self::socket::Connection;
use super::read::{Reader, cursor_of};
use super::{Chunk, Sent, Sink, SinkError};
use crate::config::export::{JsonLines as Settings, JsonLinesTarget};
use kprobed_trace::pipeline::Item;
use kprobed_trace::spool::Cursor;

/// The output of the exporter.
#[derive(Debug)]
enum Output {
    File(LogFile),
    Stdout(Stdout),
    Connection(Connection),
}

/// The sink.
#[derive(Debug)]
pub struct JsonLinesSink {
    reader: Reader,
    lines: JsonLines,
    output: Output,
    buffer: Vec<u8>,
}

impl JsonLinesSink {
    /// For settings that were judged.
    pub fn new(settings: &Settings, target: JsonLinesTarget, hostname: &str) -> Self {
        let output = match target {
            JsonLinesTarget::File(path) => {
                Output::File(LogFile::new(path, settings.sync_interval().is_some()))
            }
            JsonLinesTarget::Stdout => Output::Stdout(Stdout::default()),
            JsonLinesTarget::Unix(path) => Output::Connection(Connection::new(path, false)),
        };
        let lines = JsonLines::of_host(hostname);
        Self { reader: Reader::default(), lines, output, buffer: Vec::new() }
    }

    /// Appends the lines of a chunk.
    fn encode(&mut self, chunk: &Chunk) -> Result<(), SinkError> {
        let Self { reader, lines, buffer, .. } = self;
        for item in &chunk.items {
            match item {
                Item::Epoch { cursor, may_miss } => {
                    reader.begin_epoch();
                    lines.push_epoch(buffer, &cursor_of(cursor), *may_miss);
                }
                // Not asked for, or not in a chunk.
                Item::Watermark(_) | Item::CaughtUp(_) | Item::Progress(_) | Item::Mark(_) => {}
                Item::Loss(loss) => lines.push_loss(buffer, &reader.loss(loss)),
                Item::Batch(delivery) => {
                    let batch =
                        reader.batch(delivery).map_err(|error| SinkError::new("read events", error))?;
                    for row in batch.rows() {
                        lines.push(buffer, &row);
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
            lines.push_progress(buffer, &cursor_of(end), progress);
        }
        Ok(())
    }
}

impl Sink for JsonLinesSink {
    async fn open(&mut self) -> Result<Option<Cursor>, SinkError> {
        if let Output::File(file) = &self.output
            && file.is_pipe()
        {
            self.output = Output::Connection(Connection::new(file.path.clone(), true));
        }
        match &mut self.output {
            Output::File(file) => file.open().await,
            Output::Stdout(_) => Ok(None),
            Output::Connection(connection) => {
                connection.open().await?;
                Ok(None)
            }
        }
    }

    async fn send(&mut self, chunk: &Chunk) -> Result<Sent, SinkError> {
        self.buffer.clear();
        self.encode(chunk)?;
        match &mut self.output {
            Output::File(file) => self.buffer = file.append(std::mem::take(&mut self.buffer)).await?,
            Output::Stdout(stdout) => self.buffer = stdout.write(std::mem::take(&mut self.buffer)).await?,
            Output::Connection(connection) => return connection.write(&self.buffer).await,
        }
        Ok(Sent::default())
    }

    async fn settle(&mut self) -> Result<(), SinkError> {
        match &mut self.output {
            Output::File(file) => file.sync().await,
            Output::Stdout(_) | Output::Connection(_) => Ok(()),
        }
    }
}
