//! A watch of probes: the present probes first, and then each change.
//!
//! Owns which changes a watch reports, and what it sends if some were missed. A slow client costs
//! only its position among the changes that the daemon keeps for all watches, however far behind it
//! is. Never looks at the kernel.

use std::collections::VecDeque;
use std::sync::Arc;

use kprobed_proto::v1::WatchEvent;
use tokio::sync::watch::Receiver;

use super::{Probe, ProbeChange, Registry, WatchPosition};

/// One report of a watch. Probes are shared: one that waits costs a pointer.
#[derive(Clone, Debug)]
pub struct Watched {
    /// What happened.
    pub event: WatchEvent,
    /// The probe that it happened to.
    pub probe: Option<Arc<Probe>>,
    /// The position after it. Absent until all present probes have been sent.
    pub position: Option<WatchPosition>,
}

/// Whether a probe is watched.
type Selects = Box<dyn Fn(&Probe) -> bool + Send>;

/// A watch under way.
pub struct ProbeWatch {
    registry: Arc<Registry>,
    newest: Receiver<u64>,
    selects: Selects,
    /// The position to continue from. Absent: all probes come first.
    position: Option<WatchPosition>,
    /// What comes next.
    ready: VecDeque<Watched>,
}

impl ProbeWatch {
    /// Begins after a position; without one, with all present probes.
    pub fn new(registry: &Arc<Registry>, position: Option<WatchPosition>, selects: Selects) -> Self {
        let mut watch = Self {
            registry: Arc::clone(registry),
            newest: registry.log().newest(),
            selects,
            position,
            ready: VecDeque::new(),
        };
        if position.is_none() {
            watch.begin();
        }
        watch
    }

    /// The next report. Absent when the daemon stops.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Watched> {
        loop {
            if let Some(watched) = self.ready.pop_front() {
                return Some(watched);
            }
            self.newest.borrow_and_update();
            if self.registry.log().is_closed() {
                return None;
            }
            match self.position.and_then(|position| self.registry.log().since(position)) {
                Some((changes, position)) if changes.is_empty() => {
                    self.position = Some(position);
                    self.newest.changed().await.ok()?;
                }
                Some((changes, end)) => {
                    let first = end.sequence - u64::try_from(changes.len()).unwrap_or_default();
                    for (change, sequence) in changes.iter().zip(first + 1..) {
                        self.tell(change, WatchPosition { sequence, ..end });
                    }
                    self.position = Some(end);
                }
                None => {
                    let event = WatchEvent::Restarted;
                    self.ready.push_back(Watched { event, probe: None, position: None });
                    self.begin();
                }
            }
        }
    }

    /// Queues all present probes.
    fn begin(&mut self) {
        let (probes, position) = self.registry.log().all();
        self.position = Some(position);
        for probe in probes.into_iter().filter(|probe| (self.selects)(probe)) {
            self.ready.push_back(Watched { event: WatchEvent::Present, probe: Some(probe), position: None });
        }
        self.ready.push_back(Watched { event: WatchEvent::Synced, probe: None, position: Some(position) });
    }

    /// Queues a change, as the probe was selected before it and is now.
    fn tell(&mut self, change: &ProbeChange, position: WatchPosition) {
        let selected = |probe: &&Arc<Probe>| (self.selects)(probe);
        let (before, now) = (change.before.as_ref().filter(selected), change.now.as_ref().filter(selected));
        let (event, probe) = match (before, now) {
            (None, Some(now)) => (WatchEvent::Added, now),
            (Some(_), Some(now)) => (WatchEvent::Changed, now),
            (Some(before), None) => (WatchEvent::Deleted, before),
            (None, None) => return,
        };
        self.ready.push_back(Watched { event, probe: Some(Arc::clone(probe)), position: Some(position) });
    }
}
