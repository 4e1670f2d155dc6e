//! Exporters send what clients see, while the daemon or the receiver is killed.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{ExporterLedger, ExporterState, GetLedgerResponse};
use kprobed_vm::machine::Command;
use kprobed_vm::{daemon, progress};
use serde_json::Value;

use crate::Test;
use crate::daemon::{DaemonGuest, FIRST, config, events, objects, wait};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        lines_are_what_clients_see,
        a_stuck_side_costs_nobody_else,
        figures_are_those_of_the_ledger,
    }
};

const FILE: &str = "/var/lib/kprobed/events.jsonl";

/// Numbers the events of a workload: no other program calls `getsid`.
const PROBE: &str = "p:numbers __x64_sys_getsid n=+0x70(%di):s32 regs=%di flags=%flags";

/// The only exporter, when it is as a test wants it.
pub(crate) fn exporter(
    guest: &DaemonGuest,
    wanted: impl Fn(&ExporterLedger) -> bool,
) -> Result<ExporterLedger> {
    let only = || -> Result<ExporterLedger> {
        let mut all = guest.ledger()?.exporters;
        ensure!(all.len() == 1, "{all:?}");
        Ok(all.remove(0))
    };
    let ask = || {
        let exporter = only()?;
        if let (Some(read), Some(queued)) = (exporter.read, exporter.queued) {
            let passed = exporter.acknowledged + exporter.dropped + exporter.expired + exporter.not_selected;
            ensure!(passed + queued == read, "{exporter:?}");
        }
        Ok(Some(exporter).filter(&wanted))
    };
    wait(Duration::from_mins(1), || format!("{:?}\n{}", only(), guest.log()), ask)
}

pub(crate) fn is_drained(exporter: &ExporterLedger) -> bool {
    exporter.state() == ExporterState::Running && exporter.queued == Some(0)
}

/// Events by their numbers, each of which may be there once, without keys that only one side knows.
pub(crate) fn by_number(text: &str, of_one_side: &[&str]) -> Result<BTreeMap<i64, Value>> {
    let mut by_number = BTreeMap::new();
    for mut event in events(text)? {
        let object = event.as_object_mut().context("no object")?;
        object.retain(|key, _| !of_one_side.contains(&key.as_str()));
        let number = event["fields"]["n"].as_i64().context("no number")?;
        ensure!(by_number.insert(number, event).is_none(), "{number} is there twice");
    }
    Ok(by_number)
}

/// Reports say how many events are before them, and every place of the log has its term.
fn check_reports(lines: &[Value]) -> Result<()> {
    let mut events = 0;
    for line in lines {
        match line["type"].as_str() {
            Some("event") => events += 1,
            Some("progress") => {
                let term = |name: &str| line[name].as_u64().with_context(|| format!("{line}"));
                ensure!(term("events")? == events, "{events} events before {line}");
                ensure!(term("read")? == events + term("not_selected")? + term("expired")?, "{line}");
                events = 0;
            }
            _ => {}
        }
    }
    ensure!(events == 0, "{events} events without a report behind them");
    Ok(())
}

/// Kills the daemon while its exporter sends the events of a workload, when it has sent a thousand beside those of
/// before, and has it send all that is left.
pub(crate) fn kill_while_it_sends(guest: &mut DaemonGuest, before: u64) -> Result<()> {
    let workload = Command::new("workload").args(["numbers", "2000000", "200000", "--pause-us", "200"]);
    guest.machine.spawn("numbers", &workload.args(["--until", "/tmp/enough"]))?;
    exporter(guest, |exporter| exporter.acknowledged > before + 1000)?;
    guest.kill_and_restart()?;
    exporter(guest, |exporter| exporter.acknowledged > 1000)?;
    guest.shell("touch /tmp/enough")?;
    ensure!(guest.machine.wait("numbers", Duration::from_mins(1))?.success());
    exporter(guest, is_drained).map(drop)
}

