//! Calls: an entry joined with its return, on real kernels. What is joined depends on what these record of both, and in
//! which order.

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::machine::Command;
use serde_json::Value;

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::daemon::Said;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        failed_opens_have_their_paths,
        calls_within_calls_have_both_ends,
        many_sleepers_are_told_apart,
    }
    Daemon {
        a_slow_reader_gets_whole_calls_and_named_parts,
    }
};

/// What a command prints while `work` is done, which begins when its probes record.
fn traced(guest: &DaemonGuest, arguments: &str, work: impl FnOnce() -> Result<()>) -> Result<Said> {
    let mut command = guest.start_observing(arguments)?;
    work()?;
    command.end_by_interrupt()
}

fn calls(said: &Said) -> Result<Vec<Value>> {
    Ok(said.objects()?.into_iter().filter(|object| object["type"] == "call").collect())
}

fn failed_opens_have_their_paths(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let open = |path: &'static str| guest.workload(&["open", path, "0", "0", "1"]).map(drop);
    let filter = "--filter 'fd < 0 && filename ~ \"/tmp/calls/*\"'";
    let said = traced(
        &guest,
        &format!("trace 'do_sys_openat2(filename:ustring, how->flags) -> fd:s32' {filter}"),
        || {
            guest.shell("mkdir -p /tmp/calls && touch /tmp/calls/there")?;
            open("/tmp/calls/there")?;
            open("/tmp/calls/nothere")
        },
    )?;
    let lines: Vec<_> = said.stdout.lines().filter(|line| line.contains("do_sys_openat2")).collect();
    let [line] = lines.as_slice() else { anyhow::bail!("one open fails: {said:?}") };
    let parts = ["workload-", "do_sys_openat2 filename=\"/tmp/calls/nothere\" flags=", " (O_R", " -> fd=-2"];
    ensure!(parts.iter().all(|part| line.contains(part)), "{line}");
    ensure!(line.ends_with("us") || line.ends_with("ms"), "it has a duration: {line}");
    ensure!(said.stderr.contains(" with both ends"), "{said:?}");
    // The same line is what the entry and the return alone say.
    guest.probes()?.iter().try_for_each(|probe| {
        ensure!(!probe.name.contains("openat2"), "the probes are deleted: {probe:?}");
        Ok(())
    })
}

fn calls_within_calls_have_both_ends(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let middle = if fixture.is_older_than(7, 0) { "do_filp_open" } else { "do_file_open" };
    let said = traced(
        &guest,
        &format!(
            "trace -o json 'do_sys_openat2(filename:ustring) -> fd:s32' '{middle}() -> file:x64' 'path_openat() -> found:x64' --comm workload"
        ),
        || guest.workload(&["open", "/etc/nothere", "0", "0", "20"]).map(drop),
    )?;
    let calls = calls(&said)?;
    let of = |function: &str| -> Vec<&Value> {
        calls.iter().filter(|call| call["function"] == function && call["incomplete"].is_null()).collect()
    };
    let span = |call: &Value| -> Result<(u64, u64)> {
        let end = call["timestamp_ns"].as_u64().context("no time")?;
        Ok((end - call["duration_ns"].as_u64().context("no duration")?, end))
    };
    let opens: Vec<_> = of("do_sys_openat2")
        .into_iter()
        .filter(|call| call["fields"]["filename"] == "/etc/nothere")
        .collect();
    ensure!(opens.len() == 20, "{} opens: {said:?}", opens.len());
    for open in opens {
        ensure!(open["fields"]["fd"] == -2, "{open}");
        let around = span(open)?;
        for inner in [middle, "path_openat"] {
            let mut within = 0;
            for call in of(inner).into_iter().filter(|call| call["tid"] == open["tid"]) {
                let inside = span(call)?;
                within += usize::from(around.0 < inside.0 && inside.1 < around.1);
                let is_apart = inside.1 < around.0 || around.1 < inside.0;
                ensure!(is_apart || around.0 < inside.0 && inside.1 < around.1, "{call} is across {open}");
            }
            ensure!(within >= 1, "no {inner} in {open}");
        }
    }
    Ok(())
}

fn many_sleepers_are_told_apart(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // More than a return probe has room for without being told so, on few CPUs.
    let sleep = "i=0; while [ $i -lt 60 ]; do sleep 2 >/dev/null 2>&1 & i=$((i + 1)); done; wait";
    let for_ever = "sleep 1000 >/dev/null 2>&1 </dev/null & echo $!";
    let mut sleeper = String::new();
    let said = traced(&guest, "trace -o json 'hrtimer_nanosleep() -> left:s64'", || {
        guest.shell(for_ever)?.trim().clone_into(&mut sleeper);
        guest.shell(sleep).map(drop)
    });
    guest.machine.exec(&Command::shell(format!("kill {sleeper}")))?;
    let said = said?;
    let calls = calls(&said)?;
    // Others of the guest sleep for less.
    let took = |call: &Value| call["duration_ns"].as_u64().unwrap_or_default();
    let whole: Vec<_> = calls.iter().filter(|call| took(call) >= 2_000_000_000).collect();
    ensure!(whole.len() == 60, "{} sleepers: {said:?}", whole.len());
    for call in whole {
        ensure!(took(call) < 60_000_000_000 && call["fields"]["left"] == 0, "{call}");
    }
    ensure!(calls.iter().all(|call| call["incomplete"] != "no_return"), "{said:?}");
    let tid: i64 = sleeper.parse()?;
    let running = calls.iter().find(|call| call["tid"] == tid);
    let running = running.with_context(|| format!("{sleeper}: {said:?}"))?;
    ensure!(running["incomplete"] == "running" && running["duration_ns"].is_null(), "{running}");
    Ok(())
}

fn a_slow_reader_gets_whole_calls_and_named_parts(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // The queue has room for few of the events of a burst: on a busy machine some are lost, on an idle one none is.
    let said = traced(
        &guest,
        "observe -o json -p '__x64_sys_getsid(n=+0x70(%di):s32) -> res:s64' --queue 200",
        || guest.call(1_000_000, 50_000),
    )?;
    let calls = calls(&said)?;
    let losses = said.objects()?.into_iter().filter(|object| object["type"] == "loss");
    // Numbers of 64 bits are strings.
    let count = |loss: Value| loss["count"].as_u64().or_else(|| loss["count"].as_str()?.parse().ok());
    let lost: u64 = losses.filter_map(count).sum();
    let (whole, parts): (Vec<_>, Vec<_>) = calls.iter().partition(|call| call["incomplete"].is_null());
    // What is lost can be both ends of a call, of which nothing is left to be named.
    let events = 2 * whole.len() as u64 + parts.len() as u64 + lost;
    ensure!(!whole.is_empty() && events == 100_000, "{events} of 100000: {}", said.stderr);
    let known = ["gap", "no_entry", "running"];
    for part in &parts {
        ensure!(known.iter().any(|why| part["incomplete"] == **why), "{part}");
    }
    // The summary has the same account.
    let told = format!("  {} calls with both ends\n", whole.len());
    ensure!(said.stderr.contains(&told), "{told}: {}", said.stderr);
    // The calls of one thread are one after the other: a return of a later one is not taken for that of an earlier one.
    let mut before = 0;
    for call in whole {
        ensure!(call["fields"]["res"] == -3, "{call}");
        let end = call["timestamp_ns"].as_u64().context("no time")?;
        let begin = end - call["duration_ns"].as_u64().context("no duration")?;
        ensure!(begin >= before, "{call} begins before the end of the call before it");
        before = end;
    }
    Ok(())
}
