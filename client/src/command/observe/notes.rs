//! What is said before events come: that none will, and what the kernel could do better.

use kprobed_client::Client;
use kprobed_client::api::{AttachedEventState, ListProbesRequest, ProbeState};
use kprobed_client::event::StreamRequest;

use crate::command::{Failure, glob};
use crate::output::Output;

/// What exists now and is selected by its name and its labels.
pub(super) struct Selected {
    /// Names of probes, and their kernel filters.
    probes: Vec<(String, String)>,
    /// How many attached events there are among it.
    attached: usize,
    /// Whether anything of it records.
    records: bool,
}

impl Selected {
    pub(super) async fn by(client: &Client, request: &StreamRequest) -> Result<Self, Failure> {
        let selection = request.selection();
        let all = [String::new()];
        let globs = if selection.probes.is_empty() { &all[..] } else { &selection.probes };
        let mut selected = Self { probes: Vec::new(), attached: 0, records: false };
        for glob in globs {
            let request = ListProbesRequest {
                name_glob: glob.clone(),
                label_selector: selection.label_selector.clone(),
                ..Default::default()
            };
            for probe in client.select_probes(request).await? {
                selected.records |= probe.state() == ProbeState::Armed;
                selected.probes.push((probe.name, probe.filter));
            }
        }
        // Events of the host have no labels. Whether a selector wants that is for the daemon to say: a note less is better than a wrong one.
        for event in client.attached_events().await? {
            let fits =
                |glob: &String| glob.is_empty() || glob::matches(glob.as_bytes(), event.name.as_bytes());
            if globs.iter().any(fits) {
                selected.attached += 1;
                selected.records |= event.state() == AttachedEventState::Recording;
            }
        }
        Ok(selected)
    }

    /// What is observed: `2 probes`, `1 probe and 3 attached events`.
    pub(super) fn description(&self) -> String {
        let counted =
            |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let probes = counted(self.probes.len(), "probe");
        match self.attached {
            0 => probes,
            attached => format!("{probes} and {}", counted(attached, "attached event")),
        }
    }

    /// Notes that no event will come, because nothing is selected or nothing that is selected records.
    pub(super) fn note_silence(&self, request: &StreamRequest, output: &mut Output) {
        if self.is_empty() {
            let selection = request.selection();
            let all = selection.probes.is_empty() && selection.label_selector.trim().is_empty();
            let what = if all { "there is no probe" } else { "no probe matches" };
            output.note(&format!("{what} yet: waiting for one"));
        } else if !self.records {
            output.note("none of the selected probes is recording; `kprobectl enable` switches them on");
        }
    }

    fn is_empty(&self) -> bool {
        self.probes.is_empty() && self.attached == 0
    }

    /// Says so when the kernel could do the filter just as well, for one probe or more: then nothing else need be recorded.
    ///
    /// # Errors
    /// When the filter cannot be used for any probe.
    pub(super) async fn note_push_down(
        &self,
        client: &Client,
        request: &StreamRequest,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let filter = &request.selection().filter;
        if filter.is_empty() || self.is_empty() {
            return Ok(());
        }
        let checked = client.check_filter(request.selection().clone()).await?;
        let could_have = |name: &str, filter: &str| {
            self.probes.iter().any(|(probe, has)| probe == name && has.trim() != filter.trim())
        };
        let possible = checked.iter().find(|found| {
            found.exact && !found.kernel_filter.is_empty() && could_have(&found.probe, &found.kernel_filter)
        });
        if let Some(found) = possible {
            output.note(&format!(
                "the kernel can do this filter: see `kprobectl filter {} --dry-run {}`",
                found.probe,
                quoted(filter)
            ));
        }
        Ok(())
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
        let described = |probes: usize, attached: usize| {
            let probe = |n: usize| (format!("kprobes/p{n}"), String::new());
            Selected { probes: (0..probes).map(probe).collect(), attached, records: true }.description()
        };
        assert_eq!(described(0, 0), "0 probes");
        assert_eq!(described(1, 0), "1 probe");
        assert_eq!(described(2, 1), "2 probes and 1 attached event");
        assert_eq!(described(0, 3), "0 probes and 3 attached events");
    }

    #[test]
    fn words_for_a_shell() {
        assert_eq!(quoted("a == \"b\" && $c"), "'a == \"b\" && $c'");
        assert_eq!(quoted("comm == 'it'"), r"'comm == '\''it'\'''");
    }
}
