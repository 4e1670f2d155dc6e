//! Event stream of one host from NATS.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::Subscriber;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use futures_util::StreamExt as _;
use kprobed_event::published::{HostLog, Received, Topic};

use super::source::{NatsError, NatsSource};
use crate::event::{Batch, BoundEventFilter, Cursor, EventFilter, Projection, Schema, StreamItem};

/// How much earlier than a time the first message is: the clock of the server may be another one.
const BEFORE: Duration = Duration::from_mins(1);

/// Where to begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NatsStart {
    /// With what is published after the last account.
    #[default]
    Now,
    /// With the oldest event of the stream.
    Oldest,
    /// With what was published from this time on, and a minute before it.
    Since(SystemTime),
}

/// Which events of a host are read.
#[derive(Clone, Debug, Default)]
pub struct NatsRequest {
    /// Where to begin.
    pub start: NatsStart,
    /// End when everything was read that had been published at the time of the call.
    pub until_now: bool,
    /// Only events of these probes. `None`: of all.
    pub probes: Option<ProbePredicate>,
    /// Only events that this filter selects. `None`: all.
    pub filter: Option<EventFilter>,
    /// Only every so many-th event of each host that passes everything else. 0 and 1: all.
    pub sample_one_in: u64,
    /// Only these fields of events.
    pub fields: Projection,
}

type WantsProbe = dyn Fn(&str) -> bool + Send + Sync;

/// Whether a probe is wanted.
#[derive(Clone)]
pub struct ProbePredicate(Arc<WantsProbe>);

impl ProbePredicate {
    /// Of the name of the probe, `GROUP/EVENT`.
    pub fn new(wanted: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(wanted))
    }
}

impl fmt::Debug for ProbePredicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProbePredicate")
    }
}

impl NatsRequest {
    fn wants(&self, probe: &str) -> bool {
        self.probes.as_ref().is_none_or(|wanted| (wanted.0)(probe))
    }

    /// What is wanted of events. None: nothing.
    fn of(&self, batch: Batch, filtering: Option<&mut Filtering>, seen: &mut u64) -> Option<Batch> {
        let mut batch = batch;
        if let Some(filtering) = filtering {
            batch = filtering.select(&batch);
        }
        if self.sample_one_in > 1 {
            batch = batch.select(|_| {
                let is_taken = seen.is_multiple_of(self.sample_one_in);
                *seen = seen.wrapping_add(1);
                is_taken
            });
        }
        (!batch.is_empty()).then(|| batch.project(&self.fields))
    }
}

/// A filter with what it means for the probes of one host.
#[derive(Debug)]
struct Filtering {
    filter: EventFilter,
    host: String,
    /// By the number of the schema, which another run of the daemon gives to another probe.
    bound: HashMap<u32, (Arc<Schema>, BoundEventFilter)>,
}

impl Filtering {
    fn new(filter: EventFilter, host: &str) -> Self {
        Self { filter, host: host.to_owned(), bound: HashMap::new() }
    }

    /// The events of a batch that it selects.
    fn select(&mut self, batch: &Batch) -> Batch {
        for group in batch.groups() {
            let schema = group.schema();
            let is_known = self.bound.get(&schema.id()).is_some_and(|(known, _)| Arc::ptr_eq(known, schema));
            if !is_known {
                // As in the daemon, a filter that cannot be bound to a probe matches none of its events.
                let bound = self.filter.bind(schema.probe(), &self.host, &[schema]);
                let bound = bound.unwrap_or(BoundEventFilter::NOTHING);
                self.bound.insert(schema.id(), (Arc::clone(schema), bound));
            }
        }
        batch.select(|row| {
            let bound = self.bound.get(&row.schema().id());
            bound.is_some_and(|(_, bound)| bound.matches(*row))
        })
    }
}

/// The events of one host, in the order of its log.
pub struct NatsStream {
    source: NatsSource,
    host: String,
    request: NatsRequest,
    messages: Ordered,
    /// Signs of life of the host, which the stream does not store. Absent for a stream that ends.
    alive: Option<Subscriber>,
    /// The latest of those, until everything before it was read.
    sign: Option<Received>,
    log: HostLog,
    ready: VecDeque<StreamItem>,
    /// The last message that was read, or precedes the first one to read. 0: none.
    last: u64,
    /// Up to message `there.0` of the whole stream, the host's last account is message `there.1`.
    there: (u64, u64),
    filtering: Option<Filtering>,
    /// Events that passed everything but the sampling.
    seen: u64,
    /// The message after which the stream ends.
    end: Option<u64>,
}

impl fmt::Debug for NatsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsStream").field("host", &self.host).field("log", &self.log).finish_non_exhaustive()
    }
}

impl NatsSource {
    /// The events of one host.
    ///
    /// # Errors
    /// See [`NatsError`].
    pub async fn open(&self, host: &str, request: NatsRequest) -> Result<NatsStream, NatsError> {
        let source = self.clone();
        let subject = source.subjects.of(host, &Topic::Alive);
        let alive = if request.until_now {
            None
        } else {
            let action = format!("wait for messages to `{subject}`");
            let subscribed = source.client.subscribe(subject).await;
            Some(subscribed.map_err(|error| NatsError::request(action, &error))?)
        };
        // The whole stream first: an account that comes in between is after both.
        let behind = source.last().await?;
        let ended = last(&source, host).await?;
        let end = request.until_now.then_some(ended);
        let start = match request.start {
            NatsStart::Now => DeliverPolicy::ByStartSequence { start_sequence: ended + 1 },
            NatsStart::Oldest => DeliverPolicy::All,
            NatsStart::Since(time) => from_time(time)?,
        };
        let messages = consume(&source, host, start).await?;
        Ok(NatsStream {
            source,
            host: host.to_owned(),
            messages,
            alive,
            sign: None,
            log: HostLog::default(),
            ready: VecDeque::new(),
            last: if request.start == NatsStart::Now { ended } else { 0 },
            there: (behind, ended),
            filtering: request.filter.clone().map(|filter| Filtering::new(filter, host)),
            seen: 0,
            end,
            request,
        })
    }
}

