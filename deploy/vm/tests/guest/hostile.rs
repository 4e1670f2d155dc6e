//! Clients that are broken, or mean harm: they cost others little, and are told what is wrong.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{CreateProbeRequest, UpdateProbeRequest};
use kprobed_client::event::StreamRequest;
use kprobed_client::{Client, ConnectOptions};
use kprobed_vm::machine::Command;
use kprobed_vm::{daemon, progress};
use tokio::runtime::Runtime;

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = &[
    ("what_is_echoed_fits_into_trailers", what_is_echoed_fits_into_trailers),
    ("idle_connections_keep_nobody_out", idle_connections_keep_nobody_out),
    ("a_call_that_timed_out_is_not_carried_out", a_call_that_timed_out_is_not_carried_out),
    ("control_calls_go_before_streams", control_calls_go_before_streams),
];

const SIGKILL: i32 = 9;

fn refused(outcome: Result<impl std::fmt::Debug, kprobed_client::Error>) -> Result<kprobed_client::RpcError> {
    match outcome {
        Err(kprobed_client::Error::Rpc(error)) => Ok(*error),
        other => anyhow::bail!("{other:?}"),
    }
}

fn what_is_echoed_fits_into_trailers(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // Just below what gRPC takes as a message.
    let many = "a=%di ".repeat(500_000);
    let definition = format!("p:x vfs_read {many} b=%nosuch");
    let error = guest.refusal(&definition)?;
    let found = error.diagnostics.context("no diagnostics")?;
    ensure!(!error.reason.is_empty() && found.text.len() < 4096, "{} {}", error.reason, found.text.len());
    guest.add("p:x vfs_read a=%di")?;
    let filter = format!("{}a == 1", "(".repeat(20_000));
    let update =
        UpdateProbeRequest { name: "x".to_owned(), filter: Some(filter.clone()), ..Default::default() };
    let error = refused(guest.wait_for(guest.client.update_probe(update))?)?;
    ensure!(error.reason == "BAD_FILTER", "{error:?}");
    let shown = error.diagnostics.context("no diagnostics")?;
    ensure!(shown.text.contains(" bytes)") && shown.text.len() < 4096, "{}", shown.text);
    let name = "n".repeat(1 << 20);
    let error = refused(guest.wait_for(guest.client.get_probe(&name))?)?;
    ensure!(error.message.len() < 4096 && error.message.contains("bytes) ..."), "{}", error.message);
    let label = CreateProbeRequest {
        definition: "p:y vfs_read".to_owned(),
        labels: [("k".to_owned(), "v".repeat(1 << 20))].into(),
        ..Default::default()
    };
    let error = refused(guest.wait_for(guest.client.create_probe(label))?)?;
    ensure!(error.reason == "BAD_LABEL", "{error:?}");
    let request = StreamRequest::new().filter(&filter);
    let error = refused(guest.wait_for(guest.client.stream_events(request))?.map(|_| ()))?;
    ensure!(error.message.len() < 4096, "{}", error.message);
    Ok(())
}

fn idle_connections_keep_nobody_out(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let holder = Command::new("workload").args(["connect", "/run/kprobed/kprobed.sock", "1500"]);
    guest.machine.spawn("holder", &holder)?;
    let outcome = with_idle_connections(&guest);
    guest.machine.kill("holder", SIGKILL)?;
    guest.machine.wait("holder", Some(Duration::from_secs(30)))?;
    outcome?;
    // They are gone, and so is what they took.
    guest.shell("until [ $(ls /proc/$(pidof kprobed)/fd | wc -l) -lt 200 ]; do sleep 0.1; done")?;
    Ok(())
}

