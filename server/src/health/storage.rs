//! Storage checks: whether changes of clients and recorded events can be stored.
//!
//! Owns the checks of the database, of a damaged one, and of free space. Only reads, except that it
//! writes one page to the database: no other way shows whether that works.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use nix::sys::statvfs::{FsFlags, Statvfs, statvfs};

use super::{CheckStatus, HostCheck, check, failed, ok, warning};
use kprobed_control::store::{BadValue, Health, Store, StoreError, set_aside_in};
use kprobed_trace::history::History;

/// With less free space a disk counts as full: a commit, or a part of the history, may not fit.
const FULL_BYTES: u64 = 1 << 20;
const FULL_INODES: u64 = 8;

/// With less free space a disk counts as nearly full.
const LOW_BYTES: u64 = 64 << 20;

/// Most bad values of the database that are named.
const SHOWN_VALUES: usize = 10;

/// The database and the history.
#[derive(Debug)]
pub struct Storage {
    /// The database.
    pub store: Store,
    /// Its directory.
    pub state_directory: PathBuf,
    /// The history and its directory, if it is kept.
    pub history: Option<(Arc<History>, PathBuf)>,
    /// How many uids the history knew at the start, and the database had not given out.
    pub unknown_uids: u64,
}

impl Storage {
    /// Runs all checks of storage. `names_rows`: whether the caller may look at all that the database has.
    pub async fn checks(&self, names_rows: bool) -> Vec<HostCheck> {
        // The last failure before the check adds its own.
        let before = self.store.health();
        let outcome = self.store.check().await;
        let mut checks = vec![database_check(&outcome, &before, SystemTime::now())];
        checks.extend(reserve_check(self.store.owed().await));
        checks.extend(rows_check(&self.store.bad_values(), names_rows));
        checks.push(damage_check(&self.state_directory));
        checks.push(age_check(self.unknown_uids));
        let spool = self.history.as_ref().map(|(_, directory)| directory.as_path());
        checks.push(space_check(&self.state_directory, spool));
        if let Some((history, directory)) = &self.history {
            checks.push(history_check(history, directory));
        }
        checks
    }
}

fn database_check(outcome: &Result<(), StoreError>, before: &Health, now: SystemTime) -> HostCheck {
    let last = before.last_failure.as_ref().map(|failure| {
        let seconds = now.duration_since(failure.time).unwrap_or_default().as_secs();
        format!("the last failed change was {seconds} s ago: {}", failure.message)
    });
    match (outcome, last) {
        (Ok(()), None) => ok("database", "can be written and read"),
        (Ok(()), Some(last)) => ok("database", format!("can be written and read; {last}")),
        (Err(error), last) => {
            let fix = match error {
                StoreError::Database(error) => error.fault.fix(),
                StoreError::Corrupt { .. } => kprobed_control::store::Fault::Corrupt.fix(),
                _ => "",
            };
            let error = error.to_string();
            // That of the check itself says it already.
            let last = last.filter(|last| !last.ends_with(&error)).map(|last| format!("; {last}"));
            failed("database", format!("changes are refused: {error}{}", last.unwrap_or_default()), fix)
        }
    }
}

/// Whether probes can be disarmed on a full disk. Absent while nothing is to be said about that.
fn reserve_check((owed, has_reserve): (usize, bool)) -> Option<HostCheck> {
    const ID: &str = "database_reserve";
    if !has_reserve {
        return Some(warning(
            ID,
            "no room is kept for a full disk: a probe that is disarmed then comes back if the daemon is killed",
            "make room on the file system of the state directory: the daemon then makes `kprobed.reserve`",
        ));
    }
    (owed > 0).then(|| {
        let finding = format!(
            "{owed} changes and corrections are in `kprobed.reserve`, until the database can be written"
        );
        let fix = "mend the disk of the state directory: the daemon then writes them automatically";
        warning(ID, finding, fix)
    })
}

