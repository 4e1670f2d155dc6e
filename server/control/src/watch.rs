//! A watch of probes: the present probes first, and then each change.
//!
//! Owns which changes a watch reports, and what it sends if some were missed. A slow client costs
//! only its position among the changes that the daemon keeps for all watches, however far behind it
//! is. Never looks at the kernel.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use tokio::sync::watch::Receiver;

use super::{Probe, ProbeChange, ProbeEvent, Registry, WatchPosition};
use kprobed_lang::model::ProbeUid;

/// What a watch reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchedEvent {
    /// The probe existed when the watch began.
    Present,
    /// All present probes have been sent.
    Synced,
    /// The probe is new, or is selected from now on.
    Added,
    /// The probe, or its state, has changed.
    Changed,
    /// The probe is gone, or is not selected any more. It is as it was last.
    Deleted,
    /// Changes were missed: all probes follow.
    Restarted,
}

/// One report of a watch. Probes are shared: one that waits costs a pointer.
#[derive(Clone, Debug)]
pub struct Watched {
    /// What happened.
    pub event: WatchedEvent,
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
    /// Probes that were sent.
    known: HashSet<ProbeUid>,
    /// What comes next.
    ready: VecDeque<Watched>,
}

impl fmt::Debug for ProbeWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeWatch").field("position", &self.position).finish_non_exhaustive()
    }
}

impl ProbeWatch {
    /// Begins after a position; without one, with all present probes.
    pub fn new(registry: &Arc<Registry>, position: Option<WatchPosition>, selects: Selects) -> Self {
        let mut watch = Self {
            registry: Arc::clone(registry),
            newest: registry.log().newest(),
            selects,
            position,
            known: HashSet::new(),
            ready: VecDeque::new(),
        };
        match position {
            Some(position) => watch.recall(position),
            None => watch.begin(),
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
                    let event = WatchedEvent::Restarted;
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
        self.known.clear();
        let selected: Vec<_> = self.selected(probes).collect();
        for probe in selected {
            self.known.insert(probe.uid);
            let event = WatchedEvent::Present;
            self.ready.push_back(Watched { event, probe: Some(probe), position: None });
        }
        let event = WatchedEvent::Synced;
        self.ready.push_back(Watched { event, probe: None, position: Some(position) });
    }

    /// Finds what was known at that position: the present probes, without those added since, and
    /// with those deleted since.
    fn recall(&mut self, position: WatchPosition) {
        let log = self.registry.log();
        let (probes, _) = log.all();
        let changes = log.since(position).map(|(changes, _)| changes).unwrap_or_default();
        self.known = self.selected(probes).map(|probe| probe.uid).collect();
        for ProbeChange { event, probe } in changes.iter().rev() {
            match event {
                ProbeEvent::Added => _ = self.known.remove(&probe.uid),
                ProbeEvent::Deleted if (self.selects)(probe) => _ = self.known.insert(probe.uid),
                ProbeEvent::Changed | ProbeEvent::Deleted => {}
            }
        }
    }

    fn selected(&self, probes: Vec<Arc<Probe>>) -> impl Iterator<Item = Arc<Probe>> {
        probes.into_iter().filter(|probe| (self.selects)(probe))
    }

    fn tell(&mut self, change: &ProbeChange, position: WatchPosition) {
        let ProbeChange { event, probe } = change;
        let selected = (self.selects)(probe) && *event != ProbeEvent::Deleted;
        let event = match (selected, self.known.contains(&probe.uid)) {
            (true, true) if *event == ProbeEvent::Added => WatchedEvent::Added,
            (true, true) => WatchedEvent::Changed,
            (true, false) => WatchedEvent::Added,
            (false, true) => WatchedEvent::Deleted,
            (false, false) => return,
        };
        if selected {
            self.known.insert(probe.uid);
        } else {
            self.known.remove(&probe.uid);
        }
        self.ready.push_back(Watched { event, probe: Some(Arc::clone(probe)), position: Some(position) });
    }
}