/// All that a client sees was sent, and that is more than so many events. What was sent a moment before the daemon was
/// killed need not be in the history.
pub(crate) fn compare(
    seen: &BTreeMap<i64, Value>,
    sent: &BTreeMap<i64, Value>,
    more_than: usize,
) -> Result<()> {
    for (number, event) in seen {
        let other = sent.get(number).with_context(|| format!("{number} was not sent"))?;
        ensure!(event == other, "a client sees {event}, and {other} was sent");
    }
    let only_sent = sent.len() - seen.len();
    progress::note(format_args!("{} events sent, {only_sent} of them in no history", sent.len()));
    ensure!(seen.len() > more_than && only_sent < 10_000, "{} seen, {} sent", seen.len(), sent.len());
    Ok(())
}

fn lines_are_what_clients_see(fixture: &Fixture) -> Result<()> {
    let config = config(&format!(
        "[tracing]\nbuffer_kib = 32768\non_exit = \"keep\"\n[export.jsonl]\npath = \"{FILE}\"\nprobes = [\"*/numbers\"]\n"
    ));
    let mut guest = fixture.new_daemon(&config)?;
    guest.add(PROBE)?;
    guest.add("p:other __x64_sys_getpgid")?;
    exporter(&guest, is_drained)?;
    guest.call(FIRST, 20_000)?;
    guest.shell("sh -c 'exit 0'")?;
    let read = exporter(&guest, is_drained)?;
    ensure!(read.acknowledged == 20_000 && read.dropped == 0 && read.expired == 0, "{read:?}");

    // Killed while it writes: what was read and not yet written is in the history, or was lost with
    // the daemon as for any client.
    kill_while_it_sends(&mut guest, read.acknowledged)?;

    let exported = guest.shell(&format!("cat {FILE}"))?;
    check_reports(&objects(&exported)?)?;
    // A client knows whom it asked.
    let exported = by_number(&exported, &["host"])?;
    let seen = guest.ctl("observe kprobes/numbers --oldest --until-now -q -o json")?;
    compare(&by_number(&seen, &["host"])?, &exported, 21_000)
}

fn a_stuck_side_costs_nobody_else(fixture: &Fixture) -> Result<()> {
    const CALLS: i64 = 60_000;
    let config = config("[tracing]\nbuffer_kib = 32768\n[export.jsonl]\npath = \"/tmp/pipe\"\n");
    // A pipe with a reader that reads nothing.
    let mut guest = fixture.new_daemon(daemon::DEFAULT_CONFIG)?;
    guest.shell("mkfifo /tmp/pipe")?;
    guest.stop()?;
    guest.machine.spawn(
        "reader",
        &Command::shell(
            // It can write too: its pipe does not end while the daemon waits to try again.
            "exec 3<>/tmp/pipe; while [ ! -e /tmp/read ]; do sleep 0.1; done; exec cat <&3 >/tmp/lines",
        ),
    )?;
    guest.restart(&config)?;
    guest.add(PROBE)?;
    let mut stream = guest.subscribe(kprobed_client::event::StreamRequest::new().probe("*/numbers"))?;
    guest.started(&mut stream)?;
    guest.call(FIRST, CALLS)?;
    let failing = exporter(&guest, |exporter| exporter.state() == ExporterState::Failing)?;
    ensure!(failing.error.contains("no answer within 10 s"), "{failing:?}");
    let doctor = guest.ctl_says("doctor")?;
    ensure!(doctor.stdout.contains("jsonl has sent nothing for"), "{doctor:?}");
    let ledger = guest.ledger()?;
    let lost: u64 = ledger.buffers.iter().map(|buffer| buffer.overrun).sum();
    let numbers = ledger.probes.iter().find(|probe| probe.probe == "kprobes/numbers").context("no probe")?;
    ensure!(lost == 0 && numbers.read == CALLS.unsigned_abs(), "{numbers:?}");
    guest.receive(&mut stream, CALLS.unsigned_abs()).context("a client lost events")?;
    guest.shell("touch /tmp/read")?;
    let drained = exporter(&guest, is_drained)?;
    ensure!(drained.failures > 0, "{drained:?}");
    // A pipe does not answer: what was in it when it was given up was sent again, and the last of
    // it may not be read yet.
    let numbers = |line: &str| -> Option<i64> {
        let line: Value = serde_json::from_str(line).ok()?;
        line["fields"]["n"].as_i64()
    };
    guest.until("the reader has every number", || {
        if guest.shell("wc -l < /tmp/lines")?.trim().parse::<i64>()? < CALLS {
            return Ok(false);
        }
        let text = guest.shell("cat /tmp/lines")?;
        let mut all: Vec<i64> = text.lines().filter_map(numbers).collect();
        all.sort_unstable();
        all.dedup();
        Ok(all == (FIRST..FIRST + CALLS).collect::<Vec<_>>())
    })?;
    guest.machine.kill_process("reader")
}

