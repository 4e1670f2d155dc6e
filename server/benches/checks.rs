//! Benchmark of CheckProbe: checks a second through one gRPC stream over a unix socket, and the
//! processor time of the daemon for each.
//!
//! Daemon and client are two runtimes of this process; the processor time of each is that of its
//! own threads.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

mod support;
#[allow(dead_code, clippy::allow_attributes, reason = "the tests of the rules need more of it")]
#[path = "../fixtures/world.rs"]
mod world;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use kprobed::auth::as_daemon;
use kprobed::rpc::ProbeServer;
use kprobed_client::{Client, ConnectOptions, Target};
use kprobed_control::ProbeStates;
use kprobed_control::auth::{AuditQueue, Rights};
use kprobed_control::store::Store;
use kprobed_control::{Controller, Observer, Registry};
use kprobed_host::kernel::FactsCache;
use kprobed_host::tracefs::{CurrentInstance, Instance, Tracefs};
use kprobed_lang::definition::Features;
use kprobed_proto::v1::probe_service_server::ProbeServiceServer;
use kprobed_rights::Roles;
use kprobed_verdict::checker::Checker;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::UnixListenerStream;

/// Definitions in one stream.
fn checks() -> usize {
    support::much(200_000, 5_000)
}

fn runtime(name: &str) -> Runtime {
    Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build().unwrap()
}

/// Typical lines: places in and between instructions of many functions, arguments of several kinds.
fn lines(kernel: &str) -> Vec<String> {
    let rows = world::rows("oracle", kernel);
    let arguments = ["a=$arg1:u64", "a=%di:x64 b=+8(%si):u32", "", "name=+0(%si):string"];
    // Steps through all of the table, so that neighbours are not of one function.
    let stride = 7919;
    (0..checks())
        .map(|index| {
            let row = &rows[index * stride % rows.len()];
            let argument = arguments[index % arguments.len()];
            let offset = if index % 5 == 0 { String::new() } else { format!("+{}", row.offset) };
            format!("p:x {}{offset} {argument}\n", row.function)
        })
        .collect()
}

async fn serve(socket: PathBuf, checker: Checker, state: PathBuf, store: Store) {
    let (control, _queue) = Controller::channel();
    std::fs::create_dir_all(state.join("instances/i")).unwrap();
    let tracefs = Tracefs::new(&state, "/nonexistent");
    let instance = CurrentInstance::new(Instance::find(&tracefs, "i").unwrap());
    let nowhere = "/nonexistent";
    let observer = Observer::new(tracefs, Arc::new(instance), nowhere.into(), nowhere.into());
    let probes = ProbeServer {
        states: ProbeStates { observer, control: control.clone(), registry: Arc::default() },
        control,
        registry: Arc::<Registry>::default(),
        checker: Arc::new(checker),
        store,
        declarations: Arc::default(),
        costs: Arc::default(),
        rights: Arc::new(Rights::new(Roles::default(), AuditQueue::new().0)),
    };
    let listener = UnixListenerStream::new(tokio::net::UnixListener::bind(socket).unwrap());
    let server =
        tonic::transport::Server::builder().layer(as_daemon()).add_service(ProbeServiceServer::new(probes));
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
        let readme = "char, string, ustring kernel return probes support";
        let checker =
            Checker::new(Features::from_readme(readme), Arc::new(FactsCache::new(world.paths.clone())));
        let server = runtime("bench-server");
        let store = server.block_on(Store::open(directory.path(), SystemTime::now())).unwrap().store;
        server.spawn(serve(socket.clone(), checker, directory.path().to_owned(), store));
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
