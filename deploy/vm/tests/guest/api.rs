//! Ways to read events: rows instead of columns, with their contexts; health; and probes in modules.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_client::api::event_service_client::EventServiceClient;
use kprobed_client::api::stream_events_response::Message;
use kprobed_client::api::{
    EventForm, EventRow, EventSelection, ProbeState, StreamEventsRequest, StreamEventsResponse, value::Kind,
};
use kprobed_vm::daemon;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        rows_say_what_columns_say,
        contexts_are_told_where_they_are_known,
        health_answers,
        functions_of_modules_are_probed,
    }
};

/// A stream of rows that has begun.
fn rows(guest: &DaemonGuest, probes: &[&str]) -> Result<Streaming<StreamEventsResponse>> {
    let probes = probes.iter().map(|glob| (*glob).to_owned()).collect();
    let selection = Some(EventSelection { probes, ..Default::default() });
    let request = StreamEventsRequest { selection, form: EventForm::Rows.into(), ..Default::default() };
    let address = guest.machine.address(daemon::PORT).context("no forward")?;
    let mut events = EventServiceClient::new(guest.wait_for(channel(address))??);
    let mut rows = guest.wait_for(events.stream_events(request))??.into_inner();
    let first = guest.wait_for(rows.message())??;
    ensure!(matches!(first, Some(StreamEventsResponse { message: Some(Message::Started(_)) })), "{first:?}");
    Ok(rows)
}

/// The next rows.
fn next_rows(guest: &DaemonGuest, rows: &mut Streaming<StreamEventsResponse>) -> Result<Vec<EventRow>> {
    loop {
        match guest.wait_for(rows.message())??.context("the stream has ended")?.message {
            Some(Message::Rows(rows)) => return Ok(rows.events),
            Some(Message::Epoch(_) | Message::CaughtUp(_) | Message::Progress(_)) => {}
            other => bail!("{other:?}"),
        }
    }
}

fn rows_say_what_columns_say(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add(
        "p:both do_sys_openat2 filename=+0(%si):string dfd=%di:s32 bad=+0(\\0x10):u32 bytes=+0(%si):u8[3]",
    )?;
    let mut stream = rows(&guest, &["*/both"])?;
    let columns = guest.record(|| guest.workload(&["open", "/etc/passwd", "0", "0", "3"]).map(drop))?;
    // Others open files too, and may have between the two subscriptions.
    let columns: Vec<_> = columns.of("kprobes/both", "workload").collect();
    ensure!(columns.len() >= 3, "{columns:?}");
    let mut events = Vec::new();
    while events.len() < columns.len() {
        let new = next_rows(&guest, &mut stream)?;
        events.extend(new.into_iter().filter(|event| event.comm == "workload"));
    }
    ensure!(events.len() == columns.len());
    let mut readable = 0;
    for (row, column) in events.iter().zip(&columns) {
        ensure!(row.probe == column.probe && row.location == column.location, "{row:?} {column:?}");
        let kind = |index: usize| row.fields[index].value.as_ref().and_then(|value| value.kind.clone());
        let filename = match kind(0) {
            Some(Kind::Text(filename)) => filename,
            // Memory of a program that is not there yet cannot be read from a probe.
            other => {
                ensure!(other.is_none() && !column.field("filename").starts_with('"'), "{row:?} {column:?}");
                continue;
            }
        };
        ensure!(format!("{filename:?}") == column.field("filename"), "{row:?} {column:?}");
        ensure!(kind(1) == Some(Kind::Signed(-100)), "{row:?}");
        let (faulted, unproven) = (kind(2).is_none(), row.unproven.iter().any(|name| name == "bad"));
        ensure!(faulted != unproven && faulted == fixture.proves_reads(), "{row:?}");
        ensure!(matches!(kind(3), Some(Kind::List(list)) if list.values.len() == 3), "{row:?}");
        let time = row.time.context("no time")?;
        ensure!(time.seconds.unsigned_abs() == column.wall_ns / 1_000_000_000, "{row:?} {column:?}");
        readable += usize::from(filename == "/etc/passwd");
    }
    ensure!(readable == 3, "{readable} of 3: {columns:?}");
    Ok(())
}

fn contexts_are_told_where_they_are_known(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // At the entry through ftrace, after it through a breakpoint: there the kernel records garbage,
    // and 5.10 the context of the breakpoint itself.
    let own_context = fixture.is_older_than(6, 1);
    let listing = guest.wait_for(guest.client.check_probe("p __x64_sys_getppid"))??.listing;
    let behind = listing
        .iter()
        .find(|shown| shown.offset >= 5 && shown.probeable)
        .context("no place behind the entry")?;
    guest.shell("echo 0 > /proc/sys/debug/kprobes-optimization")?;
    guest.add("p:entry __x64_sys_getppid")?;
    guest.add(&format!("p:behind __x64_sys_getppid+{}", behind.offset))?;
    let mut stream = rows(&guest, &[])?;
    guest.workload(&["getppid", "10"])?;
    let (mut known, mut unknown) = (0, 0);
    while known + unknown < 20 {
        for event in next_rows(&guest, &mut stream)? {
            if event.comm != "workload" {
                continue;
            }
            match (event.probe.as_str(), &event.context) {
                ("kprobes/entry", Some(context)) => {
                    ensure!(!context.nmi && !context.hardirq && !context.softirq, "{event:?}");
                    known += 1;
                }
                ("kprobes/behind", None) if !own_context => unknown += 1,
                ("kprobes/behind", Some(context)) if own_context && context.nmi => unknown += 1,
                _ => anyhow::bail!("{event:?}"),
            }
        }
    }
    guest.shell("echo 1 > /proc/sys/debug/kprobes-optimization")?;
    ensure!((known, unknown) == (10, 10), "{known} {unknown}");
    Ok(())
}

async fn channel(address: std::net::SocketAddr) -> Result<Channel> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(Duration::from_secs(20))
        .connect()
        .await?)
}

fn health_answers(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let address = guest.machine.address(daemon::PORT).context("no forward")?;
    let mut health = HealthClient::new(guest.wait_for(channel(address))??);
    let answer = guest.wait_for(health.check(HealthCheckRequest::default()))??.into_inner();
    ensure!(answer.status() == ServingStatus::Serving, "{answer:?}");
    Ok(())
}

fn functions_of_modules_are_probed(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let function = guest.shell(
        "grep '\\[virtio_net\\]' /sys/kernel/tracing/available_filter_functions | awk '{print $1}' | while read f; do \
         [ $(grep -c \" $f\\b\" /proc/kallsyms) = 1 ] && echo $f && break; done",
    )?;
    let function = function.trim();
    ensure!(!function.is_empty(), "virtio_net has no function");
    let probe = guest.add(&format!("p:net virtio_net:{function}"))?;
    ensure!(probe.state() == ProbeState::Armed && probe.location.starts_with("virtio_net:"), "{probe:?}");
    // A module that is not there yet: the probe waits for it, outside of the kernel.
    let waiting = guest.add("p:later no_such_module:some_function")?;
    ensure!(
        waiting.state() == ProbeState::HeldBack && waiting.state_reason == "MODULE_ABSENT",
        "{waiting:?}"
    );
    ensure!(!guest.tracefs("kprobe_events")?.contains("no_such_module"), "it is in the kernel");
    let refusal = guest.refusal("p:x virtio_net:no_such_function")?;
    ensure!(refusal.reason == "BAD_PROBE_ADDR", "{refusal:?}");
    Ok(())
}
