//! Test of attacks: what clients that flood, stall or send nonsense cost a neighbour.
//!
//! A real server in this process is attacked over its unix socket and over TLS, while a neighbour asks for
//! checks. The figures are printed; what is asserted are ratios, and the bound of memory that the settings
//! give. The share of the machine in a delay is measured beside it, so that a loaded one fails nothing: how long the
//! neighbour waits while another server in this process is attacked in the same way.

mod attackers;
pub(crate) mod events;
pub(crate) mod http2;
mod neighbour;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kprobed::config::Listen;
use kprobed::front;
use kprobed_proto::v1;
use kprobed_proto::v1::access_service_client::AccessServiceClient;
use tokio::runtime::{Builder, Runtime};

use self::attackers::Stop;
use self::neighbour::{Neighbour, resident_bytes};
use crate::server::{PATIENCE, Server};

/// Connections of the largest attack, if there are descriptors for so many.
const CONNECTIONS: usize = 5000;

/// Calls of the neighbour before and during each attack.
const CALLS: usize = 400;

/// Of the delays of a byte to another thread, so many may come on top: a call and its answer cross that
/// many threads.
const HOPS: u32 = 8;

/// Files that this process may open.
fn descriptors() -> usize {
    let (soft, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    usize::try_from(soft).unwrap_or(usize::MAX)
}

/// A neighbour may wait so many times as long as without the attack, or with an attack on another server.
const TIMES: u32 = 2;

/// What may come on top: a time slice of the scheduler.
const SLICE: Duration = Duration::from_millis(5);

type Attack = fn(Arc<Server>, Stop) -> Pin<Box<dyn Future<Output = String> + Send>>;

/// The attacks, each with the time that it takes at least.
const ATTACKS: [(&str, Duration, Attack); 6] = [
    ("silence", Duration::ZERO, |server, stop| Box::pin(attackers::silence(server, stop))),
    ("garbage", Duration::ZERO, |server, stop| Box::pin(attackers::garbage(server, stop))),
    ("huge headers", Duration::ZERO, |server, stop| Box::pin(attackers::headers(server, stop))),
    ("resets", Duration::ZERO, |server, stop| Box::pin(attackers::resets(server, stop))),
    ("readers that do not read", Duration::ZERO, |server, stop| Box::pin(attackers::deafness(server, stop))),
    // Longer than the daemon waits for one.
    ("slow handshakes", Duration::from_secs(3), |server, stop| Box::pin(attackers::handshakes(server, stop))),
];

fn runtime(threads: usize, name: &str) -> Runtime {
    Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build().unwrap()
}

/// Connects as the attackers do, and is served.
async fn served(server: &Server) -> bool {
    let Ok(channel) = server.local().await else { return false };
    AccessServiceClient::new(channel).get_caller(v1::GetCallerRequest {}).await.is_ok()
}

#[test]
#[ignore = "measures for a minute, best alone: a step of `.ci/release`"]
fn attacks_cost_a_neighbour_little() {
    front::raise_limit();
    let (daemon, elsewhere) = (runtime(2, "daemon"), runtime(2, "elsewhere"));
    let (attackers, neighbours) = (runtime(1, "attackers"), runtime(1, "neighbour"));
    let listen = Listen {
        max_connections: 512,
        max_connections_per_peer: 256,
        max_calls_per_connection: 32,
        max_streams: 64,
        call_memory_mib: 32,
        queue_memory_mib: 32,
        handshake_timeout_s: 2,
        ..Listen::default()
    };
    let other = Arc::new(elsewhere.block_on(Server::open(listen.clone(), "")));
    let server = Arc::new(daemon.block_on(Server::open(listen, "")));
    let bound = front::memory_bound(&server.listen);
    eprintln!("{} descriptors; clients can take {} MiB", descriptors(), bound >> 20);
    let mut neighbour = neighbours.block_on(Neighbour::new(&server));
    // The first ones find nothing in caches.
    neighbours.block_on(neighbour.measure(CALLS / 4, Duration::ZERO));
    for (name, time, attack) in ATTACKS {
        let before = neighbours.block_on(neighbour.measure(CALLS, Duration::ZERO));
        let mut beside = |attacked: &Arc<Server>| {
            let stop = Stop::new();
            let under_way = attackers.spawn(attack(Arc::clone(attacked), stop.clone()));
            let during = neighbours.block_on(neighbour.measure(CALLS, time));
            stop.cancel();
            (during, attackers.block_on(under_way).unwrap())
        };
        let (floor, _) = beside(&other);
        let at_rest = resident_bytes();
        let (during, figures) = beside(&server);
        let ended = Instant::now();
        attackers.block_on(async {
            while !served(&server).await {
                assert!(ended.elapsed() < PATIENCE, "{name}: the daemon does not recover");
                tokio::task::yield_now().await;
            }
        });
        let grown = during.resident.saturating_sub(at_rest);
        eprintln!(
            "{name}: {figures}; p99 {:.1?} before, {:.1?} beside another server, {:.1?} during (a byte to a thread and \
             back: {:.1?}, {:.1?}); {} MiB more memory; served again after {:.1?}",
            before.p99,
            floor.p99,
            during.p99,
            before.echo_p99,
            during.echo_p99,
            grown >> 20,
            ended.elapsed(),
        );
        let allowed: Duration = before.p99.max(floor.p99) * TIMES + during.echo_p99 * HOPS + SLICE;
        assert!(during.p99 <= allowed, "{name}: {:?} and not {allowed:?}", during.p99);
        assert!(grown <= bound, "{name}: {grown} bytes more, and not {bound}");
    }
}
