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
use super::rows::BatchRows;
use super::{ledger, messages, selected, start, view};
use crate::export::{Exporters, cursor_of, started};
use kprobed_control::auth::{Caller, Share};
use kprobed_control::error::Error;
use kprobed_control::{ControlHandle, Probe, Sight};
use kprobed_host::kernel::{ClockMapping, HostIdentity};
use kprobed_trace::feed::{Feed, Log};
use kprobed_trace::filter::KernelFilterFeatures;
use kprobed_trace::pipeline::{Delivery, Hub, Item, Loss, LossCause, View};
use kprobed_trace::spool::Cursor;
use kprobed_trace::wire::{Projection, schema_message};

/// The service.
#[derive(Debug)]
pub struct EventServer {
    /// Source of the events.
    pub hub: Arc<Hub>,
    /// Reads the ledger.
    pub control: ControlHandle,
    /// This host.
    pub host: HostIdentity,
    /// Features of the kernel's own filters.
    pub filter_features: KernelFilterFeatures,
    /// The log in which streams begin.
    pub log: Log,
    /// Exporters, for the ledger.
    pub exporters: Exporters,
    /// Which probes a caller may observe, and the probes, for filters.
    pub access: Access,
}

/// A stream of responses.
pub(super) type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl EventServer {
    /// The view without what the caller may not observe, and the bytes of its queue. If that is all that it
    /// selects now, the caller learns why. `asked` are the probes as the client names them, and the bytes that it
    /// wants for the queue, 0 for nothing.
    fn permitted(
        &self,
        mut view: View,
        caller: &Caller,
        past: bool,
        (asked, queue_bytes): (&[String], u64),
    ) -> Result<(View, Share), Error> {
        let all = self.access.registry.all();
        let wanted: Vec<_> =
            all.iter().filter(|probe| view.selects(&probe.name, &probe.spec.labels)).collect();
        view.permits = self.access.permits(caller);
        // Of those that a pattern or a selector of labels finds, only those that the caller may look at are told: not
        // even that there are others.
        let sight = Sight::new(&self.access.rights, caller.clone());
        let is_named = |probe: &Probe| view.labels.is_empty() && asked.contains(&probe.name.to_string());
        if let Some(first) = wanted.iter().find(|probe| sight.shows(probe) || is_named(probe))
            && !wanted.iter().any(|probe| view.permits(&probe.name, probe.uid))
        {
            self.access.require(caller, first)?;
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
}

/// A position in the log of this run.
fn place(feed: &Feed, sequence: u64) -> v1::Cursor {
    cursor_of(&Cursor { sequence, ..feed.run() }).into()
}

/// A stream under way.
struct EventMessages {
    feed: Feed,
    _queue: Share,
    projection: Projection,
    /// Messages that go before the next item.
    ready: VecDeque<encoded::StreamEventsResponse>,
    /// The rows of the last item that were not sent yet, if the client wants rows: each message of them is made when
    /// the client takes it.
    rows: Option<BatchRows>,
    /// The run of the daemon that the last items are of; its sequence has no meaning.
    run: Cursor,
    known_schemas: HashSet<u32>,
    /// The last watermark, in nanoseconds.
    watermark_ns: u64,
    /// Events that came after a watermark that is later than they are.
    late_events: u64,
}

impl EventMessages {
    fn push(&mut self, message: Message) {
        self.ready.push_back(v1::StreamEventsResponse { message: Some(message) }.into());
    }

    fn push_events(&mut self, delivery: &Delivery) {
        // If an entry begins before the watermark, all of its events count, since their times are not compared one by
        // one here: an upper bound.
        if delivery.span.first_ns < self.watermark_ns {
            self.late_events += delivery.events;
        }
        if let Some(rows) = &mut self.rows {
            let sequence = delivery.sequence + delivery.log_events;
            let end = cursor_of(&Cursor { sequence, ..self.run }).into();
            if let Err(error) = rows.take(delivery, &self.projection, end) {
                // What is stored in the history is delivered as it is. The stream goes on with what follows.
                tracing::warn!(%error, "events cannot be read");
                let (count, before_ns) = (Some(delivery.events), delivery.span.first_ns);
                self.push(Message::Loss(
                    (&Loss::on(delivery.cpu, LossCause::Damaged, count, before_ns)).into(),
                ));
            }
            return;
        }
        for origin in delivery.origins.iter() {
            if self.known_schemas.insert(origin.schema_id) {
                let projected = self.projection.of(&origin.schema.fields);
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
        self.ready.push_back(delivery.message.clone().into());
    }

    async fn next(&mut self) -> Result<Option<encoded::StreamEventsResponse>, Error> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(Some(message));
            }
            if let Some(rows) = self.rows.as_mut().and_then(BatchRows::next) {
                return Ok(Some(v1::StreamEventsResponse { message: Some(Message::Rows(rows)) }.into()));
            }
            match self.feed.next().await.map_err(start::ended)? {
                None => return Ok(None),
                Some(Item::Epoch { cursor, may_miss }) => {
                    self.run = cursor;
                    self.known_schemas.clear();
                    if let Some(rows) = &mut self.rows {
                        rows.begin_epoch();
                    }
                    // The clock was restarted.
                    self.watermark_ns = 0;
                    let cursor = Some(cursor_of(&cursor).into());
                    self.push(Message::Epoch(v1::EpochStarted { cursor, may_miss }));
                }
                Some(Item::CaughtUp(sequence)) => {
                    self.push(Message::CaughtUp(place(&self.feed, sequence)));
                }
                Some(Item::Loss(loss)) => self.push(Message::Loss((&loss).into())),
                Some(Item::Watermark(watermark_ns)) => {
                    self.watermark_ns = watermark_ns;
                    let late_events = self.late_events;
                    self.push(Message::Watermark(v1::Watermark { watermark_ns, late_events }));
                }
                Some(Item::Progress(sequence)) => {
                    self.push(Message::Progress(place(&self.feed, sequence)));
                }
                Some(Item::Batch(delivery)) => self.push_events(&delivery),
                // A feed has no marks.
                Some(Item::Mark(_)) => {}
            }
        }
    }
}

#[tonic::async_trait]
impl EventService for EventServer {
    type StreamEventsStream = Responses<encoded::StreamEventsResponse>;

    async fn stream_events(
        &self,
        request: Request<v1::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        let caller = access::caller(&request)?;
        let request = request.into_inner();
        let text = request.selection.as_ref().map(|selection| selection.filter.clone()).unwrap_or_default();
        let asked = request.delivery.as_ref().map_or(0, |delivery| delivery.queue_bytes);
        let has_rows = match messages::known(v1::EventForm::try_from(request.form), "form")? {
            v1::EventForm::Unspecified | v1::EventForm::Columns => false,
            v1::EventForm::Rows => true,
        };
        let names = request.selection.as_ref().map(|selection| selection.probes.clone()).unwrap_or_default();
        let view = view::of(request.selection, request.fields, request.delivery)?;
        // Whether it has events from before the call.
        let past = request.start.as_ref().is_some_and(|start| start.start.is_some());
        let (mut view, queue) = self.permitted(view, &caller, past, (&names, asked))?;
        let registry = &self.access.registry;
        selected::judge(registry, &self.hub, &view, &text, request.start.as_ref())?;
        let filters = selected::filters(registry, &self.hub, &view, self.filter_features);
        let projection = view.projection.clone();
        if has_rows {
            // What is left out of them is known when they are made: a process also without the name of its task.
            view.projection = Projection::default();
        }
        let start = start::of(request.start)?;
        if start.until_now {
            // What the kernel has recorded until now is read first, and stored. If it cannot be read, the history
            // is there all the same.
            drop(self.control.ledger().await);
            if let Some(history) = &self.log.history {
                drop(history.settle().await);
            }
        }
        let feed = Feed::open(&self.log, self.hub.subscribe(view), start).await.map_err(start::ended)?;
        let subscriber_id = feed.subscription().id();
        let begun = started(&self.host, messages::clock(ClockMapping::sample()));
        let started = v1::StreamStarted { subscriber_id, filters, ..begun };
        let mut stream = EventMessages {
            run: feed.run(),
            feed,
            _queue: queue,
            projection,
            ready: VecDeque::new(),
            rows: has_rows.then(BatchRows::new),
            known_schemas: HashSet::new(),
            watermark_ns: 0,
            late_events: 0,
        };
        stream.push(Message::Started(started));
        // The last message may be the reason why it ends.
        let stream = stream::try_unfold(stream, async |mut stream| {
            Ok::<_, Status>(stream.next().await?.map(|message| (message, stream)))
        });
        Ok(Response::new(Box::pin(stream) as Self::StreamEventsStream))
    }

    async fn get_ledger(
        &self,
        request: Request<v1::GetLedgerRequest>,
    ) -> Result<Response<v1::GetLedgerResponse>, Status> {
        let sight = Sight::new(&self.access.rights, access::caller(&request)?);
        let mut ledger = self.control.ledger().await?;
        ledger.probes.retain(|probe| sight.shows_uid(&self.access.registry, probe.uid));
        ledger.problems.retain(|problem| sight.shows_uid(&self.access.registry, problem.uid));
        if let Some(history) = &self.log.history {
            // Events on their way to the disk are in no term yet.
            drop(history.settle().await);
        }
        let history = self.log.history.as_ref().map(|history| history.counts());
        let exporters = self.exporters.statuses();
        Ok(Response::new(ledger::response(&ledger, history.as_ref(), exporters, sight.shows_host())))
    }
}
