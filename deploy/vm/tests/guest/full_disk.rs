//! A full disk: a change that cannot be stored is refused and undone, everything else continues,
//! and the daemon recovers when there is room. What only disarms a probe is done, and stays done.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::Error;
use kprobed_client::api::{CheckStatus, CreateProbeRequest, GetLedgerResponse, ProbeState, SpoolLedger};
use kprobed_client::event::{LossCause, StreamItem, StreamRequest};
use kprobed_vm::daemon;

use crate::Test;
use crate::daemon::{DaemonGuest, creation, deletion, refused};
use crate::differential::Random;
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        a_full_disk_loses_nothing,
    }
};

/// Events of the host: one is recorded, the other one is to be.
const RECORDED: &str = "sched/sched_process_fork";
const NOT_RECORDED: &str = "sched/sched_process_exit";

/// No other program calls `getsid`, and `di` of its registers is its argument.
const KEPT: &str = "p:kept __x64_sys_getsid n=+0x70(%di):s32";

/// No process has such an id.
const FIRST: &str = "1000000";

/// Events before the disk is full.
const BEFORE: u64 = 100;

/// How long the daemon may take to answer while the disk is full. It takes milliseconds; the guest
/// is emulated.
const SOON: Duration = Duration::from_secs(30);

/// The directory of the daemon on each file system, and how it is made.
const DISKS: [(&str, &str); 2] = [
    ("/tmp/state", "mkdir /tmp/state && mount -t tmpfs -o size=2m tmpfs /tmp/state"),
    // The disk of the guest has ext4.
    ("/var/lib/kprobed/state", "mkdir /var/lib/kprobed/state"),
];

/// With little effort on one of the file systems: the commit decides which.
fn a_full_disk_loses_nothing(fixture: &Fixture) -> Result<()> {
    let first = Random::of_theme("full_disk").below(DISKS.len());
    let mut disks = DISKS.iter().cycle().skip(first).take(effort::pick(1, DISKS.len()));
    disks.try_for_each(|(directory, prepare)| {
        loses_nothing(fixture, directory, prepare).with_context(|| *directory)
    })
}

fn loses_nothing(fixture: &Fixture, directory: &str, prepare: &str) -> Result<()> {
    let mut guest = fixture.own_daemon("full", daemon::DEFAULT_CONFIG)?;
    guest.stop()?;
    guest.shell(prepare)?;
    let config = daemon::DEFAULT_CONFIG.replace("/var/lib/kprobed", directory);
    guest.restart(&config)?;
    // Nothing in the directory is for others to read.
    let modes = guest.shell(&format!("cd {directory} && stat -c '%a %n' . kprobed.db kprobed.db-wal"))?;
    ensure!(modes == "700 .\n600 kprobed.db\n600 kprobed.db-wal\n", "{modes}");
    guest.add(KEPT)?;
    guest.wait_for(guest.client.set_filter("kept", "n > 5"))??;
    guest.wait_for(guest.client.change_labels("kept", label("tier", "1"), Vec::new()))??;
    guest.add("p:off vfs_statx")?;
    guest.wait_for(guest.client.set_enabled("off", false))??;
    guest.add(RECORDED)?;
    guest.workload(&["numbers", FIRST, &BEFORE.to_string()])?;
    // With an answer of the ledger they are in the files.
    let stored = guest.ledger()?.spool.context("no history")?;
    ensure!(stored.stored >= BEFORE && stored.in_memory == 0, "{stored:?}");
    let before = picture(&guest)?;
    let begin = SystemTime::now();

    guest.shell(&fill(directory))?;
    // The second round finds whatever the first one left.
    let mut outcomes = try_all(&guest, 1, false)?;
    outcomes.extend(try_all(&guest, 2, false)?);
    let refused: Vec<_> =
        outcomes.iter().filter(|outcome| outcome.ends_with(": RESOURCE_EXHAUSTED DATABASE_FULL")).collect();
    let as_before = picture(&guest)? == before;
    // The history has no room either: that is its own affair, and costs neither answers nor CPU
    // time.
    let history = full_history(&guest, begin)?;
    let checks = guest.wait_for(guest.client.host())??.checks;
    let failed: Vec<_> = checks.iter().filter(|check| check.status() == CheckStatus::Failed).collect();

    guest.shell(&format!("rm {directory}/filler*"))?;
    let healed = try_all(&guest, 3, true)?;
    let stored = stored_again(&guest, &history)?;
    let after = picture(&guest)?;
    guest.kill_and_restart()?;
    let restarted = picture(&guest)?;

    let report = format!(
        "full: {outcomes:#?}\nhistory while full: {history:?}\nfailed checks: {failed:#?}\nwith room: {healed:#?}\nbefore: {before:#?}\n\
         after: {after:#?}\nafter kill -9: {restarted:#?}\n{}",
        guest.log()
    );
    ensure!(refused.len() == outcomes.len(), "a change was acknowledged on a full disk\n{report}");
    ensure!(as_before, "a refused change has left something behind\n{report}");
    ensure!(healed.iter().all(|outcome| outcome.ends_with(": ok")), "it does not heal\n{report}");
    ensure!(restarted == after, "what was acknowledged is not what is there\n{report}");
    let ids: Vec<_> = failed.iter().map(|check| check.id.as_str()).collect();
    ensure!(ids.contains(&"database") && ids.contains(&"disk_space"), "{report}");
    history.check().context(report)?;
    ensure!(stored, "nothing is stored again");
    // The gap is reported with its count, and the events after it are there.
    let losses = not_stored(&guest)?;
    ensure!(losses > 0, "no gap is reported");
    disarms(&mut guest, directory)
}

