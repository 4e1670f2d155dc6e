//! Interference: what other programs do to the daemon's instance while it records.
//!
//! Owns when the rest of the accounts is suspect, and the loss that subscribers receive. The kernel
//! does not count what it does not record because of a changed file; what is known is that the file was
//! changed, and how many hits are missing at most. Never repairs anything: that is `repair`.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::account::Terms;
use super::controller::Controller;
use super::observed::Switches;
use super::{Probe, ProbeLedger, ProbeState};
use kprobed_host::tracefs::Alteration;
use kprobed_lang::model::ProbeUid;
use kprobed_trace::pipeline::{Loss, LossCause};

/// What subscribers know.
#[derive(Debug, Default)]
pub(super) struct Interference {
    /// Hits of each suspect that were missing when the accounts were last read.
    missing: HashMap<ProbeUid, u64>,
    /// Something was changed when the daemon last looked: what was hit until it was repaired shows in
    /// the next look.
    lingers: bool,
    /// Sizes that another program has given to the buffers of this instance. They stay as they are, and the
    /// kernel records nothing only while one changes.
    sizes: (String, Vec<Alteration>),
}

impl Interference {
    /// Takes how many hits of the suspects are missing now, and whether something was changed since the
    /// last time. Returns whether subscribers are to be told: more are missing than they know, and that
    /// something was changed explains it.
    fn tells(&mut self, is_changed: bool, missing: HashMap<ProbeUid, u64>) -> bool {
        let explains = std::mem::replace(&mut self.lingers, is_changed) || is_changed;
        let known = std::mem::replace(&mut self.missing, missing);
        let is_more = |(uid, now): (&ProbeUid, &u64)| known.get(uid).copied().unwrap_or(0) < *now;
        explains && self.missing.iter().any(is_more)
    }

    /// Takes the sizes that were found. Returns whether one has changed since the last time, or was
    /// another one when this instance was first looked at.
    fn is_resized(&mut self, switches: &Switches) -> bool {
        let sizes = switches.altered.iter().filter(|alteration| alteration.file.is_size());
        let found = (switches.instance.clone(), sizes.cloned().collect::<Vec<_>>());
        let known = std::mem::replace(&mut self.sizes, found);
        let (instance, sizes) = &self.sizes;
        if known.0 == *instance { known.1 != *sizes } else { !sizes.is_empty() }
    }

    /// Whether the number of missing hits matters now.
    const fn is_due(&self, is_changed: bool) -> bool {
        self.lingers || is_changed
    }
}

/// Hits that nothing explains. Losses that cannot be distinguished by probe are among them.
fn missing(terms: &Terms) -> u64 {
    terms.unexplained.unwrap_or_else(|| terms.not_read.saturating_sub(terms.disabled))
}

impl Controller {
    /// The files of the instance that other programs have written to since this was last asked.
    pub(super) fn written_by_others(&mut self) -> Vec<PathBuf> {
        self.triggers.set_apart();
        self.triggers.take_written(self.parts.instance.root())
    }

    /// Before another instance takes the place of this one: it is as the daemon wants it, so that what others have
    /// changed in this one is found now or never.
    pub(super) fn note_last_interference(&mut self) {
        // The command that is carried out may have written too.
        let written = self.triggers.take_written(self.parts.instance.root());
        if let Ok(switches) = self.observer.switches(&self.parts.instance) {
            let recording = self.parts.registry.recording();
            self.note_interference(&recording, &switches, &written);
        }
    }

    /// After a look, or before a repair: probes that do not record what was asked are suspect, and all
    /// that record if a file of the instance is not as it should be, or another program has `written` to
    /// one.
    pub(super) fn note_interference(
        &mut self,
        found: &[Arc<Probe>],
        switches: &Switches,
        written: &[PathBuf],
    ) {
        let suspects = self.suspect(found, switches, written);
        let is_suspect = self.live.values().any(|live| live.account.suspect);
        if self.interference.is_due(!suspects.is_empty()) || is_suspect {
            match self.accounts() {
                Ok((probes, _, settled)) => self.tell_interference(&suspects, &probes, settled),
                Err(error) => tracing::warn!(%error, "cannot read the ledger"),
            }
        }
    }

