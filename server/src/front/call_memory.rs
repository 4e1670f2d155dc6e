//! Memory of calls: requests that are being received, and answers that clients have not read.
//!
//! Owns how much all calls may hold together, how much of that the calls of one peer, and how many large answers are
//! made at a time. Never holds a byte itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::admission::Peer;
use kprobed_control::error::{Error, Reason};
use kprobed_control::places::Places;

/// Large answers that are made at a time, for all peers and for one.
const ANSWERS: usize = 12;
const ANSWERS_OF_PEER: usize = 4;

/// The same of answers about the host: they are made also while the others wait for a control thread that hangs.
const HOST_ANSWERS: usize = 4;
const HOST_ANSWERS_OF_PEER: usize = 2;

/// Both together.
pub(super) const ALL_ANSWERS: usize = ANSWERS + HOST_ANSWERS;

/// What one of them takes while it is made: a page of it, as structures and as a message.
pub(super) const ANSWER_BYTES: u64 = 4 << 20;

/// Streams of the health service of one peer. They need no role.
const HEALTH_STREAMS_OF_PEER: usize = 4;

/// The memory, and who has how much of it.
#[derive(Debug)]
pub(super) struct CallMemory {
    total: u64,
    held: Mutex<Held>,
    /// Places for large answers, until they are made.
    pub(super) answers: AnswerPlaces,
    /// The same for answers about the host.
    pub(super) host_answers: AnswerPlaces,
    health_streams: Places<Peer>,
}

/// Places of answers that are being made.
#[derive(Debug)]
pub(super) struct AnswerPlaces {
    of_all: Arc<Semaphore>,
    of_peer: Places<Peer>,
}

impl AnswerPlaces {
    fn new(of_all: usize, of_peer: usize) -> Self {
        Self { of_all: Arc::new(Semaphore::new(of_all)), of_peer: Places::new(of_peer) }
    }

    /// A place for an answer to a peer, among those of the peer and then of all.
    pub(super) async fn take(&self, peer: Peer) -> [Option<OwnedSemaphorePermit>; 2] {
        let of_peer = self.of_peer.take(&peer).await;
        [of_peer, Arc::clone(&self.of_all).acquire_owned().await.ok()]
    }
}

#[derive(Debug, Default)]
struct Held {
    total: u64,
    by_peer: HashMap<Peer, u64>,
}

/// These calls hold as much as they may.
fn full(whose: &str, held: u64, asked: u64, most: u64) -> Error {
    let message = format!(
        "{whose} hold {held} bytes of requests and unread answers, {asked} more are needed, and {most} is the limit \
         (`listen.call_memory_mib`)"
    );
    Error::new(Reason::CALL_MEMORY_FULL, message)
        .fix("read the answers of calls, try again later, or raise `listen.call_memory_mib`")
}

/// A part of the memory. It is given back with the last of its owners.
#[derive(Debug)]
pub(super) struct Charge {
    memory: Arc<CallMemory>,
    peer: Peer,
    bytes: AtomicU64,
}

impl CallMemory {
    pub(super) fn new(total: u64) -> Self {
        Self {
            total,
            held: Mutex::default(),
            answers: AnswerPlaces::new(ANSWERS, ANSWERS_OF_PEER),
            host_answers: AnswerPlaces::new(HOST_ANSWERS, HOST_ANSWERS_OF_PEER),
            health_streams: Places::new(HEALTH_STREAMS_OF_PEER),
        }
    }

    /// A place for a stream of the health service.
    pub(super) fn health_stream(&self, peer: Peer) -> Result<OwnedSemaphorePermit, Error> {
        self.health_streams.try_take(&peer).ok_or_else(|| {
            let message =
                format!("{peer} has {HEALTH_STREAMS_OF_PEER} streams of health, and can have no more");
            Error::new(Reason::TOO_MANY_STREAMS, message).fix("end one of them, or call Check instead")
        })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part that is empty at first.
    pub(super) fn charge(self: &Arc<Self>, peer: Peer) -> Charge {
        Charge { memory: Arc::clone(self), peer, bytes: AtomicU64::new(0) }
    }

    /// Bytes that are held now.
    #[cfg(test)]
    pub(super) fn used(&self) -> u64 {
        self.held().total
    }
}

impl Charge {
    /// Holds so many bytes from now on, instead of what it held before. Called by one task at a time.
    pub(super) fn set(&self, bytes: u64) -> Result<(), Error> {
        self.hold(bytes, true)
    }

    /// The same for what exists already, such as the answer to a call that was carried out: whether there is
    /// room or not. How many of them are made at a time is bounded.
    pub(super) fn keep(&self, bytes: u64) {
        // Refused only if it is to be within the limits.
        let _done = self.hold(bytes, false);
    }

