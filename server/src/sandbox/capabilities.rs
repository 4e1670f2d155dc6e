//! The capabilities that a daemon keeps after its start, and dropping the others.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// What the daemon keeps, if it was started with it:
///
/// - `CAP_SYS_RAWIO` opens `/proc/kcore`, the code that a probe is checked against (fs/proc/kcore.c:open_kcore);
/// - `CAP_SYSLOG` shows addresses in `/proc/kallsyms` and in the list of kprobes
///   (kernel/kallsyms.c:kallsyms_show_value).
///
/// The files of tracefs belong to root, and writing to them takes no capability.
pub const KEPT: CapabilitySet = CapabilitySet::SYS_RAWIO.union(CapabilitySet::SYSLOG);

/// Drops all capabilities of the calling thread but [`KEPT`]. Threads inherit that. A service manager that has left no
/// others need not allow capset(2).
///
/// # Errors
/// Those of capset(2).
pub(super) fn drop_all_but_kept() -> io::Result<()> {
    let had = capabilities(None)?;
    let kept = had.permitted & KEPT;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    if had == sets {
        return Ok(());
    }
    Ok(set_capabilities(None, sets)?)
}
