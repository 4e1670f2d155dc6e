//! The ledger: a million events, each in exactly one term.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{Delivery, SubscriberLedger};
use kprobed_client::event::{LossCause, StreamItem, StreamRequest};

use crate::Test;
use crate::daemon::{self, DaemonGuest, TRACEFS};
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        hits_while_a_probe_is_disabled_are_told_apart,
    }
    Daemon {
        deleting_a_probe_keeps_the_events_of_others,
        a_slow_subscriber_costs_only_itself,
        a_profile_leaves_the_daemons_own_hits_out,
        the_daemon_does_not_record_itself,
        hits_by_the_daemon_have_their_own_term,
        idle_readers_sleep,
        a_million_events_are_accounted_for_in_a_small_buffer,
        what_the_buffers_do_not_take_is_counted,
    }
    Seldom {
        a_million_events_arrive_through_a_large_buffer,
    }
};

/// How many events: a million before a release.
fn calls() -> u64 {
    effort::pick(150_000, 1_000_000)
}

/// Four arguments: 52 bytes an event.
const PROBE: &str = "p:million __x64_sys_getppid regs=%di flags=%flags stack=$stack ip=%ip";

/// Four texts, which a batch has for each event: numbers that repeat it has once for all, and then
/// 150,000 events have room in a connection.
const TEXTS: &str = "p:million __x64_sys_getppid a=$comm b=$comm c=$comm d=$comm";

fn config(buffer_kib: u64) -> String {
    daemon::config(&format!("[tracing]\nbuffer_kib = {buffer_kib}\nbuffer_max_kib = {buffer_kib}"))
}

/// What a client received.
#[derive(Debug, Default)]
struct Received {
    delivered: u64,
    overrun: u64,
    uncounted: u64,
    dropped: u64,
}

/// The sum of everything that became of the events of a subscriber.
pub(crate) fn accounted(ours: &SubscriberLedger) -> u64 {
    let held_back = ours.not_selected + ours.filtered + ours.sampled_out + ours.limited;
    held_back + ours.dropped + ours.queued + ours.delivered
}

/// Makes the calls and reads the stream to the last event.
fn million(guest: &DaemonGuest) -> Result<Received> {
    let queue = Delivery { queue_events: 10 * calls(), queue_bytes: 1 << 30, ..Delivery::default() };
    let mut stream = guest.subscribe(StreamRequest::new().delivery(queue))?;
    let id = guest.started(&mut stream)?;
    guest.workload(&["getppid", &calls().to_string()])?;
    let ledger = guest.ledger()?;
    ensure!(ledger.settled, "{ledger:?}");
    let ours =
        ledger.subscribers.iter().find(|subscriber| subscriber.subscriber_id == id).context("no ledger")?;
    ensure!(ours.read == accounted(ours), "{ours:?}");
    let expected = ours.delivered + ours.queued;
    let mut received = Received::default();
    while received.delivered < expected {
        match guest.next(&mut stream)? {
            StreamItem::Batch(batch) => received.delivered += batch.len() as u64,
            StreamItem::Loss(loss) => match (loss.cause, loss.count) {
                (LossCause::Overrun, Some(count)) => received.overrun += count,
                (LossCause::SubscriberQueue, Some(count)) => received.dropped += count,
                (_, _) => received.uncounted += 1,
            },
            _ => {}
        }
    }
    Ok(received)
}

fn a_million_events_arrive_through_a_large_buffer(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config(effort::pick(16 << 10, 96 << 10)))?;
    guest.add(PROBE)?;
    let received = million(&guest)?;
    let ledger = guest.ledger_of("kprobes/million")?;
    ensure!(ledger.hits == Some(calls()) && ledger.lost == Some(0) && ledger.not_read == 0, "{ledger:?}");
    ensure!(received.delivered == calls() && received.overrun == 0 && received.dropped == 0, "{received:?}");
    Ok(())
}

