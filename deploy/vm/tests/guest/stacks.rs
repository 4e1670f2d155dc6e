//! Call stacks with events (`trace --stack`): each is that of its event, and their trigger goes with the probe.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{CreateProbeRequest, Verdict};
use serde_json::Value;

use crate::Test;
use crate::daemon::{DaemonGuest, FIRST, NUMBERS, TRACEFS, events_among_others, refused};
use crate::fixture::{Fixture, Shared};

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        a_stack_that_cannot_be_followed_is_refused,
    }
    Daemon {
        an_event_has_its_callers,
        every_stack_is_that_of_its_event,
    }
    Seldom {
        stacks_end_with_a_daemon_that_is_killed,
    }
};

/// The functions of an event's stack, the innermost first. None if it is lost.
fn functions(event: &Value) -> Option<Vec<&str>> {
    let frames = event["fields"]["stack"].as_array()?;
    frames.iter().map(|frame| frame.as_str()?.split('+').next()).collect()
}

/// Runs `kprobectl trace` in the guest: what it prints, and what it says.
fn trace(guest: &DaemonGuest, arguments: &str) -> Result<(String, String)> {
    let said = || guest.shell("cat /tmp/said");
    let printed = guest.shell(&format!("kprobectl trace {arguments} 2> /tmp/said"));
    Ok((printed.with_context(|| said().unwrap_or_default())?, said()?))
}

/// A guest whose kernel records stacks. Where it cannot, the daemon says so.
fn guest_with_stacks(fixture: &Fixture) -> Result<Option<Shared<'_>>> {
    let guest = fixture.daemon()?;
    if !fixture.is_older_than(5, 18) {
        return Ok(Some(guest));
    }
    guest.ctl_tells("trace vfs_read --stack -n 1", &["to one buffer"])?;
    Ok(None)
}

/// No trigger and no probe is left.
fn ensure_clean(guest: &DaemonGuest) -> Result<()> {
    let triggers =
        guest.shell(&format!("cat {TRACEFS}/instances/*/events/kprobes/*/trigger 2> /dev/null || true"))?;
    ensure!(!triggers.contains("stacktrace:"), "{triggers}");
    let kernel = guest.tracefs("kprobe_events")?;
    ensure!(kernel.is_empty(), "{kernel}");
    Ok(())
}

fn an_event_has_its_callers(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_with_stacks(fixture)? else { return Ok(()) };
    for filter in ["", "--comm init"] {
        let (text, said) =
            trace(&guest, &format!("vfs_read --stack -n 2 {filter} -- cat /proc/version /proc/uptime"))?;
        let mut events: Vec<Vec<&str>> = Vec::new();
        for line in text.lines() {
            match (line.strip_prefix("    "), events.last_mut()) {
                (Some(frame), Some(event)) => event.push(frame),
                _ if line.contains(" kprobes/") => events.push(Vec::new()),
                _ => {}
            }
        }
        ensure!(!events.is_empty(), "{text}\n{said}");
        for frames in events {
            let [first, caller, ..] = frames.as_slice() else { anyhow::bail!("{text}") };
            ensure!(first.starts_with("vfs_read+"), "{text}");
            let is_call = frames.iter().any(|frame| frame.starts_with("do_syscall_64+"));
            ensure!(filter.is_empty() || caller.starts_with("ksys_") && is_call, "{text}");
        }
        ensure_clean(&guest)?;
    }
    // A return has the stack of the caller; a tracepoint that of its place, without the tracing.
    for (probe, first, comm, command) in [
        ("vfs_read%return", "ksys_read", "init", "cat /proc/version"),
        ("sched:sched_process_exec", "begin_new_exec", "kprobectl", "kprobectl version"),
    ] {
        let (printed, said) =
            trace(&guest, &format!("{probe} --stack -o json --comm {comm} -n 1 -- {command}"))?;
        let events = events_among_others(&printed);
        let [event] = events.as_slice() else { anyhow::bail!("{printed}\n{said}") };
        let functions = functions(event).with_context(|| printed.clone())?;
        ensure!(functions.first() == Some(&first) || functions.contains(&"bprm_execve"), "{printed}");
        ensure!(!functions.iter().any(|name| name.starts_with("trace_event_")), "{printed}");
        ensure_clean(&guest)?;
    }
    // The daemon can search them; the kernel cannot.
    let (printed, _) = trace(
        &guest,
        "vfs_read --stack -o json --filter 'stack ~ \"*ksys_read*\"' -n 2 -- cat /proc/version /proc/uptime",
    )?;
    ensure!(
        events_among_others(&printed)
            .iter()
            .all(|event| functions(event).is_some_and(|all| all.contains(&"ksys_read")))
    );
    ensure_clean(&guest)
}

