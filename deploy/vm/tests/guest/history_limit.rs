//! Limits on what principals have in the history, with events of a real kernel: one that reaches its limit pushes out
//! no events of others, readers get a report of what is missing, and a restart forgets nothing.
//!
//! Root, on the socket, is not limited; the client of the tests comes over TCP from this host, and is.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::event::{LossCause, StreamItem, StreamRequest};

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        who_fills_the_history_leaves_room_to_others,
    }
};

/// Bytes that the client may have in the history.
const MOST: u64 = 60_000;

/// Calls of a function that no other program calls.
const CALLS: u64 = 60_000;

fn call(guest: &DaemonGuest, count: u64) -> Result<()> {
    guest.workload(&["numbers", "1000000", &count.to_string()]).map(drop)
}

/// The default configuration, with this limit for the client.
fn config(most: u64) -> String {
    let roles = [
        ("root", "uid:0", String::new()),
        ("guest", "loopback", format!("[role.limits]\nhistory_bytes = {most}\n")),
    ];
    let roles = roles.map(|(name, principal, limits)| {
        format!(
            "[[role]]\nname = \"{name}\"\nprincipals = [\"{principal}\"]\n[[role.allow]]\nmethods = [\"all\"]\n\
             reads = [\"all\"]\n{limits}"
        )
    });
    format!("{}{}", roles.concat(), kprobed_vm::daemon::DEFAULT_CONFIG)
}

/// What the client has in the history, as it can ask.
fn held(guest: &DaemonGuest) -> Result<u64> {
    let shown = guest.ctl("auth whoami")?;
    let row = shown.lines().find(|line| line.starts_with("history_bytes ")).context("no row")?;
    let held = row.split_whitespace().nth(1).context("no cell")?;
    held.parse().with_context(|| shown.clone())
}

/// What the history has: events of each probe, and how many are missing.
fn history(guest: &DaemonGuest, request: StreamRequest) -> Result<(BTreeMap<String, u64>, u64)> {
    guest.ledger()?;
    let mut stream = guest.subscribe(request.oldest().until_now())?;
    let (mut events, mut missing) = (BTreeMap::<String, u64>::new(), 0);
    loop {
        match guest.next(&mut stream)? {
            StreamItem::Batch(batch) => {
                for group in batch.groups() {
                    *events.entry(group.schema().probe().to_owned()).or_default() += group.rows() as u64;
                }
            }
            StreamItem::Loss(loss) => {
                ensure!(loss.cause == LossCause::HistoryLimit, "{loss:?}");
                missing += loss.count.context("an uncounted loss")?;
            }
            StreamItem::CaughtUp(_) => return Ok((events, missing)),
            _ => {}
        }
    }
}

fn of_probe(events: &BTreeMap<String, u64>, probe: &str) -> u64 {
    events.get(probe).copied().unwrap_or(0)
}

fn who_fills_the_history_leaves_room_to_others(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.new_daemon(&config(MOST))?;
    guest.shell("kprobectl add 'p:roots __x64_sys_getsid'")?;
    guest.add("p:mine __x64_sys_getsid")?;
    ensure!(held(&guest)? == 0);
    // Its streams get everything.
    let recording = guest.record(|| call(&guest, CALLS))?;
    for probe in ["kprobes/roots", "kprobes/mine"] {
        ensure!(recording.of(probe, "workload").count() as u64 == CALLS, "{probe}");
    }
    let (events, missing) = history(&guest, StreamRequest::new())?;
    let (roots, mine) = (of_probe(&events, "kprobes/roots"), of_probe(&events, "kprobes/mine"));
    ensure!(
        roots == CALLS && mine > 0 && missing > 0 && mine + missing == CALLS,
        "{events:?}, {missing} missing"
    );
    let (events, missing) = history(&guest, StreamRequest::new().probe("kprobes/roots"))?;
    ensure!(missing == 0 && events.values().sum::<u64>() == CALLS, "{events:?}, {missing} missing");
    // Every place that shows it agrees.
    let spool = guest.ledger()?.spool.context("no history is kept")?;
    ensure!(spool.over_limit == CALLS - mine && spool.not_stored == 0, "{spool:?}");
    ensure!(spool.read == spool.stored + spool.in_memory + spool.over_limit, "{spool:?}");
    guest.ctl("ledger")?;
    let before = held(&guest)?;
    ensure!((MOST / 2..=MOST).contains(&before), "{before} bytes");
    let why = " more do not fit: the limit `history_bytes` of role `guest`, line ";
    let log = guest.ctl("audit -o json")?;
    ensure!(log.lines().filter(|entry| entry.contains(why)).count() == 1, "{log}");
    ensure!(guest.log().contains(why), "{}", guest.log());
    let doctor = guest.ctl_says("doctor")?.stdout;
    ensure!(doctor.contains("were over a limit `history_bytes` of a role"), "{doctor}");

    // A daemon that was killed is succeeded by one that knows what its clients have.
    guest.kill()?;
    guest.restart(&config(MOST))?;
    ensure!(held(&guest)? == before, "{} instead of {before}", held(&guest)?);
    call(&guest, CALLS)?;
    let (events, missing) = history(&guest, StreamRequest::new())?;
    let (roots, after) = (of_probe(&events, "kprobes/roots"), of_probe(&events, "kprobes/mine"));
    ensure!(roots == 2 * CALLS && after + missing == 2 * CALLS, "{events:?}, {missing} missing");
    ensure!((before..=MOST).contains(&held(&guest)?), "{} bytes", held(&guest)?);
    // A higher limit needs no restart.
    guest.reload(&config(10 * MOST))?;
    call(&guest, 5)?;
    let (events, _) = history(&guest, StreamRequest::new())?;
    ensure!(of_probe(&events, "kprobes/mine") == after + 5, "{events:?}");
    let with_probe = held(&guest)?;
    ensure!(with_probe > before, "{with_probe} bytes");

    // Events of the host that it has attached count as well, also for a daemon that finds them attached.
    guest.delete("kprobes/mine")?;
    guest.ctl("attach sched/sched_process_fork")?;
    let grows = |guest: &DaemonGuest, than: u64| {
        guest.shell("true; true | true")?;
        guest.until("the events of its forks", || {
            history(guest, StreamRequest::new())?;
            Ok(held(guest)? > than)
        })
    };
    grows(&guest, with_probe)?;
    guest.stop()?;
    guest.restart(&config(10 * MOST))?;
    let attached = held(&guest)?;
    grows(&guest, attached)?;
    Ok(())
}
