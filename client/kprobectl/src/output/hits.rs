//! Hit counts of probes: tables, CSV, JSON and YAML.

use std::collections::BTreeSet;
use std::io;

use kprobed_client::api::HitProfile;
use kprobed_document::json::Json;

use super::Output;
use super::table::{Cell, Table};
use super::time::rfc3339;

const HEADINGS: [&str; 6] = ["probe", "probe_uid", "boot_id", "time", "hits", "nmissed"];

/// A line of comma-separated values.
fn row(profile: &HitProfile) -> [String; 6] {
    [
        profile.probe.clone(),
        profile.probe_uid.to_string(),
        profile.boot_id.clone(),
        rfc3339(profile.time.as_ref()).unwrap_or_default(),
        profile.hits.to_string(),
        profile.nmissed.to_string(),
    ]
}

impl Output {
    /// Prints the hit counts of now. `with_own`: those by the daemon's own threads are a column of their own.
    pub(crate) fn hits(&mut self, profiles: &[HitProfile], with_own: bool) -> io::Result<()> {
        if self.structured(&profiles.iter().map(Json::full).collect::<Vec<_>>())? {
            return Ok(());
        }
        let own = |profile: &HitProfile| profile.own.map_or_else(String::new, |own| own.to_string());
        let [probe, probe_uid, boot_id, time, hits, nmissed] = HEADINGS;
        let headings = [probe, probe_uid, boot_id, time, hits, nmissed, "own"];
        let line = |profile: &HitProfile| {
            let [probe, probe_uid, boot_id, time, hits, nmissed] = row(profile);
            [probe, probe_uid, boot_id, time, hits, nmissed, own(profile)]
        };
        let is_csv = if with_own {
            self.csv(headings, profiles.iter().map(line))?
        } else {
            self.csv(HEADINGS, profiles.iter().map(row))?
        };
        if is_csv {
            return Ok(());
        }
        let mut table = Table::new(if with_own {
            &["PROBE", "HITS", "OWN", "NMISSED"]
        } else {
            &["PROBE", "HITS", "NMISSED"]
        });
        for profile in profiles {
            let hits = Cell::number(profile.hits.saturating_sub(profile.own.unwrap_or(0)));
            let own = with_own.then(|| Cell::maybe(profile.own));
            let (name, nmissed) = (Cell::text(&profile.probe), Cell::number(profile.nmissed));
            table.row([name, hits].into_iter().chain(own).chain([nmissed]).collect());
        }
        self.table(&table)?;
        let reasons: BTreeSet<_> = profiles.iter().map(|profile| profile.own_unknown.as_str()).collect();
        for reason in reasons.into_iter().filter(|reason| !reason.is_empty()) {
            self.line(&format!("`?`: HITS includes those by kprobed's own threads: {reason}"))?;
        }
        Ok(())
    }
}
