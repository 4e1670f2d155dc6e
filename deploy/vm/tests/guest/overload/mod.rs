//! Overload: more than ten times what the daemon can read, and every event accounted for.
//!
//! Three processes hit three probes as fast as they can, through a ring buffer of 64 KiB, while the
//! daemon's readers have a low scheduling weight. Meanwhile eight subscribers of all kinds read,
//! and at random some of them are killed, probes come and go, labels and filters change, and once
//! the daemon is killed. Then everything stops, and all terms must add up: in the ledger, in the
//! kernel's own counters, in the counts of the callers, and in what each subscriber has counted
//! itself.
//!
//! `KPROBED_VM_SEED` repeats what happens, though not when; `KPROBED_VM_SOAK_MINUTES` repeats the
//! whole with new seeds for so many minutes.

mod account;
mod chaos;
mod scene;
mod subscriber;

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use account::Terms;
use anyhow::{Context as _, Result, ensure};
use chaos::Chaos;
use kprobed_client::api::LossCause;
use kprobed_vm::progress;
use scene::Scene;
use subscriber::Subscriber;

use crate::Test;
use crate::differential::random::{mix, seed_of_run};
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        the_ledger_closes_under_everything,
    }
};

/// How much more is produced than read, at least.
const OVERLOAD: u64 = 10;
/// Things that happen in one storm, at least.
fn steps_at_least() -> usize {
    effort::pick(8, 24)
}
/// How long a storm lasts, at least.
fn storm_at_least() -> Duration {
    Duration::from_secs(effort::pick(4, 12))
}

fn the_ledger_closes_under_everything(fixture: &Fixture) -> Result<()> {
    const MINUTES: &str = "KPROBED_VM_SOAK_MINUTES";
    let minutes = env::var(MINUTES).map_or(Ok(0), |text| text.parse::<u64>().context(MINUTES))?;
    let (mut scene, mut chaos) = (Scene::new(fixture)?, Chaos::new());
    let start = Instant::now();
    for number in 0_u64.. {
        // Named so that a run with this seed begins with this round.
        let seed = if number == 0 { seed_of_run().to_owned() } else { format!("{}+{number}", seed_of_run()) };
        round(&mut scene, &mut chaos, mix(&seed, "overload")).map_err(|error| {
            let (doing, daemon) = (&chaos.doing, scene.state_of_daemon());
            error.context(format!("KPROBED_VM_SEED={seed}, last step: {doing}; {daemon}"))
        })?;
        let memory =
            scene.guest.shell("grep -E 'VmHWM|VmRSS' /proc/$(pidof kprobed)/status | tr -s '\\n\\t' ' '")?;
        progress::note(format_args!(
            "round {}, KPROBED_VM_SEED={seed}, {:.0?}: {memory}",
            number + 1,
            start.elapsed()
        ));
        if start.elapsed() >= Duration::from_mins(minutes) {
            break;
        }
    }
    Ok(())
}

fn round(scene: &mut Scene, chaos: &mut Chaos, seed: u64) -> Result<()> {
    chaos.begin(seed, scene)?;
    let before = scene.settle()?;
    scene.subscribers.iter().for_each(Subscriber::calm);
    storm(scene, chaos, &before).context("in the storm")?;
    storm_with_death(scene, chaos).context("in the storm with the death of the daemon")?;
    overload(scene).context("in the overload without anything else")
}

/// A storm that the daemon survives.
fn storm(scene: &mut Scene, chaos: &mut Chaos, before: &Terms) -> Result<()> {
    scene.start_callers()?;
    let start = Instant::now();
    let mut steps = 0;
    while steps < steps_at_least() || start.elapsed() < storm_at_least() {
        chaos.step(scene)?;
        steps += 1;
    }
    let calls = scene.stop_callers()?;
    chaos.kill_observers(scene, 0)?;
    let after = scene.settle()?;
    scene.check(&after)?;
    for name in ["kprobes/hot", "kprobes/back"] {
        let (now, then) = (after.probe(name)?, before.probe(name)?);
        let executions = now.hits.unwrap_or(0) + now.nmissed - then.hits.unwrap_or(0) - then.nmissed;
        ensure!(executions == calls.all, "{calls:?}, {now:?} {then:?}");
    }
    let buffers = after.buffers().since(before.buffers());
    let produced = after.hits() + chaos.gone_hits - before.hits();
    let of_picky = |terms: &Terms| terms.probe("kprobes/picky").map(|picky| picky.hits.unwrap_or(0));
    let filtered_at_most = of_picky(&after)? - of_picky(before)?;
    // While a probe is deleted, recording pauses: buffers this small overflow before the daemon can
    // switch to others.
    let paused = after.paused() - before.paused();
    let unexplained = produced.checked_sub(buffers.all()).context("more was recorded than was hit")?;
    progress::note(format_args!(
        "{} calls, {produced} hits: {} read, {} overrun, {} commit overrun, {unexplained} held back by filters ({filtered_at_most} at most) or not \
         recorded during deletions ({paused}); {} times as many as were read; {steps} steps, {} probes deleted, {} clients killed",
        calls.all,
        buffers.read,
        buffers.overrun,
        buffers.commit_overrun,
        produced / buffers.read.max(1),
        chaos.deleted,
        chaos.killed,
    ));
    ensure!(
        unexplained <= filtered_at_most + paused,
        "of {unexplained} hits {filtered_at_most} can be filtered and {paused} were paused, {buffers:?}"
    );
    ensure!(produced >= OVERLOAD * buffers.read, "this is no overload: {produced} hits, {buffers:?}");
    Ok(())
}

/// A storm in the middle of which the daemon is killed.
fn storm_with_death(scene: &mut Scene, chaos: &mut Chaos) -> Result<()> {
    scene.start_callers()?;
    for step in 0..steps_at_least() {
        if step == steps_at_least() / 2 {
            chaos.doing = "kill the daemon";
            scene.kill_daemon()?;
        }
        chaos.step(scene)?;
    }
    scene.stop_callers()?;
    chaos.kill_observers(scene, 0)?;
    let after = scene.settle()?;
    scene.check(&after)
}

/// An overload without anything else: every term is known to the last event.
fn overload(scene: &mut Scene) -> Result<()> {
    scene.guest.wait_for(scene.guest.client.set_filter("picky", "n & 1"))??;
    let before = scene.settle()?;
    let told_before: Vec<_> = scene.subscribers.iter().map(Subscriber::counts).collect();
    scene.start_callers()?;
    thread::sleep(storm_at_least() / 3);
    let calls = scene.stop_callers()?;
    let after = scene.settle()?;
    scene.check(&after)?;
    let nmissed = |terms: &Terms| terms.probe("kprobes/picky").map(|picky| picky.nmissed);
    ensure!(nmissed(&after)? == nmissed(&before)?, "picky has missed some");
    let filtered = calls.all - calls.odd;
    let buffers = after.check_since(&before, filtered)?;
    for (subscriber, before) in scene.subscribers.iter().zip(told_before) {
        let counts = subscriber.counts();
        // Those that were disconnected and have come back were not there all the time.
        if counts.id == before.id {
            let told = counts.lost(LossCause::Overrun) - before.lost(LossCause::Overrun);
            ensure!(
                told == buffers.overrun && counts.uncounted == before.uncounted,
                "{} was told of {told} overruns: {buffers:?} {counts:?}",
                subscriber.kind.name
            );
        }
    }
    progress::note(format_args!(
        "{} calls, {} read, {} overrun, {} commit overrun, {filtered} filtered: exact",
        calls.all, buffers.read, buffers.overrun, buffers.commit_overrun
    ));
    Ok(())
}
