//! One host of the fleet: the daemon behind its real front end, over a kernel in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use kprobed::auth::LiveTls;
use kprobed::config::{Listen, tls_settings};
use kprobed::front::{self, Gate};
use kprobed::shutdown::Tasks;
use kprobed_control::auth::Rights;
use kprobed_control::store::{ProbeSpec, Record};
use kprobed_fake::FakeKernel;
use kprobed_host::kernel::HostIdentity;
use kprobed_lang::model::{KernelChange, Metadata};
use kprobed_trace::pipeline::{Binder, Hub};
use kprobed_verdict::checker::DefinitionText;
use tokio::runtime::Handle;

use crate::server::{self, Daemon};
use crate::stored_kernel::StoredKernel;

/// Probes of each host.
pub(crate) const PROBES: usize = 16;

/// Hits of each of them.
pub(crate) const HITS: u64 = 1000;

/// Parts that all hosts share, because a client cannot tell.
pub(crate) struct Shared<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) threads: &'a Handle,
    pub(crate) rights: Arc<Rights>,
}

/// A daemon that answers.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) hub: Arc<Hub>,
    _kernel: FakeKernel,
}

fn record(number: usize) -> anyhow::Result<Record> {
    let name: kprobed_lang::model::ProbeName = format!("kprobes/open_{number:02}").parse()?;
    let line = format!("p:{name} do_sys_openat2 dfd=%di path=+0(%si):string");
    let definition = Arc::new(DefinitionText::new(line.clone()));
    // Nothing is known of what it meant.
    let metadata = Metadata { on_kernel_change: KernelChange::ArmAnyway, ..Metadata::default() };
    let spec = ProbeSpec { definition, enabled: true, metadata, ..ProbeSpec::default() };
    Ok(Record::new(name, spec, line, SystemTime::UNIX_EPOCH))
}

impl Shared<'_> {
    /// With the certificates of one host.
    pub(crate) fn gate(&self, listen: &Listen) -> anyhow::Result<Gate> {
        let tls = listen.tls.as_ref().map(tls_settings).transpose()?.map(|tls| Arc::new(LiveTls::new(tls)));
        Ok(Gate { rights: Arc::clone(&self.rights), procfs: "/proc".into(), tls })
    }
}

impl Host {
    pub(crate) async fn start(
        (number, name): (usize, String),
        listen: &Listen,
        stored: &StoredKernel,
        shared: &Shared<'_>,
    ) -> anyhow::Result<Self> {
        let host = HostIdentity {
            hostname: name.clone(),
            kernel_release: stored.release.clone(),
            kernel_version: "#1 SMP".to_owned(),
            machine: "x86_64".to_owned(),
            boot_id: format!("00000000-0000-4000-8000-{number:012x}"),
        };
        let directory = shared.directory.join(&name);
        std::fs::create_dir(&directory)?;
        let hub = Arc::new(Hub::new(Binder::new(name.clone(), None)));
        let kernel = stored.kernel.copy().process();
        let daemon = Daemon {
            directory: &directory,
            host,
            facts: Arc::clone(&stored.facts),
            paths: &stored.world.paths,
            kernel: &kernel,
            rights: &shared.rights,
            hub: &hub,
            probes: &(0..PROBES).map(record).collect::<anyhow::Result<Vec<_>>>()?,
        };
        let routes = server::routes(daemon).await;
        kernel.run("do_sys_openat2", HITS);
        let gate = shared.gate(listen)?;
        let sockets = front::bind(listen, front::Inherited::default()).await?;
        front::serve(sockets, listen, routes, &Tasks::default(), shared.threads, gate);
        Ok(Self { name, hub, _kernel: kernel })
    }
}
