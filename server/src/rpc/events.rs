//! `EventService`.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream;
use kprobed_proto::v1;
use kprobed_proto::v1::event_service_server::EventService;
use kprobed_proto::v1::stream_events_response::Message;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::{convert, rows};
use crate::control::{ControlError, ControlHandle, Ledger, ProbeLedger};
use crate::kernel::{ClockMapping, HostIdentity};
use crate::model::Glob;
use crate::pipeline::{BufferCounts, Hub, Item, SubscriberCounts, Subscription};

/// Events that may wait for a subscriber that does not say otherwise.
const DEFAULT_QUEUE_EVENTS: u64 = 1_000_000;

/// The service.
#[derive(Debug)]
pub struct EventServer {
    /// Where events come from.
    pub hub: Arc<Hub>,
    /// For the ledger.
    pub control: ControlHandle,
    /// This host.
    pub host: HostIdentity,
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl EventServer {
    fn subscribe(&self, probes: Vec<String>, queue_events: u64) -> Subscription {
        let capacity = if queue_events == 0 { DEFAULT_QUEUE_EVENTS } else { queue_events };
        self.hub.subscribe(probes.into_iter().map(Glob::new).collect(), capacity)
    }

    fn started(&self, subscription: &Subscription) -> v1::StreamStarted {
        v1::StreamStarted {
            subscriber_id: subscription.id(),
            hostname: self.host.hostname.clone(),
            boot_id: self.host.boot_id.clone(),
            kernel_release: self.host.kernel_release.clone(),
            clock: Some(convert::clock(ClockMapping::sample())),
        }
    }
}

/// A column stream under way.
struct ColumnStream {
    subscription: Subscription,
    /// Messages that go before the next item.
    ready: VecDeque<Message>,
    known_schemas: HashSet<u32>,
    sequence: u64,
}

impl ColumnStream {
    async fn next(&mut self) -> Option<v1::StreamEventsResponse> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(v1::StreamEventsResponse { message: Some(message) });
            }
            match self.subscription.next().await? {
                Item::Loss(loss) => self.ready.push_back(Message::Loss(convert::loss(&loss))),
                Item::Batch { batch, selected } => {
                    let groups = selected.iter().filter_map(|index| batch.groups.get(*index));
                    for source in groups.map(|group| &group.source) {
                        if self.known_schemas.insert(source.schema_id) {
                            self.ready.push_back(Message::Schema(convert::source_schema(source)));
                        }
                    }
                    self.ready.push_back(Message::Batch(convert::batch(&batch, &selected, self.sequence)));
                    self.sequence += 1;
                }
            }
        }
    }
}

/// A row stream under way.
struct RowStream {
    subscription: Subscription,
    ready: VecDeque<v1::StreamEventRowsResponse>,
}

/// Rows in one message: keeps it well below the 4 MiB that gRPC clients take by default.
const MESSAGE_ROWS: usize = 512;

impl RowStream {
    async fn next(&mut self) -> Option<v1::StreamEventRowsResponse> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            match self.subscription.next().await? {
                Item::Loss(loss) => {
                    let losses = vec![convert::loss(&loss)];
                    return Some(v1::StreamEventRowsResponse { events: Vec::new(), losses });
                }
                Item::Batch { batch, selected } => {
                    let mut rows = rows::of_batch(&batch, &selected).into_iter().peekable();
                    while rows.peek().is_some() {
                        let events = rows.by_ref().take(MESSAGE_ROWS).collect();
                        self.ready.push_back(v1::StreamEventRowsResponse { events, losses: Vec::new() });
                    }
                }
            }
        }
    }
}

/// Messages as a response stream. When the daemon stops and all that was queued is delivered, the last item says so.
macro_rules! responses {
    ($state:expr) => {
        Box::pin(stream::unfold(Some($state), |state| async {
            let mut state = state?;
            match state.next().await {
                Some(message) => Some((Ok(message), Some(state))),
                None => Some((Err(ControlError::Stopping.into()), None)),
            }
        }))
    };
}

#[tonic::async_trait]
impl EventService for EventServer {
    type StreamEventsStream = Responses<v1::StreamEventsResponse>;
    type StreamEventRowsStream = Responses<v1::StreamEventRowsResponse>;

    async fn stream_events(
        &self,
        request: Request<v1::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let request = request.into_inner();
        let subscription = self.subscribe(request.probes, request.queue_events);
        let ready = [Message::Started(self.started(&subscription))].into();
        let stream = ColumnStream { subscription, ready, known_schemas: HashSet::new(), sequence: 0 };
        Ok(Response::new(responses!(stream)))
    }

    async fn stream_event_rows(
        &self,
        request: Request<v1::StreamEventRowsRequest>,
    ) -> Result<Response<Self::StreamEventRowsStream>, Status> {
        let request = request.into_inner();
        let subscription = self.subscribe(request.probes, request.queue_events);
        Ok(Response::new(responses!(RowStream { subscription, ready: VecDeque::new() })))
    }

    async fn get_ledger(
        &self,
        _request: Request<v1::GetLedgerRequest>,
    ) -> Result<Response<v1::GetLedgerResponse>, Status> {
        let ledger = self.control.ledger().await?;
        Ok(Response::new(ledger_response(&ledger)))
    }
}

fn ledger_response(ledger: &Ledger) -> v1::GetLedgerResponse {
    let probe = |probe: &ProbeLedger| v1::ProbeLedger {
        probe: probe.name.to_string(),
        probe_uid: probe.uid.0,
        hits: probe.hits.hits,
        misses: probe.hits.misses,
        read: probe.counts.read,
        undecodable: probe.counts.undecodable,
        not_read: probe.not_read,
        lost: probe.lost,
        held_back: probe.lost.map(|lost| probe.not_read.saturating_sub(lost)),
        loss_is_shared: probe.shared,
    };
    let buffer = |buffer: &BufferCounts| v1::BufferLedger {
        cpu: buffer.cpu,
        read: buffer.read,
        lost: buffer.overrun + buffer.refused,
        refused: buffer.refused,
        undecodable: buffer.undecodable,
        pages: buffer.pages,
    };
    let subscriber = |subscriber: &SubscriberCounts| v1::SubscriberLedger {
        subscriber_id: subscriber.id,
        start_time: Some(convert::timestamp(subscriber.start)),
        read: subscriber.read,
        delivered: subscriber.delivered,
        queued: subscriber.queued,
        dropped: subscriber.dropped,
        not_selected: subscriber.not_selected,
    };
    v1::GetLedgerResponse {
        probes: ledger.probes.iter().map(probe).collect(),
        buffers: ledger.buffers.iter().map(buffer).collect(),
        subscribers: ledger.subscribers.iter().map(subscriber).collect(),
        settled: ledger.settled,
    }
}
