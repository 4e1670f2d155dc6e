//! Kernel facts for a run of checks, looked up at most every 100 ms.
//!
//! Never older than [`FRESH_FOR`]; a check that needs them as they are now uses [`FactsCache`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{FactsCache, FactsError, KernelFacts};

/// How old facts may be: modules come and go, and others place probes, at any time; a thousand
/// checks in a row shall not look a thousand times.
pub(super) const FRESH_FOR: Duration = Duration::from_millis(100);

/// The facts of the running kernel as they were at most 100 ms ago.
#[derive(Debug)]
pub struct RecentFacts<'a> {
    cache: &'a FactsCache,
    last: Option<(Instant, Arc<KernelFacts>)>,
}

impl<'a> RecentFacts<'a> {
    /// Looks at nothing yet.
    pub fn new(cache: &'a FactsCache) -> Self {
        Self { cache, last: None }
    }

    /// The facts: the same as last time, or looked at anew when that was too long ago.
    ///
    /// # Errors
    /// As [`KernelFacts::read`].
    pub fn get(&mut self) -> Result<Arc<KernelFacts>, FactsError> {
        let now = Instant::now();
        if let Some((looked, facts)) = &self.last
            && now.duration_since(*looked) < FRESH_FOR
        {
            return Ok(Arc::clone(facts));
        }
        let facts = self.cache.current()?;
        self.last = Some((now, Arc::clone(&facts)));
        Ok(facts)
    }
}
