//! The stream as the other side of an exporter.

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use kprobed_event::published::{END, Topic};

use super::connection::{Connection, causes, is_too_large};
use super::parts::{Outgoing, Parts};
use crate::export::{Chunk, Sent, Sink, SinkError};
use crate::kernel::HostIdentity;
use crate::spool::Cursor;

/// The sink.
#[derive(Debug)]
pub struct NatsSink {
    connection: Connection,
    hostname: String,
    parts: Parts,
    open: Option<Context>,
}

impl NatsSink {
    /// Publishes the events of a host.
    pub fn new(connection: Connection, host: &HostIdentity) -> Self {
        let parts = Parts::new(host.clone(), connection.subjects().clone(), connection.max_message_bytes());
        Self { connection, hostname: host.hostname.clone(), parts, open: None }
    }

    /// Where the stream itself knows that it is: the end of the last part that is whole.
    async fn place(&self, stream: &Stream) -> Result<Option<Cursor>, SinkError> {
        let subject = self.connection.subjects().of(&self.hostname, &Topic::Ledger);
        let action = || format!("read the last message of `{subject}`");
        let message = match stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => message,
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(None),
            Err(error) => return Err(SinkError::new(action(), causes(&error))),
        };
        let place = message.headers.get(END).and_then(|end| place(end.as_str()));
        let unknown = || {
            let why = format!(
                "its header `{END}` does not name a place in a log: something else has published it. Purge the subject, or use another prefix"
            );
            SinkError::new(action(), why)
        };
        place.map(Some).ok_or_else(unknown)
    }
}

/// A place of the log.
fn place(text: &str) -> Option<Cursor> {
    let cursor: kprobed_event::Cursor = text.parse().ok()?;
    Some(Cursor { boot_id: cursor.boot_id.parse().ok()?, epoch: cursor.epoch, sequence: cursor.sequence })
}

/// A message on its way: what waits for its acknowledgement.
async fn publish(
    context: &Context,
    message: &Outgoing,
) -> Result<impl Future<Output = Result<(), PublishError>> + Send + use<>, PublishError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &message.headers {
        headers.insert(*name, value.as_str());
    }
    let publish = PublishMessage::build().payload(message.payload.clone()).headers(headers);
    let acknowledged = context.send_publish(message.subject.clone(), publish).await?;
    Ok(async { acknowledged.await.map(drop) })
}

impl Sink for NatsSink {
    async fn open(&mut self) -> Result<Option<Cursor>, SinkError> {
        self.open = None;
        let (context, stream) = self.connection.open().await?;
        let place = self.place(&stream).await?;
        self.open = Some(context);
        Ok(place)
    }

    async fn send(&mut self, chunk: &Chunk) -> Result<Sent, SinkError> {
        let Some(context) = self.open.clone() else { return Err(SinkError::new("publish", "not connected")) };
        let part = self.parts.of(chunk)?;
        let Some(part) = part else { return Ok(Sent::default()) };
        let failed = |message: &Outgoing, error: &PublishError| {
            SinkError::new(format_args!("publish to `{}`", message.subject), causes(error))
        };
        let mut sent = Sent::default();
        let (mut ids, mut events, mut waiting) = (Vec::new(), 0, Vec::new());
        for message in &part.messages {
            match publish(&context, message).await {
                Ok(acknowledged) => {
                    ids.push(message.id.as_str());
                    events += message.events;
                    waiting.push((message, acknowledged));
                }
                Err(error) if is_too_large(&error) => {
                    sent.dropped += message.events;
                    let bytes = message.payload.len();
                    sent.reason = format!(
                        "a message of {bytes} bytes is larger than the server allows: raise its `max_payload`, or lower `export.nats.max_message_kib`"
                    );
                }
                Err(error) => return Err(failed(message, &error)),
            }
        }
        for (message, acknowledged) in waiting {
            acknowledged.await.map_err(|error| failed(message, &error))?;
        }
        // Only now: a part that has an end is whole.
        let end = self.parts.end(&part, &ids, events, sent.dropped);
        let acknowledged = publish(&context, &end).await.map_err(|error| failed(&end, &error))?;
        acknowledged.await.map_err(|error| failed(&end, &error))?;
        self.parts.reuse(part);
        Ok(sent)
    }
}
