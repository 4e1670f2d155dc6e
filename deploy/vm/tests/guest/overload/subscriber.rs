//! A subscriber that counts what it receives, message by message.
//!
//! It speaks the API itself, not through the library, with HTTP/2 windows of its own: a client that
//! does not read must fill its queue in the daemon soon, and not the connection first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kprobed_client::api::event_service_client::EventServiceClient;
use kprobed_client::api::stream_events_response::Message;
use kprobed_client::api::{
    Cursor, Delivery, EventOrder, EventSelection, LossCause, OverflowPolicy, Pace, StreamEventsRequest,
    StreamEventsResponse, StreamStart, stream_start,
};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::transport::Endpoint;

/// How fast it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Quick,
    /// Milliseconds between two messages.
    Slow(u64),
    /// Nothing after the first message, until it is asked to hurry.
    Stuck,
}

/// One of the eight subscribers.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    selection: EventSelection,
    delivery: Delivery,
    fields: &'static [&'static str],
    manner: Manner,
    /// Whether it comes back with its cursor.
    pub(crate) resumes: bool,
}

const SMALL_WINDOW_BYTES: u32 = 64 << 10;

/// A connection on which nothing passes any more ends after these: the emulated network loses one
/// at times, which the daemon notices the same way.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(40);

/// Eight subscribers: all policies, orders and paces, and each way to select.
pub(crate) fn kinds() -> [Kind; 8] {
    let kind = |name, manner, selection, delivery| Kind {
        name,
        selection,
        delivery,
        fields: &[],
        manner,
        resumes: false,
    };
    let all = EventSelection::default;
    let delivery = |order: EventOrder, pace: Pace, overflow: OverflowPolicy, queue_events| Delivery {
        order: order.into(),
        pace: pace.into(),
        overflow: overflow.into(),
        queue_events,
        ..Delivery::default()
    };
    let of_hot = EventSelection { probes: vec!["*/hot".to_owned()], ..all() };
    let of_team = EventSelection { label_selector: "team=a".to_owned(), sample_one_in: 7, ..all() };
    let odd = EventSelection { filter: "n & 1 && comm == \"workload\"".to_owned(), ..all() };
    let sampled = EventSelection { sample_one_in: 3, ..all() };
    let (oldest, newest) = (OverflowPolicy::DropOldest, OverflowPolicy::DropNewest);
    [
        Kind { resumes: true, ..kind("everything", Manner::Quick, all(), Delivery::default()) },
        kind("ordered", Manner::Slow(20), all(), delivery(EventOrder::Time, Pace::Latency, newest, 1500)),
        Kind {
            resumes: true,
            ..kind(
                "disconnected",
                Manner::Slow(60),
                all(),
                delivery(EventOrder::PerCpu, Pace::Unspecified, OverflowPolicy::Disconnect, 3000),
            )
        },
        kind("labelled", Manner::Quick, of_team, delivery(EventOrder::Time, Pace::Throughput, oldest, 0)),
        kind(
            "limited",
            Manner::Quick,
            of_hot,
            Delivery { max_events_per_second: 500, ..Delivery::default() },
        ),
        Kind {
            fields: &["n", "comm"],
            ..kind(
                "filtered",
                Manner::Slow(40),
                odd,
                delivery(EventOrder::PerCpu, Pace::Latency, oldest, 2000),
            )
        },
        kind("stuck", Manner::Stuck, all(), delivery(EventOrder::PerCpu, Pace::Unspecified, oldest, 3000)),
        kind(
            "stuck and ordered",
            Manner::Stuck,
            sampled,
            delivery(EventOrder::Time, Pace::Throughput, newest, 3000),
        ),
    ]
}

/// What a subscriber counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Its number in the ledger.
    pub(crate) id: Option<u64>,
    /// Events after [`Message::CaughtUp`].
    pub(crate) delivered: u64,
    /// Events from before it.
    pub(crate) replayed: u64,
    /// Events that were reported to it as missing, by cause.
    pub(crate) losses: BTreeMap<i32, u64>,
    /// Losses of unknown size.
    pub(crate) uncounted: u64,
    pub(crate) loss_records: u64,
    /// Whether it has everything from before it came.
    pub(crate) is_present: bool,
    pub(crate) cursor: Option<Cursor>,
    /// Why the stream ended.
    pub(crate) ended: Option<String>,
}

