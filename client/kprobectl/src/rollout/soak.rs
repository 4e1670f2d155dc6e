//! Soak of a wave: repeated readings, judged against the gates.
//!
//! Owns how often hosts are read, and what a reading leads to. Readings of a soak are not in the state: another
//! process starts it anew, from the reading before the change.

use std::collections::BTreeMap;
use std::time::Duration;

use super::answers::{Answers, fail, go_on_without, reason};
use super::drive::{pause, publish};
use super::gate::{Figure, Metric};
use super::judgement::{Judgement, Reading, judge};
use super::state::{RolloutEvent, State, Step};
use super::world::{HostFailure, World};

/// Fewest readings of a wave during its soak.
const READINGS: u64 = 5;

/// The longest time between two readings, in milliseconds.
const LONGEST_MS: u64 = 10_000;

/// Runs the soak of a wave, and marks it as passed.
pub(super) async fn soak<W: World>(world: &W, state: &mut State) -> Result<(), W::Error> {
    let begun = world.now_ms();
    let step = (state.setting.soak_ms / READINGS).clamp(1, LONGEST_MS);
    let mut last = BTreeMap::new();
    loop {
        let hosts = state.at(Step::Changed);
        // Rates need two readings, however long they take.
        let soaked_ms = world.now_ms().saturating_sub(begun);
        let is_last = !last.is_empty() && soaked_ms >= state.setting.soak_ms;
        world.soaks(Duration::from_millis(soaked_ms), Duration::from_millis(state.setting.soak_ms));
        if !hosts.is_empty() && !read(world, state, &hosts, &mut last).await? {
            return Ok(());
        }
        if hosts.is_empty() || is_last {
            break;
        }
        world.wait(Duration::from_millis(step)).await?;
    }
    let passed = state.at(Step::Changed);
    let mut worst: BTreeMap<Metric, &Figure> = BTreeMap::new();
    for (metric, figure) in passed.iter().flat_map(|index| &state.hosts[*index].figures) {
        let found = worst.entry(*metric).or_insert(figure);
        if figure.is_worse_than(found) {
            *found = figure;
        }
    }
    let figures: Vec<_> =
        worst.iter().map(|(metric, figure)| format!("{metric} {}", metric.shown(figure))).collect();
    let event = RolloutEvent::new(state, "passed", &passed, figures.join(", "));
    for index in &passed {
        state.hosts[*index].step = Step::Passed;
    }
    // In the same write, so that a passed wave is not watched again.
    state.wave += 1;
    publish(world, state, &event)
}

/// Reads and judges hosts. False: the wave stops.
async fn read<W: World>(
    world: &W,
    state: &mut State,
    hosts: &[usize],
    last: &mut BTreeMap<usize, Reading>,
) -> Result<bool, W::Error> {
    let (mut answers, mut failed, mut missing) = (Answers::default(), Vec::new(), Vec::new());
    let mut note = |state: &mut State, index: usize, answer: Result<Reading, HostFailure>| {
        let answer = answer.map(|reading| {
            let judgement = take_in(state, index, last.get(&index), &reading);
            last.insert(index, reading);
            judgement
        });
        let sentences = answer.as_ref().map_or_else(
            |_failure| String::new(),
            |judgement| {
                let Judgement { failed: bad, missing: unknown, .. } = judgement;
                if !bad.is_empty() {
                    failed.push(index);
                } else if !unknown.is_empty() {
                    missing.push(index);
                }
                bad.iter().chain(unknown).cloned().collect::<Vec<_>>().join("; ")
            },
        );
        answers.note(state, index, answer.map(drop));
        state.hosts[index].note.push_str(&sentences);
    };
    world.read(state, hosts, &mut note).await?;
    if !failed.is_empty() {
        fail(world, state, "a gate is not passed", &failed)?;
        return Ok(false);
    }
    if !missing.is_empty() {
        let reason = reason(state, "data is missing", &missing);
        pause(world, state, reason)?;
        return Ok(false);
    }
    // A host that refuses to be read counts as one that does not answer.
    go_on_without(world, state, &[answers.silent, answers.refused].concat())
}

/// Judges a reading of a host.
fn take_in(state: &mut State, index: usize, last: Option<&Reading>, reading: &Reading) -> Judgement {
    let host = &mut state.hosts[index];
    let base = host.base.get_or_insert_with(|| reading.clone());
    if std::mem::take(&mut host.is_resumed) {
        base.resume(reading);
    }
    let judgement = judge(base, last, reading, &host.armed, &state.setting.gates);
    host.figures.clone_from(&judgement.figures);
    judgement
}
