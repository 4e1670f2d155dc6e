//! The readers survive what other programs do to the daemon's instance and to the machine.

use std::collections::BTreeSet;
use std::iter;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::ProbeLedger;
use kprobed_client::event::{Batch, EventStream, LossCause, StreamItem, StreamRequest};
use kprobed_client::merge::{ClockOffset, Exchange};
use kprobed_vm::daemon;
use kprobed_vm::lab::GuestOptions;
use kprobed_vm::machine::Command;

use crate::Test;
use crate::daemon::{DaemonGuest, NUMBERS, Recording, TRACEFS};
use crate::fixture::{Fixture, programs};

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        sub_buffers_can_change_their_size,
        recording_can_be_switched_off_and_on,
        an_instance_in_use_can_not_be_removed,
    }
    Daemon {
        one_event_arrives_at_once,
        buffers_can_be_resized_under_load,
    }
    Seldom {
        cpus_come_and_go,
        an_instance_that_is_emptied_goes_on,
    }
};

const PROBE: &str = "p:calls __x64_sys_getppid";

fn calls(recording: &Recording) -> usize {
    recording.of("kprobes/calls", "workload").count()
}

/// Records 500 calls, and nothing is missing.
fn expect_all(guest: &DaemonGuest, after: &str) -> Result<()> {
    let recording = guest.record(|| guest.workload(&["getppid", "500"]).map(drop))?;
    let found = calls(&recording);
    ensure!(found == 500 && recording.losses.is_empty(), "after {after}: {found}, {:?}", recording.losses);
    Ok(())
}

fn buffers_can_be_resized_under_load(fixture: &Fixture) -> Result<()> {
    const CALLS: u64 = 100_000;
    let guest = fixture.daemon()?;
    guest.add(NUMBERS)?;
    let file = format!("{}/buffer_size_kb", guest.instance()?);
    let before = guest.shell(&format!("cat {file}"))?;
    let sizes = [9000, 10_000, 12_000, 16_000];
    let recording = guest.record(|| {
        let sizes = sizes.map(|kib| kib.to_string()).join(" ");
        guest.shell(&format!(
            "workload numbers 1 {CALLS} & for kib in {sizes}; do echo $kib > {file} || exit 1; done; wait $!"
        ))?;
        Ok(())
    })?;
    let ledger = guest.ledger_of("kprobes/numbers")?;
    // The kernel records nothing while it changes a size, and does not count what is hit meanwhile:
    // the ledger says how much is missing, and nothing about what became of it.
    let is_unknown = (ledger.own, ledger.filtered) == (None, None);
    ensure!(ledger.hits == Some(CALLS) && (is_unknown || ledger.not_read == 0), "{ledger:?}");
    ensure!(recording.losses.is_empty(), "{:?}", recording.losses);
    let numbers = recording.of("kprobes/numbers", "workload").map(|event| Ok(event.field("n").parse()?));
    let numbers: Vec<u64> = numbers.collect::<Result<_>>()?;
    ensure!(numbers.len() as u64 + ledger.not_read == CALLS, "{} were delivered: {ledger:?}", numbers.len());
    // Nothing else is missing: there is a gap for each new size at most, and what is between the
    // gaps is complete and in order.
    let ends = iter::once(0).chain(numbers.iter().copied()).chain([CALLS + 1]);
    let ends: Vec<_> = ends.collect();
    ensure!(ends.is_sorted(), "the order is lost");
    let gaps = ends.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    ensure!(gaps <= sizes.len(), "{gaps} gaps: {ledger:?}");
    let buffers = guest.ledger()?.buffers;
    ensure!(
        buffers.iter().all(|buffer| buffer.buffer_bytes >= 16_000 << 10),
        "the ledger knows: {buffers:?}"
    );
    guest.shell(&format!("echo {} > {file}", before.trim()))?;
    guest.add(PROBE)?;
    expect_all(&guest, "shrinking")
}

fn sub_buffers_can_change_their_size(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(PROBE)?;
    let file = format!("{}/buffer_subbuf_size_kb", guest.instance()?);
    let Some(before) =
        guest.shell(&format!("cat {file} 2>/dev/null || echo none"))?.trim().parse::<u32>().ok()
    else {
        // Kernels before 6.8 have no such file.
        ensure!(fixture.is_older_than(6, 8));
        return Ok(());
    };
    for kib in [4, 16, before] {
        guest.shell(&format!("echo {kib} > {file}"))?;
        // What the readers know of the old size shows with the first page of the new one.
        guest.record(|| guest.workload(&["getppid", "2000"]).map(drop))?;
        expect_all(&guest, &format!("sub-buffers of {kib} KiB"))?;
    }
    Ok(())
}

