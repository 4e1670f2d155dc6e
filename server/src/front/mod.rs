//! The front end: sockets, connections and calls, before any service sees them.
//!
//! Owns the limits of connections and calls, what happens to idle ones, the deadline of a call, and
//! which threads serve it. Control calls and streams have threads of their own, so that a `list` does not
//! wait for the events of three hundred streams. Never knows what a call means.

mod accept;
mod admission;
mod call;
mod call_limits;
mod call_memory;
mod connection;
mod inherited;
mod lane;
mod listen;
mod malloc_trim;
mod memory_bound;
mod request_body;
mod resets;
mod socket;
#[cfg(test)]
mod tests;

pub use admission::raise_limit;
pub use call_limits::VANISHED_AFTER;
pub use inherited::Inherited;
pub use listen::join_group;
pub use memory_bound::memory_bound;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tonic::service::Routes;

use self::accept::{Acceptor, Warnings};
use self::admission::{Admission, Limits};
use self::call_limits::CallLimits;
use self::call_memory::CallMemory;
use self::connection::Serving;
use self::malloc_trim::Trimmer;
use self::memory_bound::MemoryBound;
use crate::auth::LiveTls;
use crate::config::Listen;
use crate::shutdown::Tasks;
use crate::start_error::StartError;
use kprobed_control::auth::Rights;

/// What decides who comes in, and who a client is.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The roles of this host.
    pub rights: Arc<Rights>,
    /// Usually `/proc`: the processes at the other end of unix sockets.
    pub procfs: PathBuf,
    /// Certificates for TCP. Absent: TCP on loopback, without proof.
    pub tls: Option<Arc<LiveTls>>,
}

/// The sockets of the daemon. They listen, and connections wait until they are served.
#[derive(Debug)]
pub struct Sockets {
    unix: UnixListener,
    /// The unix socket to remove at the end, if the daemon has made one. That of the service manager is kept.
    pub path: Option<PathBuf>,
    tcp: Option<TcpListener>,
}

/// Listens, on the sockets of the service manager where it has opened them.
///
/// # Errors
/// See [`StartError`].
pub async fn bind(listen: &Listen, inherited: Inherited) -> Result<Sockets, StartError> {
    let failed = |address: String| move |error| listen::failed(&address, &error);
    let (unix, path) = match inherited.unix {
        Some(socket) => {
            let address = listen.unix.display().to_string();
            (UnixListener::from_std(socket).map_err(failed(address))?, None)
        }
        None => (listen::unix(&listen.unix, &listen.group).await?, Some(listen.unix.clone())),
    };
    let tcp = match (inherited.tcp, listen.tcp) {
        (_, None) => None,
        (Some(socket), Some(address)) => Some((TcpListener::from_std(socket), address)),
        (None, Some(address)) => Some((TcpListener::bind(address).await, address)),
    };
    let tcp = tcp.map(|(tcp, address)| tcp.map_err(failed(address.to_string()))).transpose()?;
    Ok(Sockets { unix, path, tcp })
}

/// Serves every connection, until the tasks are stopped. Streams run on `streams`. Each call is allowed
/// by the roles first.
pub fn serve(
    Sockets { unix, path, tcp }: Sockets,
    listen: &Listen,
    routes: Routes,
    tasks: &Tasks,
    streams: &Handle,
    gate: Gate,
) {
    let Gate { rights, procfs, tls } = gate;
    let limits = Limits::new(listen);
    let bound_mib = MemoryBound::new(listen, limits).bytes() >> 20;
    tracing::info!(bound_mib, "bounded the memory for clients");
    let trimmer = Arc::<Trimmer>::default();
    let acceptor = Arc::new(Acceptor {
        admission: Arc::new(Admission::new(limits)),
        serving: Arc::new(Serving {
            routes,
            streams: streams.clone(),
            tasks: tasks.clone(),
            idle_timeout: Duration::from_secs(listen.idle_timeout_s),
            trimmer: Arc::clone(&trimmer),
            rights,
            call_limits: CallLimits::new(listen),
            call_memory: Arc::new(CallMemory::new(listen.call_memory_mib << 20)),
            warnings: Warnings::default(),
        }),
        refusals: Arc::new(Semaphore::new(accept::REFUSALS)),
        procfs,
    });
    let stopping = tasks.stopping().clone();
    tasks.spawn("memory", async move { trimmer.run(&stopping).await });
    tracing::info!(socket = %listen.unix.display(), of_service_manager = path.is_none(), "listening");
    let accepting = Arc::clone(&acceptor);
    tasks.spawn("unix", async move { accepting.run_unix(unix).await });
    if let Some(tcp) = tcp {
        let address = tcp.local_addr().ok().or(listen.tcp);
        tracing::info!(address = ?address, tls = tls.is_some(), "listening");
        tasks.spawn("tcp", async move { acceptor.run_tcp(tcp, tls).await });
    }
}