/// What disarms a probe is done on a full disk too, and a daemon that is killed and started there does not arm the
/// probe again.
fn disarms(guest: &mut DaemonGuest, directory: &str) -> Result<()> {
    for probe in ["p:doomed vfs_statx", "p:quiet vfs_statx", "p:loud vfs_statx"] {
        guest.add(probe)?;
    }
    let mut tracer = guest.start_ctl("trace -q -n 1 'p:traced __x64_sys_getsid'")?;
    // It makes the probe, subscribes, and enables the probe then: that needs room too.
    guest.until("it traces", || {
        let mut probes = guest.probes()?.into_iter();
        Ok(probes.any(|probe| probe.name == "kprobes/traced" && probe.state() == ProbeState::Armed))
    })?;
    guest.shell(&fill(directory))?;
    let labelled = guest.wait_for(guest.client.change_labels("loud", label("full", "yes"), Vec::new()))?;
    guest.delete("doomed")?;
    guest.wait_for(guest.client.set_enabled("quiet", false))??;
    // The events before the end are shown; the last one ends it.
    let begun = Instant::now();
    while tracer.ended()?.is_none() {
        ensure!(begun.elapsed() < SOON, "the trace does not end: {}", tracer.printed()?);
        guest.workload(&["numbers", FIRST, "5"])?;
    }
    let traced = tracer.printed()?;
    // What the kernel has, and what clients see: of a daemon that goes on, that is killed and starts on the full disk,
    // and that is killed and starts when there is room.
    let look = |guest: &DaemonGuest, when: &str| -> Result<()> {
        let kernel = guest.tracefs("kprobe_events")?;
        let enabled = |event: &str| guest.in_instance(&format!("events/kprobes/{event}/enable"));
        let states = [guest.probe("quiet")?.state(), guest.probe("loud")?.state()];
        let listed: Vec<_> = guest.probes()?.into_iter().map(|probe| probe.name).collect();
        let seen = format!("{when}: {states:?} {listed:?}\n{kernel}\n{traced}\n{}", guest.log());
        ensure!(!kernel.contains("/doomed ") && !kernel.contains("/traced "), "{seen}");
        ensure!(!listed.iter().any(|name| name.ends_with("/doomed") || name.ends_with("/traced")), "{seen}");
        ensure!(states == [ProbeState::Disabled, ProbeState::Armed], "{seen}");
        ensure!(enabled("quiet")?.trim() == "0" && enabled("loud")?.trim() == "1", "{seen}");
        Ok(())
    };
    ensure!(refused(labelled)?.reason == "DATABASE_FULL", "the disk is not full");
    look(guest, "full")?;
    guest.kill_and_restart()?;
    look(guest, "killed, and started on the full disk")?;
    guest.shell(&format!("rm {directory}/filler*"))?;
    // With the next change that is stored, what waited is stored before it.
    guest.wait_for(guest.client.change_labels("loud", label("room", "yes"), Vec::new()))??;
    let audit = guest.shell("kprobectl audit -o json")?;
    for (change, probe) in
        [("delete", "kprobes/doomed"), ("delete", "kprobes/traced"), ("update", "kprobes/quiet")]
    {
        let (change, probe) = (format!("\"{change}\""), format!("\"{probe}\""));
        let entries = audit.lines().filter(|line| line.contains(&change) && line.contains(&probe)).count();
        ensure!(entries == 1, "{entries} entries of {change} {probe}:\n{audit}");
    }
    guest.kill_and_restart()?;
    look(guest, "killed, and started with room")
}

