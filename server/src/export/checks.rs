//! The host checks `exporters`, whether every exporter sends, and why not, and `export_filter`.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use kprobed_proto::v1::{ExporterLedger, ExporterState};
use nix::errno::Errno;

use crate::health::{self, CheckStatus, HostCheck, NETWORK_HINT, network_is_closed};
use kprobed_control::error::Error;

/// The check of all exporters. Absent without exporters.
pub fn check(exporters: &[ExporterLedger], now: SystemTime) -> Option<HostCheck> {
    if exporters.is_empty() {
        return None;
    }
    let troubles: Vec<String> = exporters.iter().filter_map(|exporter| trouble(exporter, now)).collect();
    let (status, finding, fix) = if troubles.is_empty() {
        let names: Vec<&str> = exporters.iter().map(|exporter| exporter.name.as_str()).collect();
        (CheckStatus::Ok, format!("all send what they should: {}", names.join(", ")), String::new())
    } else {
        let repair = "repair the receiver, or correct its section of the configuration; `kprobectl ledger` shows the account. Events wait in the history \
                   until it has no more room for them ([spool])";
        let fix = if let Some(fix) = exporters.iter().find_map(directory_fix) {
            fix
        } else if exporters.iter().any(fails_on_the_network) && network_is_closed() {
            NETWORK_HINT.to_owned()
        } else {
            repair.to_owned()
        };
        (CheckStatus::Warning, troubles.join("; "), fix)
    };
    Some(health::check("exporters", status, finding, fix))
}

/// The check of a filter that no selected probe can have: all events are left out, which the account calls not
/// selected.
pub fn filter_check(exporter: &str, why: &Error) -> HostCheck {
    let finding = format!("`export.{exporter}.filter` leaves out all events: {}", why.message);
    let fix = format!("correct the filter, and restart the daemon; {}", why.hint());
    health::check("export_filter", CheckStatus::Warning, finding, fix.trim_end_matches("; "))
}

/// What to do about a file of JSON Lines whose directory is missing, or is read-only for the daemon.
fn directory_fix(exporter: &ExporterLedger) -> Option<String> {
    if exporter.state() != ExporterState::Failing {
        return None;
    }
    let directory = Path::new(&exporter.destination).parent().filter(|directory| directory.is_absolute())?;
    let shown = directory.display();
    if !directory.is_dir() {
        return Some(format!("`mkdir -m 0750 {shown}`: the exporter then continues automatically"));
    }
    let read_only = io::Error::from_raw_os_error(Errno::EROFS as i32).to_string();
    exporter.error.contains(&read_only).then(|| {
        format!(
            "the unit lets the daemon write to `/var/log/kprobed`, and not to `{shown}`: write there, or add \
             `ReadWritePaths={shown}` (`systemctl edit kprobed`), and restart the daemon"
        )
    })
}

/// Whether it cannot send, and its receiver is on the network: that of JSON Lines never is.
fn fails_on_the_network(exporter: &ExporterLedger) -> bool {
    exporter.name != "jsonl" && exporter.state() == ExporterState::Failing
}

fn trouble(exporter: &ExporterLedger, now: SystemTime) -> Option<String> {
    let ExporterLedger { name, destination, error, expired, dropped, refusal, .. } = exporter;
    if exporter.state() == ExporterState::Failing {
        let since = exporter.failing_since.and_then(|since| SystemTime::try_from(since).ok());
        let seconds = since.and_then(|since| now.duration_since(since).ok()).unwrap_or_default().as_secs();
        let queued = exporter.queued.map_or_else(|| "events".to_owned(), |queued| format!("{queued} events"));
        return Some(format!("{name} has sent nothing for {seconds} s, and {queued} wait: {error}"));
    }
    if !exporter.place_error.is_empty() {
        return Some(format!("{name} cannot write down where it is: {}", exporter.place_error));
    }
    if *expired > 0 {
        return Some(format!(
            "{name} was too slow for the history: {expired} events expired before it had sent them"
        ));
    }
    (*dropped > 0).then(|| format!("`{destination}` has refused {dropped} events of {name}: {refusal}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::export::metrics::samples::figures;

    fn finding(exporter: ExporterLedger) -> (CheckStatus, String) {
        let check = check(&[exporter], SystemTime::UNIX_EPOCH + Duration::from_secs(100)).unwrap();
        assert_eq!(check.status() == CheckStatus::Ok, check.fix.is_empty());
        (check.status(), check.finding)
    }

    #[test]
    fn a_filter_that_fits_no_probe_is_named() {
        let why = Error::bad_argument("filter", "there is no field `n` in a/b".to_owned());
        let check = filter_check("jsonl", &why.clone().fix("there are `m`"));
        assert_eq!(
            check.finding,
            "`export.jsonl.filter` leaves out all events: there is no field `n` in a/b"
        );
        assert_eq!(check.fix, "correct the filter, and restart the daemon; there are `m`");
        assert_eq!(filter_check("jsonl", &why).fix, "correct the filter, and restart the daemon");
    }

    #[test]
    fn each_trouble_is_found() {
        assert_eq!(check(&[], SystemTime::UNIX_EPOCH), None);
        let good = figures(0).exporters.remove(0);
        assert_eq!(finding(good.clone()), (CheckStatus::Ok, "all send what they should: jsonl".to_owned()));
        let mut bad = good.clone();
        let failing = |exporter: &mut ExporterLedger, error: String, seconds| {
            exporter.set_state(ExporterState::Failing);
            exporter.error = error;
            exporter.failing_since = Some((SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).into());
        };
        failing(&mut bad, "connect: refused".to_owned(), 40);
        bad.queued = Some(7);
        let expected = "jsonl has sent nothing for 60 s, and 7 events wait: connect: refused";
        assert_eq!(finding(bad), (CheckStatus::Warning, expected.to_owned()));
        // A file that cannot be made says what is wrong with its directory.
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path().display();
        let mut file = good.clone();
        for (destination, errno, fix) in [
            (
                format!("{here}/absent/events.jsonl"),
                Errno::ENOENT,
                format!("`mkdir -m 0750 {here}/absent`: "),
            ),
            (format!("{here}/events.jsonl"), Errno::EROFS, "the unit lets the daemon write to ".to_owned()),
            (format!("{here}/events.jsonl"), Errno::ENOSPC, "repair the receiver".to_owned()),
        ] {
            let error = format!("open `{destination}`: {}", io::Error::from(errno));
            failing(&mut file, error, 0);
            file.destination = destination;
            let check = check(std::slice::from_ref(&file), SystemTime::UNIX_EPOCH).unwrap();
            assert!(check.fix.starts_with(&fix), "{check:?}");
        }
        let mut bad = good.clone();
        bad.expired = 5;
        assert!(finding(bad).1.contains("5 events expired"));
        let mut bad = good.clone();
        (bad.dropped, bad.refusal) = (4, "too old".to_owned());
        assert!(finding(bad).1.ends_with("has refused 4 events of jsonl: too old"));
        let mut bad = good;
        bad.place_error = "disk full".to_owned();
        assert!(finding(bad).1.contains("disk full"));
    }
}
