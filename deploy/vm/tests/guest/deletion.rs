//! Deleting probes while others record: every hit of the others arrives, once and in order.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_client::api::{CreateProbeRequest, Delivery};
use kprobed_client::event::{
    Batch, LossCause, PauseReason, RecordingPause, StreamItem, StreamRequest, Value,
};
use kprobed_vm::machine::{Command, Signal};
use kprobed_vm::{daemon, progress};

use crate::Test;
use crate::daemon::{DaemonGuest, TRACEFS, config, creation, deletion};
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        a_group_is_deleted_at_once,
    }
    Seldom {
        sub_buffers_have_the_configured_size,
        without_a_second_instance_the_loss_is_counted,
        deletions_lose_nothing_of_others,
    }
};

/// How often a probe is made and deleted again.
fn rounds() -> u32 {
    effort::pick(3, 30)
}

/// Room for what comes while an emulated daemon does something else.
const CONFIG: &str = "[tracing]\nbuffer_kib = 16384\nbuffer_max_kib = 16384\n[spool]\nmax_mib = 32";

/// Name of the background process.
const HITS: &str = "hits";

/// Two records of the same numbered calls: a probe, and one of an event of the host.
const RECORDS: [(&str, &str); 2] = [("kprobes/numbered", "number"), ("syscalls/sys_enter_getpgid", "pid")];

/// The numbers of one task in one record.
#[derive(Debug, Default)]
struct Numbers {
    /// The last one.
    last: u64,
    mistakes: Vec<String>,
}

/// Everything that a stream delivered.
#[derive(Debug, Default)]
struct Seen {
    delivered: u64,
    losses: Vec<String>,
    /// By record and thread.
    numbers: HashMap<(usize, i32), Numbers>,
}

impl Seen {
    fn take(&mut self, item: &StreamItem) {
        match item {
            StreamItem::Batch(batch) => self.take_batch(batch),
            StreamItem::Loss(loss) => self.losses.push(format!("{loss:?}")),
            _ => {}
        }
    }

    fn take_batch(&mut self, batch: &Batch) {
        self.delivered += batch.len() as u64;
        for row in batch.rows() {
            let Some(record) = RECORDS.iter().position(|(probe, _)| *probe == row.probe()) else { continue };
            let numbers = self.numbers.entry((record, row.tid().unwrap_or_default())).or_default();
            let number = match row.field(RECORDS[record].1) {
                Some(Value::Unsigned { value, .. }) => Some(value),
                Some(Value::Signed { value, .. }) => u64::try_from(value).ok(),
                _ => None,
            };
            // The first is 1.
            if number != Some(numbers.last + 1) && numbers.mistakes.len() < 10 {
                numbers.mistakes.push(format!("{number:?} after {}", numbers.last));
            }
            numbers.last = number.unwrap_or(numbers.last);
        }
    }

    /// The task with the most numbers in a record: others call it seldom, if at all.
    fn workload(&self, record: usize) -> Option<&Numbers> {
        let of_it = self.numbers.iter().filter(|((of, _), _)| *of == record);
        of_it.map(|(_, numbers)| numbers).max_by_key(|numbers| numbers.last)
    }
}

fn definition(event: &str) -> CreateProbeRequest {
    creation(&format!("p:{event} __x64_sys_getpgid number=+0x70(%di):u64"), "")
}

fn end_of_hits(guest: &DaemonGuest) -> Result<()> {
    guest.machine.signal(HITS, Signal::SIGTERM)?;
    let status = guest.machine.wait(HITS, Duration::from_secs(30))?;
    ensure!(status.is_signal(Signal::SIGTERM), "{status:?}");
    Ok(())
}

