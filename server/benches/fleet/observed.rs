//! Checks of a merged stream: every event of every host arrived, in order.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::answers::Expected;
use crate::command::Ran;

/// The counts of a merged stream.
pub(crate) struct Observed {
    pub(crate) events: u64,
}

/// Holds the whole output against what the hosts published: of each, numbers without a gap; of all
/// together, times that never go back except for an event that is marked late.
pub(crate) fn check(ran: &Ran, expected: &Expected) -> anyhow::Result<Observed> {
    let mut next: BTreeMap<String, u64> = BTreeMap::new();
    let (mut events, mut late, mut accounts, mut is_closed) = (0, 0, 0, false);
    let mut latest = String::new();
    for line in ran.output.lines() {
        let record: Value = serde_json::from_str(line).with_context(|| format!("`{line}`"))?;
        if let Some(ledger) = record.get("ledger") {
            expected.check_ledger(ledger)?;
            is_closed = true;
            continue;
        }
        match record["type"].as_str() {
            Some("event") => {
                let host = record["host"].as_str().with_context(|| format!("no host: `{line}`"))?;
                let number = record["fields"]["number"].as_u64();
                let number = number.with_context(|| format!("no number: `{line}`"))?;
                if let Some(next) = next.insert(host.to_owned(), number + 1) {
                    ensure!(next == number, "`{host}` goes on with {number}, not {next}");
                }
                // All have the same form, and the order of texts is that of times.
                let corrected = record["corrected_time"].as_str();
                let corrected = corrected.with_context(|| format!("no time: `{line}`"))?;
                let is_late = record["late"] == true;
                ensure!(is_late || *corrected >= *latest, "out of order, and not marked: `{line}`");
                late += u64::from(is_late);
                if *corrected > *latest {
                    corrected.clone_into(&mut latest);
                }
                events += 1;
            }
            Some("host") => {
                ensure!(record["closes"] == true && record["lost"] == 0, "`{line}`");
                accounts += 1;
            }
            Some("loss" | "may_miss") => anyhow::bail!("events are missing: `{line}`"),
            _ => {}
        }
    }
    ensure!(is_closed, "no ledger (exit code {:?}): {}", ran.code, ran.messages);
    ensure!(accounts == expected.hosts(), "{accounts} accounts");
    let answered = expected.outcomes.values().filter(|outcome| **outcome == "answered").count();
    ensure!(next.len() == answered, "events of {} hosts", next.len());
    ensure!(late == 0, "{late} events are late");
    Ok(Observed { events })
}
