//! The stream of events.
//!
//! Owns what must be remembered between messages: schemas and the latest clock mapping.

use std::collections::HashMap;
use std::sync::Arc;

use tonic::Streaming;

use super::MalformedError;
use super::batch::Batch;
use super::row::wall_ns;
use super::schema::Schema;
use crate::api;
use crate::api::stream_events_response::Message;
use crate::error::Error;

/// One item of a stream.
#[derive(Clone, Debug)]
pub enum StreamItem {
    /// The first item.
    Started(Started),
    /// A schema, before the first batch that needs it.
    Schema(Arc<Schema>),
    /// Events.
    Batch(Batch),
    /// A gap, before the first event that follows it.
    Loss(Loss),
}

/// What is known about a stream when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Identifies this subscriber in the ledger.
    pub subscriber_id: u64,
    /// Name of the host.
    pub hostname: String,
    /// The boot that the time stamps belong to.
    pub boot_id: String,
    /// Kernel release.
    pub kernel_release: String,
    /// Name of the trace clock.
    pub clock: String,
}

/// Events that will never arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Where they were lost.
    pub cause: LossCause,
    /// The CPU whose events are missing.
    pub cpu: u32,
    /// How many are missing. `None`: some; the ledger has the sum.
    pub count: Option<u64>,
    /// Trace-clock time of the first event after the gap, in nanoseconds.
    pub before_ns: u64,
    /// The same as wall-clock time, in nanoseconds since 1970.
    pub before_wall_ns: u64,
}

/// Where events were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LossCause {
    /// The kernel's ring buffer was full.
    Overrun,
    /// This client did not read fast enough, and its queue in the daemon was full.
    SubscriberQueue,
    /// The daemon could not make sense of bytes from the kernel.
    Undecodable,
    /// A cause that this version of the library does not know.
    Other,
}

/// Events as they happen.
#[derive(Debug)]
pub struct EventStream {
    inner: Streaming<api::StreamEventsResponse>,
    decoder: Decoder,
}

impl EventStream {
    pub(crate) fn new(inner: Streaming<api::StreamEventsResponse>) -> Self {
        Self { inner, decoder: Decoder::default() }
    }

    /// The next item; `None` when the daemon ended the stream in order.
    ///
    /// Whoever does not call this fast enough costs only himself: once the windows of the connection are full the daemon's queue
    /// for this client fills, drops the oldest events and says so with a [`Loss`].
    ///
    /// # Errors
    /// [`Error::Malformed`] when a message makes no sense; the stream can be read on after that. [`Error::Disconnected`] and
    /// [`Error::Rpc`] end it.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<StreamItem>, Error> {
        match self.inner.message().await? {
            Some(response) => Ok(Some(self.decoder.item(response)?)),
            None => Ok(None),
        }
    }
}

/// What is remembered between messages.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    schemas: HashMap<u32, Arc<Schema>>,
    wall_offset_ns: i64,
}

impl Decoder {
    /// Makes an item of a message.
    pub(super) fn item(&mut self, response: api::StreamEventsResponse) -> Result<StreamItem, MalformedError> {
        match response.message.ok_or(MalformedError::Empty)? {
            Message::Started(started) => {
                self.learn_clock(started.clock.as_ref());
                Ok(StreamItem::Started(Started {
                    subscriber_id: started.subscriber_id,
                    hostname: started.hostname,
                    boot_id: started.boot_id,
                    kernel_release: started.kernel_release,
                    clock: started.clock.map(|clock| clock.clock).unwrap_or_default(),
                }))
            }
            Message::Schema(schema) => {
                let schema = Arc::new(Schema::try_from(schema)?);
                self.schemas.insert(schema.id(), Arc::clone(&schema));
                Ok(StreamItem::Schema(schema))
            }
            Message::Batch(batch) => {
                self.learn_clock(batch.clock.as_ref());
                Ok(StreamItem::Batch(Batch::new(batch, &self.schemas, self.wall_offset_ns)?))
            }
            Message::Loss(loss) => Ok(StreamItem::Loss(self.loss(loss))),
        }
    }

    fn learn_clock(&mut self, clock: Option<&api::ClockMapping>) {
        if let Some(clock) = clock {
            self.wall_offset_ns = clock.wall_offset_ns;
        }
    }

    fn loss(&self, loss: api::Loss) -> Loss {
        Loss {
            cause: match loss.cause() {
                api::LossCause::Overrun => LossCause::Overrun,
                api::LossCause::SubscriberQueue => LossCause::SubscriberQueue,
                api::LossCause::Undecodable => LossCause::Undecodable,
                api::LossCause::Unspecified => LossCause::Other,
            },
            cpu: loss.cpu,
            count: (loss.count != 0).then_some(loss.count),
            before_ns: loss.before_ns,
            before_wall_ns: wall_ns(loss.before_ns, self.wall_offset_ns),
        }
    }
}
