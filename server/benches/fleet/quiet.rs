//! Waiting until the hosts are idle after the last client.
//!
//! A daemon returns memory to the kernel once its clients have gone. A thousand of them in one
//! process do that one after another with the heap of all, which takes seconds that no real fleet
//! would take.

use std::time::{Duration, Instant};

use anyhow::ensure;
use nix::sys::resource::{UsageWho, getrusage};

use crate::command::cpu_time;

/// How long they are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Part of a core that publishing may take meanwhile.
const BUSY: f64 = 0.4;

/// Looks until there is nothing much to see.
pub(crate) fn wait() -> anyhow::Result<()> {
    let limit = Instant::now() + Duration::from_mins(2);
    // Daemons wait for half a second before they begin.
    let mut quiet = 0;
    while quiet < 4 {
        ensure!(Instant::now() < limit, "the hosts do not become quiet");
        let (begun, before) = (Instant::now(), cpu_time(getrusage(UsageWho::RUSAGE_SELF)?));
        std::thread::sleep(LOOK);
        let used = cpu_time(getrusage(UsageWho::RUSAGE_SELF)?).saturating_sub(before);
        quiet = if used > begun.elapsed().mul_f64(BUSY) { 0 } else { quiet + 1 };
    }
    Ok(())
}
