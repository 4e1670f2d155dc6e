//! Ring buffers that are too small for the rate of events grow, and every loss is counted.

use anyhow::{Result, bail, ensure};
use kprobed_client::event::{LossCause, PauseReason, RecordingPause};

use crate::Test;
use crate::daemon::{self, DaemonGuest};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        buffers_grow_with_the_rate,
        fixed_buffers_stay,
    }
};

/// Four arguments: 52 bytes an event. Emulated machines make some ten thousands a second.
const PROBE: &str = "p:calls __x64_sys_getppid regs=%di flags=%flags stack=$stack ip=%ip";

const SMALL_KIB: u64 = 256;
const LARGE_KIB: u64 = 2048;

/// What the kernel may add for whole sub-buffers.
const ROUNDING_KIB: u64 = 256;

const CALLS: u64 = 100_000;
const ROUNDS: usize = 30;

fn config(most_kib: u64) -> String {
    daemon::config(&format!("[tracing]\nbuffer_kib = {SMALL_KIB}\nbuffer_max_kib = {most_kib}"))
}

fn buffer_kib(guest: &DaemonGuest) -> Result<u64> {
    Ok(guest.wait_for(guest.client.host())??.buffer_kib)
}

/// Calls as fast as it can, and compares what became of them with the reported losses: each call is
/// an event, an overrun, or was made in a pause. Only buffers that grow pause, when they overflow
/// so fast that the old ones lose events while the new ones already record.
fn call(guest: &DaemonGuest) -> Result<()> {
    let before = guest.ledger_of("kprobes/calls")?;
    let recording = guest.record(|| guest.workload(&["getppid", &CALLS.to_string()]).map(drop))?;
    let after = guest.ledger_of("kprobes/calls")?;
    let (mut overrun, mut paused) = (0, 0);
    for loss in &recording.losses {
        match (loss.cause, loss.pause) {
            (LossCause::Overrun, None) => overrun += loss.count.unwrap_or(0),
            (
                LossCause::Paused,
                Some(RecordingPause { reason: PauseReason::Resize, hits: Some(hits), .. }),
            ) => {
                paused += hits;
            }
            _ => bail!("{loss:?}"),
        }
    }
    ensure!(after.paused - before.paused == paused, "{paused} hits in pauses: {before:?} {after:?}");
    let of_workload = recording.of("kprobes/calls", "workload").count() as u64;
    let explained = of_workload + overrun + paused;
    // What is hit between a switch and the look at the kernel's count is not part of a pause; how
    // much that is, depends on who gets the CPU.
    let has_paused = recording.losses.iter().any(|loss| loss.cause == LossCause::Paused);
    ensure!(
        explained == CALLS || has_paused && explained < CALLS,
        "{of_workload} events, {overrun} overrun, {paused} in pauses: {:?}",
        recording.losses
    );
    ensure!(
        after.hits == before.hits.map(|hits| hits + CALLS) && after.read - before.read == of_workload,
        "{before:?} {after:?}"
    );
    Ok(())
}

fn buffers_grow_with_the_rate(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.daemon_with(&config(LARGE_KIB))?;
    guest.add(PROBE)?;
    let small_kib = buffer_kib(&guest)?;
    ensure!((SMALL_KIB..SMALL_KIB + ROUNDING_KIB).contains(&small_kib), "{small_kib} KiB");
    let mut grown_kib = small_kib;
    for _ in 0..ROUNDS {
        call(&guest)?;
        grown_kib = buffer_kib(&guest)?;
        if grown_kib > small_kib {
            break;
        }
    }
    ensure!(
        (2 * SMALL_KIB..LARGE_KIB + ROUNDING_KIB).contains(&grown_kib),
        "{grown_kib} KiB\n{}",
        guest.log()
    );
    call(&guest)?;
    let grown_kib = buffer_kib(&guest)?;

    // Who is killed finds what has grown as it was: making it smaller would empty it.
    guest.kill_and_restart()?;
    ensure!(buffer_kib(&guest)? == grown_kib, "{grown_kib} KiB before, {} after", buffer_kib(&guest)?);
    call(&guest)?;

    // What is larger than it may be is made as it is configured.
    guest.kill()?;
    guest.restart(&config(SMALL_KIB))?;
    ensure!(buffer_kib(&guest)? == small_kib, "{} KiB", buffer_kib(&guest)?);
    Ok(())
}

fn fixed_buffers_stay(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config(0))?;
    guest.add(PROBE)?;
    let before_kib = buffer_kib(&guest)?;
    for _ in 0..3 {
        call(&guest)?;
    }
    ensure!(buffer_kib(&guest)? == before_kib, "{} KiB", buffer_kib(&guest)?);
    let ledger = guest.ledger_of("kprobes/calls")?;
    ensure!(ledger.paused == 0, "{ledger:?}");
    Ok(())
}