fn an_instance_that_is_emptied_goes_on(fixture: &Fixture) -> Result<()> {
    let guest = fixture.new_daemon(daemon::DEFAULT_CONFIG)?;
    guest.add(PROBE)?;
    expect_all(&guest, "the start")?;
    let file = format!("{}/trace", guest.instance()?);
    let recording = guest.record(|| {
        guest.shell(&format!("echo > {file}"))?;
        // Looks at the kernel's counters.
        guest.ledger()?;
        guest.workload(&["getppid", "10"]).map(drop)
    })?;
    let told = &recording.losses;
    ensure!(told.iter().any(|loss| loss.cause == LossCause::Reset), "{told:?}\n{}", guest.log());
    ensure!(calls(&recording) == 10, "{recording:?}");
    let ledger = guest.ledger()?;
    let resets: u64 = ledger.buffers.iter().map(|buffer| buffer.resets).sum();
    // The number of events in the buffer is not known, and no other term counts them.
    let blamed = |probe: &ProbeLedger| probe.lost.is_some() || probe.own.is_some();
    ensure!(resets > 0 && !ledger.probes.iter().any(blamed), "{ledger:?}");
    expect_all(&guest, "emptying")?;
    Ok(())
}

fn recording_can_be_switched_off_and_on(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(PROBE)?;
    let file = format!("{}/tracing_on", guest.instance()?);
    let recording = guest.record(|| {
        guest
            .shell(&format!("echo 0 > {file}; workload getppid 300; echo 1 > {file}; workload getppid 200"))
            .map(drop)
    })?;
    let ledger = guest.ledger_of("kprobes/calls")?;
    let off = |on: u8| guest.shell(&format!("echo {on} > {file}"));
    // The kernel counts hits that it does not record; a shell asks for its parent too.
    ensure!(calls(&recording) == 200 && (200..210).contains(&ledger.read), "{ledger:?}");
    ensure!(ledger.hits == Some(ledger.read + 300) && ledger.not_read == 300, "{ledger:?}");
    // Noticed when the ledger is read meanwhile: then the daemon's own hits are not known.
    off(0)?;
    let noticed = guest.ledger_of("kprobes/calls");
    off(1)?;
    let noticed = noticed?;
    ensure!(noticed.filtered.is_none() && noticed.own.is_none() && noticed.lost == Some(0), "{noticed:?}");
    ensure!(noticed.unexplained == Some(noticed.not_read), "{noticed:?}");
    expect_all(&guest, "switching")
}

fn an_instance_in_use_can_not_be_removed(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(PROBE)?;
    let directory = guest.instance()?;
    let answer = guest.shell(&format!("rmdir {directory} 2>&1 && echo gone || true"))?;
    ensure!(answer.contains("busy"), "{answer}");
    expect_all(&guest, "rmdir")
}

/// CPUs beyond the first are there and off, come, and go again; each of them is read all the same.
fn cpus_come_and_go(fixture: &Fixture) -> Result<()> {
    let lab = fixture.lab()?;
    let options = GuestOptions {
        files: programs()?.guest_files(),
        disk: Some(lab.disk(&fixture.disk_name("cpus"), true)?),
        forwards: vec![(0, daemon::PORT)],
        cpus_possible: 2,
        ..GuestOptions::new(fixture.kernel()?)
    };
    let guest = DaemonGuest::over(lab.boot(&options)?, daemon::DEFAULT_CONFIG)?;
    ensure!(guest.shell("cat /sys/devices/system/cpu/online")?.trim() == "0");
    guest.add(PROBE)?;
    // A reader looks for a CPU without a buffer twice a second, and sleeps in between.
    let sleeps = "s() { awk '/ctxt_switches/ { n += $2 } END { print n }' \
            $(dirname $(grep -l kprobed-read-0 /proc/$(pidof kprobed)/task/*/comm))/status; }; \
        b=$(s); sleep 2; echo $(($(s) - b))";
    let sleeps: u32 = guest.shell(sleeps)?.trim().parse()?;
    ensure!(sleeps < 20, "{sleeps} sleeps in 2 s");
    for round in 0..3 {
        let recording = guest.record(|| {
            guest
                .shell(
                    "echo 1 > /sys/devices/system/cpu/cpu1/online && taskset 2 workload getppid 400 \
                     && echo 0 > /sys/devices/system/cpu/cpu1/online && workload getppid 100",
                )
                .map(drop)
        })?;
        let found = calls(&recording);
        ensure!(
            found == 500 && recording.losses.is_empty(),
            "round {round}: {found}, {:?}\n{:?}\n{:?}",
            recording.losses,
            recording.events.iter().map(|event| &event.comm).collect::<BTreeSet<_>>(),
            guest.ledger()?
        );
    }
    let failed = guest.shell("grep -c 'cannot read events' /run/log/kprobed.log || true")?;
    ensure!(failed.trim() == "0", "{failed} reads failed:\n{}", guest.log());
    let buffers = guest.ledger()?.buffers;
    let read: Vec<_> = buffers.iter().map(|buffer| (buffer.cpu, buffer.read)).collect();
    ensure!(read.iter().any(|(cpu, read)| *cpu == 1 && *read >= 1200), "{read:?}");
    Ok(())
}

