//! The history: reading past events, resuming after a disconnect, and gaps with their counts.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::Client;
use kprobed_client::event::{
    Batch, Cursor, EventStream, LossCause, ResumingItem, ResumingStream, StreamItem, StreamRequest,
};
use kprobed_vm::machine::Command;
use kprobed_vm::{daemon, progress};

use crate::Test;
use crate::daemon::{DaemonGuest, FIRST, NUMBERS, config, events, objects};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        the_past_is_shown_as_it_was,
    }
    Seldom {
        a_client_comes_back_after_the_daemon_was_killed,
        a_power_cut_leaves_what_is_older,
        what_has_expired_is_told_with_its_number,
    }
};

fn numbers_of(batch: &Batch) -> Result<Vec<i64>> {
    let mut numbers = Vec::with_capacity(batch.len());
    for group in batch.groups().iter().filter(|group| group.schema().probe() == "kprobes/numbers") {
        let column = group.field("n").context("no number")?;
        ensure!(!column.has_faults(), "{column:?}");
        numbers.extend((0..group.rows()).map(|row| column.signed(row)));
    }
    Ok(numbers)
}

/// What a stream tells, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Heard {
    Number(i64),
    /// So many are missing, if that is known.
    Missing(LossCause, Option<u64>),
    /// Of another run of the daemon from here on; whether something may be missing before.
    Epoch {
        may_miss: bool,
    },
}

fn heard(item: StreamItem, into: &mut Vec<Heard>) -> Result<()> {
    match item {
        StreamItem::Batch(batch) => into.extend(numbers_of(&batch)?.into_iter().map(Heard::Number)),
        StreamItem::Loss(loss) => into.push(Heard::Missing(loss.cause, loss.count)),
        StreamItem::Epoch(epoch) => into.push(Heard::Epoch { may_miss: epoch.may_miss }),
        _ => {}
    }
    Ok(())
}

/// Reads a stream up to the present.
fn catch_up(guest: &DaemonGuest, stream: &mut EventStream) -> Result<(Vec<Heard>, Cursor)> {
    let mut all = Vec::new();
    loop {
        match guest.next(stream)? {
            StreamItem::CaughtUp(cursor) => return Ok((all, cursor)),
            item => heard(item, &mut all)?,
        }
    }
}

/// All that the history has, once everything is read that the kernel has recorded.
fn oldest(guest: &DaemonGuest) -> Result<Vec<Heard>> {
    guest.ledger()?;
    let mut stream = guest.subscribe(StreamRequest::new().oldest().until_now())?;
    Ok(catch_up(guest, &mut stream)?.0)
}

fn numbers(heard: &[Heard]) -> Vec<i64> {
    let number = |heard: &Heard| if let Heard::Number(number) = heard { Some(*number) } else { None };
    heard.iter().filter_map(number).collect()
}

/// The same for people: numbers that follow each other as a range.
fn brief(all: &[Heard]) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut run: Option<(i64, i64)> = None;
    for item in all.iter().map(Some).chain([None]) {
        match (item, &mut run) {
            (Some(Heard::Number(number)), Some((_, last))) if *number == *last + 1 => *last = *number,
            (item, run) => {
                lines.extend(run.take().map(|(first, last)| format!("{first} to {last}")));
                match item {
                    Some(Heard::Number(number)) => *run = Some((*number, *number)),
                    Some(other) => lines.push(format!("{other:?}")),
                    None => {}
                }
            }
        }
    }
    lines.join("; ")
}

/// Numbers come once each and in order, and every gap is reported. Returns how many are missing.
fn check_gaps(heard: &[Heard], first: i64) -> Result<i64> {
    let (mut next, mut missing, mut is_told) = (first, 0, false);
    for (at, heard) in heard.iter().enumerate() {
        match heard {
            Heard::Number(number) => {
                ensure!(*number >= next, "{number} comes again, or late: {next} was to come, item {at}");
                ensure!(*number == next || is_told, "nothing is said of the gap from {next} to {number}");
                missing += number - next;
                next = number + 1;
                is_told = false;
            }
            Heard::Missing(..) | Heard::Epoch { may_miss: true } => is_told = true,
            Heard::Epoch { may_miss: false } => {}
        }
    }
    Ok(missing)
}