/// Many of them, beside interrupts with stacks, a probe without, and a change of the instance.
fn every_stack_is_that_of_its_event(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_with_stacks(fixture)? else { return Ok(()) };
    guest.add("p:beside __x64_sys_getsid")?;
    guest.add("p:goes vfs_open")?;
    let mut tracer =
        guest.start_observing(&format!("trace -o json '{NUMBERS}' hrtimer_interrupt --stack"))?;
    let instance = guest.instance()?;
    guest.call(FIRST, 500)?;
    guest.delete("goes")?;
    ensure!(guest.instance()? != instance, "what records moves to another instance");
    guest.call(FIRST + 500, 500)?;
    let events = events_among_others(&tracer.end_by_interrupt()?.stdout);
    let (mut numbers, mut lost) = (Vec::new(), 0);
    for event in &events {
        let (probe, functions) = (event["probe"].as_str().unwrap_or_default(), functions(event));
        let place = if probe == "kprobes/numbers" { "__x64_sys_getsid" } else { "hrtimer_interrupt" };
        match functions.as_deref() {
            Some([first, ..]) => ensure!(*first == place, "{event}"),
            // Where the readers began to read the next instance.
            _ if probe != "kprobes/numbers" => lost += 1,
            _ => anyhow::bail!("a stack is lost: {event}"),
        }
        numbers.extend(event["fields"]["n"].as_i64());
    }
    ensure!(numbers == (FIRST..FIRST + 1000).collect::<Vec<_>>(), "{} events", numbers.len());
    ensure!(lost <= 2, "{lost} stacks are lost");
    let ledger = guest.ledger()?;
    let other =
        ledger.buffers.iter().map(|buffer| buffer.taken + buffer.undecodable + buffer.overrun).sum::<u64>();
    ensure!(other == 0, "stacks are no events of others, and none was lost: {:?}", ledger.buffers);
    let beside = guest.ledger_of("kprobes/beside")?;
    ensure!(beside.read == 1000 && beside.not_read == 0, "{beside:?}");
    guest.delete("beside")?;
    ensure_clean(&guest)
}

fn a_stack_that_cannot_be_followed_is_refused(fixture: &Fixture) -> Result<()> {
    let Some(guest) = guest_with_stacks(fixture)? else { return Ok(()) };
    let definition = format!("p:inside ksys_lseek+{}", guest.place_of_jump("ksys_lseek")?);
    ensure!(guest.wait_for(guest.client.check_probe(&definition))??.verdict() == Verdict::Accepted);
    let said = guest.ctl_says(&format!("trace '{definition}' --stack"))?;
    ensure!(said.code == 1 && said.stderr.contains("arms this probe by a jump"), "{said:?}");
    guest.until("nothing is left", || Ok(guest.tracefs("kprobe_events")?.is_empty()))?;
    // And for a probe that stays.
    let request = CreateProbeRequest { definition: NUMBERS.to_owned(), stack: true, ..Default::default() };
    let error = refused(guest.wait_for(guest.client.create_probe(request))?)?;
    ensure!(error.message.contains("give the probe a lease"), "{error:?}");
    ensure_clean(&guest)
}

fn stacks_end_with_a_daemon_that_is_killed(fixture: &Fixture) -> Result<()> {
    let Some(mut guest) = guest_with_stacks(fixture)? else { return Ok(()) };
    let _tracer = guest.start_observing(&format!("trace '{NUMBERS}' --stack"))?;
    guest.call(FIRST, 10)?;
    ensure!(guest.in_instance("events/kprobes/numbers/trigger")?.starts_with("stacktrace:"));
    guest.kill_and_restart()?;
    guest.until("the probe is gone", || Ok(guest.probes()?.is_empty()))?;
    ensure_clean(&guest)
}