/// Time on this side, in nanoseconds since 1970.
fn now_ns() -> Result<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?)
}

/// How far the clock on this side is ahead of the trace clock in the guest.
fn clock_offset(guest: &DaemonGuest) -> Result<ClockOffset> {
    let exchanges = (0..5).map(|_| {
        let sent_ns = now_ns()?;
        let answer = guest.wait_for(guest.client.read_clock())??;
        let (received_ns, answered_ns) = (answer.received_ns, answer.sent_ns);
        Ok(Exchange { sent_ns, received_ns, answered_ns, arrived_ns: now_ns()? })
    });
    let exchanges = exchanges.collect::<Result<Vec<_>>>()?;
    ClockOffset::of("", &exchanges, 0, 0).context("a clock went backwards")
}

/// The next events, if they come.
fn next_batch(guest: &DaemonGuest, stream: &mut EventStream) -> Result<Batch> {
    let batch = async {
        loop {
            if let StreamItem::Batch(batch) = stream.next().await?.context("the stream has ended")? {
                return Ok::<_, anyhow::Error>(batch);
            }
        }
    };
    let limited = async { tokio::time::timeout(Duration::from_secs(20), batch).await };
    guest.wait_for(limited)?.context("no event has come")?
}

/// By itself a kernel wakes a reader only when half of a buffer is full, and a single event would
/// not arrive at all. Before 6.4 the file that changes this is one that the daemon may not write.
fn one_event_arrives_at_once(fixture: &Fixture) -> Result<()> {
    const EVENTS: usize = 20;
    let guest = fixture.daemon()?;
    ensure!(guest.in_instance("buffer_percent")?.trim() == "0");
    let mode = |directory: &str| guest.shell(&format!("stat -c '%a %u %g' {directory}/buffer_percent"));
    let (own, kernels) = (mode(&guest.instance()?)?, mode(TRACEFS)?);
    ensure!(own == kernels, "the mode is {own}, and was {kernels}");
    guest.add("p:single __x64_sys_getsid")?;
    let mut stream = guest.subscribe(StreamRequest::new().probe("kprobes/single"))?;
    let mut delays_ms = Vec::new();
    for number in 0..EVENTS {
        let offset = clock_offset(&guest)?;
        let name = format!("single-{number}");
        guest.machine.spawn(&name, &Command::new("workload").args(["numbers", "1", "1"]))?;
        let batch = next_batch(&guest, &mut stream).with_context(|| format!("of event {number}"))?;
        let arrived_ns = now_ns()?;
        let mut rows = batch.rows();
        let (Some(row), None) = (rows.next(), rows.next()) else { anyhow::bail!("{batch:?}") };
        let recorded_ns = i64::try_from(row.timestamp_ns())? + offset.trace_offset_ns;
        delays_ms.push((arrived_ns - recorded_ns) as f64 / 1e6);
        ensure!(guest.machine.wait(&name, Duration::from_mins(1))?.success());
    }
    delays_ms.sort_by(f64::total_cmp);
    let (least, median, most) = (delays_ms[0], delays_ms[EVENTS / 2], delays_ms[EVENTS - 1]);
    fixture.note(format_args!(
        "an event arrives after {least:.1} ms, {median:.1} ms in the median, {most:.1} ms at most"
    ));
    // Those that were not slowed down by this machine show what the daemon takes.
    ensure!(least < 100.0, "{delays_ms:?}");
    Ok(())
}