fn the_past_is_shown_as_it_was(fixture: &Fixture) -> Result<()> {
    let guest = fixture.new_daemon(daemon::DEFAULT_CONFIG)?;
    guest.add(NUMBERS)?;
    guest.add("p:other __x64_sys_getppid")?;
    guest.call(FIRST, 60)?;
    guest.workload(&["getppid", "30"])?;
    guest.call(FIRST + 60, 40)?;
    let observe = |options: &str| -> Result<Vec<serde_json::Value>> {
        let printed = guest.ctl(&format!("observe numbers -q -o json {options}"))?;
        ensure!(objects(&printed)?.iter().all(|object| object["type"] != "loss"), "{printed}");
        events(&printed)
    };
    let expect = |options: &str, expected: &mut dyn Iterator<Item = i64>| -> Result<()> {
        let shown: Vec<_> = observe(options)?.iter().map(|event| event["fields"]["n"].as_i64()).collect();
        let expected: Vec<_> = expected.map(Some).collect();
        ensure!(shown == expected, "{options}: {shown:?}");
        Ok(())
    };
    let all = || FIRST..FIRST + 100;
    expect("--oldest --until-now", &mut all())?;
    expect("--oldest --until-now --filter 'n & 1'", &mut all().filter(|n| n & 1 == 1))?;
    expect("--last 5", &mut all().skip(95))?;
    expect("--last 5 --filter 'n & 1'", &mut (FIRST + 91..FIRST + 100).step_by(2))?;
    expect("--last 5 --filter 'n < 1000010'", &mut all().skip(5).take(5))?;
    expect("--last 5 --sample 10", &mut all().skip(50).step_by(10))?;
    expect("--last 1000", &mut all())?;
    expect("--last 50 -n 3", &mut all().skip(50).take(3))?;
    let events = observe("--oldest")?;
    let time = events.get(70).and_then(|event| event["time"].as_str()).context("no time")?;
    expect(&format!("--since {time}"), &mut all().skip(70))?;
    expect(&format!("--since {time} --filter 'n & 1'"), &mut all().skip(70).filter(|n| n & 1 == 1))?;
    expect("--since 1h --order time", &mut all())?;
    expect("--since 2001-02-03T04:05:06Z --until-now --sample 10", &mut all().step_by(10))?;

    // The past, and what follows it, without a seam.
    let mut stream = guest.subscribe(StreamRequest::new().probe("*/numbers").last_events(3))?;
    let (mut followed, _) = catch_up(&guest, &mut stream)?;
    guest.call(FIRST + 100, 50)?;
    while numbers(&followed).len() < 53 {
        heard(guest.next(&mut stream)?, &mut followed)?;
    }
    ensure!(numbers(&followed) == (FIRST + 97..FIRST + 150).collect::<Vec<_>>(), "{}", brief(&followed));
    Ok(())
}

/// Follows until so many more numbers have come.
fn follow(
    guest: &DaemonGuest,
    stream: &mut ResumingStream,
    all: &mut Vec<Heard>,
    until: impl Fn(&[Heard]) -> bool,
) -> Result<()> {
    while !until(all) {
        match guest.wait_for(stream.next())??.context("the stream has ended")? {
            ResumingItem::Item(item) => heard(item, all)?,
            ResumingItem::Interrupted(_) => {}
        }
    }
    Ok(())
}

