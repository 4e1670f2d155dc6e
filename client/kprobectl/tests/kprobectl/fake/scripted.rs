//! Fake daemons of a fleet with their own clocks and histories, which fall silent, die and come
//! back.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kprobed_client::api::event_service_server::{EventService, EventServiceServer};
use kprobed_client::api::host_service_server::{HostService, HostServiceServer};
use kprobed_client::api::lease_service_server::LeaseServiceServer;
use kprobed_client::api::probe_service_server::ProbeServiceServer;
use kprobed_client::api::stream_events_response::Message;
use kprobed_client::api::stream_start::Start;
use kprobed_client::api::*;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::sync::oneshot;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::{Request, Response, Status};

use super::keeping::Kept;
use super::services::{Answer, Services};
use super::{Beginning, answers};

/// How often a fake says how far it is.
const BEAT: Duration = Duration::from_millis(10);

/// How a fake is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Unix,
    Tcp,
}

/// What a fake has: it survives its death, as a history on disk does.
struct State {
    /// Its trace clock is ahead of the time since this by `ahead_ns`.
    base: Instant,
    ahead_ns: u64,
    batches: Vec<EventBatch>,
    events: u64,
    /// No event that comes is earlier, on the trace clock.
    next_ns: u64,
    /// Events before this have expired.
    oldest: u64,
    silent: bool,
    beginning: Beginning,
    /// Batches that are sent with a column cut off, from the next one on.
    malformed: u32,
    sent_events: u64,
}

impl State {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap() + self.ahead_ns
    }
}

