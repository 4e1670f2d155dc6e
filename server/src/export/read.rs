//! Decoding a chunk into rows and columns, with the code that clients decode their streams with.

use std::collections::HashSet;
use std::sync::Arc;

use kprobed_event::{Batch, Decoder, Loss, MalformedError, StreamItem};
use kprobed_proto::v1;
use kprobed_proto::v1::stream_events_response::Message;
use prost::Message as _;

use kprobed_host::kernel::{HostIdentity, TRACE_CLOCK};
use kprobed_trace::pipeline::{self, Delivery, Origin, WATERMARK_SLACK};
use kprobed_trace::spool::Cursor;
use kprobed_trace::wire::schema_message;

/// Schemas that are kept from one batch to the next, unless a batch names as many itself. Probes come and go as long
/// as a stream lasts.
pub(crate) const KEPT_SCHEMAS: usize = 4096;

/// What is remembered from one chunk to the next.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    decoder: Decoder,
    known: HashSet<u32>,
    /// The probes whose schemas were read last: the history names all probes with each batch, in one list.
    last: Option<Arc<[Arc<Origin>]>>,
    wall_offset_ns: i64,
}

impl Reader {
    /// What follows is of another run of the daemon.
    pub(crate) fn begin_epoch(&mut self) {
        *self = Self::default();
    }

    /// Events. Fails if a batch of the daemon itself cannot be read.
    pub(crate) fn batch(&mut self, delivery: &Delivery) -> Result<Batch, String> {
        let malformed = |error: MalformedError| format!("a batch of events is malformed: {error}");
        // Each batch names its schemas again.
        if self.known.len() > KEPT_SCHEMAS.max(2 * delivery.origins.len()) {
            self.begin_epoch();
        }
        if !self.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &delivery.origins)) {
            for origin in delivery.origins.iter() {
                if self.known.insert(origin.schema_id) {
                    let schema =
                        schema_message(origin.schema_id, &origin.name, origin.uid, &origin.schema, None);
                    let message = v1::StreamEventsResponse { message: Some(Message::Schema(schema)) };
                    self.decoder.item(message).map_err(malformed)?;
                }
            }
            self.last = Some(Arc::clone(&delivery.origins));
        }
        self.wall_offset_ns = delivery.wall_offset_ns;
        let message = v1::StreamEventsResponse::decode(delivery.message.clone())
            .map_err(|error| format!("a batch of events is not a message: {error}"))?;
        match self.decoder.item(message).map_err(malformed)? {
            Some(StreamItem::Batch(batch)) => Ok(batch),
            _ => Err("a batch of events is another message".to_owned()),
        }
    }

    /// How many schemas it keeps.
    #[cfg(test)]
    pub(crate) fn schemas(&self) -> usize {
        self.known.len()
    }

    /// A gap.
    pub(super) fn loss(&self, loss: &pipeline::Loss) -> Loss {
        Loss::new(&loss.into(), self.wall_offset_ns)
    }
}

/// What a stream of this host begins with. `clock` is that of its first events.
pub(crate) fn started(host: &HostIdentity, clock: v1::ClockMapping) -> v1::StreamStarted {
    v1::StreamStarted {
        hostname: host.hostname.clone(),
        kernel_release: host.kernel_release.clone(),
        clock_name: TRACE_CLOCK.to_owned(),
        clock: Some(clock),
        watermark_slack_ns: u64::try_from(WATERMARK_SLACK.as_nanos()).unwrap_or(u64::MAX),
        ..v1::StreamStarted::default()
    }
}

/// A place of the log as clients write it.
pub(crate) fn cursor_of(cursor: &Cursor) -> kprobed_event::Cursor {
    kprobed_event::Cursor {
        boot_id: cursor.boot_id.to_string(),
        epoch: cursor.epoch,
        sequence: cursor.sequence,
    }
}

/// A place of the log that was written by [`cursor_of`].
pub(super) fn place_of(text: &str) -> Option<Cursor> {
    let kprobed_event::Cursor { boot_id, epoch, sequence } = text.parse().ok()?;
    Some(Cursor { boot_id: boot_id.parse().ok()?, epoch, sequence })
}