fn a_client_comes_back_after_the_daemon_was_killed(fixture: &Fixture) -> Result<()> {
    const MORE: usize = 150;
    let config = config("[tracing]\non_exit = \"keep\"\n[spool]\nsync_interval_ms = 200");
    let mut guest = fixture.new_daemon(&config)?;
    guest.add(NUMBERS)?;
    let client: Client = guest.client.clone();
    let mut stream =
        guest.wait_for(ResumingStream::open(&client, StreamRequest::new().probe("*/numbers")))??;
    let first = FIRST.to_string();
    let workload = Command::new("workload").args(["numbers", &first, "1000000", "--pause-us", "10000"]);
    guest.machine.spawn("numbers", &workload.args(["--until", "/tmp/enough"]))?;
    let mut all = Vec::new();
    follow(&guest, &mut stream, &mut all, |all| all.len() > MORE)?;

    // Killed: what the kernel's buffer holds is read by the next one; what was read and not yet
    // stored is gone, and told as such.
    guest.kill_and_restart()?;
    let before = all.len();
    follow(&guest, &mut stream, &mut all, |all| all.len() > before + MORE)?;
    let killed = numbers(&all).len();
    ensure!(all.contains(&Heard::Epoch { may_miss: true }), "{}", brief(&all));
    let missing = check_gaps(&all, FIRST)?;

    // Stopped: nothing is missing at all.
    let stopped = all.len();
    guest.stop()?;
    // The kernel goes on recording.
    guest.shell(
        "for i in $(seq 300); do [ $(sed -n 's/^entries: //p' /sys/kernel/tracing/instances/kprobed*/per_cpu/cpu0/stats) -gt 20 ] \
         && exit 0; sleep 0.1; done; exit 1",
    )?;
    guest.restart(&config)?;
    follow(&guest, &mut stream, &mut all, |all| all.len() > stopped + MORE)?;
    guest.shell("touch /tmp/enough")?;
    ensure!(guest.machine.wait("numbers", Duration::from_mins(1))?.success());
    let end: i64 = guest.shell("cat /run/log/numbers.log")?.trim().parse()?;
    guest.ledger()?;
    follow(&guest, &mut stream, &mut all, |all| all.last() == Some(&Heard::Number(end - 1)))?;
    ensure!(check_gaps(&all, FIRST)? == missing, "{}", brief(&all));
    let after = &all[stopped..];
    ensure!(
        !after.iter().any(|heard| matches!(heard, Heard::Missing(..) | Heard::Epoch { may_miss: true })),
        "{}",
        brief(after)
    );

    // Everything that was kept was given, once.
    let kept = oldest(&guest)?;
    check_gaps(&kept, FIRST)?;
    let given = numbers(&all);
    ensure!(
        numbers(&kept).iter().all(|number| given.binary_search(number).is_ok()),
        "kept and not given: {}",
        brief(&kept)
    );
    progress::note(format_args!(
        "{killed} numbers until after the kill, {missing} of them missing; {} in all, {} kept",
        given.len(),
        numbers(&kept).len()
    ));
    Ok(())
}

fn a_power_cut_leaves_what_is_older(fixture: &Fixture) -> Result<()> {
    let config = config("[spool]\nsync_interval_ms = 200");
    let guest = fixture.own_daemon("history-cut", &config)?;
    guest.add(NUMBERS)?;
    guest.call(FIRST, 1000)?;
    guest.ledger()?;
    // Ten intervals: it is time itself that is promised.
    guest.shell("sleep 2")?;
    guest.call(FIRST + 1000, 500)?;
    guest.machine.power_cut();

    let mut guest = DaemonGuest::boot(fixture, &fixture.disk_name("history-cut"), &config)?;
    let kept = numbers(&oldest(&guest)?);
    ensure!((1000..=1500).contains(&kept.len()), "{} numbers are kept", kept.len());
    ensure!(kept == (FIRST..FIRST + kept.len() as i64).collect::<Vec<_>>(), "{kept:?}");
    guest.call(FIRST + 2000, 10)?;
    let with_new = oldest(&guest)?;
    let (old, new) = with_new.split_at(with_new.len() - 11);
    ensure!(
        old.first() == Some(&Heard::Epoch { may_miss: false }) && numbers(old) == kept,
        "{}",
        brief(&with_new)
    );
    // What was read right before the kill is not known.
    ensure!(new.first() == Some(&Heard::Epoch { may_miss: true }), "{}", brief(&with_new));
    ensure!(numbers(new) == (FIRST + 2000..FIRST + 2010).collect::<Vec<_>>(), "{}", brief(new));

    // A malformed tail is cut off; what is before it stays.
    guest.shell("sleep 2")?;
    guest.kill()?;
    guest.shell("cd /var/lib/kprobed/spool && echo damaged >> $(ls | grep -v expired | sort | tail -n 1)")?;
    guest.restart(&config)?;
    let log = guest.log();
    ensure!(log.contains("a part of the history was damaged"), "{log}");
    let again = oldest(&guest)?;
    ensure!(again.len() >= with_new.len() && again[..with_new.len()] == with_new, "{}", brief(&again));
    Ok(())
}

