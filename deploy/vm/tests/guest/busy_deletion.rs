//! Deleting probes under more load than can be read: other probes lose only what was overwritten
//! anyway.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{BufferLedger, GetLedgerResponse, ProbeLedger};
use kprobed_vm::machine::Command;
use kprobed_vm::progress;

use crate::Test;
use crate::daemon::{DaemonGuest, config};
use crate::effort;
use crate::fixture::{Fixture, Shared};

pub(crate) const TESTS: &[Test] = tests! {
    Rarely {
        deletions_pause_nothing,
    }
};

/// Probes on the function that is called, all of which record.
const PROBES: u64 = 6;

/// Processes that do nothing but call it, and come before others: the daemon has a small part of
/// the one CPU.
const CALLERS: u64 = 4;

/// Twice the share of others. With much more the grace periods of a deletion last until the buffers
/// have overflowed as a whole, and recording has to pause.
const NICE: i32 = -3;

/// Deletions.
fn rounds() -> u64 {
    effort::pick(1, 2)
}

/// Buffers that the callers fill within seconds, and not within the grace periods of a deletion: those
/// last some ticks, however fast the host is, while the calls are as fast as it is.
const CONFIG: &str = "[tracing]\nbuffer_kib = 32768\nbuffer_max_kib = 32768\n[spool]\nmax_mib = 32";

/// A guest with the probes and the callers.
fn busy(fixture: &Fixture) -> Result<Shared<'_>> {
    let guest = fixture.daemon_with(&config(CONFIG))?;
    for number in 0..PROBES {
        guest.add(&format!("p:stays{number} __x64_sys_getpgid number=+0x70(%di):u64 ip=%ip sp=%sp"))?;
    }
    for number in 0..CALLERS {
        let caller = Command::new("workload").args(["number", "2000000000"]);
        guest.machine.spawn(&format!("hits{number}"), &caller)?;
    }
    guest.shell(&format!("busybox renice -n {NICE} -p $(pidof workload)"))?;
    Ok(guest)
}

/// Makes a probe that is hit all the time and lets nothing through, and deletes it while the
/// buffers overflow. Its hits do not blur those of the others.
fn delete_one(guest: &DaemonGuest, round: u64) -> Result<()> {
    let definition = format!("p:goes{round} __x64_sys_getpgid number=+0x70(%di):u64");
    guest.record_filtered(&definition, "number == 0")?;
    let instance = guest.instance()?;
    // What the kernel counts, now and later.
    let overflows = format!(
        "overrun() {{ sed -n 's/^overrun: //p' {instance}/per_cpu/cpu0/stats; }}; before=$(overrun)
         for try in $(seq 300); do [ $(overrun) -gt $before ] && exit 0; sleep 0.1; done; exit 1"
    );
    guest.shell(&overflows).context("this is no overload")?;
    guest.delete(&format!("goes{round}"))?;
    ensure!(guest.instance()? != instance, "the probe was deleted in place\n{}", guest.log());
    Ok(())
}

fn of_buffers(ledger: &GetLedgerResponse, term: impl Fn(&BufferLedger) -> u64) -> u64 {
    ledger.buffers.iter().map(term).sum()
}

/// Ends the callers and draws up the ledger: everything is read.
fn ledger_at_rest(guest: &DaemonGuest) -> Result<GetLedgerResponse> {
    for number in 0..CALLERS {
        guest.machine.kill_process(&format!("hits{number}"))?;
    }
    let ledger = guest.ledger()?;
    ensure!(ledger.settled && ledger.probes.len() as u64 == PROBES, "{ledger:?}");
    ensure!(of_buffers(&ledger, |buffer| buffer.undecodable + buffer.resets) == 0, "{ledger:?}");
    Ok(ledger)
}

fn deletions_pause_nothing(fixture: &Fixture) -> Result<()> {
    let guest = busy(fixture)?;
    for round in 0..rounds() {
        delete_one(&guest, round)?;
    }
    let ledger = ledger_at_rest(&guest)?;
    let hits: u64 = ledger.probes.iter().map(|probe| probe.hits.context("no hits")).sum::<Result<_>>()?;
    let of_buffer =
        |buffer: &BufferLedger| buffer.read + buffer.overrun + buffer.commit_overrun + buffer.dropped_events;
    let recorded = of_buffers(&ledger, of_buffer);
    let overrun = of_buffers(&ledger, |buffer| buffer.overrun);
    progress::note(format_args!("{hits} hits, {overrun} of them overwritten, {} deletions", rounds()));
    let paused: u64 = ledger.probes.iter().map(|probe| probe.paused).sum();
    if fixture.is_older_than(6, 1) && paused > 0 {
        // The grace periods of 5.10 take seconds here, in which buffers of this size may overflow many
        // times. Then recording pauses, and every probe says how many of its hits that cost.
        let counted = |probe: &ProbeLedger| probe.paused > 0 && probe.not_read >= probe.paused;
        ensure!(ledger.probes.iter().all(counted), "{ledger:?}");
        return Ok(());
    }
    // Every hit of the probes that stayed was read, or overwritten: none was missed between two
    // instances, and none came from both.
    ensure!(hits == recorded && paused == 0, "{ledger:?}\n{}", guest.log());
    Ok(())
}
