//! `EventService`: streams and the ledger.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream;
use kprobed_proto::encoded;
use kprobed_proto::encoded::event_service_server::EventService;
use kprobed_proto::v1;
use kprobed_proto::v1::stream_events_response::Message;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::{convert, filters, ledger, order, rows, view};
use crate::control::{ControlError, ControlHandle, Registry};
use crate::filter::KernelFilterFeatures;
use crate::kernel::{ClockMapping, HostIdentity, TRACE_CLOCK};
use crate::pipeline::{Delivery, End, Hub, Item, Order, Subscription, WATERMARK_SLACK};
use crate::wire::{Projection, schema_message};

/// The service.
#[derive(Debug)]
pub struct EventServer {
    /// Where events come from.
    pub hub: Arc<Hub>,
    /// For the ledger.
    pub control: ControlHandle,
    /// For filters: which probes there are.
    pub registry: Arc<Registry>,
    /// This host.
    pub host: HostIdentity,
    /// What the kernel's own filters know.
    pub filter_features: KernelFilterFeatures,
    /// This run of the daemon: larger than that of any run before it.
    pub epoch: u64,
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl EventServer {
    fn cursor(&self, sequence: u64) -> v1::Cursor {
        v1::Cursor { boot_id: self.host.boot_id.clone(), epoch: self.epoch, sequence }
    }

    fn started(&self, subscription: &Subscription) -> v1::StreamStarted {
        v1::StreamStarted {
            subscriber_id: subscription.id(),
            hostname: self.host.hostname.clone(),
            kernel_release: self.host.kernel_release.clone(),
            clock_name: TRACE_CLOCK.to_owned(),
            clock: Some(convert::clock(ClockMapping::sample())),
            watermark_slack_ns: u64::try_from(WATERMARK_SLACK.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// How a stream ends.
fn ended(end: End) -> Status {
    match end {
        End::Stopping => ControlError::Stopping.into(),
        End::Overflowed { sequence } => Status::resource_exhausted(format!(
            "the queue of this subscriber was full, and it asked to be disconnected then; the log goes on at {sequence}"
        )),
    }
}

/// A column stream under way.
struct ColumnStream {
    subscription: Subscription,
    projection: Projection,
    /// Messages that go before the next item.
    ready: VecDeque<encoded::StreamEventsResponse>,
    known_schemas: HashSet<u32>,
    late: order::Late,
}

impl ColumnStream {
    fn push(&mut self, message: Message) {
        self.ready.push_back(v1::StreamEventsResponse { message: Some(message) }.into());
    }

    fn push_batch(&mut self, delivery: Delivery) {
        for origin in delivery.origins.iter() {
            if self.known_schemas.insert(origin.schema_id) {
                let projected = self.projection.of(&origin.schema);
                let schema = schema_message(
                    origin.schema_id,
                    &origin.name,
                    origin.uid,
                    &origin.schema,
                    Some(&projected),
                );
                self.push(Message::Schema(schema));
            }
        }
        self.late.delivered(&delivery);
        self.ready.push_back(delivery.message.into());
    }

    async fn next(&mut self) -> Result<encoded::StreamEventsResponse, Status> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(message);
            }
            match self.subscription.next().await.map_err(ended)? {
                Item::Loss(loss) => self.push(Message::Loss(convert::loss(&loss))),
                Item::Watermark(watermark_ns) => {
                    let late_events = self.late.passed(watermark_ns);
                    self.push(Message::Watermark(v1::Watermark { watermark_ns, late_events }));
                }
                Item::Batch(delivery) => self.push_batch(delivery),
            }
        }
    }
}

/// A row stream under way.
struct RowStream {
    subscription: Subscription,
    projection: Projection,
    cursor: v1::Cursor,
    sorter: Option<order::Sorter>,
    ready: VecDeque<v1::StreamEventRowsResponse>,
}

/// Rows in one message: keeps it well below the 4 MiB that gRPC clients take by default.
const MESSAGE_ROWS: usize = 512;

impl RowStream {
    async fn next(&mut self) -> Result<v1::StreamEventRowsResponse, Status> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(message);
            }
            match self.subscription.next().await.map_err(ended)? {
                Item::Loss(loss) => {
                    let losses = vec![convert::loss(&loss)];
                    let cursor = Some(self.cursor.clone());
                    return Ok(v1::StreamEventRowsResponse { events: Vec::new(), losses, cursor });
                }
                Item::Batch(delivery) => self.push_rows(&delivery)?,
                Item::Watermark(watermark_ns) => {
                    let sorted = self.sorter.as_mut().map(|sorter| sorter.release(watermark_ns));
                    if let Some((rows, sequence)) = sorted {
                        self.cursor.sequence = sequence.unwrap_or(self.cursor.sequence);
                        self.push_messages(rows);
                    }
                }
            }
        }
    }

    fn push_rows(&mut self, delivery: &Delivery) -> Result<(), Status> {
        let rows = rows::of_delivery(delivery, &self.projection)
            .map_err(|error| Status::internal(format!("can not read an own batch: {error}")))?;
        let end = delivery.sequence + delivery.log_events;
        match &mut self.sorter {
            Some(sorter) => sorter.add(rows, delivery.sequence, end),
            None => {
                self.cursor.sequence = end;
                self.push_messages(rows);
            }
        }
        Ok(())
    }

    fn push_messages(&mut self, rows: Vec<v1::EventRow>) {
        let mut rows = rows.into_iter().peekable();
        while rows.peek().is_some() {
            let events = rows.by_ref().take(MESSAGE_ROWS).collect();
            let cursor = Some(self.cursor.clone());
            self.ready.push_back(v1::StreamEventRowsResponse { events, losses: Vec::new(), cursor });
        }
    }
}

