//! Broken clients: they cost other clients little, and nothing is done for those that have given up.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::CreateProbeRequest;
use kprobed_client::event::StreamRequest;
use kprobed_client::{Client, ConnectOptions};
use kprobed_vm::machine::Command;
use kprobed_vm::{daemon, progress};
use tokio::runtime::Runtime;

use crate::Test;
use crate::daemon::{DaemonGuest, wait};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        a_call_that_timed_out_is_not_carried_out,
    }
    Seldom {
        control_calls_go_before_streams,
    }
};

fn a_call_that_timed_out_is_not_carried_out(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // Threads of their own, so that what a call leaves is sent without a task that waits for it.
    let clients = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let known = clients.block_on(connected(&guest))?;
    clients.block_on(known.list_probes(""))?;
    let pid = guest.shell("pidof kprobed")?;
    guest.shell(&format!("kill -STOP {pid}"))?;
    let outcome = give_up(&guest, &clients, known.clone());
    guest.shell(&format!("kill -CONT {pid}"))?;
    outcome?;
    // What was asked before is begun before these, or not at all.
    clients.block_on(known.list_probes(""))?;
    guest.ctl("--timeout 60s add 'p:after vfs_write'")?;
    let names: Vec<_> = guest.probes()?.into_iter().map(|probe| probe.name).collect();
    ensure!(names == ["kprobes/after"], "{names:?}");
    Ok(())
}

/// Asks a daemon that is stopped for a probe over a new connection, and for one over a known
/// connection, and gives both up.
fn give_up(guest: &DaemonGuest, clients: &Runtime, known: Client) -> Result<()> {
    let new = guest.machine.exec(&Command::shell("kprobectl --timeout 1s add 'p:new vfs_read'"))?;
    ensure!(!new.status.success(), "{new:?}");
    let request = CreateProbeRequest {
        definition: format!("p:known vfs_read{}", " ".repeat(REQUEST_BYTES)),
        ..Default::default()
    };
    let before = unread(guest)?;
    let call = clients.spawn(async move { known.create_probe(request).await.map(drop) });
    let asked = unread_beyond(guest, before + REQUEST_BYTES as u64)?;
    call.abort();
    unread_beyond(guest, asked)?;
    Ok(())
}

/// More than the head of a request takes.
const REQUEST_BYTES: usize = 2000;

/// Waits until the daemon, which is stopped, has more bytes to read than this, and answers how
/// many.
fn unread_beyond(guest: &DaemonGuest, bytes: u64) -> Result<u64> {
    let missing = || format!("{:?} bytes, and not more than {bytes}", unread(guest));
    wait(Duration::from_secs(30), missing, || Ok(Some(unread(guest)?).filter(|found| *found > bytes)))
}

/// Bytes that have arrived on the daemon's TCP connections, and that it has not read
/// (`/proc/net/tcp`).
fn unread(guest: &DaemonGuest) -> Result<u64> {
    let (port, established) = (format!(":{:04X}", daemon::PORT), "01");
    let table = guest.shell("cat /proc/net/tcp")?;
    let bytes = table.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[_, local, _, state, queues, ..] = fields.as_slice() else { return None };
        if !local.ends_with(&port) || state != established {
            return None;
        }
        u64::from_str_radix(queues.split_once(':')?.1, 16).ok()
    });
    Ok(bytes.sum())
}

/// Another client than the one that all tests share.
async fn connected(guest: &DaemonGuest) -> Result<Client> {
    let address = guest.machine.address(daemon::PORT).context("no forward")?;
    let options = ConnectOptions { request_timeout: Duration::from_mins(2), ..ConnectOptions::default() };
    Ok(Client::connect(format!("tcp://{address}").parse()?, options).await?)
}

/// Streams in the test below, and connections that they share.
const STREAMS: usize = 300;
const CONNECTIONS: usize = 30;

/// Begins streams that a task reads. They end when the returned value is dropped.
fn streams(guest: &DaemonGuest) -> Result<Runtime> {
    let clients = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    clients.block_on(async {
        for _ in 0..CONNECTIONS {
            let client = connected(guest).await?;
            for _ in 0..STREAMS / CONNECTIONS {
                let mut stream = client.stream_events(StreamRequest::new()).await?;
                clients.spawn(async move { while let Ok(Some(_)) = stream.next().await {} });
            }
        }
        anyhow::Ok(())
    })?;
    Ok(clients)
}

/// What may stay of the memory for all streams: it is less than half of what they take.
const KEPT_KIB: u64 = 16 << 10;

fn resident_kib(guest: &DaemonGuest) -> Result<u64> {
    Ok(guest.shell("awk '/VmRSS/ {print $2}' /proc/$(pidof kprobed)/status")?.trim().parse()?)
}

fn control_calls_go_before_streams(fixture: &Fixture) -> Result<()> {
    let tcp = "tcp = \"127.0.0.1:7000\"\n";
    let config = daemon::DEFAULT_CONFIG.replace(tcp, &format!("{tcp}max_streams = {STREAMS}\n"));
    let guest = fixture.daemon_with(&config)?;
    guest.add("p:busy __x64_sys_getppid")?;
    // From the host: in the guest a program of its own would take longer to start than the daemon to answer.
    let timed = || -> Result<Duration> {
        let begun = Instant::now();
        guest.wait_for(guest.client.list_probes(""))??;
        Ok(begun.elapsed())
    };
    let alone = timed()?;
    let before = resident_kib(&guest)?;
    let clients = streams(&guest)?;
    guest.machine.spawn("busy", &Command::new("workload").args(["getppid", "2000000000"]))?;
    let took: Result<Vec<_>> = (0..5).map(|_| timed()).collect();
    guest.machine.kill_process("busy")?;
    let mut took = took?;
    took.sort();
    // What streams keep waiting waits each time; one time alone can be that of the machine below the guest.
    let usual = took[took.len() / 2];
    let peak = guest.shell("grep VmHWM /proc/$(pidof kprobed)/status")?;
    clients.shutdown_background();
    // With the clients their memory goes. What other trials have left the daemon is its own.
    let missing = || format!("{before} KiB before, {peak}, and {:?} KiB stay", resident_kib(&guest));
    let is_freed = || Ok(Some(resident_kib(&guest)?).filter(|left| *left < before + KEPT_KIB));
    let left = wait(Duration::from_mins(1), missing, is_freed)?;
    progress::note(format_args!(
        "list: {alone:.1?} alone, {took:.1?} beside {STREAMS} streams; {before} KiB, {}, then {left} KiB",
        peak.trim()
    ));
    ensure!(usual < Duration::from_secs(2), "`list` took {took:.1?} beside {STREAMS} streams");
    Ok(())
}
