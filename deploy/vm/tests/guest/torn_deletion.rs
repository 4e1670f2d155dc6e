//! A daemon that is killed during a hand-over to the second instance, or right after it began.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::machine::Command;
use kprobed_vm::{daemon, progress};

use crate::Test;
use crate::daemon::TRACEFS;
use crate::differential::Random;
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        a_kill_in_the_middle_leaves_one_instance,
        a_second_instance_of_a_killed_daemon_is_removed,
    }
};

/// What the others record meanwhile.
const NUMBERED: &str = "p:numbered __x64_sys_getpgid number=+0x70(%di):u64";

/// Kills, each at another moment.
fn kills() -> usize {
    effort::pick(1, 6)
}

/// An emulated daemon takes up to a second to delete a probe.
const LATEST_KILL_MS: usize = 1000;

/// Name of the background process.
const HITS: &str = "hits";

fn a_kill_in_the_middle_leaves_one_instance(fixture: &Fixture) -> Result<()> {
    let mut random = Random::of_theme("torn_deletion");
    let mut guest = fixture.new_daemon(daemon::DEFAULT_CONFIG)?;
    guest.add(NUMBERED)?;
    guest.machine.spawn(HITS, &Command::new("workload").args(["number", "2000000000"]))?;
    let mut gone = 0;
    for round in 0..kills() {
        guest.add(&format!("p:goes{round} __x64_sys_getpgid"))?;
        let mut deletion = guest.start_ctl(&format!("delete goes{round}"))?;
        let after = Duration::from_millis(random.below(LATEST_KILL_MS) as u64);
        thread::sleep(after);
        guest.kill()?;
        deletion.end()?;
        guest.restart(daemon::DEFAULT_CONFIG)?;
        let context = || format!("killed after {after:?}\n{}", guest.log());

        // Under load the daemon may be on its way to an instance with larger buffers.
        let is_alone = guest.until("one instance", || {
            let instances = guest.shell(&format!("ls {TRACEFS}/instances"))?;
            Ok(guest.instance()?.ends_with(&format!("/{}", instances.trim())))
        });
        is_alone.with_context(context)?;
        let own = guest.instance()?;
        ensure!(guest.shell(&format!("cat {own}/tracing_on"))?.trim() == "1", "{}", context());
        // What the probe had recorded until its end was read as what it is.
        let ledger = guest.ledger()?;
        ensure!(ledger.buffers.iter().all(|buffer| buffer.undecodable == 0), "{ledger:?} {}", context());
        // The probe is there as a whole, or gone as a whole.
        let known = guest.ctl_says(&format!("get goes{round}"))?.code == 0;
        let defined = guest.tracefs("kprobe_events")?.contains(&format!("kprobes/goes{round} "));
        ensure!(known == defined, "known: {known}, defined: {defined}, {}", context());
        gone += usize::from(!known);
        if known {
            guest.delete(&format!("goes{round}"))?;
        }
    }
    progress::note(format_args!("{gone} of {} probes were gone", kills()));
    guest.machine.kill_process(HITS)?;
    // A ledger is drawn up when all that is recorded is read: what is left of theirs does not come
    // with ours.
    guest.ledger()?;
    let recording = guest.record(|| guest.workload(&["number", "1000"]).map(drop))?;
    ensure!(
        recording.of("kprobes/numbered", "workload").count() == 1000 && recording.losses.is_empty(),
        "{} events, {:?}\n{}",
        recording.events.len(),
        recording.losses,
        guest.log()
    );
    Ok(())
}

fn a_second_instance_of_a_killed_daemon_is_removed(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.new_daemon(daemon::DEFAULT_CONFIG)?;
    guest.add(NUMBERED)?;
    guest.add("p:goes __x64_sys_getpgid")?;
    guest.delete("goes")?;
    let gone_over = guest.instance()?;
    ensure!(gone_over.ends_with("/kprobed-next"), "{gone_over}");
    // Whichever it was is found again.
    guest.kill_and_restart()?;
    ensure!(guest.instance()? == gone_over);
    // A new one that was only begun goes.
    guest.kill()?;
    guest.shell(&format!(
        "mkdir {TRACEFS}/instances/kprobed; echo 0 > {TRACEFS}/instances/kprobed/tracing_on"
    ))?;
    guest.restart(daemon::DEFAULT_CONFIG)?;
    ensure!(guest.instance()? == gone_over, "{}", guest.log());
    ensure!(guest.shell(&format!("ls {TRACEFS}/instances"))?.trim() == "kprobed-next");
    let recording = guest.record(|| guest.workload(&["number", "10"]).map(drop))?;
    ensure!(recording.of("kprobes/numbered", "workload").count() == 10, "{recording:?}");
    Ok(())
}
