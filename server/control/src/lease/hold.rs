//! Holds: probes that last only as long as a client is connected.
//!
//! Owns which holds exist, and which have ended: a hold ends when its stream is dropped, for
//! whatever reason. Holds are in memory only: the next start deletes the probes of a hold from
//! before a crash. Never touches a probe; it wakes the control thread for that.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Reason};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Random bytes in a key: no client can guess the key of another one.
const KEY_BYTES: usize = 16;

/// All holds.
#[derive(Debug, Default)]
pub struct Holds {
    state: Mutex<State>,
    some_ended: Notify,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    /// Name and connection by key.
    open: BTreeMap<String, (String, u64)>,
    last: u64,
    /// Some holds have ended since the control thread last checked.
    some_ended: bool,
}

/// One hold: it ends when this is dropped.
#[derive(Debug)]
pub struct Hold {
    holds: Arc<Holds>,
    key: String,
}

impl Holds {
    /// Most holds of one connection. Streams cost more than a hold, and HTTP/2 bounds those; this keeps
    /// the list short.
    pub const MOST_OF_CONNECTION: usize = 64;

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a hold of a connection.
    ///
    /// # Errors
    /// When the daemon is stopping, the connection has too many holds, or the kernel gives no random numbers.
    pub fn begin(self: &Arc<Self>, connection: u64) -> Result<Hold, Error> {
        let mut random = [0; KEY_BYTES];
        getrandom::fill(&mut random).map_err(|error| {
            Error::new(Reason::NO_RANDOM_NUMBERS, format!("cannot make a key for a hold: {error}"))
        })?;
        let mut state = self.state();
        if self.closed.is_cancelled() {
            return Err(Error::stopping());
        }
        let most = Self::MOST_OF_CONNECTION;
        if state.open.values().filter(|(_, of)| *of == connection).count() >= most {
            let message = format!("this connection has {most} holds, and can have no more");
            return Err(Error::new(Reason::TOO_MANY_HOLDS, message));
        }
        state.last += 1;
        let name = format!("hold-{}", state.last);
        let key = format!("{name}-{:032x}", u128::from_ne_bytes(random));
        state.open.insert(key.clone(), (name, connection));
        Ok(Hold { holds: Arc::clone(self), key })
    }

    /// The public name of the hold with that key. `None` if there is no such hold, or it has ended.
    pub fn name_of(&self, key: &str) -> Option<String> {
        self.state().open.get(key).map(|(name, _)| name.clone())
    }

    /// The names of all open holds.
    pub(crate) fn open(&self) -> HashSet<String> {
        self.state().open.values().map(|(name, _)| name.clone()).collect()
    }

    /// Waits until a hold has ended that the control thread has not taken note of.
    ///
    /// # Cancel safety
    /// Nothing is missed when the future is dropped.
    pub(crate) async fn some_ended(&self) {
        while !self.has_ended() {
            self.some_ended.notified().await;
        }
    }

    /// Whether a hold has ended that the control thread has not taken note of.
    pub(crate) fn has_ended(&self) -> bool {
        self.state().some_ended
    }

    /// Takes note of holds that have ended. Returns whether there are any.
    pub(crate) fn take_ended(&self) -> bool {
        std::mem::take(&mut self.state().some_ended)
    }

    /// More is left to do: wakes the control thread once more.
    pub(crate) fn look_again(&self) {
        self.state().some_ended = true;
        self.some_ended.notify_one();
    }

    /// Ends all of them: the daemon stops.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        self.closed.cancel();
        state.some_ended |= !state.open.is_empty();
        state.open.clear();
    }
}

impl Hold {
    /// The key that a client shows to bind probes to this hold. Only its holder knows it.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Waits until the daemon ends it.
    pub async fn ended(&self) {
        self.holds.closed.cancelled().await;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.holds.state();
        if state.open.remove(&self.key).is_some() {
            state.some_ended = true;
            drop(state);
            self.holds.some_ended.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_hold_ends_with_its_stream() {
        let holds = Arc::<Holds>::default();
        let open = || holds.open().into_iter().collect::<BTreeSet<_>>();
        assert!(holds.some_ended().now_or_never().is_none());
        let (one, other) = (holds.begin(1).unwrap(), holds.begin(1).unwrap());
        let name = holds.name_of(one.key()).unwrap();
        assert_eq!(name, "hold-1");
        assert_eq!(open(), BTreeSet::from(["hold-1".to_owned(), "hold-2".to_owned()]));
        // The name, which every client sees, is not a key.
        assert_eq!((holds.name_of(&name), holds.name_of("")), (None, None));
        drop(one);
        assert!(holds.some_ended().now_or_never().is_some());
        // Until the control thread takes note of it, a second wait returns at once too.
        assert!(holds.some_ended().now_or_never().is_some());
        assert_eq!((holds.take_ended(), holds.take_ended()), (true, false));
        assert!(holds.some_ended().now_or_never().is_none());
        assert_eq!(open(), BTreeSet::from(["hold-2".to_owned()]));
        holds.look_again();
        assert!(holds.some_ended().now_or_never().is_some() && holds.take_ended());
        assert!(other.ended().now_or_never().is_none());
        holds.close();
        assert!(other.ended().now_or_never().is_some() && open().is_empty());
        assert_eq!(holds.begin(2).unwrap_err().reason, Reason::STOPPING);
        assert!(holds.take_ended());
        drop(other);
        assert!(!holds.has_ended(), "it had ended before");
    }

    #[test]
    fn keys_differ_and_a_connection_has_so_many() {
        let holds = Arc::<Holds>::default();
        let mut greedy: Vec<_> = (0..Holds::MOST_OF_CONNECTION).map(|_| holds.begin(7).unwrap()).collect();
        assert_eq!(holds.begin(7).unwrap_err().reason, Reason::TOO_MANY_HOLDS);
        greedy.push(holds.begin(8).unwrap());
        let keys: HashSet<_> = greedy.iter().map(|hold| hold.key().rsplit('-').next().unwrap()).collect();
        assert_eq!(keys.len(), Holds::MOST_OF_CONNECTION + 1);
        assert!(keys.iter().all(|key| key.len() == 2 * KEY_BYTES));
        greedy.remove(0);
        greedy.push(holds.begin(7).unwrap());
        drop(greedy);
        assert!(holds.open().is_empty());
    }
}
