//! When trials run: some at a time, those that take long early, and those that tell how fast something is alone.
//!
//! Owns which trials run now, and which of them have the shared guests. A trial that waits for a shared
//! guest gives its place to another one meanwhile.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::differential::random::{commit, mix};
use crate::effort;
use crate::trials::Notes;

/// Trials that run at the same time beside one for each CPU, because each waits for something at
/// times.
const MORE_THAN_CPUS: usize = 2;

/// The trials that take longest, for a machine that has run none yet. Nearly all have a guest of
/// their own.
const LONGEST: [&str; 19] = [
    "packages::a_life_from_packages",
    "pages::pages_show_what_commands_print",
    "recipes::what_other_tools_do_is_done",
    "recipes::recipes_show_what_they_say",
    "fleet::three_hosts_are_one_fleet",
    "systemd::a_life_under_systemd",
    "crash::nothing_acknowledged_is_lost",
    "overload::the_ledger_closes_under_everything",
    "power_cuts::nothing_acknowledged_is_lost_with_the_power",
    "busy_deletion::deletions_pause_nothing",
    "filters::filters_select_what_the_kernel_selects",
    "kernels::one_disk_and_two_kernels",
    "profiles::hits_are_exact_across_a_kill_and_a_boot",
    "container::the_image_works_as_the_daemonset_runs_it",
    "history::a_power_cut_leaves_what_is_older",
    "full_disk::a_full_disk_loses_nothing",
    "readers::cpus_come_and_go",
    "livepatch::a_livepatch_is_warned_of_while_it_is_there",
    "survival::probes_survive_a_power_cut",
];

/// With full effort these run at the end, without another trial beside them: they measure a time in a guest, and
/// busy guests beside it were seen to make that ten times as long. With little effort they allow for that.
const ALONE: [&str; 1] = ["budget::a_storm_is_disarmed_in_time"];

/// Which of so many kernels a test runs on that needs only one: the commit decides, for each test in
/// another way.
pub(crate) fn kernel_of(test: &str, kernels: usize) -> usize {
    let count = u64::try_from(kernels.max(1)).unwrap_or(1);
    usize::try_from(mix(commit(), test) % count).unwrap_or(0)
}

/// Of so many commits one has a test that runs seldom, or rarely.
pub(crate) const SELDOM: u64 = 8;
pub(crate) const RARELY: u64 = 32;

/// Which tests of one kind a commit has, asked of one after the other: every `of`th, and the next commit others.
#[derive(Debug)]
pub(crate) struct Draw {
    of: u64,
    number: u64,
}

impl Draw {
    pub(crate) fn new(of: u64) -> Self {
        Self { of, number: mix(commit(), "seldom") % of }
    }

    pub(crate) fn next_is_due(&mut self) -> bool {
        self.number += 1;
        self.number.is_multiple_of(self.of)
    }
}

/// Where a trial stands among those that wait: whoever has waited for a shared guest comes first.
type Rank = (bool, usize);

/// Shared guests of a kernel and of a kind. The next one is made when all others are in use. With one alone, CPUs
/// are idle while trials wait for it.
pub(crate) const SHARED_GUESTS: usize = 2;

