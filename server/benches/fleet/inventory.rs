//! The inventory of the fleet: its hosts, including those that do not answer, and the client's
//! configuration.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kprobed::app::StartError;
use kprobed::config::{Listen, Tls};
use kprobed::front;
use kprobed::shutdown::Tasks;
use kprobed_control::auth::{AuditQueue, Rights};
use kprobed_rights::Roles;
use kprobed_trace::pipeline::Hub;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::service::Routes;

use crate::certificates::{Certificates, DOMAIN, Pair};
use crate::host::{Host, Shared};
use crate::stored_kernel::StoredKernel;

/// How the hosts are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// TCP, with certificates on both sides.
    Tls,
    /// Their unix sockets.
    Unix,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Unix => "unix",
        }
    }
}

/// All hosts, which run as long as their runtime does.
pub(crate) struct Fleet {
    /// Hosts that answer.
    pub(crate) healthy: Vec<Host>,
    /// Nothing listens there.
    pub(crate) gone: Vec<String>,
    /// Hosts that accept connections and never answer.
    pub(crate) silent: Vec<String>,
    /// Daemons that know none of the services.
    pub(crate) strange: Vec<String>,
    directory: TempDir,
    _listening: Vec<TcpListener>,
    _kernels: [StoredKernel; 2],
}

/// Where a host is.
struct Place {
    name: String,
    tcp: SocketAddr,
    unix: PathBuf,
}

impl Place {
    /// Each host has an address of its own, as in a fleet: all of 127.0.0.0/8 is this machine.
    fn new(number: usize, port: u16, directory: &Path) -> anyhow::Result<Self> {
        let [_, _, third, last] = u32::try_from(number)?.to_be_bytes();
        let name = format!("web{number:05}");
        let tcp = SocketAddr::from((Ipv4Addr::new(127, 77, third, last), port));
        let unix = directory.join(format!("{name}.sock"));
        Ok(Self { name, tcp, unix })
    }

    fn listen(&self, certificates: &Certificates) -> Listen {
        let Pair { certificate, key } = certificates.daemon.clone();
        let tls = Tls { certificate, key, client_ca: certificates.authority.clone() };
        Listen { unix: self.unix.clone(), tcp: Some(self.tcp), tls: Some(tls), ..Listen::default() }
    }
}

impl Fleet {
    /// Three in a hundred hosts do not answer, each for another reason, and one of each kind at
    /// least.
    pub(crate) fn start(hosts: usize, servers: &Runtime) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let certificates = Certificates::make(directory.path())?;
        let kernels = [StoredKernel::read("6.1")?, StoredKernel::read("6.12")?];
        let shared = Shared { directory: directory.path(), threads: servers.handle(), rights: everybody()? };
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let places: Vec<Place> = (1..=hosts)
            .map(|number| Place::new(number, port, directory.path()))
            .collect::<anyhow::Result<_>>()?;
        let of_each_kind = hosts.div_ceil(100);
        let (mut healthy, mut listening) = (Vec::new(), Vec::new());
        let (mut gone, mut silent, mut strange) = (Vec::new(), Vec::new(), Vec::new());
        for (index, place) in places.iter().enumerate() {
            let (name, listen) = (place.name.clone(), place.listen(&certificates));
            match (hosts - 1 - index) / of_each_kind {
                0 => gone.push(name),
                1 => {
                    listening.push(TcpListener::bind(place.tcp)?);
                    silent.push(name);
                }
                2 => {
                    let (routes, tasks) = (Routes::default(), Tasks::default());
                    let gate = shared.gate(&listen)?;
                    servers.block_on(async {
                        let sockets = front::bind(&listen, front::Inherited::default()).await?;
                        front::serve(sockets, &listen, routes, &tasks, servers.handle(), gate);
                        Ok::<_, StartError>(())
                    })?;
                    strange.push(name);
                }
                _ => {
                    let host = Host::start((index, name), &listen, &kernels[index % 2], &shared);
                    healthy.push(servers.block_on(host)?);
                }
            }
        }
        for way in [Way::Tls, Way::Unix] {
            fs::write(config(directory.path(), way), configuration(way, &places, &certificates))?;
        }
        Ok(Self { healthy, gone, silent, strange, directory, _listening: listening, _kernels: kernels })
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The client's configuration.
    pub(crate) fn config(&self, way: Way) -> PathBuf {
        config(self.directory(), way)
    }

    pub(crate) fn hubs(&self) -> Vec<Arc<Hub>> {
        self.healthy.iter().map(|host| Arc::clone(&host.hub)).collect()
    }
}

fn config(directory: &Path, way: Way) -> PathBuf {
    directory.join(format!("kprobectl-{}.yaml", way.name()))
}

fn configuration(way: Way, places: &[Place], certificates: &Certificates) -> String {
    let mut text = "current_context: fleet\ncontexts:\n  fleet:\n".to_owned();
    if way == Way::Tls {
        let Pair { certificate, key } = &certificates.client;
        let files = [("ca", &certificates.authority), ("cert", certificate), ("key", key)];
        text.extend(files.map(|(name, path)| format!("    {name}: {}\n", path.display())));
        text.extend(["    domain: ", DOMAIN, "\n"]);
    }
    text.push_str("    hosts:\n");
    text.extend(places.iter().map(|place| match way {
        Way::Tls => format!("      {}: {{address: '{}'}}\n", place.name, place.tcp),
        Way::Unix => format!("      {}: {{address: 'unix:{}'}}\n", place.name, place.unix.display()),
    }));
    text
}

/// Roles by which whoever has a certificate, and root on the socket, may do everything.
fn everybody() -> anyhow::Result<Arc<Rights>> {
    let text = "[[role]]\nname = \"everybody\"\nprincipals = [\"uid:0\", \"dns:*\"]\n\
        [[role.allow]]\nmethods = [\"all\"]\nreads = [\"all\"]\n";
    let roles = Roles::parse(text).map_err(|problems| anyhow::anyhow!("{problems:?}"))?;
    Ok(Arc::new(Rights::new(roles, AuditQueue::new().0)))
}
