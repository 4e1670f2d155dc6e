//! Connection limits, in total and for each peer.
//!
//! A peer at its limit gets another connection in the place of the one that has been idle longest;
//! only if all of them are busy it is refused. So connections without a call keep no client out.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::{HostSize, Listen};
use crate::turns::Turns;
use kprobed_control::error::{Error, Reason};

/// How long a connection that is cut may take to end before another one is cut.
const CUTTING: Duration = Duration::from_millis(100);

/// Descriptors that are kept for the rest of the daemon, apart from those of each CPU. A connection that took the last
/// one would keep the readers, the history, SQLite and tracefs from working.
const RESERVED: u64 = 128;

/// Descriptors of each CPU: the buffers of two instances, their readers, and what is opened for a
/// moment.
const RESERVED_PER_CPU: u64 = 8;

/// Descriptors that a connection can need: its socket, and the file of the history that its stream
/// reads.
const PER_CONNECTION: u64 = 2;

/// Raises the limit of this process as far as it may: the usual one of 1,024 is for programs that
/// use `select`.
pub fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) }
    });
    if let Err(errno) = raised {
        tracing::warn!(%errno, "cannot raise the limit of open files");
    }
}

/// The limit in force.
fn descriptor_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft)
}

/// Connections for which there are descriptors on a host with so many CPUs.
fn for_connections(limit: u64, cpus: u64) -> u64 {
    (limit.saturating_sub(RESERVED + RESERVED_PER_CPU * cpus) / PER_CONNECTION).max(4)
}

/// The owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    /// A user of this host.
    User(u32),
    /// A host.
    Address(IpAddr),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Address(address) => write!(f, "address {address}"),
        }
    }
}

/// Connections that may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) total: usize,
    pub(super) per_peer: usize,
}

impl Limits {
    /// What is configured, as far as there are descriptors.
    pub(super) fn new(listen: &Listen) -> Self {
        let (cpus, descriptors) = (HostSize::here().map_or(1, |host| host.cpus), descriptor_limit());
        let possible = for_connections(descriptors, cpus);
        if possible < listen.max_connections {
            tracing::warn!(
                configured = listen.max_connections,
                possible,
                descriptors,
                "too few file descriptors for `listen.max_connections`: raise the limit (LimitNOFILE=)"
            );
        }
        let total = usize::try_from(possible.min(listen.max_connections)).unwrap_or(usize::MAX);
        let per_peer = usize::try_from(listen.max_connections_per_peer).unwrap_or(usize::MAX).min(total);
        Self { total, per_peer }
    }
}

/// What the connections of a peer have together.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) turns: Turns,
    /// Until when further connections wait, since one has broken the rules of HTTP/2.
    held_until: Mutex<Option<Instant>>,
}

/// A connection, as far as admission goes.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) peer: Peer,
    pub(super) shared: Arc<Shared>,
    calls: AtomicUsize,
    idle_since: Mutex<Instant>,
    /// Cancelled to ask it to leave.
    pub(super) closing: CancellationToken,
    /// Cancelled when it was asked to leave and its place is needed now: its socket is closed at once.
    pub(super) cut: CancellationToken,
}

impl OpenConnection {
    /// Since when it has no call. `None` while it has one.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let since = *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner);
        (self.calls.load(Ordering::SeqCst) == 0).then_some(since)
    }

    /// It has broken the rules of HTTP/2. Further connections of its peer wait until then.
    pub(super) fn broke_rules(&self, until: Instant) {
        *self.shared.held_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    /// Until when it has to wait, since another connection of its peer has broken the rules.
    pub(super) fn held_until(&self) -> Option<Instant> {
        let until = *self.shared.held_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.filter(|until| *until > Instant::now())
    }

    /// Whether it was asked to leave.
    fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Whether its socket is being closed.
    fn ends(&self) -> bool {
        self.cut.is_cancelled() && self.idle_since().is_some()
    }

    /// Asks it to leave. Returns whose it is.
    fn close(&self) -> Peer {
        self.closing.cancel();
        self.peer
    }
}

/// All connections.
#[derive(Debug)]
pub(super) struct Admission {
    limits: Limits,
    /// Whether connections of more than one peer are open.
    are_several: Arc<AtomicBool>,
    entries: Mutex<Vec<Arc<OpenConnection>>>,
    /// A connection has ended.
    ended: Notify,
}

