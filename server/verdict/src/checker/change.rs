//! Changes of meaning: a definition that records something else on this kernel than on the one that
//! it was made for.
//!
//! Owns the comparison of a text with a stored meaning, and the line that records on this kernel
//! what the original did. Never decides what is done about a difference: the daemon does.

use std::collections::HashSet;

use kprobed_host::kernel::RecentFacts;
use kprobed_proto::v1;

use super::{CheckOutcome, Checker};
use crate::meaning::{Meaning, compare, meaning_change, means_the_same_elsewhere};

impl Checker {
    /// The meaning of a definition on this kernel. Absent if the definition is not accepted.
    pub fn meaning(&self, text: &str) -> Option<Meaning> {
        let outcome = self.check_with(text, &mut self.recent_facts()).ok()?;
        outcome.is_taken().then(|| outcome.meaning())
    }

    /// How the meaning of a definition on this kernel differs from the stored one. Absent if
    /// nothing differs, if the definition is not accepted, or if its module is not loaded.
    pub fn change_of_meaning(&self, before: &Meaning, text: &str) -> Option<v1::MeaningChange> {
        let mut facts = self.recent_facts();
        let outcome = self.check_with(text, &mut facts).ok()?;
        if !outcome.is_taken() {
            return None;
        }
        let now = outcome.meaning();
        if !now.complete || before.is_of_same_build(&now) {
            return None;
        }
        let differences = compare(before, &now);
        if differences.is_empty() {
            return None;
        }
        let line = self.new_line(&outcome.definition, &HashSet::new());
        let offered = self.offered((&line.group, &line.event), before, &outcome, &mut facts);
        Some(meaning_change(Some(before), &now, differences, offered))
    }

    /// The line for this kernel: only one that the kernel accepts, and that records what the
    /// original did.
    pub fn offered(
        &self,
        (group, event): (&str, &str),
        before: &Meaning,
        outcome: &CheckOutcome,
        facts: &mut RecentFacts<'_>,
    ) -> Option<String> {
        let line = outcome.ported(before)?.render(group, event);
        let checked = self.check_with(&line, facts).ok()?;
        let records_the_same = checked.is_taken() && means_the_same_elsewhere(before, &checked.meaning());
        records_the_same.then_some(line)
    }
}
