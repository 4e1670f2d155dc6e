//! Runs of the observed probes that the kernel skipped while they were observed.
//!
//! Of probes that outlive the command: the counts of a temporary probe come with its deletion.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use kprobed_client::api::{HitProfile, ListHitsRequest, Probe};
use kprobed_client::event::StreamRequest;
use kprobed_client::{Client, Error};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::output::SkippedRuns;

/// How long the end of the command waits for the last counts.
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts of all hosts when their streams began.
#[derive(Default)]
pub(super) struct AllCounts {
    hosts: HashSet<String>,
    reading: JoinSet<Option<CountsBefore>>,
}

impl AllCounts {
    /// Those of the only host.
    pub(super) fn of_one(before: CountsBefore) -> Self {
        let mut all = Self::default();
        all.reading.spawn(std::future::ready(Some(before)));
        all
    }

    /// Reads those of a host whose stream has begun, once.
    pub(super) fn begin(&mut self, host: &str, client: Client, request: StreamRequest) {
        if self.hosts.insert(host.to_owned()) {
            self.reading.spawn(async move { CountsBefore::read(&client, &request).await.ok() });
        }
    }

    /// What was skipped since then, as far as the hosts answer in time.
    pub(super) async fn skipped(mut self) -> Vec<SkippedRuns> {
        let deadline = Instant::now() + PATIENCE;
        let mut ending = JoinSet::new();
        while let Ok(Some(read)) = timeout_at(deadline, self.reading.join_next()).await {
            if let Ok(Some(before)) = read {
                ending.spawn(async move { before.skipped().await });
            }
        }
        let mut found = Vec::new();
        while let Some(runs) = ending.join_next().await {
            found.extend(runs.unwrap_or_default());
        }
        found
    }
}

/// Counts of the selected probes of one host when the command began.
pub(super) struct CountsBefore {
    client: Client,
    requests: Vec<ListHitsRequest>,
    /// By the probe's number.
    counts: BTreeMap<i64, HitProfile>,
}

impl CountsBefore {
    /// Reads them.
    pub(super) async fn read(client: &Client, request: &StreamRequest) -> Result<Self, Error> {
        let selection = request.selection();
        let one = |glob: &String| ListHitsRequest {
            name_glob: glob.clone(),
            label_selector: selection.label_selector.clone(),
            ..ListHitsRequest::default()
        };
        let all = [String::new()];
        let globs = if selection.probes.is_empty() { &all[..] } else { &selection.probes };
        let requests: Vec<_> = globs.iter().map(one).collect();
        let counts = read(client, &requests).await?;
        Ok(Self { client: client.clone(), requests, counts })
    }

    /// What was skipped since then. Nothing if the daemon does not answer: then the stream says that.
    async fn skipped(&self) -> Vec<SkippedRuns> {
        let found = tokio::time::timeout(PATIENCE, self.since()).await;
        found.ok().and_then(Result::ok).unwrap_or_default()
    }

    async fn since(&self) -> Result<Vec<SkippedRuns>, Error> {
        let mut found = Vec::new();
        for now in read(&self.client, &self.requests).await?.into_values() {
            let grown = grown(self.counts.get(&now.probe_uid), now);
            if grown.nmissed > 0 {
                let probes = self.client.list_probes(&grown.probe).await?;
                let is_it = |probe: &&Probe| probe.uid == grown.probe_uid;
                found.extend(probes.iter().find(is_it).and_then(|probe| SkippedRuns::of(probe, &grown)));
            }
        }
        Ok(found)
    }
}

async fn read(client: &Client, requests: &[ListHitsRequest]) -> Result<BTreeMap<i64, HitProfile>, Error> {
    let mut counts = BTreeMap::new();
    for request in requests {
        let profiles = client.select_hits(request.clone()).await?;
        counts.extend(profiles.into_iter().map(|profile| (profile.probe_uid, profile)));
    }
    Ok(counts)
}

/// The counts since `before`. The kernel counts from zero when an event is defined again.
fn grown(before: Option<&HitProfile>, now: HitProfile) -> HitProfile {
    let before = before.filter(|before| before.hits <= now.hits && before.nmissed <= now.nmissed);
    let (hits, nmissed) = before.map_or((0, 0), |before| (before.hits, before.nmissed));
    HitProfile { hits: now.hits - hits, nmissed: now.nmissed - nmissed, ..now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_skipped_meanwhile_counts() {
        let of = |hits, nmissed| HitProfile { hits, nmissed, ..HitProfile::default() };
        assert_eq!(grown(Some(&of(10, 4)), of(15, 6)), of(5, 2));
        assert_eq!(grown(Some(&of(10, 4)), of(10, 4)), of(0, 0));
        assert_eq!(grown(None, of(3, 2)), of(3, 2));
        // Defined again.
        assert_eq!(grown(Some(&of(10, 4)), of(3, 5)), of(3, 5));
    }
}