/// Values in the database that no daemon has written. Absent if there are none.
fn rows_check(bad: &[BadValue], names_rows: bool) -> Option<HostCheck> {
    if bad.is_empty() {
        return None;
    }
    let (values, fix) = if names_rows {
        let more = bad.len().saturating_sub(SHOWN_VALUES);
        let rest = (more > 0).then(|| format!("and {more} more"));
        let shown: Vec<_> = bad.iter().take(SHOWN_VALUES).map(ToString::to_string).chain(rest).collect();
        let fix = "look for the disk's errors in the kernel log (`dmesg`); each value says what it costs, and what brings that back";
        (shown.join("; "), fix)
    } else {
        let fix = "ask a principal that may look at all probes: the check then has the rows";
        (format!("{} of them", bad.len()), fix)
    };
    let finding = format!("the database has bad values, after a fault of the disk or memory: {values}");
    Some(failed("database_rows", finding, fix))
}

/// Whether the state directory has a damaged database that an operator must look at.
fn damage_check(directory: &Path) -> HostCheck {
    let named = |path: &PathBuf| format!("`{}`", path.display());
    match set_aside_in(directory) {
        Ok(aside) if aside.is_empty() => ok("database_damage", "no damaged database was set aside"),
        Ok(aside) => failed(
            "database_damage",
            format!(
                "a damaged database was set aside as {}: the daemon began with an empty one, and does not know the probes that it had",
                aside.iter().map(named).collect::<Vec<_>>().join(", ")
            ),
            "`sqlite3 FILE .recover` shows what can be read of it, and `kprobed.db.backup-*` are older copies; then move the file elsewhere or remove it, \
             with its `-wal` and `-shm`",
        ),
        Err(error) => failed(
            "database_damage",
            format!("cannot list `{}`: {error}", directory.display()),
            "make the directory, and restart the daemon",
        ),
    }
}

/// Whether the database was at least as new as the history when the daemon started.
fn age_check(unknown_uids: u64) -> HostCheck {
    if unknown_uids == 0 {
        return ok("database_age", "it knew all probes that the history knows when the daemon started");
    }
    failed(
        "database_age",
        format!(
            "when the daemon started, the history had events of up to {unknown_uids} probes that the database had never had: \
             it was removed or emptied, or is an older copy, and probes that clients were told of may be missing"
        ),
        "stop the daemon, put the newest copy of the database into its directory and start the daemon; or make the probes \
         again. Only principals that may observe without a condition get the events of the missing ones",
    )
}

/// Free space on the file systems of the state directory and of the history, which may be the same
/// one.
fn space_check(state: &Path, spool: Option<&Path>) -> HostCheck {
    let mut findings = Vec::new();
    let mut worst = CheckStatus::Ok;
    let (mut fix, mut seen) = ("", None);
    for directory in [Some(state), spool].into_iter().flatten() {
        match statvfs(directory) {
            Ok(found) if seen == Some(found.filesystem_id()) => {}
            Ok(found) => {
                seen = Some(found.filesystem_id());
                let (status, finding, advice) = space(directory, &found);
                findings.push(finding);
                if status > worst {
                    (worst, fix) = (status, advice);
                }
            }
            Err(error) => {
                findings.push(format!("cannot look at `{}`: {error}", directory.display()));
                (worst, fix) = (CheckStatus::Failed, "make the directory, and restart the daemon");
            }
        }
    }
    check("disk_space", worst, findings.join("; "), fix)
}

fn space(directory: &Path, found: &Statvfs) -> (CheckStatus, String, &'static str) {
    let bytes = found.blocks_available().saturating_mul(found.fragment_size());
    // A file system without a table of inodes reports 0.
    let inodes = (found.files() > 0).then(|| found.files_available());
    let directory = directory.display();
    if found.flags().contains(FsFlags::ST_RDONLY) {
        let finding = format!("the file system of `{directory}` is mounted read-only");
        return (CheckStatus::Failed, finding, "mount it read-write; `dmesg` says why it is not");
    }
    let free = match inodes {
        Some(inodes) => format!("`{directory}` has {} KiB and {inodes} inodes free", bytes >> 10),
        None => format!("`{directory}` has {} KiB free", bytes >> 10),
    };
    let room = "make room on that file system: the daemon then continues automatically";
    if bytes < FULL_BYTES || inodes.is_some_and(|inodes| inodes < FULL_INODES) {
        return (CheckStatus::Failed, format!("the disk is full: {free}"), room);
    }
    if bytes < LOW_BYTES {
        return (CheckStatus::Warning, format!("the disk is almost full: {free}"), room);
    }
    (CheckStatus::Ok, free, "")
}

