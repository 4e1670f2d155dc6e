//! The two stored kernels of the fleet, each read once for all hosts that run it.

use std::sync::Arc;

use kprobed_fake::FakeKernel;
use kprobed_host::kernel::FactsCache;

use crate::server;
use crate::world::{self, World};

/// A build, as far as it is stored.
pub(crate) struct StoredKernel {
    pub(crate) release: String,
    pub(crate) facts: Arc<FactsCache>,
    /// As it is after a boot.
    pub(crate) kernel: FakeKernel,
    pub(crate) world: World,
}

impl StoredKernel {
    pub(crate) fn read(version: &str) -> anyhow::Result<Self> {
        let sites = std::fs::read_to_string(world::fixture(&format!("patch-sites-{version}.tsv")))?;
        let world = world::world(version, &sites);
        let facts = Arc::new(FactsCache::new(world.paths.clone()));
        let release = format!("{version}.0-stored-amd64");
        Ok(Self { release, facts, kernel: server::kernel(version), world })
    }
}