/// Samples of a scrape by name and labels.
fn scrape(guest: &DaemonGuest) -> Result<BTreeMap<String, f64>> {
    let text = guest.shell("wget -qO- http://127.0.0.1:9464/metrics")?;
    ensure!(text.ends_with("# EOF\n"), "{text}");
    let samples = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
        Ok((name.to_owned(), value.parse()?))
    });
    samples.collect()
}

fn figures_are_those_of_the_ledger(fixture: &Fixture) -> Result<()> {
    let config = config("[tracing]\nbuffer_kib = 16384\n[export.prometheus]\nlisten = \"127.0.0.1:9464\"\n");
    let guest = fixture.daemon_with(&config)?;
    guest.add(PROBE)?;
    guest.add("r:returned __x64_sys_getsid $retval")?;
    guest.call(FIRST, 5000)?;
    let ledger: GetLedgerResponse = guest.ledger()?;
    let samples = scrape(&guest)?;
    let expect = |name: &str, value: u64| -> Result<()> {
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        let value = value as f64;
        ensure!(
            samples.get(name) == Some(&value),
            "{name} is {:?}, and the ledger has {value}",
            samples.get(name)
        );
        Ok(())
    };
    for probe in &ledger.probes {
        let of =
            |term: &str| format!("kprobed_probe_events_total{{probe=\"{}\",term=\"{term}\"}}", probe.probe);
        expect(&format!("kprobed_probe_hits_total{{probe=\"{}\"}}", probe.probe), probe.hits.unwrap_or(0))?;
        expect(&of("read"), probe.read)?;
        expect(&of("disabled"), probe.disabled)?;
        for (term, value) in [("lost", probe.lost), ("filtered", probe.filtered), ("own", probe.own)] {
            match value {
                Some(value) => expect(&of(term), value)?,
                None => ensure!(!samples.contains_key(&of(term)), "{term} is not known"),
            }
        }
        expect(&format!("kprobed_probe_up{{probe=\"{}\"}}", probe.probe), 1)?;
    }
    ensure!(ledger.probes.len() == 2 && ledger.probes.iter().all(|probe| probe.read == 5000), "{ledger:?}");
    expect(
        "kprobed_buffer_events_total{term=\"read\"}",
        ledger.buffers.iter().map(|buffer| buffer.read).sum(),
    )?;
    // A probe that another program has switched off says so, and one that has gone has no series.
    let instance = guest.instance()?;
    guest.shell(&format!("echo 0 > {instance}/events/kprobes/returned/enable"))?;
    let samples = scrape(&guest)?;
    let of = |probe: &str| samples.get(&format!("kprobed_probe_up{{probe=\"kprobes/{probe}\"}}")).copied();
    ensure!((of("numbers"), of("returned")) == (Some(1.0), Some(0.0)), "{samples:?}");
    guest.ctl("delete returned")?;
    let after = scrape(&guest)?;
    ensure!(!after.keys().any(|name| name.contains("returned")), "{after:?}");
    let refused = guest.shell("wget -qO- http://127.0.0.1:9464/ 2>&1 || true")?;
    ensure!(refused.contains("404"), "{refused}");
    Ok(())
}
