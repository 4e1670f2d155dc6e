//! Costs of this host: the figures in force, where they come from, and when they are measured.
//!
//! Owns the choice between stored, measured and conservative figures. What is measured, and how,
//! is in [`super::calibrate`].

use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use super::calibrate::{calibrate, place_of_breakpoint};
use super::cost::CostTable;
use crate::controller::Controller;
use kprobed_host::kernel::HostIdentity;

/// The figures in force, which the control thread sets when it starts, and checks read.
#[derive(Debug, Default)]
pub struct Costs(OnceLock<CostTable>);

impl Costs {
    /// The figures.
    pub fn table(&self) -> &CostTable {
        self.0.get().unwrap_or(&CostTable::CONSERVATIVE)
    }

    fn set(&self, table: CostTable) {
        self.0.get_or_init(|| table);
    }
}

impl Controller {
    /// Takes the figures of an earlier calibration on this kernel and processor, or measures them
    /// now. If neither works, the conservative ones are in force.
    pub(crate) async fn calibrate(&self) {
        let parts = &self.parts;
        if !parts.budget.calibrate || !self.tracefs().has_kprobe_events() {
            return;
        }
        let host = describe(&parts.host, &parts.procfs);
        match parts.store.calibration().await {
            Ok(Some((of, figures))) if of == host => {
                if let Ok(table) = serde_json::from_str(&figures) {
                    return parts.costs.set(table);
                }
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot read what hits cost on this host"),
        }
        let inside = place_of_breakpoint(&parts.checker);
        let begun = Instant::now();
        let own = &parts.instance_options.name;
        let table = match inside.and_then(|inside| calibrate(&parts.mounted.tracefs, own, inside)) {
            Ok(table) => table,
            Err(error) => {
                return tracing::warn!(%error, "cannot measure what hits cost: conservative costs apply");
            }
        };
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(took_ms, ?table, "measured what hits cost");
        let figures = serde_json::to_string(&table).unwrap_or_default();
        if let Err(error) = parts.store.set_calibration(&host, &figures).await {
            tracing::warn!(%error, "cannot store what hits cost on this host: the next start measures it again");
        }
        parts.costs.set(table);
    }
}

/// Kernel and processor, in one line.
fn describe(host: &HostIdentity, procfs: &Path) -> String {
    let text = std::fs::read_to_string(procfs.join("cpuinfo")).unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("", |(_, model)| model);
    format!("{} {} {} {model}", host.kernel_release, host.kernel_version, host.machine)
}
