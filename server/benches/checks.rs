//! Benchmark of CheckProbe: checks a second through one gRPC stream over a unix socket, and the
//! processor time of the daemon for each.
//!
//! Daemon and client are two runtimes of this process; the processor time of each is that of its
//! own threads.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "support/as_daemon.rs"]
mod as_daemon;
#[allow(dead_code, clippy::allow_attributes, reason = "the tests of the daemon need more of it")]
#[path = "../tests/daemon/server.rs"]
mod daemon;
mod support;
#[allow(dead_code, clippy::allow_attributes, reason = "the tests of the rules need more of it")]
#[path = "../fixtures/world.rs"]
mod world;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use kprobed_client::{Client, ConnectOptions, Target};
use kprobed_control::auth::{AuditQueue, Rights};
use kprobed_fake::FakeKernel;
use kprobed_host::kernel::{FactsCache, HostIdentity, KernelPaths};
use kprobed_rights::Roles;
use kprobed_trace::pipeline::{Binder, Hub};
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;

use self::as_daemon::as_daemon;
use self::daemon::Daemon;

/// Definitions in one stream.
fn checks() -> usize {
    support::much(200_000, 5_000)
}

fn runtime(name: &str) -> Runtime {
    Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build().unwrap()
}

/// Typical lines: places in and between instructions of many functions, names that do not exist,
/// arguments of several kinds.
fn lines(kernel: &str) -> Vec<String> {
    let rows = world::rows("oracle", kernel);
    let arguments = ["a=$arg1:u64", "a=%di:x64 b=+8(%si):u32", "", "name=+0(%si):string"];
    // Steps through all of the table, so that neighbours are not of one function.
    let stride = 7919;
    (0..checks())
        .map(|index| {
            let row = &rows[index * stride % rows.len()];
            let argument = arguments[index % arguments.len()];
            match index % 5 {
                0 => format!("p:x {} {argument}\n", row.function),
                1 => {
                    let (head, tail) = row.function.split_at(row.function.len() / 2);
                    format!("p:x {head}x{tail} {argument}\n")
                }
                _ => format!("p:x {}+{} {argument}\n", row.function, row.offset),
            }
        })
        .collect()
}

/// The services of a daemon over a kernel in memory, whose facts are those of the stored one.
async fn routes(directory: &Path, paths: &KernelPaths, kernel: &FakeKernel) -> Routes {
    let text = str::to_owned;
    let host = HostIdentity {
        hostname: text("here"),
        kernel_release: text("6.12.0"),
        kernel_version: text("#1 SMP"),
        machine: text("x86_64"),
        boot_id: text("07070707-0707-0707-0707-070707070707"),
    };
    daemon::routes(Daemon {
        directory,
        host,
        facts: Arc::new(FactsCache::new(paths.clone())),
        paths,
        kernel,
        rights: &Arc::new(Rights::new(Roles::default(), AuditQueue::new().0)),
        hub: &Arc::new(Hub::new(Binder::new("here".to_owned(), None))),
        probes: &[],
    })
    .await
}

async fn serve(socket: PathBuf, routes: Routes) {
    let listener = UnixListenerStream::new(tokio::net::UnixListener::bind(socket).unwrap());
    let server = tonic::transport::Server::builder().layer(as_daemon()).add_routes(routes);
    server.serve_with_incoming(listener).await.unwrap();
}

async fn connect(socket: &Path) -> Client {
    while !socket.exists() {
        tokio::task::yield_now().await;
    }
    Client::connect(Target::Unix(socket.to_owned()), ConnectOptions::default()).await.unwrap()
}

fn main() {
    for kernel in ["6.1", "6.12"] {
        let sites = std::fs::read_to_string(world::fixture(&format!("patch-sites-{kernel}.tsv"))).unwrap();
        let world = world::world(kernel, &sites);
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("kprobed.sock");
        let fake = daemon::kernel(kernel);
        let server = runtime("bench-server");
        let routes = server.block_on(routes(directory.path(), &world.paths, &fake));
        server.spawn(serve(socket.clone(), routes));
        let client = runtime("bench-client");
        let lines = lines(kernel);
        let connection = client.block_on(connect(&socket));
        // The first check reads the facts.
        client.block_on(connection.check_probe(&lines[0])).unwrap();
        for _ in 0..support::much(3, 1) {
            let pieces: Vec<Vec<u8>> = lines.chunks(1500).map(|lines| lines.concat().into_bytes()).collect();
            let (start, cpu) = (Instant::now(), support::cpu_time_of("bench-server"));
            let (checked, refused) =
                client.block_on(client.spawn(stream(connection.clone(), pieces))).unwrap();
            let (took, cpu) = (start.elapsed(), support::cpu_time_of("bench-server").saturating_sub(cpu));
            assert_eq!(checked, checks());
            report(kernel, "one stream", checked, took, cpu);
            println!("  {refused} of them refused");
        }
        let (start, cpu) = (Instant::now(), support::cpu_time_of("bench-server"));
        let some = &lines[..checks() / 40];
        client.block_on(one_by_one(&connection, some));
        let cpu = support::cpu_time_of("bench-server").saturating_sub(cpu);
        report(kernel, "one by one", some.len(), start.elapsed(), cpu);
        server.shutdown_background();
    }
}

fn report(kernel: &str, how: &str, checks: usize, took: std::time::Duration, cpu: std::time::Duration) {
    let (each, rate) = (cpu.as_secs_f64() * 1e6 / checks as f64, checks as f64 / cpu.as_secs_f64());
    let wall = checks as f64 / took.as_secs_f64();
    println!(
        "{kernel}: {checks} checks, {how}: {wall:.0}/s; {each:.2} us of the daemon each, {rate:.0}/s of one core"
    );
}

async fn stream(client: Client, pieces: Vec<Vec<u8>>) -> (usize, usize) {
    let mut stream = client.check_probes(tokio_stream::iter(pieces), false).await.unwrap();
    let (mut checked, mut refused) = (0, 0);
    while let Some(one) = stream.next().await.unwrap() {
        checked += 1;
        refused += usize::from(one.check.is_some_and(|check| check.errno != 0));
    }
    (checked, refused)
}

async fn one_by_one(client: &Client, lines: &[String]) {
    for line in lines {
        client.check_probe(line.trim_end()).await.unwrap();
    }
}
