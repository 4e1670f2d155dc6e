//! Observed probes: which options do not fit them, and which of their runs the kernel skipped meanwhile.
//!
//! Skipped runs are of probes that outlive the command: the counts of a temporary probe come with its deletion.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use kprobed_client::api::{HitProfile, ListHitsRequest, ListProbesRequest, Probe, ProbeFilter, ProbeState};
use kprobed_client::event::StreamRequest;
use kprobed_client::{Client, Error};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::command::Failure;
use crate::output::{Output, SkippedRuns, counted};

/// The probes that exist now and are selected by their names and labels.
pub(super) struct ObservedProbes(Vec<Probe>);

/// Probes that a note names; of others it says how many.
const NAMED: usize = 3;

/// What all events have, and `--fields` can name.
const OF_ALL_EVENTS: [&str; 4] = ["tid", "comm", "context", "location"];

/// The globs of a request, each with the labels that it selects.
fn selections(request: &StreamRequest) -> impl Iterator<Item = (String, String)> {
    let selection = request.selection();
    let all = selection.probes.is_empty().then(String::new);
    let globs = selection.probes.iter().cloned().chain(all);
    globs.map(move |glob| (glob, selection.label_selector.clone()))
}

impl ObservedProbes {
    pub(super) async fn by(client: &Client, request: &StreamRequest) -> Result<Self, Failure> {
        let mut selected = Vec::new();
        // Globs may overlap.
        let mut seen = HashSet::new();
        for (name_glob, label_selector) in selections(request) {
            let request = ListProbesRequest { name_glob, label_selector, ..Default::default() };
            let found = client.select_probes(request).await?;
            selected.extend(found.into_iter().filter(|probe| seen.insert(probe.name.clone())));
        }
        Ok(Self(selected))
    }

    /// What is observed: `2 probes`.
    pub(super) fn description(&self) -> String {
        counted(self.0.len(), "probe")
    }

    /// Notes that no event will come, because nothing is selected or nothing that is selected records.
    pub(super) fn note_silence(&self, request: &StreamRequest, output: &mut Output) {
        if self.0.is_empty() {
            let selection = request.selection();
            let all = selection.probes.is_empty() && selection.label_selector.trim().is_empty();
            let what = if all { "there are no probes yet" } else { "no probe matches yet" };
            let made = match selection.probes.as_slice() {
                [only] if !only.contains(['*', '?', '/']) => format!("; `kprobectl trace {only}` makes one"),
                _ => String::new(),
            };
            output.note(&format!("{what}: waiting for one{made}"));
        } else if self.0.iter().all(|probe| probe.state() != ProbeState::Armed) {
            output.note("none of the selected probes is recording: `kprobectl enable` switches them on");
        }
    }

    /// Notes that what the history has of the selection is of deleted probes: a name that was mistyped shows nothing.
    pub(super) fn note_absence(&self, request: &StreamRequest, output: &mut Output) {
        let selection = request.selection();
        let all = selection.probes.is_empty() && selection.label_selector.trim().is_empty();
        if self.0.is_empty() && !all {
            output.note("no probe matches now: the history can have events of probes that were deleted");
        }
    }

    /// Notes which probes lack a field of `--fields` that others have. The daemon refuses one that all of them lack.
    pub(super) fn note_lacking_fields(&self, names: &[String], output: &mut Output) {
        for name in names.iter().filter(|name| !OF_ALL_EVENTS.contains(&name.as_str())) {
            // Absent if the kernel does not have the probe now.
            let has = |probe: &Probe| {
                probe.schema.as_ref().map(|schema| schema.fields.iter().any(|field| field.name == *name))
            };
            let lacking = self.0.iter().filter(|probe| has(probe) == Some(false));
            let lacking: Vec<&str> = lacking.map(|probe| probe.name.as_str()).collect();
            if !lacking.is_empty() && self.0.iter().any(|probe| has(probe) == Some(true)) {
                let have = if lacking.len() == 1 { "has" } else { "have" };
                output.note(&format!("{} {have} no field `{name}`", listed(&lacking)));
            }
        }
    }

    /// Notes of which probes the filter of a stream selects nothing because it compares a field of
    /// theirs in a way that does not fit its type, which fields that it compares may not have been
    /// read, and whether the kernel could filter just as well: then nothing else need be recorded.
    /// `filters` is what the daemon said when the stream began.
    pub(super) fn note_filters(&self, filters: &[ProbeFilter], output: &mut Output) {
        for found in filters {
            // A probe that lacks the field is not a problem.
            if let Some(problem) = found.problem.as_ref().filter(|problem| problem.code != FIELD_NOT_FOUND) {
                output
                    .note(&format!("the filter selects no event of `{}`: {}", found.probe, problem.message));
            }
            for field in &found.unproven {
                output.note(&format!(
                    "nothing shows whether `{field}` of `{}` could be read: the filter may select by what was in memory before",
                    found.probe
                ));
            }
        }
        let could_have = |name: &str, filter: &str| {
            self.0.iter().any(|probe| probe.name == name && probe.filter.trim() != filter.trim())
        };
        let possible = filters.iter().find(|found| {
            found.exact && !found.kernel_filter.is_empty() && could_have(&found.probe, &found.kernel_filter)
        });
        if let Some(found) = possible {
            output.note(&format!(
                "the kernel can apply this filter: `kprobectl update {} --filter {}`",
                found.probe,
                quoted(&found.kernel_filter)
            ));
        }
    }
}

/// The daemon's code for a field that a probe does not have.
const FIELD_NOT_FOUND: &str = "FIELD_NOT_FOUND";

/// The first names, and how many more.
fn listed(names: &[&str]) -> String {
    let mut text: Vec<_> = names.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
    if names.len() > NAMED {
        text.push(format!("{} more", names.len() - NAMED));
    }
    match text.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

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
        let of = |(name_glob, label_selector)| ListHitsRequest {
            name_glob,
            label_selector,
            ..ListHitsRequest::default()
        };
        let requests: Vec<_> = selections(request).map(of).collect();
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
    fn what_is_observed_in_words() {
        let described = |probes: usize| ObservedProbes(vec![Probe::default(); probes]).description();
        assert_eq!([0, 1, 2].map(described), ["0 probes", "1 probe", "2 probes"]);
    }

    #[test]
    fn names_are_listed_up_to_a_few() {
        assert_eq!(listed(&["a/b"]), "`a/b`");
        assert_eq!(listed(&["a/b", "a/c"]), "`a/b` and `a/c`");
        assert_eq!(listed(&["a/b", "a/c", "a/d", "a/e", "a/f"]), "`a/b`, `a/c`, `a/d` and 2 more");
    }

    #[test]
    fn words_for_a_shell() {
        assert_eq!(quoted("a == \"b\" && $c"), "'a == \"b\" && $c'");
        assert_eq!(quoted("comm == 'it'"), r"'comm == '\''it'\'''");
    }

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
