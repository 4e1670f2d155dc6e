//! A client that counts events. The only code of the benchmark that knows the API of streams.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use kprobed_client::api::{Delivery, Pace};
use kprobed_client::event::{StreamItem, StreamRequest};
use kprobed_client::{Client, ConnectOptions, Target};
use nix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use crate::accounts;

/// Events that a client has received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) events: u64,
    /// Events that were reported to it as lost.
    pub(crate) lost: u64,
    pub(crate) batches: u64,
    /// Its processor time since it was connected.
    pub(crate) cpu: Duration,
    /// How old each event was when it arrived, in nanoseconds, if that was requested.
    pub(crate) ages_ns: Vec<u64>,
}

/// A client under way, in a thread and with a connection of its own.
#[derive(Debug)]
pub(crate) struct Subscriber {
    seen: Arc<AtomicU64>,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<anyhow::Result<Counted>>,
}

impl Subscriber {
    /// Subscribes to everything. When this returns, no event is missed any more.
    pub(crate) fn start(socket: PathBuf, pace: Pace, with_ages: bool) -> anyhow::Result<Self> {
        let seen = Arc::<AtomicU64>::default();
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let counter = Arc::clone(&seen);
        let thread = std::thread::Builder::new().name("subscriber".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(count(socket, pace, with_ages, &counter, ready, stopped))
        })?;
        if is_ready.recv().is_err() {
            let result = thread.join().map_err(|_panic| anyhow::anyhow!("the subscriber has panicked"))?;
            anyhow::bail!("the stream has not begun: {:#}", result.err().context("it ended")?);
        }
        Ok(Self { seen, stop, thread })
    }

    /// Events delivered, and events told to be lost.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(self) -> anyhow::Result<Counted> {
        // It may have ended with an error, which is its result then.
        self.stop.send(()).ok();
        self.thread.join().map_err(|_panic| anyhow::anyhow!("the subscriber has panicked"))?
    }
}

async fn count(
    socket: PathBuf,
    pace: Pace,
    with_ages: bool,
    seen: &AtomicU64,
    ready: std::sync::mpsc::Sender<()>,
    mut stopped: oneshot::Receiver<()>,
) -> anyhow::Result<Counted> {
    let client = Client::connect(Target::Unix(socket), ConnectOptions::default()).await?;
    let delivery = Delivery { pace: pace.into(), ..Delivery::default() };
    let mut events = client.stream_events(StreamRequest::new().delivery(delivery)).await?;
    let mut ready = Some(ready);
    let mut counted = Counted::default();
    let before = accounts::own_cpu()?;
    loop {
        let item = tokio::select! {
            biased;
            item = events.next() => item?,
            _ = &mut stopped => None,
        };
        match item {
            Some(StreamItem::Batch(batch)) => {
                counted.batches += 1;
                counted.events += batch.len() as u64;
                if with_ages {
                    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from)?;
                    let now_ns = u64::try_from(now.as_nanos())?;
                    for group in batch.groups() {
                        counted.ages_ns.extend(group.timestamps_ns().map(|time| now_ns.saturating_sub(time)));
                    }
                }
            }
            Some(StreamItem::Loss(loss)) => counted.lost += loss.count.unwrap_or_default(),
            Some(StreamItem::Epoch(_)) => drop(ready.take().map(|ready| ready.send(()))),
            Some(_) => {}
            None => break,
        }
        seen.store(counted.events + counted.lost, Ordering::Relaxed);
    }
    counted.cpu = accounts::own_cpu()?.saturating_sub(before);
    Ok(counted)
}