fn what_has_expired_is_told_with_its_number(fixture: &Fixture) -> Result<()> {
    // Without proofs of what was read, events are shorter.
    let calls: i64 = if fixture.proves_reads() { 300_000 } else { 600_000 };
    let guest = fixture.new_daemon(&config("[tracing]\nbuffer_kib = 65536\n[spool]\nmax_mib = 4"))?;
    guest.add(&format!("{NUMBERS} regs=%di flags=%flags stack=$stack ip=%ip"))?;
    let (_, start) =
        catch_up(&guest, &mut guest.subscribe(StreamRequest::new().last_events(1).until_now())?)?;
    for part in 0..10 {
        guest.call(FIRST + part * calls / 10, calls / 10)?;
    }
    let ledger = guest.ledger()?;
    let spool = ledger.spool.context("no history is kept")?;
    let read: u64 = ledger.buffers.iter().map(|buffer| buffer.read).sum();
    ensure!(
        spool.read == read && spool.read == spool.stored + spool.in_memory + spool.not_stored,
        "{spool:?}"
    );
    ensure!(spool.stored == spool.available + spool.expired && spool.expired > 0, "{spool:?}");
    ensure!(spool.bytes <= 4 << 20 && spool.last_error.is_empty(), "{spool:?}");

    // From the beginning, and from a place that has expired.
    for (request, seen) in [
        (StreamRequest::new().oldest(), 0),
        (StreamRequest::new().after(Cursor { sequence: 1000, ..start }), 1000),
    ] {
        let mut stream = guest.subscribe(request)?;
        let id = guest.started(&mut stream)?;
        let (heard, _) = catch_up(&guest, &mut stream)?;
        let (mut next, mut expired) = (FIRST + seen, 0);
        for heard in &heard {
            match heard {
                Heard::Number(number) => {
                    ensure!(*number == next, "{number} instead of {next}");
                    next += 1;
                }
                Heard::Missing(cause, count) => {
                    let count = count.context("an uncounted loss")?;
                    next += i64::try_from(count)?;
                    expired += if *cause == LossCause::Expired { count } else { 0 };
                }
                Heard::Epoch { may_miss } => ensure!(!may_miss, "an epoch that may miss something"),
            }
        }
        ensure!(next == FIRST + calls, "the last number is {}", next - 1);
        // What was never stored counts as expired too, if it lies between stored events that
        // expired.
        let gone = expired + seen.unsigned_abs();
        ensure!(gone >= spool.expired && gone <= spool.expired + spool.not_stored, "{expired} {spool:?}");
        let ours = guest.subscriber(id)?;
        ensure!(
            ours.replayed == numbers(&heard).len() as u64 && ours.expired == expired && ours.read == 0,
            "{ours:?}"
        );
    }
    progress::note(format_args!(
        "{} of {} events have expired, {} bytes are kept",
        spool.expired, spool.stored, spool.bytes
    ));
    Ok(())
}