fn deletions_lose_nothing_of_others(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config(CONFIG))?;
    guest.add("p:numbered __x64_sys_getpgid number=+0x70(%di):u64")?;
    guest.add("syscalls/sys_enter_getpgid")?;
    let queue = Delivery { queue_events: 50_000_000, queue_bytes: 128 << 20, ..Delivery::default() };
    let request = StreamRequest::new().delivery(queue);
    let mut stream = guest.subscribe(request)?;
    let id = guest.started(&mut stream)?;
    // A stream has the events of each CPU in order: of two CPUs, the numbers of one task would not be.
    guest.machine.spawn(HITS, &Command::shell("exec taskset 1 workload number 2000000000"))?;
    let mut seen = Seen::default();
    let mut instances = vec![guest.instance()?];
    for _ in 0..rounds() {
        let delivered = seen.delivered;
        guest.wait_for(async {
            let round = async {
                guest.client.create_probe(definition("goes")).await?;
                guest.client.delete_probe(deletion("goes")).await.map(drop)
            };
            tokio::pin!(round);
            loop {
                tokio::select! {
                    outcome = &mut round => break outcome.map_err(anyhow::Error::from),
                    item = stream.next() => seen.take(&item?.context("the stream has ended")?),
                }
            }
        })??;
        let now = guest.instance()?;
        ensure!(instances.last() != Some(&now), "the probe was deleted in place: {now}\n{}", guest.log());
        instances.push(now);
        ensure!(seen.delivered > delivered, "nothing was hit in a round");
    }
    end_of_hits(&guest)?;
    let ledger = guest.ledger()?;
    let ours = ledger.subscribers.iter().find(|one| one.subscriber_id == id).context("no ledger")?;
    while seen.delivered < ours.delivered + ours.queued {
        seen.take(&guest.next(&mut stream)?);
    }
    let few = &seen.losses[..seen.losses.len().min(5)];
    ensure!(few.is_empty(), "{} losses, such as {few:?}\n{}", seen.losses.len(), guest.log());
    let by_probe = seen.workload(0).context("no hits")?;
    let of_host = seen.workload(1).context("no events of the host")?;
    let mistakes = (&by_probe.mistakes, &of_host.mistakes);
    ensure!(
        mistakes.0.is_empty() && mistakes.1.is_empty(),
        "of the probe and the event: {mistakes:?}\n{}",
        guest.log()
    );
    ensure!(by_probe.last == of_host.last && by_probe.last > 10_000, "{by_probe:?} {of_host:?}");
    let numbered = ledger.probes.iter().find(|probe| probe.probe == "kprobes/numbered").context("gone")?;
    ensure!(ledger.settled && numbered.not_read == 0 && numbered.paused == 0, "{numbered:?}");
    progress::note(format_args!("{} numbered calls, {} deletions", by_probe.last, rounds()));
    Ok(())
}

