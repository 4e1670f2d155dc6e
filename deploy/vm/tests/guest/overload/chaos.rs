//! Random actions while events flow: kills, new and deleted probes, changed labels and filters.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::machine::{Command, Signal};
use kprobed_vm::protocol::Status;

use super::scene::Scene;
use crate::differential::random::Random;

/// Filters that come and go, and the empty one.
const FILTERS: &[&str] = &["", "n & 1", "n & 6", "comm == \"nobody\"", "n > 500000000"];
const TEAMS: &[&str] = &["a", "b"];

/// The actions so far, and the probes that exist because of them.
pub(super) struct Chaos {
    random: Random,
    /// Probes that came.
    comers: Vec<String>,
    /// `kprobectl observe` in the guest.
    observers: Vec<String>,
    /// For names that were not there before.
    last_number: u64,
    /// Hits of the comers that have gone again.
    pub(super) gone_hits: u64,
    /// How many have gone.
    pub(super) deleted: u64,
    /// Clients that were killed.
    pub(super) killed: u64,
    /// What happens at this moment, for when that fails.
    pub(super) doing: &'static str,
}

impl Chaos {
    pub(super) fn new() -> Self {
        Self {
            random: Random::seeded(0),
            comers: Vec::new(),
            observers: Vec::new(),
            last_number: 0,
            gone_hits: 0,
            deleted: 0,
            killed: 0,
            doing: "nothing",
        }
    }

    /// Begins anew: nothing is left of what was before.
    pub(super) fn begin(&mut self, seed: u64, scene: &Scene) -> Result<()> {
        self.random = Random::seeded(seed);
        for name in std::mem::take(&mut self.comers) {
            scene.guest.delete(&name)?;
        }
        (self.gone_hits, self.deleted, self.killed) = (0, 0, 0);
        Ok(())
    }

    fn new_name(&mut self, word: &str) -> String {
        self.last_number += 1;
        format!("{word}_{}", self.last_number)
    }

    /// Does one random action, and then nothing for up to 300 ms.
    pub(super) fn step(&mut self, scene: &mut Scene) -> Result<()> {
        match self.random.below(9) {
            0 | 1 => {
                self.doing = "kill a subscriber";
                scene.kill_subscriber(self.random.below(scene.subscribers.len()));
                self.killed += 1;
            }
            2 => {
                self.doing = "start an observer";
                let name = self.new_name("observer");
                let observe = "exec kprobectl observe -q -o json --last 1000 -f > /dev/null";
                scene.guest.machine.spawn(&name, &Command::shell(observe))?;
                self.observers.push(name);
            }
            3 => {
                self.doing = "kill an observer";
                self.killed += u64::from(!self.observers.is_empty());
                let last = self.observers.len().saturating_sub(1);
                self.kill_observers(scene, last)?;
            }
            4 => {
                self.doing = "add a probe";
                let name = self.new_name("comer");
                let comer = scene.create(&format!("p:{name} __x64_sys_getsid ip=%ip"), HashMap::new())?;
                self.comers.push(comer);
            }
            5 => self.delete(scene)?,
            6 => {
                self.doing = "label a probe";
                let (name, team) = (*self.random.pick(&["hot", "back", "picky"]), *self.random.pick(TEAMS));
                let set = HashMap::from([("team".to_owned(), team.to_owned())]);
                scene.guest.wait_for(scene.guest.client.change_labels(name, set, Vec::new()))??;
            }
            7 => {
                self.doing = "filter a probe";
                let filter = *self.random.pick(FILTERS);
                scene.guest.wait_for(scene.guest.client.set_filter("picky", filter))??;
            }
            _ => {
                self.doing = "read the ledger";
                let ledger = scene.guest.ledger()?;
                let undecodable: u64 = ledger.buffers.iter().map(|buffer| buffer.undecodable).sum();
                ensure!(undecodable == 0, "{ledger:?}");
            }
        }
        scene.replace_ended();
        thread::sleep(Duration::from_millis(self.random.below(300) as u64));
        Ok(())
    }

    fn delete(&mut self, scene: &Scene) -> Result<()> {
        self.doing = "delete a probe";
        if !self.comers.is_empty() {
            let which = self.random.below(self.comers.len());
            let name = self.comers.swap_remove(which);
            // Off first: only then its last hits are its last.
            scene.guest.wait_for(scene.guest.client.set_enabled(&name, false))??;
            self.gone_hits += scene.guest.delete(&name)?.context("no last hits")?.hits;
            self.deleted += 1;
        }
        Ok(())
    }

    /// Kills all observers but the first ones.
    pub(super) fn kill_observers(&mut self, scene: &Scene, but: usize) -> Result<()> {
        for name in self.observers.drain(but..) {
            if let Err(error) = scene.guest.machine.signal(&name, Signal::SIGKILL) {
                // One that could not connect, because the daemon was dead, has ended by itself.
                let status = scene.guest.machine.wait(&name, Duration::ZERO)?;
                ensure!(status != Status::TimedOut, "{name}: {error}");
            }
        }
        Ok(())
    }
}
