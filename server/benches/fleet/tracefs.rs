//! The tracefs files by which a daemon describes its host. All hosts read the same ones, and none
//! writes.

use std::fs;
use std::path::Path;

/// Name of the daemon's instance.
pub(crate) const INSTANCE: &str = "fleet";

/// The `header_page` of 6.1 and 6.12.
const HEADER_PAGE: &str = include_str!("../../fixtures/ring/small-mix/header_page");

pub(crate) fn write(root: &Path) -> anyhow::Result<()> {
    let instance = root.join("instances").join(INSTANCE);
    let files = [
        (root.join("kprobe_events"), ""),
        (root.join("events/header_page"), HEADER_PAGE),
        (instance.join("buffer_size_kb"), "4096\n"),
        (instance.join("set_event_pid"), ""),
        (instance.join("trace_clock"), "local global counter uptime perf mono mono_raw [boot] x86-tsc\n"),
        (instance.join("tracing_on"), "1\n"),
    ];
    for (path, text) in files {
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(path, text)?;
    }
    Ok(())
}