/// Takes every block: what was reserved and not used comes back with each `sync`.
fn fill(directory: &str) -> String {
    format!(
        "cd {directory} && {{ fallocate -l 90m filler 2>/dev/null; for i in 1 2 3; do \
         dd if=/dev/zero of=filler$i bs=64k 2>/dev/null; dd if=/dev/zero of=filler-$i bs=1k 2>/dev/null; sync; done; true; }}"
    )
}

/// All that must not change while changes are refused: what clients see, and what the kernel has.
#[derive(Debug, PartialEq, Eq)]
struct Picture {
    probes: Vec<String>,
    kernel: Vec<String>,
}

fn picture(guest: &DaemonGuest) -> Result<Picture> {
    let probes = guest.probes()?.into_iter().map(|probe| {
        let mut labels: Vec<_> = probe.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        labels.sort();
        format!(
            "{} {:?} filter `{}` labels {labels:?} {}",
            probe.name,
            probe.state(),
            probe.filter,
            probe.etag
        )
    });
    let kernel = guest.shell(&format!(
        "cd {} && cat /sys/kernel/tracing/kprobe_events && grep -H . events/kprobes/*/enable events/kprobes/*/filter \
         events/sched/sched_process_fork/enable events/sched/sched_process_exit/enable",
        guest.instance()?
    ))?;
    Ok(Picture { probes: probes.collect(), kernel: kernel.lines().map(str::to_owned).collect() })
}

fn label(key: &str, value: &str) -> HashMap<String, String> {
    HashMap::from([(key.to_owned(), value.to_owned())])
}

/// Tries every change that the database has to know of, and says what became of each. Those that disarm a probe are
/// done on a full disk too.
fn try_all(guest: &DaemonGuest, round: u32, with_disarming: bool) -> Result<Vec<String>> {
    fn outcome<T>(result: Result<T, Error>) -> String {
        match result {
            Ok(_) => "ok".to_owned(),
            Err(error) => error.rpc().map_or_else(
                || error.to_string(),
                |rpc| format!("{} {}", code_name(rpc.code as i32), rpc.reason),
            ),
        }
    }
    let client = &guest.client;
    let create = CreateProbeRequest { labels: label("new", ""), ..creation("p:new vfs_statx", "") };
    let record = creation(NOT_RECORDED, "");
    let relabel = client.change_labels("kept", label("tier", "2"), Vec::new());
    let mut outcomes = vec![("add", outcome(guest.wait_for(client.create_probe(create))?))];
    if with_disarming {
        outcomes.push(("disable", outcome(guest.wait_for(client.set_enabled("kept", false))?)));
    }
    outcomes.extend([
        ("enable", outcome(guest.wait_for(client.set_enabled("off", true))?)),
        ("filter", outcome(guest.wait_for(client.set_filter("kept", "n == 7"))?)),
        ("clear filter", outcome(guest.wait_for(client.set_filter("kept", ""))?)),
        ("label", outcome(guest.wait_for(relabel)?)),
        ("record", outcome(guest.wait_for(client.create_probe(record))?)),
    ]);
    if with_disarming {
        outcomes.push(("delete", outcome(guest.wait_for(client.delete_probe(deletion("off")))?)));
        outcomes.push(("leave", outcome(guest.wait_for(client.delete_probe(deletion(RECORDED)))?)));
    }
    Ok(outcomes.into_iter().map(|(name, outcome)| format!("{round} {name}: {outcome}")).collect())
}

fn code_name(code: i32) -> &'static str {
    match code {
        8 => "RESOURCE_EXHAUSTED",
        13 => "INTERNAL",
        _ => "another code",
    }
}

/// How the history behaves while it cannot store.
#[derive(Debug)]
struct FullHistory {
    ledger: Option<SpoolLedger>,
    observed: Option<usize>,
    busy_ticks: u64,
    elapsed: Duration,
}