    /// Marks the accounts of probes whose rest may be hits that were not recorded. Returns these probes.
    pub(super) fn suspect(
        &mut self,
        found: &[Arc<Probe>],
        switches: &Switches,
        written: &[PathBuf],
    ) -> HashSet<ProbeUid> {
        let is_resized = self.interference.is_resized(switches);
        let is_of_all = is_resized || switches.harmful().next().is_some() || !written.is_empty();
        let is_wrong = |probe: &Probe| matches!(probe.state, ProbeState::Drifted(_) | ProbeState::Failed(_));
        let mut suspects: HashSet<_> = found
            .iter()
            .filter(|probe| probe.is_to_record() && (is_of_all || is_wrong(probe)))
            .map(|probe| probe.uid)
            .collect();
        suspects.retain(|uid| {
            let live = self.live.get_mut(uid);
            live.map(|live| live.account.suspect = true).is_some()
        });
        if !suspects.is_empty() && !self.interference.lingers {
            let altered: Vec<_> = switches.altered.iter().map(|alteration| alteration.file.name()).collect();
            tracing::warn!(?written, ?altered, "another program has changed what is recorded");
        }
        suspects
    }

    /// Tells all subscribers if more hits are missing than they know. If all terms belong to one moment, those
    /// accounts are not suspect from here on that are not among the `suspects` of the last look: what was
    /// changed is as it was. What is changed again before the next look makes them suspect again.
    pub(super) fn tell_interference(
        &mut self,
        suspects: &HashSet<ProbeUid>,
        probes: &[ProbeLedger],
        settled: bool,
    ) {
        for probe in probes.iter().filter(|probe| settled && !suspects.contains(&probe.uid)) {
            if let Some(live) = self.live.get_mut(&probe.uid) {
                live.account.end_suspicion(&probe.terms);
            }
        }
        let was_suspect =
            |probe: &&ProbeLedger| self.live.get(&probe.uid).is_some_and(|live| live.account.was_suspect());
        let of_suspects = probes.iter().filter(was_suspect);
        let missing = of_suspects.map(|probe| (probe.uid, missing(&probe.terms))).collect();
        if self.interference.tells(!suspects.is_empty(), missing) {
            self.parts.hub.publish_loss(Loss::anywhere(LossCause::Unexplained, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use kprobed_host::tracefs::InstanceFile;

    use super::*;

    #[test]
    fn each_change_of_a_size_is_told_once() {
        let mut known = Interference::default();
        let mut is_resized = |instance: &str, kib: u64| {
            let size = |file| Alteration { file, found: kib.to_string(), wanted: "8".to_owned() };
            let recording = Alteration { file: InstanceFile::Recording, ..size(InstanceFile::BufferSize) };
            let altered = (kib != 8).then(|| size(InstanceFile::BufferSize)).into_iter().chain([recording]);
            let (instance, altered) = (instance.to_owned(), altered.collect());
            known.is_resized(&Switches {
                instance,
                altered,
                kprobes: true,
                ftrace: true,
                repaired_every: None,
            })
        };
        let told = [
            ("one", 8),
            ("one", 16),
            ("one", 16),
            ("one", 4),
            ("one", 8),
            ("other", 8),
            ("other", 16),
            ("one", 8),
            ("other", 16),
        ];
        assert_eq!(
            told.map(|(instance, kib)| is_resized(instance, kib)),
            [false, true, false, true, true, false, true, false, true]
        );
    }

    #[test]
    fn what_is_missing_is_told_once_and_only_if_something_was_changed() {
        let mut known = Interference::default();
        for (is_changed, missing, is_told) in [
            (false, 3, false), // Held back by a filter.
            (true, 3, false),
            (true, 9, true),
            (true, 9, false),
            (false, 11, true), // Hit before the repair.
            (false, 20, false),
            (true, 20, false),
            (false, 20, false),
        ] {
            assert_eq!(known.is_due(is_changed), is_changed || known.lingers);
            let missing = HashMap::from([(ProbeUid(1), missing)]);
            assert_eq!(known.tells(is_changed, missing.clone()), is_told, "{is_changed} {missing:?}");
        }
        // Another probe has taken its place.
        assert!(known.tells(true, HashMap::from([(ProbeUid(2), 20)])));
    }
}