impl NatsStream {
    /// The next item. None: the requested end. After an error, [`NatsStream::reopen`] continues
    /// after the last message.
    ///
    /// # Errors
    /// See [`NatsError`]. After [`NatsError::Malformed`] the stream continues with the next message.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<StreamItem>, NatsError> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(Some(item));
            }
            if self.end.is_some_and(|end| self.last >= end) {
                return Ok(None);
            }
            if let Some(sign) = self.sign.take_if(|sign| is_read(sign, self.last, self.there)) {
                self.take(&sign)?;
                continue;
            }
            let failed = |reason: String| NatsError::Request {
                action: format!("read the events of `{}`", self.host),
                reason,
            };
            let message = tokio::select! {
                biased;
                message = self.messages.next() => message,
                Some(message) = heard(&mut self.alive) => {
                    self.sign = received(&self.source, &message);
                    continue;
                }
            };
            let message = match message {
                Some(Ok(message)) => message,
                Some(Err(error)) => return Err(failed(error.to_string())),
                None => return Err(failed("the server ended the stream".to_owned())),
            };
            self.last = message.info().map_err(|error| failed(error.to_string()))?.stream_sequence;
            if let Some(received) = received(&self.source, &message) {
                self.take(&received)?;
            }
        }
    }

    fn take(&mut self, received: &Received) -> Result<(), NatsError> {
        let request = &self.request;
        for item in self.log.take(received, |probe| request.wants(probe))? {
            match item {
                StreamItem::Batch(batch) => {
                    self.ready.extend(
                        request.of(batch, self.filtering.as_mut(), &mut self.seen).map(StreamItem::Batch),
                    );
                }
                item => self.ready.push_back(item),
            }
        }
        Ok(())
    }

    /// Continues after an error, after the last message that was read.
    ///
    /// # Errors
    /// See [`NatsError`].
    pub async fn reopen(&mut self) -> Result<(), NatsError> {
        if self.last > 0 {
            let start_sequence = self.last + 1;
            self.messages =
                consume(&self.source, &self.host, DeliverPolicy::ByStartSequence { start_sequence }).await?;
        }
        Ok(())
    }

    /// The end of the last account in the log of the host. None before the first message.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.log.place()
    }
}

/// What a message has of a log. None: another program published it.
fn received(source: &NatsSource, message: &async_nats::Message) -> Option<Received> {
    let headers = message.headers.as_ref();
    let value = |name: &str| Some(headers?.get(name)?.as_str().to_owned());
    let (_, received) = source.subjects.received(&message.subject, value, message.payload.clone())?;
    Some(received)
}

/// The messages from a time on, and some before it.
fn from_time(time: SystemTime) -> Result<DeliverPolicy, NatsError> {
    let since = time.checked_sub(BEFORE).and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let nanoseconds = i128::try_from(since.unwrap_or_default().as_nanos()).ok();
    let start_time = nanoseconds.and_then(|nanoseconds| async_nats::datetime::from_nanos(nanoseconds).ok());
    let start_time =
        start_time.ok_or_else(|| NatsError::Options("the time to begin with is too far away".to_owned()))?;
    Ok(DeliverPolicy::ByStartTime { start_time })
}

/// Whether everything before a sign of life was read: up to the message that it names, or, if the
/// stream no longer has that one, all messages of the host.
fn is_read(sign: &Received, last: u64, (behind, ended): (u64, u64)) -> bool {
    let after = sign.after.unwrap_or(0);
    last >= after || (last >= ended && behind >= after)
}

/// The next message of a subscription. Never, without one.
async fn heard(alive: &mut Option<Subscriber>) -> Option<async_nats::Message> {
    match alive {
        Some(alive) => alive.next().await,
        None => std::future::pending().await,
    }
}

/// The messages of a host from a position on.
async fn consume(
    source: &NatsSource,
    host: &str,
    deliver_policy: DeliverPolicy,
) -> Result<Ordered, NatsError> {
    let action = || format!("read the events of `{host}`");
    let config = OrderedConfig {
        filter_subject: source.subjects.of_host(host),
        deliver_policy,
        ..OrderedConfig::default()
    };
    let consumer = source.stream.create_consumer(config).await;
    let consumer = consumer.map_err(|error| NatsError::request(action(), &error))?;
    consumer.messages().await.map_err(|error| NatsError::request(action(), &error))
}

/// The last account of a host. 0: there is none.
async fn last(source: &NatsSource, host: &str) -> Result<u64, NatsError> {
    let subject = source.subjects.of(host, &Topic::Ledger);
    match source.stream.get_last_raw_message_by_subject(&subject).await {
        Ok(message) => Ok(message.sequence),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(0),
        Err(error) => Err(NatsError::request(format!("read the last message of `{subject}`"), &error)),
    }
}