impl Admission {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, are_several: Arc::default(), entries: Mutex::default(), ended: Notify::new() }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Arc<OpenConnection>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a peer. Also returns the peer whose idle connection must close for it.
    pub(super) fn admit(
        self: &Arc<Self>,
        peer: Peer,
        now: Instant,
    ) -> Result<(Admitted, Option<Peer>), Error> {
        let refusal = |message| Error::new(Reason::TOO_MANY_CONNECTIONS, message);
        let Limits { total, per_peer } = self.limits;
        let peer_is_busy = || {
            refusal(format!(
                "{peer} has {per_peer} connections with calls under way, and one peer can have no more \
                 (`listen.max_connections_per_peer`)"
            ))
        };
        let all_are_busy = || {
            refusal(format!(
                "the daemon has {total} connections with calls under way, and can have no more (`listen.max_connections`)"
            ))
        };
        let mut entries = self.entries();
        // A closing connection stays until its calls have ended. A peer that does not end them would take the place of
        // all others.
        let existing = || entries.iter().filter(|entry| entry.peer == peer && !entry.ends());
        if existing().count() >= most_existing(per_peer) {
            let mut idle = existing().filter(|entry| entry.is_closing() && entry.idle_since().is_some());
            idle.next().ok_or_else(peer_is_busy)?.cut.cancel();
        }
        // Closing connections do not count here.
        let open = || entries.iter().filter(|entry| !entry.is_closing());
        let of_peer = || open().filter(|entry| entry.peer == peer);
        let evicted = if of_peer().count() >= per_peer {
            Some(idlest(of_peer()).ok_or_else(peer_is_busy)?.close())
        } else if open().count() >= total {
            Some(idlest(open()).ok_or_else(all_are_busy)?.close())
        } else {
            None
        };
        let of_peer = entries.iter().find(|entry| entry.peer == peer);
        let first =
            || Shared { turns: Turns::new(Arc::clone(&self.are_several)), held_until: Mutex::default() };
        let shared = of_peer.map_or_else(|| Arc::new(first()), |entry| Arc::clone(&entry.shared));
        let entry = Arc::new(OpenConnection {
            peer,
            shared,
            calls: AtomicUsize::new(0),
            idle_since: Mutex::new(now),
            closing: CancellationToken::new(),
            cut: CancellationToken::new(),
        });
        entries.push(Arc::clone(&entry));
        self.look_for_several(&entries);
        Ok((Admitted { entry, admission: Arc::clone(self) }, evicted))
    }

    fn look_for_several(&self, entries: &[Arc<OpenConnection>]) {
        let mut peers = entries.iter().map(|entry| entry.peer);
        let first = peers.next();
        self.are_several.store(peers.any(|peer| Some(peer) != first), Ordering::Relaxed);
    }

    /// Closes the connection that has been idle longest, if any is idle.
    pub(super) fn make_room(&self) -> Option<Peer> {
        let entries = self.entries();
        let open = entries.iter().filter(|entry| !entry.is_closing());
        idlest(open).map(OpenConnection::close)
    }

    /// Connections that exist, with those that close.
    pub(super) fn existing(&self) -> usize {
        self.entries().len()
    }

    /// Makes room for one more connection to exist: of those that were asked to leave and have no
    /// call, the oldest is cut. False if all of them have calls.
    pub(super) async fn room_to_exist(&self) -> bool {
        loop {
            // Made first: it also sees an end between here and the wait.
            let ended = self.ended.notified();
            if self.existing() < most_existing(self.limits.total) {
                return true;
            }
            if !self.cut_one() {
                return false;
            }
            // A call may have come in just before the cut, and keeps its connection: then the next
            // one is looked at.
            drop(tokio::time::timeout(CUTTING, ended).await);
        }
    }

    /// Closes the socket of a closing connection at once. Also true if one is closed already and
    /// has not ended.
    fn cut_one(&self) -> bool {
        let entries = self.entries();
        let mut closing = entries.iter().filter(|entry| entry.is_closing());
        let found = closing.find(|entry| entry.idle_since().is_some());
        found.inspect(|entry| entry.cut.cancel()).is_some()
    }
}

/// Most connections that exist at a time, including those that are closing.
pub(super) const fn most_existing(total: usize) -> usize {
    total.saturating_add(total / 4).saturating_add(8)
}

/// The connection that has been idle longest.
fn idlest<'a>(entries: impl Iterator<Item = &'a Arc<OpenConnection>>) -> Option<&'a OpenConnection> {
    let idle = entries.filter_map(|entry| Some((entry.idle_since()?, entry)));
    Some(idle.min_by_key(|(since, _)| *since)?.1)
}

/// An admitted connection.
#[derive(Debug)]
pub(super) struct Admitted {
    entry: Arc<OpenConnection>,
    admission: Arc<Admission>,
}

impl Admitted {
    /// A call begins. It lasts as long as what is given back.
    pub(super) fn call(&self) -> CallUnderWay {
        self.entry.calls.fetch_add(1, Ordering::SeqCst);
        CallUnderWay(Arc::clone(&self.entry))
    }
}

impl Deref for Admitted {
    type Target = OpenConnection;

    fn deref(&self) -> &OpenConnection {
        &self.entry
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut entries = self.admission.entries();
        entries.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
        self.admission.look_for_several(&entries);
        drop(entries);
        self.admission.ended.notify_waiters();
    }
}

/// A call that has not ended.
#[derive(Debug)]
pub(super) struct CallUnderWay(Arc<OpenConnection>);

