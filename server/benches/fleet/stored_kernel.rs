//! The two stored kernels of the fleet, each read once for all hosts that run it.

use std::sync::Arc;

use kprobed_host::kernel::FactsCache;
use kprobed_lang::definition::Features;
use kprobed_verdict::checker::Checker;

use crate::world::{self, World};

/// A build, as far as it is stored.
pub(crate) struct StoredKernel {
    pub(crate) release: String,
    pub(crate) facts: Arc<FactsCache>,
    pub(crate) checker: Arc<Checker>,
    _world: World,
}

impl StoredKernel {
    pub(crate) fn read(version: &str) -> anyhow::Result<Self> {
        let sites = std::fs::read_to_string(world::fixture(&format!("patch-sites-{version}.tsv")))?;
        let world = world::world(version, &sites);
        let facts = Arc::new(FactsCache::new(world.paths.clone()));
        let features = Features::from_readme("char, string, ustring kernel return probes support");
        let checker = Arc::new(Checker::new(features, Arc::clone(&facts)));
        Ok(Self { release: format!("{version}.0-stored-amd64"), facts, checker, _world: world })
    }
}