fn a_million_events_are_accounted_for_in_a_small_buffer(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config(64))?;
    guest.add(PROBE)?;
    let received = million(&guest)?;
    let ledger = guest.ledger_of("kprobes/million")?;
    ensure!(ledger.hits == Some(calls()), "{ledger:?}");
    ensure!(received.overrun > 0 && received.uncounted == 0, "{received:?}");
    // Told in the stream, counted in the ledger, and both close.
    ensure!(received.delivered + received.overrun == calls(), "{received:?} {ledger:?}");
    ensure!(
        ledger.lost == Some(received.overrun) && ledger.read == received.delivered,
        "{received:?} {ledger:?}"
    );
    ensure!(ledger.filtered == Some(0) && ledger.own == Some(0), "{ledger:?}");
    Ok(())
}

fn a_slow_subscriber_costs_only_itself(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(TEXTS)?;
    // It never reads, and has room for ten thousand events in the daemon; the connection holds some
    // more.
    let queue = Delivery { queue_events: 10_000, ..Delivery::default() };
    let mut slow = guest.subscribe(StreamRequest::new().delivery(queue))?;
    let slow_id = guest.started(&mut slow)?;
    let mut quick = guest.subscribe(StreamRequest::new().probe("kprobes/million"))?;
    let quick_id = guest.started(&mut quick)?;
    let mut other = guest.subscribe(StreamRequest::new().probe("nothing/*"))?;
    let other_id = guest.started(&mut other)?;
    let calls = effort::pick(150_000, 400_000);
    guest.workload(&["getppid", &calls.to_string()])?;
    guest.receive(&mut quick, calls)?;
    let ledger = guest.ledger()?;
    for (id, name) in [(slow_id, "slow"), (quick_id, "quick"), (other_id, "other")] {
        let ours = ledger
            .subscribers
            .iter()
            .find(|subscriber| subscriber.subscriber_id == id)
            .context("no ledger")?;
        ensure!(ours.read == calls, "{name}: {ours:?}");
        ensure!(ours.read == accounted(ours), "{name}: {ours:?}");
        let plausible = match name {
            "slow" => ours.dropped > 0 && ours.queued <= 10_000,
            "quick" => ours.delivered == calls,
            _ => ours.not_selected == calls,
        };
        ensure!(plausible, "{name}: {ours:?}");
    }
    // When it reads at last, it gets the exact number of events that it missed.
    let expected =
        ledger.subscribers.iter().find(|subscriber| subscriber.subscriber_id == slow_id).context("gone")?;
    let (mut seen, mut told) = (0, 0);
    while seen + told < calls {
        match guest.next(&mut slow)? {
            StreamItem::Batch(batch) => seen += batch.len() as u64,
            StreamItem::Loss(loss) => told += loss.count.context("an uncounted loss")?,
            _ => {}
        }
    }
    ensure!(told == expected.dropped && seen == calls - told, "{seen} + {told}, {expected:?}");
    Ok(())
}

fn deleting_a_probe_keeps_the_events_of_others(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:stays __x64_sys_getppid")?;
    guest.add("p:goes __x64_sys_getppid")?;
    let recording = guest.record(|| {
        guest.workload(&["getppid", "1000"])?;
        // The kernel empties the buffers now: the daemon must have read them by then.
        guest.delete("goes")?;
        guest.workload(&["getppid", "500"]).map(drop)
    })?;
    ensure!(recording.of("kprobes/stays", "workload").count() == 1500, "{} events", recording.events.len());
    ensure!(recording.of("kprobes/goes", "workload").count() == 1000, "{} events", recording.events.len());
    let ledger = guest.ledger_of("kprobes/stays")?;
    ensure!(
        ledger.hits == Some(1500) && ledger.read == 1500 && ledger.not_read == 0 && ledger.loss_is_shared,
        "{ledger:?}"
    );
    Ok(())
}