impl Drop for CallUnderWay {
    fn drop(&mut self) {
        *self.0.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(total: usize, per_peer: usize) -> Arc<Admission> {
        Arc::new(Admission::new(Limits { total, per_peer }))
    }

    fn busy(peer: Peer, limit: usize) -> String {
        format!(
            "{peer} has {limit} connections with calls under way, and one peer can have no more \
             (`listen.max_connections_per_peer`)"
        )
    }

    /// Lets peers in, one a second, long ago.
    struct Door {
        admission: Arc<Admission>,
        now: Instant,
    }

    impl Door {
        fn new(total: usize, per_peer: usize) -> Self {
            let now = Instant::now() - Duration::from_secs(100);
            Self { admission: admission(total, per_peer), now }
        }

        fn admit(&mut self, peer: Peer) -> Result<(Admitted, Option<Peer>), Error> {
            self.now += Duration::from_secs(1);
            self.admission.admit(peer, self.now)
        }
    }

    #[test]
    fn the_idlest_goes_first() {
        let (mut all, root, other) = (Door::new(10, 3), Peer::User(0), Peer::User(1));
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(all.admit(root).unwrap().0);
        }
        all.admit(other).unwrap();
        // The first one has just done something.
        drop(held[0].call());
        let (fourth, evicted) = all.admit(root).unwrap();
        assert_eq!(evicted, Some(root));
        let closing: Vec<_> = held.iter().map(|one| one.closing.is_cancelled()).collect();
        assert_eq!((closing, fourth.closing.is_cancelled()), (vec![false, true, false], false));
    }

    #[test]
    fn a_peer_answers_for_its_connections() {
        let (mut all, root, other) = (Door::new(10, 10), Peer::User(0), Peer::User(1));
        let bad = all.admit(root).unwrap().0;
        assert!(!all.admission.are_several.load(Ordering::Relaxed));
        let neighbour = all.admit(other).unwrap().0;
        assert!(all.admission.are_several.load(Ordering::Relaxed));
        let until = Instant::now() + Duration::from_secs(100);
        bad.broke_rules(until);
        assert_eq!(all.admit(root).unwrap().0.held_until(), Some(until));
        assert_eq!(neighbour.held_until(), None);
        bad.broke_rules(Instant::now());
        assert_eq!(all.admit(root).unwrap().0.held_until(), None);
        drop(bad);
        assert!(!all.admission.are_several.load(Ordering::Relaxed));
    }

    #[test]
    fn those_that_work_stay_and_others_are_refused() {
        let (mut all, root) = (Door::new(10, 2), Peer::User(0));
        let first = all.admit(root).unwrap().0;
        let second = all.admit(root).unwrap().0;
        let (_one, two) = (first.call(), second.call());
        let refusal = all.admit(root).unwrap_err();
        assert_eq!((refusal.reason, refusal.message), (Reason::TOO_MANY_CONNECTIONS, busy(root, 2)));
        assert_eq!(first.idle_since(), None);
        drop(two);
        assert!(second.idle_since().is_some());
        assert_eq!(all.admit(root).unwrap().1, Some(root));
        assert!(second.closing.is_cancelled() && !first.closing.is_cancelled());
    }

    /// Those that were asked to leave and do not: one that has no call is cut for a new one.
    #[test]
    fn closing_connections_of_a_peer_keep_others_out_no_longer_than_its_limit() {
        let (mut all, root, other) = (Door::new(100, 4), Peer::User(0), Peer::User(1));
        let (mut held, mut calls) = (Vec::<Admitted>::new(), Vec::new());
        for number in 0..most_existing(4) {
            held.push(all.admit(root).unwrap().0);
            if let Some(left) = number.checked_sub(4) {
                assert!(held[left].closing.is_cancelled());
                calls.push(held[left].call());
            }
        }
        assert_eq!(all.admit(root).unwrap_err().message, busy(root, 4));
        all.admit(other).unwrap();
        drop(calls.pop());
        let _next = all.admit(root).unwrap();
        let cut: Vec<_> = held.iter().map(|one| one.cut.is_cancelled()).collect();
        assert_eq!(cut.iter().filter(|is_cut| **is_cut).count(), 1, "{cut:?}");
        // The last one that was asked to leave has a call again.
        let _busy = held[9].call();
        assert_eq!(all.admit(root).unwrap_err().message, busy(root, 4));
    }

    #[test]
    fn the_total_is_shared() {
        let mut all = Door::new(2, 2);
        let address = |last| Peer::Address([10, 0, 0, last].into());
        let first = all.admit(address(1)).unwrap().0;
        let second = all.admit(address(2)).unwrap().0;
        let _busy = (first.call(), second.call());
        let refusal = all.admit(address(3)).unwrap_err();
        assert!(
            refusal.message.starts_with("the daemon has 2 connections with calls under way"),
            "{refusal}"
        );
        drop(first);
        assert_eq!(all.admission.existing(), 1);
        assert_eq!(all.admit(address(3)).unwrap().1, None);
    }

    #[test]
    fn the_rest_of_the_daemon_has_descriptors() {
        assert_eq!(for_connections(1024, 2), 440);
        assert_eq!(for_connections(524_288, 64), 261_824);
        // There is always a way in.
        assert_eq!(for_connections(64, 64), 4);
    }

    #[test]
    fn the_limit_is_the_largest_that_there_may_be() {
        raise_limit();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!((soft, descriptor_limit()), (hard, hard));
    }
}