fn full_history(guest: &DaemonGuest, begin: SystemTime) -> Result<FullHistory> {
    let soon = |guest: &DaemonGuest| -> Result<Option<GetLedgerResponse>> {
        let asked = guest
            .wait_for(async { tokio::time::timeout(SOON, guest.client.ledger()).await.ok().transpose() });
        Ok(asked??)
    };
    let started = Instant::now();
    let mut busy = 0;
    let mut first = None;
    let mut ledger;
    // It notices when it writes, which it does once a second. From then on it is watched for some
    // seconds.
    loop {
        guest.workload(&["numbers", FIRST, "5000"])?;
        ledger = soon(guest)?.and_then(|ledger| ledger.spool);
        let Some(spool) = &ledger else { break };
        if spool.not_stored > 0 && first.is_none() {
            first = Some(Instant::now());
            busy = spool_ticks(guest)?;
        }
        if first.is_some_and(|first| first.elapsed() > Duration::from_secs(5)) || started.elapsed() > 2 * SOON
        {
            break;
        }
    }
    let busy_ticks = spool_ticks(guest)?.saturating_sub(busy);
    let observed = guest.wait_for(async {
        let observe = async {
            let request = StreamRequest::new().since(begin - Duration::from_mins(1)).until_now();
            let mut stream = guest.client.stream_events(request).await?;
            let mut events = 0;
            while let Some(item) = stream.next().await? {
                match item {
                    StreamItem::Batch(batch) => events += batch.len(),
                    StreamItem::CaughtUp(_) => break,
                    _ => {}
                }
            }
            Ok::<_, Error>(events)
        };
        tokio::time::timeout(SOON, observe).await.ok().transpose()
    })??;
    Ok(FullHistory { ledger, observed, busy_ticks, elapsed: first.unwrap_or(started).elapsed() })
}

impl FullHistory {
    fn check(&self) -> Result<()> {
        let ledger = self.ledger.as_ref().context("the ledger does not answer")?;
        ensure!(
            ledger.in_memory > 0 && ledger.not_stored > 0 && ledger.last_error.contains("No space left"),
            "{ledger:?}"
        );
        ensure!(ledger.read == ledger.stored + ledger.in_memory + ledger.not_stored, "{ledger:?}");
        let observed = self.observed.context("the past cannot be observed")?;
        // Whatever the ledger says is on the disk is shown.
        let observed = observed as u64;
        ensure!(
            observed >= BEFORE && observed >= ledger.available,
            "{observed} events are shown: {ledger:?}"
        );
        let elapsed_ticks = self.elapsed.as_millis() / 10;
        ensure!(u128::from(self.busy_ticks) * 5 < elapsed_ticks, "the thread that writes is busy");
        Ok(())
    }
}

/// CPU time of the thread that writes the history, in hundredths of a second.
fn spool_ticks(guest: &DaemonGuest) -> Result<u64> {
    let text = guest.shell(
        "for task in /proc/$(pidof kprobed)/task/*; do \
         [ $(cat $task/comm) = kprobed-spool ] && cut -d' ' -f14,15 $task/stat; done; true",
    )?;
    Ok(text.split_whitespace().map(str::parse::<u64>).sum::<Result<_, _>>()?)
}

/// Whether events are stored again, without anybody doing something about it.
fn stored_again(guest: &DaemonGuest, full: &FullHistory) -> Result<bool> {
    let Some(full) = &full.ledger else { return Ok(false) };
    // `kept` was switched off in the meantime.
    guest.wait_for(guest.client.set_enabled("kept", true))??;
    let started = Instant::now();
    while started.elapsed() < 4 * SOON {
        guest.workload(&["numbers", FIRST, "100"])?;
        if guest.ledger()?.spool.is_some_and(|spool| spool.stored > full.stored + full.in_memory + 100) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Events that the history says it has not stored.
fn not_stored(guest: &DaemonGuest) -> Result<u64> {
    let mut stream = guest.subscribe(StreamRequest::new().oldest().until_now())?;
    let mut events = 0;
    loop {
        match guest.next(&mut stream)? {
            StreamItem::Loss(loss) if loss.cause == LossCause::NotStored => {
                events += loss.count.unwrap_or_default();
            }
            StreamItem::CaughtUp(_) => return Ok(events),
            _ => {}
        }
    }
}
