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
    /// Whether there are events of the host among it.
    attached: bool,
    /// Whether anything of it records.
    records: bool,
}

impl Selected {
    pub(super) async fn by(client: &Client, request: &StreamRequest) -> Result<Self, Failure> {
        let selection = request.selection();
        let all = [String::new()];
        let globs = if selection.probes.is_empty() { &all[..] } else { &selection.probes };
        let mut selected = Self { probes: Vec::new(), attached: false, records: false };
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
                selected.attached = true;
                selected.records |= event.state() == AttachedEventState::Recording;
            }
        }
        Ok(selected)
    }

    /// Says so when nothing will come: waiting in silence for events of a probe that is off helps nobody.
    pub(super) fn note_silence(&self, request: &StreamRequest, output: &mut Output) {
        if self.probes.is_empty() && !self.attached {
            let selection = request.selection();
            let all = selection.probes.is_empty() && selection.label_selector.trim().is_empty();
            let what = if all { "there is no probe" } else { "no probe matches" };
            output.note(&format!("{what} yet: waiting for one"));
        } else if !self.records {
            output.note("none of the selected probes is recording; `kprobectl enable` switches them on");
        }
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
        if filter.is_empty() || (self.probes.is_empty() && !self.attached) {
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
    fn words_for_a_shell() {
        assert_eq!(quoted("a == \"b\" && $c"), "'a == \"b\" && $c'");
        assert_eq!(quoted("comm == 'it'"), r"'comm == '\''it'\'''");
    }
}
