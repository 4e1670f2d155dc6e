//! The NATS JetStream exporter: one message for each probe of each batch.
//!
//! Owns how the log is published (the form is that of [`kprobed_event::published`]), and where the
//! exporter continues: after the last chunk whose end is in the stream, however the connection was
//! lost. An acknowledgement of JetStream is not durable by default, so no acknowledgement advances
//! the cursor permanently. The end of a chunk, with its account, is published when all of its
//! messages are acknowledged. A chunk without an end is published again, in messages with the same
//! ids, which the server drops as long as it knows them, and readers by their place in the log.
//!
//! ```text
//! chunk --messages--> events by probe, gaps --publish, all acknowledged--> account --acknowledged--> cursor
//! open --last message of PREFIX.HOST.ledger--> cursor in the log
//! ```

mod connection;
mod messages;

use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use kprobed_event::published::{BEFORE, END, Topic};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::connection::Connection;
use self::messages::{MessageMaker, Messages, Outgoing};
use crate::config::export::Nats;
use crate::export::read::place_of;
use crate::export::sink::causes;
use crate::export::{Chunk, Sent, Sink, SinkError};
use crate::start_error::StartError;
use kprobed_host::kernel::HostIdentity;
use kprobed_trace::pipeline::Item;
use kprobed_trace::spool::Cursor;

/// Interval of checks that the stream still has the last chunk while no events come: a heartbeat is
/// not acknowledged.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The sink.
#[derive(Debug)]
pub struct NatsSink {
    connection: Connection,
    maker: MessageMaker,
    stream: Option<Ready>,
}

/// The stream, and the end of the last chunk of this host in it.
#[derive(Debug)]
struct Ready {
    context: Context,
    /// Is cancelled when the connection is lost.
    lost: CancellationToken,
    stream: Stream,
    /// The end of the last chunk. Absent: there is none.
    last: Option<End>,
    checked: Instant,
}

/// The end of a chunk in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    place: Cursor,
    message: u64,
    /// Events of the run that were published before.
    total: u64,
}

impl NatsSink {
    /// Publishes the events of a host. The settings were judged.
    ///
    /// # Errors
    /// A file has changed since.
    pub fn new(settings: &Nats, host: &HostIdentity) -> Result<Self, StartError> {
        let connection = Connection::new(settings, &host.hostname)?;
        let maker = MessageMaker::new(host.clone(), connection.subjects.clone());
        Ok(Self { connection, maker, stream: None })
    }

