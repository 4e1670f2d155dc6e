//! What the trials of one kernel share.

use std::env;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context as _, Result};
use kprobed_vm::cache::Cache;
use kprobed_vm::kernels::Kernel;
use kprobed_vm::lab::{GuestOptions, Lab};
use kprobed_vm::machine::Machine;

/// The kernels to test on.
pub(crate) struct Kernels {
    series: Vec<String>,
}

impl Kernels {
    pub(crate) fn from_environment() -> Self {
        let list = env::var("KPROBED_VM_KERNELS").unwrap_or_else(|_| "6.1,6.12".to_owned());
        let series = list.split(',').map(str::trim).filter(|series| !series.is_empty());
        Self { series: series.map(str::to_owned).collect() }
    }

    /// One fixture per kernel. Nothing is fetched or booted before a trial asks.
    pub(crate) fn fixtures(&self) -> impl Iterator<Item = Arc<Fixture>> {
        self.series.iter().map(|series| {
            Arc::new(Fixture { series: series.clone(), lab: OnceLock::new(), shared: Mutex::new(None) })
        })
    }
}

/// One kernel, and the machine that its trials share.
pub(crate) struct Fixture {
    series: String,
    lab: OnceLock<Lab>,
    shared: Mutex<Option<Arc<Machine>>>,
}

impl Fixture {
    pub(crate) fn series(&self) -> &str {
        &self.series
    }

    pub(crate) fn lab(&self) -> Result<&Lab> {
        if let Some(lab) = self.lab.get() {
            return Ok(lab);
        }
        let cache = Cache::from_environment().context("no cache directory")?;
        let lab = Lab::new(cache, env!("CARGO_BIN_EXE_kprobed-guest"))?;
        Ok(self.lab.get_or_init(|| lab))
    }

    pub(crate) fn kernel(&self) -> Result<Kernel> {
        Ok(self.lab()?.kernel(&self.series)?)
    }

    /// The shared machine, booted now if it does not run (any more).
    pub(crate) fn machine(&self) -> Result<Arc<Machine>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(machine) = shared.as_ref().filter(|machine| machine.failure().is_none()) {
            return Ok(Arc::clone(machine));
        }
        let machine = Arc::new(self.lab()?.boot(&GuestOptions::new(self.kernel()?))?);
        *shared = Some(Arc::clone(&machine));
        Ok(machine)
    }
}
