//! The JSON Lines exporter: one object a line, to a file, a pipe, standard output or a unix socket.
//!
//! Owns the lines and their output. The last line of each chunk has its end in the log, so a file
//! is its own cursor: every event is in it once, however the daemon ended. Pipes and sockets do not
//! acknowledge: what was on its way when the receiver ended is not sent again.

mod encode;
mod file;
mod resume;
mod socket;

use std::time::Duration;

use self::encode::Encoder;
use self::file::{LogFile, Stdout};
use self::socket::Connection;
use super::{Chunk, Sent, Sink, SinkError};
use crate::config::export::{JsonLines, JsonLinesTarget};
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
    encoder: Encoder,
    output: Output,
    buffer: Vec<u8>,
}

impl JsonLinesSink {
    /// For settings that were judged.
    pub fn new(settings: &JsonLines, target: JsonLinesTarget, hostname: &str) -> Self {
        let output = match target {
            JsonLinesTarget::File(path) => {
                Output::File(LogFile::new(path, settings.sync_interval().is_some()))
            }
            JsonLinesTarget::Stdout => Output::Stdout(Stdout::default()),
            JsonLinesTarget::Unix(path) => Output::Connection(Connection::unix(path)),
        };
        Self { encoder: Encoder::new(hostname), output, buffer: Vec::new() }
    }

    /// Interval at which its cursor is stored, if not the default one.
    pub(crate) fn save_interval(settings: &JsonLines) -> Option<Duration> {
        settings.path.starts_with('/').then(|| settings.sync_interval()).flatten()
    }
}

impl Sink for JsonLinesSink {
    async fn open(&mut self) -> Result<Option<Cursor>, SinkError> {
        if let Output::File(file) = &self.output
            && file.is_pipe()
        {
            self.output = Output::Connection(Connection::pipe(file.path().to_owned()));
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
        self.encoder.encode(chunk, &mut self.buffer)?;
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
