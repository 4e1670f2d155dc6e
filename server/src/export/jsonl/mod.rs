//! The JSON Lines exporter: one object a line, to a file, a pipe or a socket.
//!
//! Owns the lines and their output. The last line of each chunk has its end in the log, so a file
//! is its own cursor: every event is in it once, however the daemon ended. Pipes and sockets do not
//! acknowledge: what was on its way when the receiver ended is not sent again.

mod encode;
mod file;
mod resume;
mod socket;
mod syslog;

use std::time::Duration;

use self::encode::Encoder;
use self::file::{LogFile, Rotation};
use self::socket::Connection;
use super::{Chunk, Sent, Sink, SinkError};
use crate::config::export::{JsonLines, JsonLinesTarget, LineFormat};
use crate::config::{TlsError, export};
use kprobed_trace::spool::Cursor;

/// The output of the exporter.
#[derive(Debug)]
enum Output {
    /// A file.
    File(LogFile),
    /// Something that listens.
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
    ///
    /// # Errors
    /// When the files of TLS cannot be used any more.
    pub fn new(settings: &JsonLines, target: JsonLinesTarget, hostname: &str) -> Result<Self, TlsError> {
        let output = match target {
            JsonLinesTarget::File(path) => {
                let rotation = Rotation { max_bytes: settings.max_bytes(), files: settings.files };
                Output::File(LogFile::new(path, rotation, settings.sync_interval().is_some()))
            }
            JsonLinesTarget::Unix(path) => Output::Connection(Connection::unix(path)),
            JsonLinesTarget::Tcp(address) => {
                let tls = settings.tls.as_ref().map(tls).transpose()?;
                Output::Connection(Connection::tcp(address, tls))
            }
        };
        let is_syslog = settings.format == LineFormat::Syslog;
        Ok(Self { encoder: Encoder::new(hostname, is_syslog), output, buffer: Vec::new() })
    }

    /// Interval at which its cursor is stored, if not the default one.
    pub(crate) fn save_interval(settings: &JsonLines) -> Option<Duration> {
        settings.path.starts_with('/').then(|| settings.sync_interval()).flatten()
    }
}

fn tls(files: &export::ClientTls) -> Result<socket::Tls, TlsError> {
    Ok(socket::Tls {
        config: crate::config::client_config("export.jsonl.tls", files)?.into(),
        domain: files.domain.clone(),
    })
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
            Output::Connection(connection) => {
                connection.open().await?;
                Ok(None)
            }
        }
    }

    async fn send(&mut self, chunk: &Chunk) -> Result<Sent, SinkError> {
        self.buffer.clear();
        let lines = self.encoder.encode(chunk, &mut self.buffer)?;
        let too_large = match &mut self.output {
            Output::File(file) => {
                self.buffer = file.append(std::mem::take(&mut self.buffer)).await?;
                Vec::new()
            }
            Output::Connection(connection) => {
                connection.write(&self.buffer, &lines.ends, &self.encoder).await?
            }
        };
        Ok(lines.sent(&too_large))
    }

    async fn settle(&mut self) -> Result<(), SinkError> {
        match &mut self.output {
            Output::File(file) => file.sync().await,
            Output::Connection(_) => Ok(()),
        }
    }
}