/// The shared guests of a kernel and a kind.
type Key = (String, &'static str);

#[derive(Debug)]
struct Holder {
    trial: String,
    /// The trial does not end, and keeps it.
    is_lost: bool,
}

#[derive(Debug, Default)]
struct State {
    /// How many trials may run at the same time, and the places in the order of those that do.
    places: usize,
    running: BTreeSet<usize>,
    /// From this place on each runs alone.
    alone_from: usize,
    /// Who waits for a place, and for which shared guests.
    waiting: BTreeMap<Rank, Option<Key>>,
    /// Who has each of the shared guests.
    taken: HashMap<Key, [Option<Holder>; SHARED_GUESTS]>,
}

impl State {
    /// The number of a shared guest that no trial has.
    fn free(&self, key: &Key) -> Option<usize> {
        self.taken.get(key).map_or(Some(0), |holders| holders.iter().position(Option::is_none))
    }

    fn is_free(&self, key: Option<&Key>) -> bool {
        key.is_none_or(|key| self.free(key).is_some())
    }

    /// The trials that do not end, if they have all of the shared guests.
    fn lost(&self, key: &Key) -> Option<String> {
        let holders =
            self.taken.get(key)?.iter().map(|holder| holder.as_ref().filter(|holder| holder.is_lost));
        let trials =
            holders.map(|holder| Some(format!("`{}`", holder?.trial))).collect::<Option<Vec<_>>>()?;
        Some(trials.join(" and "))
    }

    /// Whether one more may run beside those that do.
    fn has_room(&self, (_, place): Rank) -> bool {
        let most = if place < self.alone_from { self.places } else { 1 };
        self.running.len() < most && self.running.last().is_none_or(|last| *last < self.alone_from)
    }

    /// Who goes next.
    fn next(&self) -> Option<Rank> {
        let mut waiting = self.waiting.iter();
        waiting
            .find(|(_, key)| self.is_free(key.as_ref()))
            .map(|(rank, _)| *rank)
            .filter(|rank| self.has_room(*rank))
    }
}

/// The trials of a run.
#[derive(Debug)]
pub(crate) struct Schedule {
    ranks: HashMap<String, usize>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Schedule {
    /// For trials of these names.
    pub(crate) fn new(names: Vec<&str>, notes: &Notes) -> Self {
        let places = MORE_THAN_CPUS + thread::available_parallelism().map_or(1, usize::from);
        let (alone, names): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| runs_alone(name));
        let mut order = order(names, notes);
        let alone_from = order.len();
        order.extend(alone);
        let ranks = order.into_iter().enumerate().map(|(rank, name)| (name.to_owned(), rank)).collect();
        let state = State { places, alone_from, ..State::default() };
        Self { ranks, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a trial may begin.
    pub(crate) fn enter(&self, trial: &str) {
        let rank = (true, self.rank(trial));
        drop(self.wait(self.state(), rank, None));
    }

    /// A trial has ended, or is given up: then no other one gets the shared guest that it has.
    pub(crate) fn leave(&self, trial: &str) {
        let mut state = self.state();
        state.running.remove(&self.rank(trial));
        for holder in state.taken.values_mut().flatten().flatten().filter(|holder| holder.trial == trial) {
            holder.is_lost = true;
        }
        self.changed.notify_all();
    }

    /// Waits until a trial may have a shared guest, without a place meanwhile.
    ///
    /// # Errors
    /// Trials that do not end have all of them.
    pub(crate) fn turn(self: &Arc<Self>, trial: &str, series: &str, kind: &'static str) -> Result<Turn> {
        let key = (series.to_owned(), kind);
        let mut state = self.state();
        if !state.is_free(Some(&key)) {
            state.running.remove(&self.rank(trial));
            self.changed.notify_all();
            state = self.wait(state, (false, self.rank(trial)), Some(&key));
        }
        let Some(number) = state.free(&key) else {
            bail!("{} do not end, and have the shared guests", state.lost(&key).unwrap_or_default());
        };
        let holder = Holder { trial: trial.to_owned(), is_lost: false };
        state.taken.entry(key.clone()).or_default()[number] = Some(holder);
        Ok(Turn { schedule: Arc::clone(self), key, number })
    }

    fn rank(&self, trial: &str) -> usize {
        self.ranks.get(trial).copied().unwrap_or_default()
    }

    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        rank: Rank,
        key: Option<&Key>,
    ) -> MutexGuard<'a, State> {
        let is_lost = |state: &State| key.is_some_and(|key| state.lost(key).is_some());
        state.waiting.insert(rank, key.cloned());
        while state.next() != Some(rank) && !is_lost(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting.remove(&rank);
        state.running.insert(rank.1);
        self.changed.notify_all();
        state
    }
}

/// A shared guest is this trial's alone.
#[derive(Debug)]
pub(crate) struct Turn {
    schedule: Arc<Schedule>,
    key: Key,
    number: usize,
}

impl Turn {
    /// Which one of its kind.
    pub(crate) const fn number(&self) -> usize {
        self.number
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(holders) = self.schedule.state().taken.get_mut(&self.key) {
            holders[self.number] = None;
        }
        self.schedule.changed.notify_all();
    }
}

/// The name of the test of a trial, which has its kernel before it.
fn test_of(trial: &str) -> &str {
    trial.split_once("::").map_or(trial, |(_, test)| test)
}

fn runs_alone(trial: &str) -> bool {
    effort::is_full() && ALONE.contains(&test_of(trial))
}

/// What takes longer begins early, with a shared guest too.
const LONG: Duration = Duration::from_secs(20);

/// By turns one of those that have a guest of their own or are long, the longest first, and one of all
/// others: so that the shared guests are in use from the start, and nothing long comes last.
fn order<'a>(names: Vec<&'a str>, notes: &Notes) -> Vec<&'a str> {
    let length = |name: &str| {
        let unknown = || LONGEST.iter().rev().position(|long| *long == test_of(name));
        match notes.get(name) {
            Some(noted) => (!noted.is_shared || noted.wall > LONG).then_some(noted.wall),
            None => unknown().map(|place| Duration::from_secs(10 + place as u64)),
        }
    };
    let (mut own, shared): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| length(name).is_some());
    own.sort_by_key(|name| Reverse(length(name)));
    let mut shared = shared.into_iter();
    let mut order = Vec::new();
    for name in own {
        order.push(name);
        order.extend(shared.next());
    }
    order.extend(shared);
    order
}