/// A fake daemon.
pub(crate) struct Scripted {
    _directory: TempDir,
    way: Way,
    socket: PathBuf,
    address: Option<SocketAddr>,
    state: Arc<Mutex<State>>,
    /// Its probes, and holds of them.
    services: Services,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Scripted {
    /// Starts a fake. `base` is one for all fakes of a test.
    pub(crate) fn start(way: Way, base: Instant, ahead: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let state = State {
            base,
            ahead_ns: u64::try_from(ahead.as_nanos()).unwrap(),
            batches: Vec::new(),
            events: 0,
            next_ns: 0,
            oldest: 0,
            silent: false,
            beginning: Beginning::AtOnce,
            malformed: 0,
            sent_events: 0,
        };
        let mut fake = Self {
            socket: directory.path().join("kprobed.sock"),
            _directory: directory,
            way,
            address: None,
            state: Arc::new(Mutex::new(state)),
            services: Services { kept: Some(Kept::new("6.12.1")), ..Services::default() },
            running: None,
        };
        fake.revive();
        fake
    }

    /// Its address, as in an inventory.
    pub(crate) fn address(&self) -> String {
        match self.address {
            Some(address) => format!("tcp://{address}"),
            None => self.socket.display().to_string(),
        }
    }

    /// Its probes.
    pub(crate) fn kept(&self) -> &Kept {
        self.services.kept.as_ref().unwrap()
    }

    /// Holds, changes and subscriptions until now.
    pub(crate) fn log(&self) -> Vec<String> {
        self.services.log.lock().unwrap().clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Records events with these numbers now, one nanosecond apart.
    pub(crate) fn record(&self, numbers: impl IntoIterator<Item = i32>) {
        let numbers: Vec<i32> = numbers.into_iter().collect();
        let mut state = self.state();
        let base_ns = state.now_ns().max(state.next_ns);
        let rows = u32::try_from(numbers.len()).unwrap();
        state.next_ns = base_ns + u64::from(rows);
        let group = EventGroup {
            schema_id: 1,
            rows,
            base_ns,
            offsets_ns: (0..rows).flat_map(u32::to_le_bytes).collect(),
            tids: numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            ..Default::default()
        };
        let sequence = state.events;
        state.events += u64::from(rows);
        let clock = ClockMapping { wall_offset_ns: 1_769_860_800_000_000_000, ..Default::default() };
        state.batches.push(EventBatch {
            sequence,
            log_events: rows,
            groups: vec![group],
            clock: Some(clock),
            ..Default::default()
        });
    }

    /// Says nothing more, or speaks again. The connection stays.
    pub(crate) fn set_silent(&self, silent: bool) {
        self.state().silent = silent;
    }

    /// Streams begin then.
    pub(crate) fn set_beginning(&self, beginning: Beginning) {
        self.state().beginning = beginning;
    }

    /// Sends so many batches with a column cut off.
    pub(crate) fn set_malformed(&self, batches: u32) {
        self.state().malformed = batches;
    }

    /// Events that were sent over all connections.
    pub(crate) fn sent_events(&self) -> u64 {
        self.state().sent_events
    }

    /// Its history forgets everything until now.
    pub(crate) fn forget_history(&self) {
        let mut state = self.state();
        state.oldest = state.events;
        state.batches.clear();
    }

    /// Ends all connections, and refuses new ones.
    pub(crate) fn kill(&mut self) {
        let (stop, thread) = self.running.take().unwrap();
        stop.send(()).unwrap();
        thread.join().unwrap();
        if self.way == Way::Unix {
            std::fs::remove_file(&self.socket).unwrap();
        }
    }

    /// Comes back at the same place.
    pub(crate) fn revive(&mut self) {
        let (stop, stopped) = oneshot::channel();
        let service = Service(Arc::clone(&self.state), Arc::clone(&self.services.log));
        let server = tonic::transport::Server::builder()
            .add_service(ProbeServiceServer::new(self.services.clone()))
            .add_service(LeaseServiceServer::new(self.services.clone()))
            .add_service(EventServiceServer::new(service.clone()))
            .add_service(HostServiceServer::new(service));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let thread = match self.way {
            Way::Unix => {
                let listener = std::os::unix::net::UnixListener::bind(&self.socket).unwrap();
                listener.set_nonblocking(true).unwrap();
                std::thread::spawn(move || {
                    runtime.block_on(async {
                        let listener = tokio::net::UnixListener::from_std(listener).unwrap();
                        tokio::select! {
                            served = server.serve_with_incoming(UnixListenerStream::new(listener)) => served.unwrap(),
                            stopped = stopped => stopped.unwrap_or_default(),
                        }
                    });
                })
            }
            Way::Tcp => {
                let wanted = self.address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
                let listener = std::net::TcpListener::bind(wanted).unwrap();
                listener.set_nonblocking(true).unwrap();
                self.address = Some(listener.local_addr().unwrap());
                std::thread::spawn(move || {
                    runtime.block_on(async {
                        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                        tokio::select! {
                            served = server.serve_with_incoming(TcpListenerStream::new(listener)) => served.unwrap(),
                            stopped = stopped => stopped.unwrap_or_default(),
                        }
                    });
                })
            }
        };
        self.running = Some((stop, thread));
    }
}

#[derive(Clone)]
struct Service(Arc<Mutex<State>>, Arc<Mutex<Vec<String>>>);

impl Service {
    /// What has come since the client was at `seen`, and how far that is.
    fn news(&self, seen: &mut u64) -> Vec<Message> {
        let mut state = self.0.lock().unwrap();
        if state.silent {
            return Vec::new();
        }
        let new: Vec<_> = state.batches.iter().filter(|batch| batch.sequence >= *seen).cloned().collect();
        let watermark = |watermark_ns| Message::Watermark(Watermark { watermark_ns, late_events: 0 });
        let mut messages = Vec::new();
        for mut batch in new {
            if state.malformed > 0 {
                state.malformed -= 1;
                batch.groups[0].tids.truncate(1);
            }
            let end_ns = batch.groups[0].base_ns + u64::from(batch.log_events);
            messages.extend([Message::Batch(batch), watermark(end_ns)]);
        }
        *seen = state.events;
        state.sent_events = state.events;
        messages.push(watermark(state.now_ns().max(state.next_ns)));
        messages
    }
}

#[tonic::async_trait]
impl EventService for Service {
    type StreamEventsStream = ReceiverStream<Result<StreamEventsResponse, Status>>;

    async fn stream_events(&self, request: Request<StreamEventsRequest>) -> Answer<Self::StreamEventsStream> {
        let request = request.into_inner();
        let delivery = request.delivery.unwrap_or_default();
        if delivery.order() != EventOrder::Time || delivery.heartbeat_ms == 0 {
            return Err(Status::invalid_argument("a merge needs watermarks"));
        }
        let selection = request.selection.unwrap_or_default();
        if selection.filter.contains("+3") {
            return Err(answers::refused("+3"));
        }
        self.1.lock().unwrap().push(format!("subscribed {}", selection.probes.join(" ")));
        let start = request.start.unwrap_or_default();
        let (mut seen, oldest, beginning) = {
            let state = self.0.lock().unwrap();
            let seen = match start.start {
                Some(Start::Cursor(cursor)) => cursor.sequence,
                Some(Start::Oldest(true)) => state.oldest,
                _ => state.events,
            };
            (seen, state.oldest, state.beginning)
        };
        let started = StreamStarted { kernel_release: "6.12.1".to_owned(), ..answers::started() };
        // Of events without fields.
        let schema = EventSchema { fields: Vec::new(), ..answers::schema() };
        let mut first =
            vec![Message::Started(started), Message::Epoch(answers::epoch(seen)), Message::Schema(schema)];
        if seen < oldest {
            first.push(Message::Loss(answers::expired(oldest - seen)));
        }
        let (sender, receiver) = mpsc::channel(1);
        let service = self.clone();
        tokio::spawn(async move {
            beginning.wait().await;
            let mut messages = first;
            loop {
                for message in messages {
                    if sender.send(Ok(StreamEventsResponse { message: Some(message) })).await.is_err() {
                        return;
                    }
                }
                messages = service.news(&mut seen);
                if start.until_now {
                    for message in messages {
                        sender.send(Ok(StreamEventsResponse { message: Some(message) })).await.ok();
                    }
                    return;
                }
                tokio::time::sleep(BEAT).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_ledger(&self, _: Request<GetLedgerRequest>) -> Answer<GetLedgerResponse> {
        Err(Status::unimplemented("ledger"))
    }
}

#[tonic::async_trait]
impl HostService for Service {
    async fn read_clock(&self, _: Request<ReadClockRequest>) -> Answer<ReadClockResponse> {
        let now_ns = self.0.lock().unwrap().now_ns();
        Ok(Response::new(ReadClockResponse {
            received_ns: now_ns,
            sent_ns: now_ns,
            ..answers::clock_reading()
        }))
    }

    async fn get_host(&self, _: Request<GetHostRequest>) -> Answer<GetHostResponse> {
        Ok(Response::new(answers::host()))
    }
}
