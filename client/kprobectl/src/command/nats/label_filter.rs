//! Probes of many hosts whose labels match a selector, from the stream of states.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kprobed_client::api::WatchEvent;
use kprobed_client::nats::{HostWatched, NatsSource, NatsWatch, NatsWatchRequest};
use tokio::task::JoinSet;

use super::failure;
use super::watch::wanted;
use crate::command::Failure;

/// Time between two attempts to read on.
const RETRY: Duration = Duration::from_secs(1);

/// Whether the labels of each probe fit, by host and name. For a deleted probe the last result
/// stays: its events may still arrive.
type Fits = HashMap<String, HashMap<String, bool>>;

/// Probes whose labels fit.
#[derive(Clone, Debug, Default)]
pub(in crate::command) struct LabelFilter {
    fits: Arc<RwLock<Fits>>,
}

impl LabelFilter {
    /// Reads the probes of all hosts, and follows their changes in a task.
    pub(in crate::command) async fn watch(
        source: &NatsSource,
        selector: &str,
        tasks: &mut JoinSet<()>,
    ) -> Result<Self, Failure> {
        let labelled = Self::default();
        let is_wanted = wanted(String::new(), selector)?;
        let mut watch = source.watch(NatsWatchRequest::default()).await.map_err(|error| failure(&error))?;
        let hosts = source.hosts_with_states().await.map_err(|error| failure(&error))?;
        while !hosts.is_empty() && !watch.is_synced() {
            labelled.take(watch.next().await.map_err(|error| failure(&error))?, &is_wanted);
        }
        let following = labelled.clone();
        tasks.spawn(async move { following.follow(watch, is_wanted).await });
        Ok(labelled)
    }

    async fn follow(self, mut watch: NatsWatch, is_wanted: impl Fn(&kprobed_client::api::Probe) -> bool) {
        loop {
            if let Ok(watched) = watch.next().await {
                self.take(watched, &is_wanted);
            } else {
                while watch.reopen().await.is_err() {
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    fn take(&self, watched: HostWatched, is_wanted: impl Fn(&kprobed_client::api::Probe) -> bool) {
        let event = watched.message.event();
        if let Some(probe) = watched.message.probe.filter(|_| event != WatchEvent::Deleted) {
            let fits = is_wanted(&probe);
            let mut all = self.fits.write().unwrap_or_else(PoisonError::into_inner);
            all.entry(watched.host).or_default().insert(probe.name, fits);
        }
    }

    /// Whether the labels of a probe fit.
    pub(in crate::command) fn selects(&self, host: &str, probe: &str) -> bool {
        let all = self.fits.read().unwrap_or_else(PoisonError::into_inner);
        all.get(host).and_then(|probes| probes.get(probe)).copied().unwrap_or(false)
    }
}
