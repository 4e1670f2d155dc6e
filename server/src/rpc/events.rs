//! `EventService`: streams of events, and the ledger.
//!
//! Owns the messages of a stream and their order. Never decodes an event or filters one.

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

use super::access::{self, Access};
use super::sight::Sight;
use super::{convert, filters, ledger, order, rows, selected, start, view};
use crate::auth::{Caller, Share};
use crate::control::{ControlHandle, Registry};
use crate::export::Exporters;
use kprobed_host::kernel::{ClockMapping, HostIdentity, TRACE_CLOCK};
use kprobed_trace::feed::{Feed, Log};
use kprobed_trace::filter::KernelFilterFeatures;
use kprobed_trace::pipeline::{
    Content, Delivery, Form, Hub, Item, Order, Subscription, View, WATERMARK_SLACK,
};
use kprobed_trace::spool::Cursor;
use kprobed_trace::wire::{Projection, schema_message};

/// The service.
#[derive(Debug)]
pub struct EventServer {
    /// Source of the events.
    pub hub: Arc<Hub>,
    /// Reads the ledger.
    pub control: ControlHandle,
    /// The probes, for filters.
    pub registry: Arc<Registry>,
    /// This host.
    pub host: HostIdentity,
    /// Features of the kernel's own filters.
    pub filter_features: KernelFilterFeatures,
    /// The log in which streams begin.
    pub log: Log,
    /// Terms of exporters, for the ledger.
    pub exporters: Exporters,
    /// Which probes a caller may observe.
    pub access: Access,
}

/// A stream of responses.
pub(super) type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl EventServer {
    /// Refuses a filter or a field that no selected source can have.
    async fn judge(&self, view: &View, text: &str, start: Option<&v1::StreamStart>) -> Result<(), Status> {
        selected::judge(&self.registry, &self.control, &self.hub, view, text, start).await
    }

    /// The view without what the caller may not observe, and the bytes of its queue. If that is all that it
    /// selects now, the caller learns why. `queue_bytes` is what the client asked for, 0 for nothing.
    fn permitted(
        &self,
        mut view: View,
        caller: &Caller,
        past: bool,
        queue_bytes: u64,
    ) -> Result<(View, Share), Status> {
        let all = self.registry.all();
        let wanted: Vec<_> =
            all.iter().filter(|probe| view.selects(&probe.name, &probe.spec.labels)).collect();
        view.permits = self.access.permits(caller);
        if let Some(first) = wanted.first()
            && !wanted.iter().any(|probe| view.permits(&probe.name, probe.uid))
        {
            self.access.require(caller, &first.name, None)?;
        }
        let (bytes, queue) = self.access.queue(caller, queue_bytes)?;
        view.limits.bytes = bytes;
        let names: Vec<_> = wanted
            .iter()
            .filter(|probe| view.permits(&probe.name, probe.uid))
            .map(|probe| probe.name.to_string())
            .collect();
        let what = if past { "events, from the history on" } else { "events" };
        self.access.note_read(caller, &names, what);
        Ok((view, queue))
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

/// Whether a stream has events from before the call.
fn begins_in_the_past(start: Option<&v1::StreamStart>) -> bool {
    start.is_some_and(|start| start.start.is_some())
}

/// A position in the log of this run.
fn place(feed: &Feed, sequence: u64) -> v1::Cursor {
    start::message(&Cursor { sequence, ..feed.run() })
}

/// A column stream under way.
struct ColumnStream {
    feed: Feed,
    _queue: Share,
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

    fn push_batch(&mut self, delivery: &Delivery) {
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
        self.late.delivered(delivery);
        self.ready.push_back(delivery.message().clone().into());
    }

    async fn next(&mut self) -> Result<Option<encoded::StreamEventsResponse>, Status> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(Some(message));
            }
            match self.feed.next().await.map_err(start::ended)? {
                None => return Ok(None),
                Some(Item::Epoch { cursor, may_miss }) => {
                    self.known_schemas.clear();
                    self.late.begin();
                    let cursor = Some(start::message(&cursor));
                    self.push(Message::Epoch(v1::EpochStarted { cursor, may_miss }));
                }
                Some(Item::CaughtUp(sequence)) => {
                    self.push(Message::CaughtUp(v1::CaughtUp { cursor: Some(place(&self.feed, sequence)) }));
                }
                Some(Item::Loss(loss)) => self.push(Message::Loss((&loss).into())),
                Some(Item::Watermark(watermark_ns)) => {
                    let late_events = self.late.passed(watermark_ns);
                    self.push(Message::Watermark(v1::Watermark { watermark_ns, late_events }));
                }
                Some(Item::Progress(sequence)) => {
                    self.push(Message::Progress(v1::Progress { cursor: Some(place(&self.feed, sequence)) }));
                }
                Some(Item::Batch(delivery)) => self.push_batch(&delivery),
                // A feed has no marks.
                Some(Item::Mark(_)) => {}
            }
        }
    }
}

/// A row stream under way.
struct RowStream {
    feed: Feed,
    _queue: Share,
    projection: Projection,
    cursor: v1::Cursor,
    sorter: Option<order::Sorter>,
    ready: VecDeque<v1::StreamEventRowsResponse>,
    is_over: bool,
}

/// Rows in one message: keeps it well below the 4 MiB that gRPC clients take by default.
const MESSAGE_ROWS: usize = 512;