fn history_check(history: &History, directory: &Path) -> HostCheck {
    let counts = history.counts();
    let not_stored = counts.not_stored;
    match counts.stats.last_error {
        Some(error) if counts.stats.failing => failed(
            "history",
            format!("events are not stored ({not_stored} until now): {error}"),
            "mend the disk of `spool.directory`: the daemon then continues automatically",
        ),
        _ if !counts.stats.damaged.is_empty() => warning(
            "history",
            format!("events are missing from `{}`: {}", directory.display(), counts.stats.damaged.join("; ")),
            "the daemon reports the gap to every reader until the file has expired; one that was set aside can be removed",
        ),
        _ => ok("history", format!("events are stored in `{}`, {not_stored} were not", directory.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use kprobed_control::store::{Failure, Fault};

    #[test]
    fn what_failed_last_is_said_with_its_time() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let check = database_check(&Ok(()), &Health::default(), now);
        assert_eq!((check.status(), check.finding.as_str()), (CheckStatus::Ok, "can be written and read"));
        let failure = Failure {
            time: now - Duration::from_secs(7),
            fault: Fault::Full,
            message: "cannot write the database `x`: its disk is full".to_owned(),
        };
        let health = Health { last_failure: Some(failure), failing: true };
        let check = database_check(&Ok(()), &health, now);
        assert_eq!(check.status(), CheckStatus::Ok, "it works now");
        assert!(check.finding.contains("7 s ago: cannot write the database `x`"), "{}", check.finding);
        let corrupt = StoreError::Corrupt { what: "page", value: "page 3 is never used".to_owned() };
        let check = database_check(&Err(corrupt), &health, now);
        assert_eq!(check.status(), CheckStatus::Failed);
        assert!(check.finding.contains("page 3 is never used") && !check.fix.is_empty(), "{check:?}");
    }

    #[test]
    fn a_database_that_was_set_aside_is_shown_until_it_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(damage_check(directory.path()).status(), CheckStatus::Ok);
        let aside = directory.path().join("kprobed.db.damaged-20260131T120000Z");
        for name in ["", "-wal", "-shm"] {
            std::fs::write(format!("{}{name}", aside.display()), "").unwrap();
        }
        let check = damage_check(directory.path());
        assert_eq!((check.id.as_str(), check.status()), ("database_damage", CheckStatus::Failed));
        assert!(check.finding.contains(&format!("set aside as `{}`: ", aside.display())), "{check:?}");
        std::fs::remove_file(&aside).unwrap();
        // The companions of a database alone have no data.
        assert_eq!(damage_check(directory.path()).status(), CheckStatus::Ok);
        assert_eq!(damage_check(Path::new("/nowhere")).status(), CheckStatus::Failed);
    }

    /// The name of a row can be that of a probe.
    #[test]
    fn rows_are_named_to_those_who_see_all() {
        let bad = BadValue {
            table: "probe",
            row: "`secret/one`".to_owned(),
            column: "labels",
            value: "`x`, no JSON".to_owned(),
            cost: "the probe has no labels",
        };
        let [shown, hidden] =
            [true, false].map(|names| rows_check(std::slice::from_ref(&bad), names).unwrap());
        assert!(shown.finding.contains("secret/one"), "{shown:?}");
        assert_eq!(
            hidden.finding,
            "the database has bad values, after a fault of the disk or memory: 1 of them"
        );
        assert_eq!(rows_check(&[], false), None);
    }

    #[test]
    fn a_history_that_knows_more_than_the_database_is_told() {
        assert_eq!(age_check(0).status(), CheckStatus::Ok);
        let check = age_check(200);
        assert_eq!((check.id.as_str(), check.status()), ("database_age", CheckStatus::Failed));
        assert!(check.finding.contains("up to 200 probes") && !check.fix.is_empty(), "{check:?}");
    }

    #[test]
    fn the_same_file_system_is_said_once() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("spool");
        std::fs::create_dir(&inner).unwrap();
        let check = space_check(directory.path(), Some(&inner));
        assert_eq!(check.id, "disk_space");
        assert_eq!(check.finding.matches(" free").count(), 1, "{check:?}");
        let check = space_check(directory.path(), Some(Path::new("/nowhere/spool")));
        assert_eq!(check.status(), CheckStatus::Failed);
        assert!(check.finding.contains("cannot look at `/nowhere/spool`"), "{check:?}");
    }
}