impl Counts {
    /// How many events were reported to it as missing for that cause.
    pub(crate) fn lost(&self, cause: LossCause) -> u64 {
        self.losses.get(&cause.into()).copied().unwrap_or(0)
    }

    fn count(&mut self, response: StreamEventsResponse) -> Result<()> {
        match response.message.context("an empty message")? {
            Message::Started(started) => self.id = Some(started.subscriber_id),
            Message::Batch(batch) => {
                let events: u64 = batch.groups.iter().map(|group| u64::from(group.rows)).sum();
                let term = if self.is_present { &mut self.delivered } else { &mut self.replayed };
                *term += events;
                if let Some(cursor) = &mut self.cursor {
                    cursor.sequence = cursor.sequence.max(batch.sequence + u64::from(batch.log_events));
                }
            }
            Message::Loss(loss) => {
                self.loss_records += 1;
                self.uncounted += u64::from(loss.count.is_none());
                *self.losses.entry(loss.cause).or_default() += loss.count.unwrap_or(0);
            }
            Message::Epoch(epoch) => self.cursor = epoch.cursor,
            Message::CaughtUp(cursor) => {
                self.is_present = true;
                self.cursor = Some(cursor);
            }
            Message::Progress(cursor) => self.cursor = Some(cursor),
            Message::Schema(_) | Message::Watermark(_) => {}
            Message::Rows(rows) => bail!("columns were asked for: {rows:?}"),
        }
        Ok(())
    }
}

/// A subscriber at work.
pub(crate) struct Subscriber {
    pub(crate) kind: Kind,
    counts: Arc<Mutex<Counts>>,
    hurry: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Subscriber {
    /// Connects and reads, from a cursor on or from now on.
    pub(crate) fn start(runtime: &Runtime, address: SocketAddr, kind: Kind, cursor: Option<Cursor>) -> Self {
        let counts = Arc::<Mutex<Counts>>::default();
        let hurry = Arc::<AtomicBool>::default();
        let request = StreamEventsRequest {
            selection: Some(kind.selection.clone()),
            fields: kind.fields.iter().map(|field| (*field).to_owned()).collect(),
            start: cursor.map(|cursor| StreamStart {
                start: Some(stream_start::Start::Cursor(cursor)),
                until_now: false,
            }),
            delivery: Some(kind.delivery),
            ..Default::default()
        };
        let (manner, counting, hurrying) = (kind.manner, Arc::clone(&counts), Arc::clone(&hurry));
        let task = runtime.spawn(async move {
            let outcome = read(address, request, manner, &hurrying, &counting).await;
            let why = outcome.map_or_else(|error| format!("{error:#}"), |()| "by the daemon".to_owned());
            lock(&counting).ended = Some(why);
        });
        Self { kind, counts, hurry, task }
    }

    /// What it has counted until now.
    pub(crate) fn counts(&self) -> Counts {
        lock(&self.counts).clone()
    }

    /// From now on it reads as fast as it can.
    pub(crate) fn hurry(&self) {
        self.hurry.store(true, Ordering::Relaxed);
    }

    /// It reads as it did at first.
    pub(crate) fn calm(&self) {
        self.hurry.store(false, Ordering::Relaxed);
    }

    /// Ends it where it stands, its connection with it.
    pub(crate) fn kill(self) -> Kind {
        self.task.abort();
        self.kind
    }
}

async fn read(
    address: SocketAddr,
    request: StreamEventsRequest,
    manner: Manner,
    hurry: &AtomicBool,
    counts: &Mutex<Counts>,
) -> Result<()> {
    let mut endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(Duration::from_mins(1))
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    if manner != Manner::Quick {
        endpoint = endpoint
            .initial_stream_window_size(SMALL_WINDOW_BYTES)
            .initial_connection_window_size(SMALL_WINDOW_BYTES);
    }
    let channel = endpoint.connect().await.context("cannot connect")?;
    let mut client = EventServiceClient::new(channel).max_decoding_message_size(16 << 20);
    let mut stream = client.stream_events(request).await.context("no stream")?.into_inner();
    while let Some(response) = stream.message().await? {
        lock(counts).count(response)?;
        match manner {
            _ if hurry.load(Ordering::Relaxed) => {}
            Manner::Quick => {}
            Manner::Slow(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
            Manner::Stuck => {
                while !hurry.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
    Ok(())
}
