//! Running the program that injects one fault into the daemon (`workload faults`).
//!
//! Owns how it is started and what it reports. What a step is, and what a fault is, is decided by
//! that program.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use kprobed_vm::machine::Command;

use crate::daemon::DaemonGuest;

/// The program that makes a fault, which follows the daemon.
pub(crate) struct Follower {
    /// Of its own, so that its log is of this case only.
    pub(crate) name: String,
}

impl Follower {
    /// `daemon`: what a shell does to set `pid`, the daemon's process id. The fault is made at step
    /// `at`; 0 makes none.
    pub(crate) fn begin(guest: &DaemonGuest, daemon: &str, fault: &str, at: usize) -> Result<Self> {
        static CASES: AtomicUsize = AtomicUsize::new(0);
        let name = format!("faults{}", CASES.fetch_add(1, Ordering::Relaxed));
        let follow = format!("{daemon}; exec workload faults $pid {fault} {at}");
        guest.machine.spawn(&name, &Command::shell(follow))?;
        let follower = Self { name };
        let ready = guest.until("it follows the daemon", || Ok(follower.said(guest)?.contains("ready")));
        ready.with_context(|| follower.said(guest).unwrap_or_default())?;
        Ok(follower)
    }

    /// What it has said by now: the steps, and the fault.
    pub(crate) fn said(&self, guest: &DaemonGuest) -> Result<String> {
        let log = guest.machine.get(&format!("/run/log/{}.log", self.name))?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }

    pub(crate) fn has_struck(&self, guest: &DaemonGuest) -> Result<bool> {
        Ok(self.said(guest)?.lines().any(|line| line == "fault"))
    }
}
