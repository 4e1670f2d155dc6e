//! Notes before the first event: which probes are observed, and which options do not fit them.

use std::collections::HashSet;

use kprobed_client::Client;
use kprobed_client::api::{ListProbesRequest, Probe, ProbeFilter, ProbeState};
use kprobed_client::event::StreamRequest;

use crate::command::Failure;
use crate::output::{Output, counted};

/// The probes that exist now and are selected by their names and labels.
pub(super) struct ObservedProbes(Vec<Probe>);

/// Probes that a note names; of others it says how many.
const NAMED: usize = 3;

/// What all events have, and `--fields` can name.
const OF_ALL_EVENTS: [&str; 4] = ["tid", "comm", "context", "location"];

impl ObservedProbes {
    pub(super) async fn by(client: &Client, request: &StreamRequest) -> Result<Self, Failure> {
        let selection = request.selection();
        let all = [String::new()];
        let globs = if selection.probes.is_empty() { &all[..] } else { &selection.probes };
        let mut selected = Vec::new();
        // Globs may overlap.
        let mut seen = HashSet::new();
        for glob in globs {
            let request = ListProbesRequest {
                name_glob: glob.clone(),
                label_selector: selection.label_selector.clone(),
                ..Default::default()
            };
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
}