    /// The position in the stream itself: the end of the last whole chunk.
    async fn last(&self, stream: &Stream) -> Result<Option<End>, SinkError> {
        let Connection { subjects, hostname, .. } = &self.connection;
        let subject = subjects.of(hostname, &Topic::Ledger);
        let action = || format!("read the last message of `{subject}`");
        let message = match stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => message,
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(None),
            Err(error) => return Err(SinkError::new(action(), causes(&error))),
        };
        let place = message.headers.get(END).and_then(|end| place_of(end.as_str()));
        let total = message.headers.get(BEFORE).and_then(|total| total.as_str().parse().ok());
        let unknown = || {
            let why = format!(
                "its headers do not name a place in a log (`{END}`, `{BEFORE}`): something else has published it. Purge the subject, or use another prefix"
            );
            SinkError::new(action(), why)
        };
        let (place, total) = place.zip(total).ok_or_else(unknown)?;
        Ok(Some(End { place, message: message.sequence, total }))
    }

    /// Whether a chunk says only that nothing happened, and the stream has everything before. Then
    /// it need not be stored.
    async fn is_idle(&mut self, chunk: &Chunk) -> Result<Option<End>, SinkError> {
        let Some(Ready { stream, last: Some(last), checked, .. }) = &self.stream else { return Ok(None) };
        let only_marks = chunk.items.iter().all(|item| matches!(item, Item::Watermark(_)));
        if !only_marks || chunk.walked.places > 0 || chunk.end != Some(last.place) {
            return Ok(None);
        }
        if checked.elapsed() < CHECK_INTERVAL {
            return Ok(Some(*last));
        }
        let (last, found) = (*last, self.last(stream).await?);
        if let Some(ready) = &mut self.stream {
            ready.checked = Instant::now();
        }
        match found {
            Some(found) if found == last => Ok(Some(last)),
            Some(_) => Err(SinkError::new("look at the stream", "it does not have what it acknowledged")),
            // It keeps messages for a time only: the next one says again that the host is there.
            None => Ok(None),
        }
    }

    /// Publishes a chunk. Returns what became of it, and the number of its last message in the stream.
    async fn publish_all(&self, context: &Context, messages: &Messages) -> Result<(Sent, u64), SinkError> {
        let failed = |message: &Outgoing, error: &PublishError| {
            SinkError::new(format_args!("publish to `{}`", message.subject), causes(error))
        };
        let mut sent = Sent::default();
        let (mut events, mut waiting) = (0, Vec::new());
        for message in &messages.all {
            match publish(context, message).await {
                Ok(acknowledged) => {
                    events += message.events;
                    waiting.push((message, acknowledged));
                }
                // Not even one event has room.
                Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                    sent.dropped += message.events;
                    let bytes = message.payload.len();
                    sent.reason = format!(
                        "an event of {bytes} bytes is larger than the server allows: raise its `max_payload`"
                    );
                }
                Err(error) => return Err(failed(message, &error)),
            }
        }
        for (message, acknowledged) in waiting {
            acknowledged.await.map_err(|error| failed(message, &error))?;
        }
        // Only now: everything before the end of a chunk is in the stream.
        let end = self.maker.end(messages, events, sent.dropped);
        let acknowledged = publish(context, &end).await.map_err(|error| failed(&end, &error))?;
        let stored = acknowledged.await.map_err(|error| failed(&end, &error))?;
        Ok((sent, stored.sequence))
    }
}

/// A message on its way: what waits for its acknowledgement.
async fn publish(
    context: &Context,
    message: &Outgoing,
) -> Result<impl Future<Output = Result<PublishAck, PublishError>> + Send + use<>, PublishError> {
    let publish = PublishMessage::build().payload(message.payload.clone()).headers(message.headers.clone());
    let acknowledged = context.send_publish(message.subject.clone(), publish).await?;
    Ok(acknowledged.into_future())
}

impl Sink for NatsSink {
    async fn open(&mut self) -> Result<Option<Cursor>, SinkError> {
        self.stream = None;
        let (context, lost) = self.connection.open().await?;
        self.maker.max_payload = context.client().server_info().max_payload;
        let stream = self.connection.events(&context).await?;
        let last = self.last(&stream).await?;
        self.maker.total = last.map_or(0, |last| last.total);
        self.stream = Some(Ready { context, lost, stream, last, checked: Instant::now() });
        Ok(last.map(|last| last.place))
    }

    async fn send(&mut self, chunk: &Chunk) -> Result<Sent, SinkError> {
        let Some(Ready { context, lost, .. }) = &self.stream else {
            return Err(SinkError::new("publish", "not connected"));
        };
        if lost.is_cancelled() {
            return Err(SinkError::new("publish to the stream", "the connection was lost"));
        }
        let context = context.clone();
        let idle = self.is_idle(chunk).await?;
        let Some(messages) = self.maker.of(chunk)? else { return Ok(Sent::default()) };
        if let Some(last) = idle {
            let alive = self.maker.alive(&messages, last.message);
            let Outgoing { subject, headers, payload, .. } = alive;
            let failed = format!("publish to `{subject}`");
            let published = context.client().publish_with_headers(subject, headers, payload).await;
            published.map_err(|error| SinkError::new(failed, causes(&error)))?;
            return Ok(Sent::default());
        }
        let (sent, message) = self.publish_all(&context, &messages).await?;
        let total = messages.total;
        self.maker.total = total;
        if let (Some(ready), Some(place)) = (&mut self.stream, chunk.end) {
            (ready.last, ready.checked) = (Some(End { place, message, total }), Instant::now());
        }
        Ok(sent)
    }
}
