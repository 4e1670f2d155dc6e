//! Stored hit counts: exact across a kill of the daemon and a boot of the host. And a damaged
//! database.

use std::collections::BTreeSet;
use std::time::SystemTime;

use anyhow::{Result, ensure};
use kprobed_client::api::{CheckStatus, HitSeries, ListHitsRequest};
use kprobed_vm::daemon;

use crate::Test;
use crate::daemon::{DaemonGuest, config};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        hits_are_exact_across_a_kill_and_a_boot,
        a_damaged_database_is_set_aside,
    }
};

/// Samples every second. Minutes are rolled up to hours with the next one.
fn quick() -> String {
    let roll_up = "sample_interval_s = 1\nminute_retention_days = 0";
    config(roll_up)
}

/// Hits of a probe by the day, in all boots, until there are none that are not rolled up.
fn hits(guest: &DaemonGuest, probe: &str) -> Result<Vec<HitSeries>> {
    let request = ListHitsRequest {
        start_time: Some(SystemTime::UNIX_EPOCH.into()),
        step_seconds: 86_400,
        name_glob: probe.to_owned(),
        ..Default::default()
    };
    Ok(guest.wait_for(guest.client.hits_over_time(request))??.series)
}

fn total(series: &[HitSeries]) -> u64 {
    series.iter().flat_map(|series| &series.points).map(|point| point.hits).sum()
}

/// `getsid` is called by nothing else.
const PROBE: &str = "p:calls __x64_sys_getsid";

/// No process has such an id.
const FIRST: &str = "1000000";

fn hits_are_exact_across_a_kill_and_a_boot(fixture: &Fixture) -> Result<()> {
    let config = quick();
    let mut guest = fixture.own_daemon("profiles", &config)?;
    guest.add(PROBE)?;
    let mut expected = 0;
    let mut call = |guest: &DaemonGuest, times: u64| -> Result<u64> {
        guest.workload(&["numbers", FIRST, &times.to_string()])?;
        expected += times;
        Ok(expected)
    };
    let check = |guest: &DaemonGuest, expected: u64| -> Result<Vec<HitSeries>> {
        let found = hits(guest, "kprobes/calls")?;
        ensure!(total(&found) == expected, "{expected} calls, and {found:?}\n{}", guest.log());
        Ok(found)
    };
    let now = call(&guest, 300)?;
    check(&guest, now)?;
    // The kernel counts on while there is no daemon.
    guest.kill()?;
    call(&guest, 70)?;
    guest.restart(&config)?;
    let now = call(&guest, 30)?;
    check(&guest, now)?;
    // The event is defined anew, and the counter of the kernel begins at zero.
    guest.stop_and_restart()?;
    let now = call(&guest, 500)?;
    let found = check(&guest, now)?;
    ensure!(found.len() == 1, "one boot: {found:?}");
    // Whatever was rolled up until now stays with the power cut: the answer before it was stored.
    guest.machine.power_cut();
    let guest = DaemonGuest::boot(fixture, &fixture.disk_name("profiles"), &config)?;
    let now = call(&guest, 11)?;
    let found = check(&guest, now)?;
    let boots: BTreeSet<_> = found.iter().map(|series| series.boot_id.as_str()).collect();
    let kernels: BTreeSet<_> = found.iter().map(|series| series.kernel_release.as_str()).collect();
    ensure!(boots.len() == 2 && kernels.len() == 1, "{found:?}");
    let release = guest.shell("uname -r")?;
    ensure!(kernels.contains(release.trim()), "{kernels:?} {release}");
    // Some of it has been rolled up: the answer is by the hour at least.
    let request = ListHitsRequest {
        start_time: Some(SystemTime::UNIX_EPOCH.into()),
        step_seconds: 86_400 / 2,
        ..Default::default()
    };
    let page = guest.wait_for(guest.client.hits_over_time(request))??;
    ensure!(page.step_seconds == 43_200, "{page:?}");
    let recent =
        ListHitsRequest { start_time: found[0].points[0].start_time, step_seconds: 1, ..Default::default() };
    let fine = guest.wait_for(guest.client.hits_over_time(recent))??;
    ensure!(fine.step_seconds == 3600 && total(&fine.series) == now, "{fine:?}");
    // Every second of a point that is known was watched, and rates are of those.
    for point in found.iter().flat_map(|series| &series.points) {
        let rate = point.hits_per_second;
        let known = point.covered_seconds > 0;
        ensure!(rate.is_some() == known, "{point:?}");
    }
    let shown = guest.ctl("hits calls --since 1d --step 1h")?
        + &guest.ctl("hits calls --since 1d --step 1h -o csv")?;
    ensure!(
        shown.contains("HITS/s") && shown.contains("kprobes/calls") && shown.contains("probe,probe_uid"),
        "{shown}"
    );
    Ok(())
}

fn a_damaged_database_is_set_aside(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon()?;
    guest.add(PROBE)?;
    // What the database knew of stays in the kernel: from now on it is another program's.
    guest.lose_database("yes nonsense | head -c 4096 | dd of=kprobed.db conv=notrunc 2>/dev/null && rm kprobed.db-wal kprobed.db-shm")?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    ensure!(guest.log().contains("the database is damaged: it was set aside"), "{}", guest.log());
    ensure!(guest.probes()?.is_empty() && guest.tracefs("kprobe_events")?.contains("kprobes/calls"));
    let check = |guest: &DaemonGuest| -> Result<(CheckStatus, String)> {
        let check = guest.host_check("database_damage")?;
        Ok((check.status(), check.finding))
    };
    let (status, finding) = check(&guest)?;
    ensure!(
        status == CheckStatus::Failed && finding.contains("/var/lib/kprobed/kprobed.db.damaged-"),
        "{finding}"
    );
    let modes = guest.shell(
        "cd /var/lib/kprobed && stat -c %a . kprobed.db kprobed.db-wal kprobed.db.damaged-* | sort | uniq -c",
    )?;
    ensure!(modes.split_whitespace().eq(["3", "600", "1", "700"]), "{modes}");
    let refused = guest.refusal(PROBE)?;
    ensure!(!refused.reason.is_empty() && refused.message.contains("kprobes/calls"), "{refused:?}");
    // The daemon works, survives, and goes on saying it until an operator has seen it.
    let made = guest.add("p:new vfs_read")?;
    guest.kill_and_restart()?;
    ensure!(guest.probes()?.iter().map(|probe| probe.uid).eq([made.uid]));
    ensure!(check(&guest)?.0 == CheckStatus::Failed);
    ensure!(guest.ctl_says("doctor")?.all().contains("kprobed.db.damaged-"));
    guest.shell("rm /var/lib/kprobed/kprobed.db.damaged-*")?;
    ensure!(check(&guest)?.0 == CheckStatus::Ok);
    Ok(())
}
