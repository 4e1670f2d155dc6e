//! The events of one host.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use futures_util::StreamExt as _;
use kprobed_event::published::{HostLog, Topic};

use super::source::{NatsError, NatsSource};
use crate::event::{Cursor, StreamItem};

/// How much earlier than a time the first message is: the messages of a part are published before its end.
const BEFORE: Duration = Duration::from_mins(1);

/// Where to begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NatsStart {
    /// With what is published from now on.
    #[default]
    Now,
    /// With the oldest event of the stream.
    Oldest,
    /// With what was published from this time on, and some seconds before it.
    Since(SystemTime),
}

/// Which events.
#[derive(Clone, Debug, Default)]
pub struct NatsRequest {
    start: NatsStart,
    until_now: bool,
    wanted: Option<Wanted>,
}

/// Whether a probe is wanted.
#[derive(Clone)]
struct Wanted(Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wanted")
    }
}

impl NatsRequest {
    /// Where to begin.
    #[must_use]
    pub fn start(mut self, start: NatsStart) -> Self {
        self.start = start;
        self
    }

    /// Ends when everything was read that had been published at the time of the call.
    #[must_use]
    pub fn until_now(mut self) -> Self {
        self.until_now = true;
        self
    }

    /// Only events of probes whose names (`GROUP/EVENT`) this holds for.
    #[must_use]
    pub fn probes(mut self, wanted: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.wanted = Some(Wanted(Arc::new(wanted)));
        self
    }

    /// Whether the stream has an end.
    pub fn ends(&self) -> bool {
        self.until_now
    }

    fn wants(&self, probe: &str) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| (wanted.0)(probe))
    }
}

/// The events of one host, in the order of its log.
pub struct NatsStream {
    source: NatsSource,
    host: String,
    request: NatsRequest,
    messages: Ordered,
    log: HostLog,
    ready: VecDeque<StreamItem>,
    /// The last message that was read. 0: none.
    last: u64,
    /// The message after which the stream ends.
    end: Option<u64>,
}

impl fmt::Debug for NatsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsStream").field("host", &self.host).field("log", &self.log).finish_non_exhaustive()
    }
}

impl NatsStream {
    pub(super) async fn open(
        source: NatsSource,
        host: &str,
        request: NatsRequest,
    ) -> Result<Self, NatsError> {
        let end = if request.until_now { Some(last(&source, host).await?) } else { None };
        let start = match request.start {
            NatsStart::Now => DeliverPolicy::New,
            NatsStart::Oldest => DeliverPolicy::All,
            NatsStart::Since(time) => {
                let since = time.checked_sub(BEFORE).and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                let nanoseconds = since.unwrap_or_default().as_nanos();
                let start_time = i128::try_from(nanoseconds)
                    .ok()
                    .and_then(|nanoseconds| async_nats::datetime::from_nanos(nanoseconds).ok())
                    .ok_or_else(|| NatsError::Options("the time to begin with is too far away".to_owned()))?;
                DeliverPolicy::ByStartTime { start_time }
            }
        };
        let messages = consume(&source, host, start).await?;
        let (host, log, ready) = (host.to_owned(), HostLog::default(), VecDeque::new());
        Ok(Self { source, host, request, messages, log, ready, last: 0, end })
    }

    /// What comes next. None: the end that was asked for. After an error, [`NatsStream::reopen`] goes on behind the last message that was read.
    ///
    /// # Errors
    /// See [`NatsError`]. After [`NatsError::Malformed`] the stream goes on with the next part.
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
            let failed = |reason: String| NatsError::Request {
                action: format!("read the events of `{}`", self.host),
                reason,
            };
            let message = match self.messages.next().await {
                Some(Ok(message)) => message,
                Some(Err(error)) => return Err(failed(error.to_string())),
                None => return Err(failed("the server ended the stream".to_owned())),
            };
            self.last = message.info().map_err(|error| failed(error.to_string()))?.stream_sequence;
            let headers = message.headers.as_ref();
            let value = |name: &str| Some(headers?.get(name)?.as_str().to_owned());
            let received = self.source.subjects.received(&message.subject, value, message.payload.clone());
            // What something else published there is none of a log.
            let Some((_, received)) = received else { continue };
            let request = &self.request;
            self.ready.extend(self.log.take(received, |probe| request.wants(probe))?);
        }
    }

    /// Goes on after an error, behind the last message that was read.
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

    /// Where the log of the host goes on. None before the first part.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.log.place()
    }

    /// Messages that were published again, and left out.
    pub fn repeated(&self) -> u64 {
        self.log.repeated()
    }
}

/// The messages of a host from a place on.
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

/// The last message that ends a part of a host. 0: there is none.
async fn last(source: &NatsSource, host: &str) -> Result<u64, NatsError> {
    let subject = source.subjects.of(host, &Topic::Ledger);
    match source.stream.get_last_raw_message_by_subject(&subject).await {
        Ok(message) => Ok(message.sequence),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(0),
        Err(error) => Err(NatsError::request(format!("read the last message of `{subject}`"), &error)),
    }
}
