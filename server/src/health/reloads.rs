//! Reloads of the configuration: what the last one left to do, as a host check.
//!
//! Owns what is said of a reload that changed nothing, or not everything. Never reads the configuration.

use std::sync::{Mutex, PoisonError};

use super::{HostCheck, failed, named, warning};

const ID: &str = "configuration";

/// What the last reload left to do. Nothing before the first one.
#[derive(Debug, Default)]
pub struct Reloads {
    check: Mutex<Option<HostCheck>>,
}

impl Reloads {
    /// The last reload changed nothing. `error` is what `--check-config` prints.
    pub fn refused(&self, error: &str) {
        // Warnings can come first, and each line has its hint below it.
        let lines = || error.lines();
        let reason = lines().find_map(|line| line.strip_prefix("error: ")).or_else(|| lines().next());
        let finding = format!(
            "the configuration was not reloaded, the previous one still applies: {}",
            reason.unwrap_or_default()
        );
        let fix = "correct the file (`kprobed --check-config --config FILE` shows every mistake), then `systemctl reload kprobed`";
        self.set(Some(failed(ID, finding, fix)));
    }

    /// The last reload was made, and these settings wait for a restart.
    pub fn made(&self, waiting: &[&str]) {
        let names = waiting.iter().map(|&setting| format!("`{setting}`"));
        let settings = named(names, "journalctl -u kprobed");
        let finding = format!("the file has changed, and the daemon does not use all of it yet: {settings}");
        let fix = "restart the daemon: a reload does not change these settings";
        self.set((!waiting.is_empty()).then(|| warning(ID, finding, fix)));
    }

    /// The check, if something is left to do. Without `names_settings` it does not quote the configuration, which
    /// names principals and probes.
    pub fn check(&self, names_settings: bool) -> Option<HostCheck> {
        let mut check = self.check.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        if !names_settings && let Some(end) = check.finding.find(": ") {
            check.finding.truncate(end);
        }
        Some(check)
    }

    fn set(&self, check: Option<HostCheck>) {
        *self.check.lock().unwrap_or_else(PoisonError::into_inner) = check;
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    #[test]
    fn what_a_reload_left_to_do_is_said_until_another_one_was_made() {
        let reloads = Reloads::default();
        let said = |names_settings| {
            let check = reloads.check(names_settings)?;
            assert!(!check.fix.is_empty());
            Some((check.status(), check.finding))
        };
        assert_eq!(said(true), None);
        reloads.refused(
            "warning: a.toml:1:1: odd\nhint: no\nerror: a.toml:20:2: `budgt` is not a setting\nhint: x",
        );
        let why = "the configuration was not reloaded, the previous one still applies";
        let expected = format!("{why}: a.toml:20:2: `budgt` is not a setting");
        assert_eq!(said(true), Some((CheckStatus::Failed, expected)));
        assert_eq!(said(false), Some((CheckStatus::Failed, why.to_owned())));
        reloads.refused("the key is of another certificate");
        assert!(said(true).unwrap().1.ends_with("applies: the key is of another certificate"));
        reloads.made(&["export.jsonl.filter"]);
        let what = "the file has changed, and the daemon does not use all of it yet";
        assert_eq!(said(true), Some((CheckStatus::Warning, format!("{what}: `export.jsonl.filter`"))));
        assert_eq!(said(false), Some((CheckStatus::Warning, what.to_owned())));
        reloads.made(&[]);
        assert_eq!(said(true), None);
    }
}