impl RowStream {
    async fn next(&mut self) -> Result<Option<v1::StreamEventRowsResponse>, Status> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(Some(message));
            }
            if self.is_over {
                return Ok(None);
            }
            match self.feed.next().await.map_err(start::ended)? {
                None => {
                    self.release(u64::MAX);
                    self.is_over = true;
                }
                Some(Item::Epoch { cursor, .. }) => {
                    // The clock of a new epoch begins anew: all waiting rows are sent now.
                    self.release(u64::MAX);
                    self.cursor = start::message(&cursor);
                }
                // Rows that wait for their turn are not sent yet.
                Some(Item::CaughtUp(_) | Item::Progress(_)) if self.sorter.is_some() => {}
                Some(Item::CaughtUp(sequence)) => self.cursor = place(&self.feed, sequence),
                Some(Item::Progress(sequence)) => {
                    self.cursor = place(&self.feed, sequence);
                    let (events, losses) = (Vec::new(), Vec::new());
                    let cursor = Some(self.cursor.clone());
                    self.ready.push_back(v1::StreamEventRowsResponse { events, losses, cursor });
                }
                // A feed has no marks.
                Some(Item::Mark(_)) => {}
                Some(Item::Loss(loss)) => {
                    let cursor = Some(self.cursor.clone());
                    let losses = vec![(&loss).into()];
                    self.ready.push_back(v1::StreamEventRowsResponse { events: Vec::new(), losses, cursor });
                }
                Some(Item::Batch(delivery)) => self.push_rows(&delivery),
                Some(Item::Watermark(watermark_ns)) => self.release(watermark_ns),
            }
        }
    }

    /// Sends the rows older than a time stamp.
    fn release(&mut self, before_ns: u64) {
        let Some(sorter) = &mut self.sorter else { return };
        let (rows, sequence) = sorter.release(before_ns);
        self.cursor.sequence = sequence.unwrap_or(self.cursor.sequence);
        self.push_messages(rows);
    }

    fn push_rows(&mut self, delivery: &Delivery) {
        // The view asks for columns.
        let Content::Columns(batch) = &delivery.content else { return };
        let rows = rows::of_batch(batch, &self.projection);
        let end = delivery.sequence + delivery.log_events;
        if let Some(sorter) = &mut self.sorter {
            sorter.add(rows, delivery.sequence, end);
        } else {
            self.cursor.sequence = end;
            self.push_messages(rows);
        }
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

/// Messages as a response stream. The last one may be the reason why it ends.
macro_rules! responses {
    ($state:expr) => {
        Box::pin(stream::unfold(Some($state), |state| async {
            let mut state = state?;
            match state.next().await {
                Ok(message) => Some((Ok(message?), Some(state))),
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
        let caller = access::caller(&request)?;
        let request = request.into_inner();
        let text = request.selection.as_ref().map(|selection| selection.filter.clone()).unwrap_or_default();
        let asked = request.delivery.as_ref().map_or(0, |delivery| delivery.queue_bytes);
        let view = view::of(request.selection, request.fields, request.delivery)?;
        let past = begins_in_the_past(request.start.as_ref());
        let (view, queue) = self.permitted(view, &caller, past, asked)?;
        self.judge(&view, &text, request.start.as_ref()).await?;
        let projection = view.projection.clone();
        let feed = Feed::open(&self.log, self.hub.subscribe(view), start::of(request.start)?)
            .await
            .map_err(start::ended)?;
        let started = self.started(feed.subscription());
        let mut stream = ColumnStream {
            feed,
            _queue: queue,
            projection,
            ready: VecDeque::new(),
            known_schemas: HashSet::new(),
            late: order::Late::default(),
        };
        stream.push(Message::Started(started));
        Ok(Response::new(responses!(stream)))
    }

    async fn stream_event_rows(
        &self,
        request: Request<v1::StreamEventRowsRequest>,
    ) -> Result<Response<Self::StreamEventRowsStream>, Status> {
        let caller = access::caller(&request)?;
        let request = request.into_inner();
        let text = request.selection.as_ref().map(|selection| selection.filter.clone()).unwrap_or_default();
        let asked = request.delivery.as_ref().map_or(0, |delivery| delivery.queue_bytes);
        let view = view::of(request.selection, request.fields, request.delivery)?;
        let past = begins_in_the_past(request.start.as_ref());
        let (mut view, queue) = self.permitted(view, &caller, past, asked)?;
        self.judge(&view, &text, request.start.as_ref()).await?;
        // Rows are made from columns, which leave out unwanted fields by themselves.
        view.form = Form::Columns;
        let projection = std::mem::take(&mut view.projection);
        let sorter = (view.order == Order::Time).then(order::Sorter::default);
        let feed = Feed::open(&self.log, self.hub.subscribe(view), start::of(request.start)?)
            .await
            .map_err(start::ended)?;
        let cursor = v1::Cursor::default();
        let stream = RowStream {
            feed,
            _queue: queue,
            projection,
            cursor,
            sorter,
            ready: VecDeque::new(),
            is_over: false,
        };
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
        request: Request<v1::GetLedgerRequest>,
    ) -> Result<Response<v1::GetLedgerResponse>, Status> {
        let sight = Sight::new(&self.access.rights, access::caller(&request)?);
        let mut ledger = self.control.ledger().await?;
        ledger.probes.retain(|probe| sight.shows_uid(&self.registry, probe.uid));
        ledger.problems.retain(|problem| sight.shows_uid(&self.registry, problem.uid));
        let history = match &self.log.history {
            Some(history) => {
                // Events on their way to the disk are in no term yet.
                drop(history.settle().await);
                Some(history.counts())
            }
            None => None,
        };
        let exporters = self.exporters.statuses();
        Ok(Response::new(ledger::response(&ledger, history.as_ref(), &exporters)))
    }
}
