//! The host check `exporters`: whether every exporter sends, and why not.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use nix::errno::Errno;

use super::{ExporterStatus, Phase};
use crate::health::{self, CheckStatus, HostCheck, NETWORK_HINT, network_is_closed};

/// The check of all exporters. Absent without exporters.
pub fn check(exporters: &[ExporterStatus], now: SystemTime) -> Option<HostCheck> {
    if exporters.is_empty() {
        return None;
    }
    let troubles: Vec<String> = exporters.iter().filter_map(|exporter| trouble(exporter, now)).collect();
    let (status, finding, fix) = if troubles.is_empty() {
        let names: Vec<&str> = exporters.iter().map(|exporter| exporter.name).collect();
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

/// What to do about a file of JSON Lines whose directory is missing, or is read-only for the daemon.
fn directory_fix(exporter: &ExporterStatus) -> Option<String> {
    let Phase::Failing { error, .. } = &exporter.phase else { return None };
    let directory = Path::new(&exporter.destination).parent().filter(|directory| directory.is_absolute())?;
    let shown = directory.display();
    if !directory.is_dir() {
        return Some(format!("`mkdir -m 0750 {shown}`: the exporter then continues automatically"));
    }
    let read_only = io::Error::from_raw_os_error(Errno::EROFS as i32).to_string();
    error.contains(&read_only).then(|| {
        format!(
            "the unit lets the daemon write to `/var/log/kprobed`, and not to `{shown}`: write there, or add \
             `ReadWritePaths={shown}` (`systemctl edit kprobed`), and restart the daemon"
        )
    })
}

/// Whether it cannot send, and its receiver is on the network: that of JSON Lines never is.
fn fails_on_the_network(exporter: &ExporterStatus) -> bool {
    exporter.name != "jsonl" && matches!(exporter.phase, Phase::Failing { .. })
}

fn trouble(exporter: &ExporterStatus, now: SystemTime) -> Option<String> {
    let ExporterStatus { name, destination, account, .. } = exporter;
    if let Phase::Failing { error, since, .. } = &exporter.phase {
        let seconds = now.duration_since(*since).unwrap_or_default().as_secs();
        let queued = exporter.queued.map_or_else(|| "events".to_owned(), |queued| format!("{queued} events"));
        return Some(format!("{name} has sent nothing for {seconds} s, and {queued} wait: {error}"));
    }
    if !exporter.place_error.is_empty() {
        return Some(format!("{name} cannot write down where it is: {}", exporter.place_error));
    }
    if account.terms.expired > 0 {
        let expired = account.terms.expired;
        return Some(format!(
            "{name} was too slow for the history: {expired} events expired before it had sent them"
        ));
    }
    let dropped = account.terms.dropped;
    (dropped > 0)
        .then(|| format!("`{destination}` has refused {dropped} events of {name}: {}", exporter.refusal))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::export::metrics::samples::figures;

    fn finding(exporter: ExporterStatus) -> (CheckStatus, String) {
        let check = check(&[exporter], SystemTime::UNIX_EPOCH + Duration::from_secs(100)).unwrap();
        assert_eq!(check.status() == CheckStatus::Ok, check.fix.is_empty());
        (check.status(), check.finding)
    }

    #[test]
    fn each_trouble_is_found() {
        assert_eq!(check(&[], SystemTime::UNIX_EPOCH), None);
        let mut good = figures(0).exporters.remove(0);
        good.account = super::super::Account::default();
        assert_eq!(finding(good.clone()), (CheckStatus::Ok, "all send what they should: jsonl".to_owned()));
        let mut bad = good.clone();
        bad.phase = Phase::Failing {
            error: "connect: refused".to_owned(),
            since: SystemTime::UNIX_EPOCH + Duration::from_secs(40),
            failures: 3,
            retry_time: SystemTime::UNIX_EPOCH,
        };
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
            file.phase = Phase::Failing {
                error,
                since: SystemTime::UNIX_EPOCH,
                failures: 1,
                retry_time: SystemTime::UNIX_EPOCH,
            };
            file.destination = destination;
            let check = check(std::slice::from_ref(&file), SystemTime::UNIX_EPOCH).unwrap();
            assert!(check.fix.starts_with(&fix), "{check:?}");
        }
        let mut bad = good.clone();
        bad.account.terms.expired = 5;
        assert!(finding(bad).1.contains("5 events expired"));
        let mut bad = good.clone();
        (bad.account.terms.dropped, bad.refusal) = (4, "too old".to_owned());
        assert!(finding(bad).1.ends_with("has refused 4 events of jsonl: too old"));
        let mut bad = good;
        bad.place_error = "disk full".to_owned();
        assert!(finding(bad).1.contains("disk full"));
    }
}
