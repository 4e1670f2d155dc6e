//! Answers that each host must give, and whether the host ledger of `kprobectl` reports them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::command::Ran;
use crate::inventory::Fleet;

/// The hosts of one run by name, and what becomes of each.
pub(crate) struct Expected {
    pub(crate) outcomes: BTreeMap<String, &'static str>,
}

impl Expected {
    /// The first so many of those that answer, and all that do not.
    pub(crate) fn new(fleet: &Fleet, healthy: usize, with_bad: bool) -> Self {
        let answer = fleet.healthy.iter().take(healthy).map(|host| (host.name.clone(), "answered"));
        let mut outcomes: BTreeMap<_, _> = answer.collect();
        if with_bad {
            for (names, outcome) in
                [(&fleet.gone, "unreachable"), (&fleet.silent, "unreachable"), (&fleet.strange, "refused")]
            {
                outcomes.extend(names.iter().map(|name| (name.clone(), outcome)));
            }
        }
        Self { outcomes }
    }

    pub(crate) fn hosts(&self) -> usize {
        self.outcomes.len()
    }

    /// As `--hosts` takes them.
    pub(crate) fn names(&self) -> String {
        self.outcomes.keys().map(String::as_str).collect::<Vec<_>>().join(",")
    }

    /// Holds every record of a run against what was expected, and every answer against what a host
    /// answers.
    pub(crate) fn check(&self, ran: &Ran, is_right: fn(&Value) -> bool) -> anyhow::Result<()> {
        let (mut seen, mut ledgers) = (BTreeSet::new(), Vec::new());
        for line in ran.output.lines() {
            let record: Value = serde_json::from_str(line).with_context(|| format!("`{line}`"))?;
            if let Some(ledger) = record.get("ledger") {
                ledgers.push(ledger.clone());
                continue;
            }
            let host = record["host"].as_str().with_context(|| format!("no host: `{line}`"))?;
            let outcome = self.outcomes.get(host).with_context(|| format!("not asked: `{line}`"))?;
            ensure!(record["outcome"] == *outcome, "not {outcome}: `{line}`");
            ensure!(*outcome != "answered" || is_right(&record["answer"]), "another answer: `{line}`");
            ensure!(seen.insert(host.to_owned()), "a second record: `{line}`");
        }
        let [ledger] = ledgers.as_slice() else {
            bail!("{} ledgers (exit code {:?}): {}", ledgers.len(), ran.code, ran.messages)
        };
        self.check_ledger(ledger)?;
        ensure!(seen.len() == self.hosts(), "records of {} hosts", seen.len());
        Ok(())
    }

    /// Every term of the ledger.
    pub(crate) fn check_ledger(&self, ledger: &Value) -> anyhow::Result<()> {
        let count = |wanted: &str| self.outcomes.values().filter(|outcome| **outcome == wanted).count();
        ensure!(ledger["closes"] == true, "the ledger does not close: {ledger}");
        ensure!(ledger["targeted"] == self.hosts(), "{ledger}");
        for term in ["answered", "refused", "failed", "timed_out", "unreachable", "not_tried"] {
            ensure!(ledger[term] == count(term), "`{term}` is not {}: {ledger}", count(term));
        }
        Ok(())
    }
}