fn the_daemon_does_not_record_itself(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // Reading events takes this function: each event would be the cause of the next one.
    guest.add("p:reads vfs_read")?;
    let recording = guest.record(|| guest.shell("dd if=/etc/passwd of=/dev/null; sleep 0.3").map(drop))?;
    ensure!(recording.events.iter().any(|event| event.comm == "dd"), "{recording:?}");
    let own: Vec<_> = recording.events.iter().filter(|event| event.comm.starts_with("kprobed")).collect();
    ensure!(own.is_empty(), "{own:?}");
    Ok(())
}

/// Reads of the process that the test starts.
const READS: u64 = 5000;

fn a_profile_leaves_the_daemons_own_hits_out(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:reads vfs_read")?;
    let shown = |arguments: &str| -> Result<(Vec<String>, String)> {
        let said = guest.ctl_says(&format!("hits reads -o csv {arguments}"))?;
        ensure!(said.code == 0, "{said:?}");
        let text = said.all();
        let row = text.lines().find(|line| line.starts_with("kprobes/reads")).context(text.clone())?;
        Ok((row.split(',').skip(1).map(str::to_owned).collect(), text))
    };
    let number =
        |row: &[String], column: usize| -> Result<u64> { Ok(row.get(column).context("no column")?.parse()?) };
    let before = guest.ledger_of("kprobes/reads")?.read;
    let recording = guest
        .record(|| guest.shell(&format!("dd if=/dev/zero of=/dev/null bs=1 count={READS}")).map(drop))?;
    let of_dd = recording.of("kprobes/reads", "dd").count() as u64;
    ensure!(of_dd >= READS, "{of_dd}");
    // The hits of all others are those that were recorded: here none is lost.
    let middle = guest.ledger_of("kprobes/reads")?;
    let (row, text) = shown("")?;
    let after = guest.ledger_of("kprobes/reads")?;
    let (others, own) = (number(&row, 0)?, number(&row, 1)?);
    ensure!(middle.lost == Some(0) && after.lost == Some(0) && own > 0, "{middle:?} {text} {after:?}");
    ensure!((middle.read..=after.read).contains(&others), "{middle:?} {text} {after:?}");
    ensure!(others - before >= of_dd, "{before} {text}");
    // With its own: the count of the kernel.
    let (row, text) = shown("--include-self")?;
    let hits = guest.ledger_of("kprobes/reads")?.hits.context("no hits")?;
    ensure!(row[1].is_empty() && (others + own..=hits).contains(&number(&row, 0)?), "{text} {hits}");
    let json = guest.ctl("hits reads -o json")?;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    let count = |key: &str| json[key].as_str().and_then(|text| text.parse::<u64>().ok());
    ensure!(count("hits") >= Some(others + own) && count("own") >= Some(own), "{json}");
    // With a filter the kernel does not tell them apart.
    guest.wait_for(guest.client.set_filter("reads", "common_pid == 1"))??;
    let (row, text) = shown("")?;
    ensure!(row[1] == "?" && number(&row, 0)? > others + own, "{text}");
    ensure!(
        text.contains("`?`: HITS includes those by kprobed's own threads: the probe has or had a filter"),
        "{text}"
    );
    Ok(())
}

fn hits_by_the_daemon_have_their_own_term(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // Reading the ledger opens files of the kernel, each time.
    guest.add("p:opens do_sys_openat2 path=+0(%si):ustring")?;
    guest.workload(&["open", "/etc/passwd", "0", "0", "10"])?;
    let mut own_before = 0;
    for _ in 0..3 {
        let ledger = guest.ledger()?;
        let opens = ledger.probes.first().context("no probe")?;
        let own = opens.own.with_context(|| format!("{opens:?}"))?;
        ensure!(ledger.settled && own > own_before, "{ledger:?}");
        ensure!(opens.filtered == Some(0) && opens.lost == Some(0) && opens.disabled == 0, "{opens:?}");
        ensure!(
            opens.read >= 10 && opens.hits == Some(opens.read + own) && opens.not_read == own,
            "{opens:?}"
        );
        own_before = own;
    }
    guest.ctl_shows("ledger", &["the ledger closes, and it is settled"])?;
    // With a filter they are part of what was held back, and said to be.
    guest.wait_for(guest.client.set_filter("opens", "path ~ \"/never*\""))??;
    let filtered = guest.ledger_of("kprobes/opens")?;
    ensure!(filtered.own.is_none() && filtered.filtered > Some(own_before), "{filtered:?}");
    guest.ctl_shows("ledger", &["FILTERED includes kprobed's own hits"])?;
    Ok(())
}

