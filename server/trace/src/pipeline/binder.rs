//! What filters are bound to besides the fields of a probe: this host and its functions.

use std::fmt;
use std::sync::Arc;

use super::Origin;
use crate::decode::Schema;
use crate::filter::{Binding, BoundFilter, Filter, FilterError, Functions};
use kprobed_host::kernel::FactsCache;

/// Binds filters to probes.
pub struct Binder {
    hostname: String,
    facts: Option<Arc<FactsCache>>,
}

impl fmt::Debug for Binder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binder").field("hostname", &self.hostname).finish_non_exhaustive()
    }
}

impl Binder {
    /// For a host, with the facts of its kernel, where they are at hand.
    pub const fn new(hostname: String, facts: Option<Arc<FactsCache>>) -> Self {
        Self { hostname, facts }
    }

    /// What a filter means for the events of one source.
    ///
    /// # Errors
    /// Why it cannot be used for it.
    pub fn bind(&self, filter: &Filter, origin: &Origin) -> Result<BoundFilter, FilterError> {
        self.bind_to(filter, &origin.name.to_string(), &origin.schema)
    }

    /// The same, by name and fields.
    ///
    /// # Errors
    /// Why it cannot be used for it.
    pub fn bind_to(&self, filter: &Filter, probe: &str, schema: &Schema) -> Result<BoundFilter, FilterError> {
        let facts = self.facts.as_ref().and_then(|cache| cache.last());
        let functions = facts.as_ref().map(|facts| &facts.symbols as &dyn Functions);
        filter.bind(schema, &Binding { probe, host: &self.hostname, functions })
    }
}