    fn hold(&self, bytes: u64, within_limits: bool) -> Result<(), Error> {
        let before = self.bytes.load(Ordering::Relaxed);
        let mut held = self.memory.held();
        let asked = if within_limits { bytes.saturating_sub(before) } else { 0 };
        let of_peer = held.by_peer.get(&self.peer).copied().unwrap_or_default();
        // One peer may have half, so that there is some for others.
        let most = self.memory.total / 2;
        if asked > 0 && of_peer + asked > most {
            return Err(full(&format!("the calls of {}", self.peer), of_peer, asked, most));
        }
        if asked > 0 && held.total + asked > self.memory.total {
            return Err(full("all calls together", held.total, asked, self.memory.total));
        }
        held.total = held.total - before + bytes;
        let now = of_peer - before + bytes;
        if now == 0 {
            held.by_peer.remove(&self.peer);
        } else {
            held.by_peer.insert(self.peer, now);
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes that hold it as long as any part of them exists: also in the buffers of the connection.
    pub(super) fn around(self: Arc<Self>, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Charged { bytes, _charge: self })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // Less is never refused.
        let _done = self.set(0);
    }
}

/// Bytes with their charge.
struct Charged {
    bytes: Bytes,
    _charge: Arc<Charge>,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_leaves_some_for_others() {
        let memory = Arc::new(CallMemory::new(100));
        let charge = |peer| memory.charge(Peer::User(peer));
        let (first, second, other) = (charge(1), charge(1), charge(2));
        first.set(40).unwrap();
        let full = second.set(11).unwrap_err();
        assert_eq!(
            full.message,
            "the calls of user 1 hold 40 bytes of requests and unread answers, 11 more are needed, and 50 is the limit \
             (`listen.call_memory_mib`)"
        );
        second.set(10).unwrap();
        other.set(50).unwrap();
        let full = charge(3).set(1).unwrap_err();
        assert!(full.message.starts_with("all calls together hold 100 bytes"), "{full}");
        first.set(5).unwrap();
        charge(3).set(1).unwrap();
        drop((first, second, other));
        assert_eq!(memory.used(), 0);
    }

    /// What exists is counted even if there is no room, and keeps others out until it is gone.
    #[test]
    fn an_answer_that_was_made_is_held() {
        let memory = Arc::new(CallMemory::new(100));
        let (answer, other) = (memory.charge(Peer::User(1)), memory.charge(Peer::User(1)));
        answer.set(1).unwrap();
        answer.keep(70);
        assert_eq!(memory.used(), 70);
        let full = other.set(1).unwrap_err();
        assert!(full.message.starts_with("the calls of user 1 hold 70 bytes"), "{full}");
        drop(answer);
        other.set(50).unwrap();
        assert_eq!(memory.used(), 50);
    }

    #[tokio::test]
    async fn few_large_answers_are_made_at_a_time() {
        let memory = CallMemory::new(100);
        let waits = async |peer: u32| {
            let making = memory.answers.take(Peer::User(peer));
            tokio::time::timeout(std::time::Duration::ZERO, making).await
        };
        let mut made = Vec::new();
        for _ in 0..ANSWERS_OF_PEER {
            made.push(waits(1).await.unwrap());
        }
        assert!(waits(1).await.is_err(), "one peer takes no more");
        for peer in 2..=u32::try_from(ANSWERS / ANSWERS_OF_PEER).unwrap() {
            for _ in 0..ANSWERS_OF_PEER {
                made.push(waits(peer).await.unwrap());
            }
        }
        assert!(waits(99).await.is_err(), "all together take no more");
        let host = tokio::time::timeout(std::time::Duration::ZERO, memory.host_answers.take(Peer::User(1)));
        assert!(host.await.is_ok(), "what is wrong with the host is said also then");
        made.pop();
        assert!(waits(99).await.is_ok());
    }

    #[test]
    fn health_is_watched_by_a_few_streams_of_a_peer() {
        let memory = CallMemory::new(100);
        let taken: Vec<_> =
            (0..HEALTH_STREAMS_OF_PEER).map(|_| memory.health_stream(Peer::User(1)).unwrap()).collect();
        let refused = memory.health_stream(Peer::User(1)).unwrap_err();
        assert_eq!(refused.reason.name, "TOO_MANY_STREAMS");
        assert!(memory.health_stream(Peer::User(2)).is_ok());
        drop(taken);
        assert!(memory.health_stream(Peer::User(1)).is_ok());
    }

    #[test]
    fn bytes_are_held_as_long_as_a_part_of_them_exists() {
        let memory = Arc::new(CallMemory::new(100));
        let charge = Arc::new(memory.charge(Peer::User(1)));
        charge.set(8).unwrap();
        let mut bytes = charge.around(Bytes::from_static(b"12345678"));
        let part = bytes.split_to(3);
        drop(bytes);
        assert_eq!((memory.used(), &part[..]), (8, &b"123"[..]));
        drop(part);
        assert_eq!(memory.used(), 0);
    }
}
