//! The principal of a connection, found out when it is needed first.
//!
//! A connection that says nothing costs no look at the user database, which may be slow.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use kprobed_rights::Principal;
use tokio::sync::OnceCell;

use super::identity::{Identity, Peer, of_user};

/// Who is at the other end of a connection.
#[derive(Debug)]
pub struct Who {
    found: OnceCell<Arc<Principal>>,
    peer: Option<(Peer, PathBuf)>,
    not_after: Option<SystemTime>,
}

impl Who {
    /// A process, to be looked up at its first call. `procfs` is usually `/proc`.
    pub fn process(peer: Peer, procfs: PathBuf) -> Self {
        Self { found: OnceCell::new(), peer: Some((peer, procfs)), not_after: None }
    }

    /// A principal that is known already.
    pub fn known(identity: Identity) -> Self {
        let Identity { principal, not_after } = identity;
        Self { found: OnceCell::new_with(Some(Arc::new(principal))), peer: None, not_after }
    }

    /// When the proof ends. Absent for one that holds as long as the connection.
    pub(crate) fn not_after(&self) -> Option<SystemTime> {
        self.not_after
    }

    /// The principal, if it was needed before.
    pub(crate) fn found(&self) -> Option<&Arc<Principal>> {
        self.found.get()
    }

    /// The principal. Asks the user database of the host, on a thread of its own.
    ///
    /// # Errors
    /// When the look cannot be made: the daemon is stopping.
    pub(crate) async fn principal(&self) -> io::Result<&Arc<Principal>> {
        self.found
            .get_or_try_init(|| async {
                let (peer, procfs) = self.peer.clone().ok_or(io::ErrorKind::NotFound)?;
                let look = tokio::task::spawn_blocking(move || of_user(&procfs, peer));
                Ok(Arc::new(look.await.map_err(io::Error::other)?))
            })
            .await
    }
}
