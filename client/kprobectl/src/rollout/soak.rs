//! Soak of a wave: repeated readings, judged against the gates.
//!
//! Owns how often hosts are read, and what a reading leads to. Readings are not in the state:
//! another process starts the soak anew, from the reading before the change.

use std::collections::BTreeMap;
use std::time::Duration;

use super::failing_hosts::{fail, go_on_without, reason, trouble};
use super::judgement::{Judgement, Since, judge, leading};
use super::reading::Reading;
use super::state::{State, Step};
use super::transition::{event_of, pause, publish};
use super::world::{HostAnswer, HostQuery, Stopped, World};

/// Fewest readings of a wave during its soak.
const READINGS: u64 = 5;

/// The longest time between two readings, in milliseconds.
const LONGEST_MS: u64 = 10_000;

/// Runs the soak of a wave, and marks it as passed.
pub(super) async fn soak<W: World>(world: &W, state: &mut State) -> Result<(), Stopped<W::Error>> {
    let begun = world.now_ms();
    let step = (state.setting.soak_ms / READINGS).clamp(1, LONGEST_MS);
    for index in state.at(Step::Changed) {
        state.hosts[index].soak_begun = None;
    }
    // Rates need two readings, however long they take.
    for readings in 0_u64.. {
        let hosts = state.at(Step::Changed);
        if hosts.is_empty() {
            break;
        }
        // An earlier process may have read just before, and a rate needs time.
        if readings > 0 || hosts.iter().any(|index| state.hosts[*index].last.is_some()) {
            world.wait(Duration::from_millis(step)).await.map_err(Stopped::World)?;
        }
        let is_last = readings > 0 && world.now_ms().saturating_sub(begun) >= state.setting.soak_ms;
        if !read(world, state, &hosts, is_last).await? {
            return Ok(());
        }
        if is_last {
            break;
        }
        world.show(state).map_err(Stopped::World)?;
    }
    let passed = state.at(Step::Changed);
    for index in &passed {
        state.hosts[*index].step = Step::Passed;
    }
    let figures = worst(state, &passed);
    let one = event_of(world, state, "passed", &passed, figures);
    // In the same write, so that a passed wave is not watched again.
    state.wave += 1;
    publish(world, state, &one)
}

/// Reads and judges hosts. False: the wave stops.
async fn read<W: World>(
    world: &W,
    state: &mut State,
    hosts: &[usize],
    is_last: bool,
) -> Result<bool, Stopped<W::Error>> {
    let asks = hosts.iter().map(|index| (*index, HostQuery::Read)).collect();
    let (mut failed, mut missing, mut silent, mut refused) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(HostAnswer::Read(reading)) => {
            let Judgement { failed: bad, missing: unknown, figures } =
                take_in(state, index, *reading, is_last);
            let host = &mut state.hosts[index];
            host.note = bad.iter().chain(&unknown).cloned().collect::<Vec<_>>().join("; ");
            host.figures = figures;
            if !bad.is_empty() {
                failed.push(index);
            } else if !unknown.is_empty() {
                missing.push(index);
            }
        }
        other => trouble(state, index, other, &mut silent, &mut refused),
    };
    world.ask(state, asks, &mut said).await.map_err(Stopped::World)?;
    if !failed.is_empty() {
        fail(world, state, "a gate is not passed", &failed)?;
        return Ok(false);
    }
    // A host that refuses to be read counts as one that does not answer.
    silent.extend(refused);
    if !missing.is_empty() {
        let reason = reason(state, "data is missing", &missing);
        pause(world, state, reason)?;
        return Ok(false);
    }
    go_on_without(world, state, &silent)
}

/// Judges a reading of a host, and keeps it for the next one.
fn take_in(state: &mut State, index: usize, reading: Reading, is_last: bool) -> Judgement {
    let soak_ms = if is_last { 0 } else { state.setting.soak_ms };
    let host = &mut state.hosts[index];
    let since = Since {
        before: host.before.get_or_insert_with(|| reading.clone()),
        last: host.last.as_ref(),
        soak_begun: host.soak_begun.as_ref(),
        soak_ms,
    };
    let judgement = judge(&since, &reading, &host.armed, &state.setting.gates);
    if host.soak_begun.is_none() {
        host.soak_begun = reading.spent;
    }
    host.last = Some(reading);
    judgement
}

/// The worst figure of each gate over hosts.
fn worst(state: &State, hosts: &[usize]) -> String {
    let mut worst: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    for (gate, figure) in hosts.iter().flat_map(|index| &state.hosts[*index].figures) {
        let found = (leading(figure), figure.as_str());
        worst.entry(gate).and_modify(|one| *one = found.max(*one)).or_insert(found);
    }
    worst.into_iter().map(|(gate, (_, figure))| format!("{gate} {figure}")).collect::<Vec<_>>().join(", ")
}