fn with_idle_connections(guest: &DaemonGuest) -> Result<()> {
    let waited =
        "for i in $(seq 300); do grep -q connected /run/log/holder.log && exit 0; sleep 0.1; done; exit 1";
    guest.shell(waited).context("the daemon does not take them")?;
    let begun = Instant::now();
    guest.shell("kprobectl --timeout 20s add 'p:late vfs_read' && kprobectl --timeout 20s delete late")?;
    ensure!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let open: u64 = guest.shell("ls /proc/$(pidof kprobed)/fd | wc -l")?.trim().parse()?;
    ensure!(open < 1000, "{open} descriptors are open");
    ensure!(guest.log().contains("closed idle connections to make room"), "{}", guest.log());
    Ok(())
}

fn a_call_that_timed_out_is_not_carried_out(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let pid = guest.shell("pidof kprobed")?;
    let pid = pid.trim();
    // One comes by a new connection, one by one that is served already.
    guest.shell(&format!("kill -STOP {pid}"))?;
    let new = guest.machine.exec(&Command::shell("kprobectl --timeout 1s add 'p:new vfs_read'"))?;
    let request = CreateProbeRequest { definition: "p:known vfs_read".to_owned(), ..Default::default() };
    let short = guest.wait_for(async {
        tokio::time::timeout(Duration::from_secs(1), guest.client.create_probe(request)).await
    });
    guest.shell(&format!("kill -CONT {pid}"))?;
    ensure!(!new.status.success() && short?.is_err(), "{new:?}");
    // What was asked before is begun before this, or not at all.
    guest.shell("kprobectl --timeout 60s add 'p:after vfs_write'")?;
    guest.ledger()?;
    let names: Vec<_> = guest.probes()?.into_iter().map(|probe| probe.name).collect();
    ensure!(names == ["kprobes/after"], "{names:?}\n{}", guest.log());
    Ok(())
}

/// Streams in the test below, and connections that they share.
const STREAMS: usize = 300;
const CONNECTIONS: usize = 30;

/// Begins streams that somebody reads. They end with what is given back.
fn streams(guest: &DaemonGuest) -> Result<Runtime> {
    let address = guest.machine.address(daemon::PORT).context("no forward")?;
    let clients = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    clients.block_on(async {
        for _ in 0..CONNECTIONS {
            let options =
                ConnectOptions { request_timeout: Duration::from_mins(2), ..ConnectOptions::default() };
            let client = Client::connect(format!("tcp://{address}").parse()?, options).await?;
            for _ in 0..STREAMS / CONNECTIONS {
                let mut stream = client.stream_events(StreamRequest::new()).await?;
                clients.spawn(async move { while let Ok(Some(_)) = stream.next().await {} });
            }
        }
        anyhow::Ok(())
    })?;
    Ok(clients)
}

fn control_calls_go_before_streams(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    guest.add("p:busy __x64_sys_getppid")?;
    let timed = || -> Result<Duration> {
        let begun = Instant::now();
        guest.shell("kprobectl list > /dev/null")?;
        Ok(begun.elapsed())
    };
    let alone = timed()?;
    let clients = streams(&guest)?;
    guest.machine.spawn("busy", &Command::new("workload").args(["getppid", "2000000000"]))?;
    let took: Result<Vec<_>> = (0..5).map(|_| timed()).collect();
    guest.machine.kill("busy", SIGKILL)?;
    guest.machine.wait("busy", Some(Duration::from_secs(30)))?;
    let slowest = took?.into_iter().max().unwrap_or_default();
    let peak = guest.shell("grep VmHWM /proc/$(pidof kprobed)/status")?;
    clients.shutdown_background();
    // With the clients their memory goes.
    let given_back = "for i in $(seq 600); do
        kib=$(awk '/VmRSS/ {print $2}' /proc/$(pidof kprobed)/status)
        [ $kib -lt 65536 ] && echo $kib && exit 0; sleep 0.1; done; echo $kib >&2; exit 1";
    let left = guest.shell(given_back).context("the memory was not given back")?;
    progress::note(format_args!(
        "list: {alone:.1?} alone, at most {slowest:.1?} beside {STREAMS} streams; {}, then {} KiB",
        peak.trim(),
        left.trim()
    ));
    ensure!(slowest < Duration::from_secs(2), "`list` took {slowest:?} beside {STREAMS} streams");
    Ok(())
}
