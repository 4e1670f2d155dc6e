//! Temporary probes on many hosts: switching them on as hosts subscribe, and deleting them at the end.
//!
//! Owns the tasks that do so. It never defines a probe: `trace_hosts` does.

use std::collections::HashMap;
use std::sync::Arc;

use kprobed_client::Error as ClientError;
use kprobed_client::fleet::{Operation as _, Outcome};
use tokio::task::JoinSet;

use super::temporary_probes::TemporaryProbes;
use crate::output::Output;

/// The probes on the hosts that have them.
pub(super) struct HostProbes {
    pub(super) hosts: HashMap<String, Arc<TemporaryProbes>>,
    pub(super) enabling: JoinSet<Enabled>,
    /// Output for messages of hosts.
    pub(super) form: Output,
    /// A program to run while they record.
    pub(super) command: Vec<String>,
}

/// Result of enabling the probes of a host.
pub(super) struct Enabled {
    pub(super) host: String,
    /// Messages of the host, or why it failed.
    pub(super) result: Result<String, (String, Outcome)>,
}

/// Result of deleting the probes of a host.
pub(super) struct Deleted {
    pub(super) host: String,
    /// Time of its trace clock after the deletion, or why that failed.
    pub(super) result: Result<u64, ClientError>,
}

impl HostProbes {
    /// Whether any host has them.
    pub(super) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Enables the probes of a host, which has subscribed this command.
    pub(super) fn enable(&mut self, host: &str) {
        let Some(temporary) = self.hosts.get(host).map(Arc::clone) else { return };
        let (host, mut output) = (host.to_owned(), self.form.keeping());
        self.enabling.spawn(async move {
            let result = match temporary.enable(&mut output).await {
                Ok(()) => Ok(output.into_kept().messages),
                Err(failure) => Err((failure.to_string(), failure.outcome())),
            };
            Enabled { host, result }
        });
    }

    /// Whether some hosts are still enabling theirs.
    pub(super) fn is_enabling(&self) -> bool {
        !self.enabling.is_empty()
    }

    /// The next host that finished enabling. Never completes if none is pending.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn enabled(&mut self) -> Enabled {
        loop {
            match self.enabling.join_next().await {
                Some(Ok(enabled)) => return enabled,
                Some(Err(_broken)) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Drops the hold of a host: its daemon deletes the probes.
    pub(super) fn forget(&mut self, host: &str) {
        self.hosts.remove(host);
    }

    /// Deletes the probes of all connected hosts. What they recorded was sent then, or is in the
    /// daemon's queue for this command.
    pub(super) fn delete(self, is_there: impl Fn(&str) -> bool) -> JoinSet<Deleted> {
        let mut deleting = JoinSet::new();
        for (host, temporary) in self.hosts {
            if is_there(&host) {
                deleting.spawn(async move {
                    let result = async {
                        temporary.delete().await?;
                        Ok(temporary.client().read_clock().await?.received_ns)
                    };
                    let result = result.await;
                    Deleted { host, result }
                });
            }
        }
        deleting
    }
}
