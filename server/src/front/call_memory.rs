//! Memory of calls: requests that are being received, and answers that clients have not read.
//!
//! Owns how much all calls may hold together, and how much of that the calls of one peer. Never holds
//! a byte itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::admission::Peer;
use crate::error::{Error, Reason};

/// The memory, and who has how much of it.
#[derive(Debug)]
pub(super) struct CallMemory {
    total: u64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    total: u64,
    by_peer: HashMap<Peer, u64>,
}

/// All calls, or those of the peer, hold as much as they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} hold {held} bytes of requests and unread answers, {asked} more are needed, and {most} is the limit (`listen.call_memory_mib`)",
    peer.map_or_else(|| "all calls together".to_owned(), |peer| format!("the calls of {peer}"))
)]
pub(super) struct MemoryFull {
    /// Whose calls they are. Absent: of all peers together.
    pub(super) peer: Option<Peer>,
    pub(super) held: u64,
    pub(super) asked: u64,
    pub(super) most: u64,
}

impl From<MemoryFull> for Error {
    fn from(full: MemoryFull) -> Self {
        Self::new(Reason::CALL_MEMORY_FULL, full.to_string())
            .fix("read the answers of calls, try again later, or raise `listen.call_memory_mib`")
    }
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
        Self { total, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One peer may have half, so that there is some for others.
    const fn most_of_peer(&self) -> u64 {
        self.total / 2
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
    pub(super) fn set(&self, bytes: u64) -> Result<(), MemoryFull> {
        let before = self.bytes.load(Ordering::Relaxed);
        let mut held = self.memory.held();
        let asked = bytes.saturating_sub(before);
        let of_peer = held.by_peer.get(&self.peer).copied().unwrap_or_default();
        let most = self.memory.most_of_peer();
        if asked > 0 && of_peer + asked > most {
            return Err(MemoryFull { peer: Some(self.peer), held: of_peer, asked, most });
        }
        if asked > 0 && held.total + asked > self.memory.total {
            return Err(MemoryFull { peer: None, held: held.total, asked, most: self.memory.total });
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
        assert_eq!(full, MemoryFull { peer: Some(Peer::User(1)), held: 40, asked: 11, most: 50 });
        assert!(full.to_string().contains("`listen.call_memory_mib`"), "{full}");
        second.set(10).unwrap();
        other.set(50).unwrap();
        assert_eq!(charge(3).set(1).unwrap_err().peer, None);
        first.set(5).unwrap();
        charge(3).set(1).unwrap();
        drop((first, second, other));
        assert_eq!(memory.used(), 0);
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