/// Messages as a response stream, the last of which may be why it ends.
macro_rules! responses {
    ($state:expr) => {
        Box::pin(stream::unfold(Some($state), |state| async {
            let mut state = state?;
            match state.next().await {
                Ok(message) => Some((Ok(message), Some(state))),
                Err(status) => Some((Err(status), None)),
            }
        }))
    };
}

#[tonic::async_trait]
impl EventService for EventServer {
    type StreamEventsStream = Responses<encoded::StreamEventsResponse>;
    type StreamEventRowsStream = Responses<v1::StreamEventRowsResponse>;

    async fn stream_events(
        &self,
        request: Request<v1::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let request = request.into_inner();
        let text = request.selection.as_ref().map(|selection| selection.filter.clone()).unwrap_or_default();
        let view = view::of(request.selection, request.fields, request.delivery)?;
        filters::judge(&self.registry, &self.hub, &view, &text)?;
        let projection = view.projection.clone();
        let subscription = self.hub.subscribe(view);
        let sequence = subscription.attach();
        let mut stream = ColumnStream {
            subscription,
            projection,
            ready: VecDeque::new(),
            known_schemas: HashSet::new(),
            late: order::Late::default(),
        };
        let cursor = Some(self.cursor(sequence));
        stream.push(Message::Started(self.started(&stream.subscription)));
        stream.push(Message::Epoch(v1::EpochStarted { cursor: cursor.clone(), may_miss: false }));
        stream.push(Message::CaughtUp(v1::CaughtUp { cursor }));
        Ok(Response::new(responses!(stream)))
    }

    async fn stream_event_rows(
        &self,
        request: Request<v1::StreamEventRowsRequest>,
    ) -> Result<Response<Self::StreamEventRowsStream>, Status> {
        let request = request.into_inner();
        let text = request.selection.as_ref().map(|selection| selection.filter.clone()).unwrap_or_default();
        let mut view = view::of(request.selection, request.fields, request.delivery)?;
        filters::judge(&self.registry, &self.hub, &view, &text)?;
        // Rows are made from whole batches, and leave out what is not wanted themselves.
        let projection = std::mem::take(&mut view.projection);
        let sorter = (view.order == Order::Time).then(order::Sorter::default);
        let subscription = self.hub.subscribe(view);
        let cursor = self.cursor(subscription.attach());
        let stream = RowStream { subscription, projection, cursor, sorter, ready: VecDeque::new() };
        Ok(Response::new(responses!(stream)))
    }

    async fn check_filter(
        &self,
        request: Request<v1::CheckFilterRequest>,
    ) -> Result<Response<v1::CheckFilterResponse>, Status> {
        let selection = request.into_inner().selection.unwrap_or_default();
        let view = view::of(Some(selection), Vec::new(), None)?;
        let probes = filters::of_probes(&self.registry, &self.hub, &view, self.filter_features);
        Ok(Response::new(v1::CheckFilterResponse { probes }))
    }

    async fn get_ledger(
        &self,
        _request: Request<v1::GetLedgerRequest>,
    ) -> Result<Response<v1::GetLedgerResponse>, Status> {
        Ok(Response::new(ledger::response(&self.control.ledger().await?)))
    }
}