fn a_group_is_deleted_at_once(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:numbered __x64_sys_getpgid number=+0x70(%di):u64")?;
    for number in 0..5 {
        guest.add(&format!("p:many/goes{number} __x64_sys_getpgid"))?;
    }
    let before = guest.instance()?;
    let recording = guest.record(|| {
        guest.workload(&["number", "100"])?;
        let deletions = (0..5).map(|number| deletion(&format!("many/goes{number}"))).collect();
        let outcomes = guest.wait_for(guest.client.delete_probes(deletions))??;
        ensure!(outcomes.len() == 5 && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        guest.workload(&["number", "100"]).map(drop)
    })?;
    ensure!(recording.of("kprobes/numbered", "workload").count() == 200);
    ensure!(recording.of("many/goes3", "workload").count() == 100);
    // Once there and not back: an even number of changes would be the same instance again.
    ensure!(guest.instance()? != before && recording.losses.is_empty(), "{recording:?}");

    // So it is for some that have nothing in common but the request.
    ["one", "two", "three"]
        .iter()
        .try_for_each(|name| guest.add(&format!("p:{name} __x64_sys_getpgid")).map(drop))?;
    let recording = guest.record(|| {
        let deletions = ["one", "missing", "three"].map(deletion);
        let outcomes = guest.wait_for(guest.client.delete_probes(deletions.to_vec()))??;
        let deleted: Vec<_> = outcomes.iter().map(Result::is_ok).collect();
        ensure!(deleted == [true, false, true], "{outcomes:?}");
        guest.workload(&["number", "100"]).map(drop)
    })?;
    for probe in ["kprobes/numbered", "kprobes/two"] {
        ensure!(recording.of(probe, "workload").count() == 100, "{recording:?}");
    }
    ensure!(guest.instance()? == before && recording.losses.is_empty(), "{recording:?}");
    Ok(())
}

fn without_a_second_instance_the_loss_is_counted(fixture: &Fixture) -> Result<()> {
    let mut guest = fixture.new_daemon(daemon::DEFAULT_CONFIG)?;
    guest.add("p:numbered __x64_sys_getpgid number=+0x70(%di):u64")?;
    // Another program uses the second name, and keeps it.
    let taken = format!("{TRACEFS}/instances/kprobed-next");
    let script = format!("mkdir {taken}; exec sleep 1000 < {taken}/per_cpu/cpu0/trace_pipe_raw");
    guest.machine.spawn("taker", &Command::shell(&script))?;
    guest.shell(&format!("until [ -d {taken} ]; do sleep 0.1; done; until ls -l /proc/[0-9]*/fd 2>/dev/null | grep -q kprobed-next; do sleep 0.1; done"))?;
    guest.machine.spawn(HITS, &Command::new("workload").args(["number", "2000000000"]))?;
    // It gives way to the daemon, so that hardly anything is hit between a pause and its readings
    // of the kernel's count. 7.2 would not run it at all then.
    let nice = if fixture.is_older_than(7, 0) { 19 } else { 5 };
    guest.shell(&format!("busybox renice -n {nice} -p $(pidof workload)"))?;
    guest.shell(&format!(
        "until grep -qE ' numbered +[0-9]{{4}}' {TRACEFS}/kprobe_profile; do sleep 0.1; done"
    ))?;
    // A pause can be so short that nothing is hit in it.
    for _ in 0..5 {
        guest.add("p:goes __x64_sys_getpgid")?;
        guest.delete("goes")?;
        if guest.ledger_of("kprobes/numbered")?.paused > 0 {
            break;
        }
    }
    end_of_hits(&guest)?;
    // While it is hit, hits are counted before what was recorded since is read.
    let ledger = guest.ledger_of("kprobes/numbered")?;
    ensure!(guest.instance()?.ends_with("/kprobed"), "{}", guest.log());
    let not_told = ledger.not_read.abs_diff(ledger.paused);
    progress::note(format_args!("{} hits in the pause, {not_told} around it", ledger.paused));
    // How much it is depends on when the emulated CPU changes hands: a tenth, on a busy machine.
    // A deletion waits for nothing on 5.10: hardly anything is hit in the pause, and as much around it.
    let is_told = ledger.paused > 0 && not_told * 4 <= ledger.paused;
    ensure!(is_told || fixture.is_older_than(6, 1), "{ledger:?}");
    // Subscribers get a gap with its cause and its count.
    let told = pauses(&guest)?;
    let mut hits = 0;
    for pause in &told {
        let RecordingPause { reason: PauseReason::Deletion, duration, hits: Some(cost) } = *pause else {
            bail!("{told:?}\n{}", guest.log())
        };
        ensure!(duration > Duration::ZERO, "{told:?}");
        hits += cost;
    }
    ensure!(!told.is_empty() && hits == ledger.paused, "{told:?} {ledger:?}");
    baselines_of_busy_probes_blame_nobody(&mut guest)?;
    guest.machine.kill_process("taker")
}

/// Probes of another program. With them the kernel's list of hits is so long that the emulated CPU
/// switches tasks while it is read: there is hardly ever a reading during which nothing is hit.
const CROWD: u32 = 1500;

/// So often the daemon is started, until the readings of one start were all disturbed.
const STARTS: usize = 5;

/// A daemon that starts among busy probes pauses them to take its baseline, and says so: in the
/// history, to people, and in its log.
fn baselines_of_busy_probes_blame_nobody(guest: &mut DaemonGuest) -> Result<()> {
    // One that only the daemon itself hits is not busy.
    guest.add("p:opens do_sys_openat2")?;
    let before = pauses(guest)?.len();
    let (mut told, mut log) = (Vec::new(), String::new());
    for start in 0..STARTS {
        guest.stop()?;
        if start == 0 {
            // In parts, each with a limit of its own: the older the kernel, the longer it takes for one beside many.
            for first in (1..=CROWD).step_by(300) {
                let last = first + 299;
                guest.shell(&format!(
                    "for n in $(seq {first} {last}); do echo p:crowd/n$n vfs_statx; done > /tmp/crowd && cat /tmp/crowd >> {TRACEFS}/kprobe_events"
                ))?;
            }
        }
        guest.machine.spawn(HITS, &Command::new("workload").args(["number", "2000000000"]))?;
        guest.restart(daemon::DEFAULT_CONFIG)?;
        end_of_hits(guest)?;
        (told, log) = (pauses(guest)?, guest.log());
        if told.len() > before {
            break;
        }
    }
    let [RecordingPause { reason: PauseReason::Baseline, duration, hits: None }] = told[before..] else {
        bail!("{told:?}\n{log}")
    };
    ensure!(duration > Duration::ZERO && log.contains("paused recording"), "{told:?}\n{log}");
    let said = guest.ctl_says("observe --oldest --until-now")?;
    let lost = said.stderr.lines().filter(|line| line.starts_with("lost:"));
    let shown = lost.collect::<Vec<_>>().join("\n");
    progress::note(format_args!("{}", shown.lines().last().unwrap_or_default()));
    ensure!(shown.contains("to take the baseline of its ledger"), "{shown}");
    ensure!(!shown.contains("somebody") && !shown.contains("another program"), "{shown}");
    let ledger = guest.ledger_of("kprobes/numbered")?;
    ensure!(ledger.hits == Some(ledger.read) && ledger.own == Some(0), "{ledger:?}");
    Ok(())
}

/// The pauses in the history. Nothing else is missing in it.
fn pauses(guest: &DaemonGuest) -> Result<Vec<RecordingPause>> {
    guest.ledger()?;
    let mut stream = guest.subscribe(StreamRequest::new().oldest().until_now())?;
    let mut pauses = Vec::new();
    loop {
        match guest.next(&mut stream)? {
            StreamItem::Loss(loss) => match (loss.cause, loss.pause) {
                (LossCause::Paused, Some(pause)) => pauses.push(pause),
                // What overflows meanwhile has a cause of its own.
                (LossCause::Overrun, None) => {}
                _ => bail!("{loss:?}"),
            },
            StreamItem::CaughtUp(_) => return Ok(pauses),
            _ => {}
        }
    }
}

fn sub_buffers_have_the_configured_size(fixture: &Fixture) -> Result<()> {
    for (setting, bytes) in
        [("", 65536), ("[tracing]\nsub_buffer_kib = 16", 16384), ("[tracing]\nsub_buffer_kib = 0", 4096)]
    {
        let guest = fixture.daemon_with(&config(setting))?;
        let host = guest.wait_for(guest.client.host())??;
        let has_choice = guest.shell(&format!("ls {}", host.instance))?.contains("buffer_subbuf_size_kb");
        ensure!(host.sub_buffer_bytes == if has_choice { bytes } else { 4096 }, "{host:?}");
        guest.add("p:numbered __x64_sys_getpgid number=+0x70(%di):u64")?;
        let recording = guest.record(|| guest.workload(&["number", "8000"]).map(drop))?;
        ensure!(recording.of("kprobes/numbered", "workload").count() == 8000);
    }
    Ok(())
}