fn hits_while_a_probe_is_disabled_are_told_apart(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:calls __x64_sys_getpgid number=+0x70(%di):u64")?;
    guest.workload(&["number", "100"])?;
    // Another program goes on using it.
    let other = format!("{TRACEFS}/instances/other");
    guest.shell(&format!("mkdir {other} && echo 1 > {other}/events/kprobes/calls/enable"))?;
    guest.wait_for(guest.client.set_enabled("calls", false))??;
    guest.workload(&["number", "70"])?;
    let off = guest.ledger_of("kprobes/calls");
    guest.wait_for(guest.client.set_enabled("calls", true))??;
    guest.workload(&["number", "30"])?;
    let on = guest.ledger_of("kprobes/calls");
    guest.shell(&format!("echo 0 > {other}/events/kprobes/calls/enable; rmdir {other}"))?;
    for (ledger, hits, read) in [(off?, 170, 100), (on?, 200, 130)] {
        ensure!(ledger.hits == Some(hits) && ledger.read == read, "{ledger:?}");
        ensure!(ledger.disabled == 70 && ledger.own == Some(0) && ledger.filtered == Some(0), "{ledger:?}");
    }
    Ok(())
}

fn what_the_buffers_do_not_take_is_counted(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon_with(&config(64))?;
    guest.add(PROBE)?;
    // Another program switched overwriting off: the kernel refuses new events then.
    guest.shell(&format!("echo 0 > {}/options/overwrite", guest.instance()?))?;
    let calls = 100_000;
    let recording = guest.record(|| {
        guest.workload(&["getppid", &calls.to_string()])?;
        // A loss is reported before the next event: there is room for one now.
        guest.ledger()?;
        guest.workload(&["getppid", "1"]).map(drop)
    })?;
    let ledger = guest.ledger()?;
    let dropped: u64 = ledger.buffers.iter().map(|buffer| buffer.dropped_events).sum();
    let ours = guest.ledger_of("kprobes/million")?;
    ensure!(dropped > 0 && ours.lost == Some(dropped) && ours.own == Some(0), "{ledger:?}");
    ensure!(ours.hits == Some(ours.read + dropped) && ours.hits >= Some(calls), "{ledger:?}");
    let told: u64 = recording
        .losses
        .iter()
        .map(|loss| if loss.cause == LossCause::DroppedEvents { loss.count.unwrap_or(0) } else { 0 })
        .sum();
    ensure!(told == dropped, "{told} told, {dropped} dropped: {:?}", recording.losses);
    Ok(())
}

fn idle_readers_sleep(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:rare do_sys_openat2 if=+0(%si):string")?;
    guest.wait_for(guest.client.set_filter("rare", "if == \"/never/opened\""))??;
    // Each time a thread goes to sleep counts one, so a thread that is woken shows.
    let switches = "for t in /proc/$(pidof kprobed)/task/*; do
        case $(cat $t/comm) in kprobed-read-*) grep ctxt_switches $t/status;; esac; done";
    // What the change of the filter has woken goes to sleep again.
    let (mut before, mut after) = (String::new(), guest.shell(switches)?);
    for _ in 0..5 {
        before = after;
        // It is the absence of something that is looked for.
        guest.shell("sleep 3")?;
        after = guest.shell(switches)?;
        if before == after {
            break;
        }
    }
    ensure!(before.contains("ctxt_switches") && before == after, "before:\n{before}\nafter:\n{after}");
    Ok(())
}
