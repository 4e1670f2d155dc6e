//! The next action, again and again, until a roll-out waits, is done or is undone.
//!
//! Owns the order of wave, gate, change and soak. Whatever it does first stands in the state: a process that ends at any point is followed by
//! another one that starts with [`drive`] again.

use std::collections::BTreeMap;
use std::time::Duration;

use kprobed_client::api::Probe;
use kprobed_client::api::probe_change::Change as Asked;

use super::judge::{judge, leading};
use super::plan::{self, Trace};
use super::reading::Reading;
use super::state::{Armed, FormError, Happened, OnFailure, Phase, State, Step};
use super::undo::undo;

/// What is asked of a host.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Its probes, its counters, and what it would say to the documents. Changes nothing.
    Look,
    /// These changes, all or none.
    Make(Vec<Asked>),
    /// Its counters.
    Read,
    /// The probes that the roll-out is about.
    Probes,
}

/// What a host says.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Looked(Box<Looked>),
    /// What became of each change, in order.
    Made(Vec<Done>),
    Read(Box<Reading>),
    Probes(Vec<Probe>),
}

/// A host before it is changed.
#[derive(Clone, Debug)]
pub(crate) struct Looked {
    /// Release of its kernel.
    pub(crate) kernel: String,
    pub(crate) reading: Reading,
    /// One for each document, in their order.
    pub(crate) planned: Vec<Planned>,
    /// Why it refuses the change. Empty: it does not.
    pub(crate) refusals: Vec<String>,
}

/// A document on a host.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) name: String,
    /// The probe as it is.
    pub(crate) live: Option<Probe>,
    /// Absent: it is as the document says.
    pub(crate) change: Option<Asked>,
}

/// A change that was made.
#[derive(Clone, Debug)]
pub(crate) enum Done {
    Probe(Box<Probe>),
    Deleted,
}

/// Why a host did not do what it was asked.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    /// Whether it said no: nothing was changed. Otherwise it may have done it.
    pub(crate) is_refusal: bool,
    pub(crate) message: String,
}

/// Why a process does not go on. The state has all that was done.
#[derive(Debug)]
pub(crate) enum Stopped<E> {
    /// The world failed, as when the state cannot be written.
    World(E),
    /// The state is damaged.
    State(FormError),
}

impl<E> From<FormError> for Stopped<E> {
    fn from(error: FormError) -> Self {
        Self::State(error)
    }
}

/// Takes in what a host says: the host's place in the state, and its answer.
pub(crate) type Heard<'a> = dyn FnMut(&mut State, usize, Result<Said, Trouble>) + 'a;

/// Everything outside.
pub(crate) trait World {
    /// Why it fails.
    type Error;

    /// Asks hosts, several at a time, and hands over what each says as it comes. A state is written after each of them.
    async fn ask(
        &self,
        state: &mut State,
        asks: Vec<(usize, Ask)>,
        said: &mut Heard<'_>,
    ) -> Result<(), Self::Error>;

    /// Writes the state, so that it outlives the process.
    fn save(&self, state: &State) -> Result<(), Self::Error>;

    /// Shows something that happened.
    fn tell(&self, happened: &Happened) -> Result<(), Self::Error>;

    /// Lets time pass.
    async fn wait(&self, time: Duration) -> Result<(), Self::Error>;

    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;

    /// Whether someone asked for a pause.
    fn is_pause_asked(&self) -> bool;
}

/// Goes on until the roll-out waits for a person, is done or is undone.
///
/// # Errors
/// When the state cannot be written, or the process is to end.
pub(crate) async fn drive<W: World>(world: &W, state: &mut State) -> Result<(), Stopped<W::Error>> {
    loop {
        match state.phase {
            Phase::Running => wave(world, state).await?,
            Phase::Undoing => {
                if !undo(world, state).await? {
                    return Ok(());
                }
            }
            Phase::Paused | Phase::Undone | Phase::Done => return Ok(()),
        }
    }
}

/// Begins a roll-out.
pub(crate) fn begin<W: World>(world: &W, state: &mut State) -> Result<(), Stopped<W::Error>> {
    happened(world, state, "started", &[], String::new())?;
    world.save(state).map_err(Stopped::World)
}

/// Takes up a roll-out that is paused. One that goes back goes on doing so.
pub(crate) fn resume<W: World>(world: &W, state: &mut State) -> Result<(), Stopped<W::Error>> {
    if state.phase == Phase::Paused {
        state.phase = Phase::Running;
        state.reason.clear();
        for host in &mut state.hosts {
            host.note.clear();
            // What kept it from passing may lie behind: it is watched anew from here.
            if host.step == Step::Changed {
                (host.before, host.last) = (None, None);
            }
        }
        happened(world, state, "resumed", &[], String::new())?;
    }
    world.save(state).map_err(Stopped::World)
}

/// Stops a roll-out that goes forward.
fn pause<W: World>(world: &W, state: &mut State, reason: String) -> Result<(), Stopped<W::Error>> {
    state.phase = Phase::Paused;
    state.reason.clone_from(&reason);
    happened(world, state, "paused", &[], reason)?;
    world.save(state).map_err(Stopped::World)
}

/// Lets a roll-out go back, on all hosts that it may have changed.
pub(crate) fn take_back<W: World>(
    world: &W,
    state: &mut State,
    reason: String,
) -> Result<(), Stopped<W::Error>> {
    state.phase = Phase::Undoing;
    state.reason.clone_from(&reason);
    happened(world, state, "undoing", &[], reason)?;
    world.save(state).map_err(Stopped::World)
}

/// Remembers and shows something.
pub(super) fn happened<W: World>(
    world: &W,
    state: &mut State,
    event: &str,
    hosts: &[usize],
    message: String,
) -> Result<(), Stopped<W::Error>> {
    let one = Happened {
        time_ms: world.now_ms(),
        wave: state.wave.saturating_add(1),
        event: event.to_owned(),
        hosts: hosts.iter().map(|index| state.hosts[*index].name.clone()).collect(),
        message,
    };
    world.tell(&one).map_err(Stopped::World)?;
    state.history.push(one);
    Ok(())
}

/// One action of the wave that is worked on.
async fn wave<W: World>(world: &W, state: &mut State) -> Result<(), Stopped<W::Error>> {
    if world.is_pause_asked() {
        return pause(world, state, "`kprobectl rollout pause` asked for it".to_owned());
    }
    if state.wave >= state.waves() {
        state.phase = Phase::Done;
        happened(world, state, "done", &[], String::new())?;
        return world.save(state).map_err(Stopped::World);
    }
    let waiting = state.at(Step::Waiting);
    if !waiting.is_empty() {
        return look(world, state, waiting).await;
    }
    let intended = state.at(Step::Intended);
    if !intended.is_empty() {
        return make(world, state, intended).await;
    }
    soak(world, state).await
}

/// Asks the hosts of a wave for their verdict, and writes down what is to be sent.
async fn look<W: World>(world: &W, state: &mut State, hosts: Vec<usize>) -> Result<(), Stopped<W::Error>> {
    let asks = hosts.iter().map(|index| (*index, Ask::Look)).collect();
    let (mut found, mut troubles, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(Said::Looked(looked)) => {
            let obstacles = looked.planned.iter().filter_map(plan::obstacle);
            let why: Vec<_> = looked.refusals.iter().cloned().chain(obstacles).collect();
            state.hosts[index].note = why.join("; ");
            if why.is_empty() { found.push((index, looked)) } else { refused.push(index) }
        }
        other => trouble(state, index, other, &mut troubles, &mut refused),
    };
    world.ask(state, asks, &mut said).await.map_err(Stopped::World)?;
    if !refused.is_empty() {
        return fail(world, state, "verdict", &refused);
    }
    if !leave_out(world, state, &troubles)? {
        return Ok(());
    }
    found.sort_by_key(|(index, _)| *index);
    let mut intended = Vec::new();
    for (index, looked) in found {
        let Looked { kernel, reading, planned, .. } = *looked;
        let (mut changes, mut armed) = (Vec::new(), BTreeMap::new());
        for one in planned {
            match (one.change, &one.live) {
                (Some(asked), live) => {
                    let change = state.intend(&one.name, asked, live.as_ref()).map_err(FormError::Damaged)?;
                    changes.push(change);
                }
                (None, Some(live)) => {
                    armed.insert(one.name, Armed { uid: live.uid, etag: live.etag.clone() });
                }
                (None, None) => {}
            }
        }
        let host = &mut state.hosts[index];
        host.step = if changes.is_empty() { Step::Changed } else { Step::Intended };
        (host.kernel, host.before, host.last) = (kernel, Some(reading), None);
        (host.changes, host.armed) = (changes, armed);
        intended.push(index);
    }
    happened(world, state, "intended", &intended, String::new())?;
    world.save(state).map_err(Stopped::World)
}

/// Sends what is written down.
async fn make<W: World>(world: &W, state: &mut State, hosts: Vec<usize>) -> Result<(), Stopped<W::Error>> {
    let asks = requests(state, &hosts, false)?;
    let (mut made, mut troubles, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(Said::Made(done)) if done.len() == state.hosts[index].changes.len() => {
            let host = &mut state.hosts[index];
            for (change, done) in host.changes.iter().zip(done) {
                if let Done::Probe(probe) = done {
                    host.armed.insert(change.probe.clone(), Armed { uid: probe.uid, etag: probe.etag });
                }
            }
            (host.step, host.note) = (Step::Changed, String::new());
            made.push(index);
        }
        other => trouble(state, index, other, &mut troubles, &mut refused),
    };
    world.ask(state, asks, &mut said).await.map_err(Stopped::World)?;
    // An id that the host has forgotten looks like a refusal: what it has tells the two apart.
    let asks = refused.iter().map(|index| (*index, Ask::Probes)).collect::<Vec<_>>();
    let documents = state.documents()?;
    let (mut silent, mut still) = (Vec::new(), Vec::new());
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(Said::Probes(probes)) => {
            let host = &mut state.hosts[index];
            let traces: Vec<_> = host
                .changes
                .iter()
                .map(|change| {
                    let document = documents.iter().find(|document| document.name == change.probe)?;
                    let wanted = plan::wanted_after(change, document).ok()?;
                    let live = probes.iter().find(|probe| probe.name == change.probe);
                    Some((change.probe.clone(), plan::trace(change, &wanted, None, live)))
                })
                .collect();
            if traces.iter().all(|trace| matches!(trace, Some((_, Trace::Done(_))))) {
                for (name, trace) in traces.into_iter().flatten() {
                    if let Trace::Done(armed) = trace {
                        host.armed.insert(name, armed);
                    }
                }
                (host.step, host.note) = (Step::Changed, String::new());
                made.push(index);
            } else {
                still.push(index);
            }
        }
        other => trouble(state, index, other, &mut silent, &mut still),
    };
    if !asks.is_empty() {
        world.ask(state, asks, &mut said).await.map_err(Stopped::World)?;
    }
    troubles.extend(silent);
    made.sort_unstable();
    if !made.is_empty() {
        happened(world, state, "changed", &made, String::new())?;
    }
    if !still.is_empty() {
        for index in &still {
            // All or nothing: such a host has nothing.
            let host = &mut state.hosts[*index];
            host.step = Step::Waiting;
            host.changes.clear();
        }
        return fail(world, state, "errors", &still);
    }
    if leave_out(world, state, &troubles)? {
        world.save(state).map_err(Stopped::World)?;
    }
    Ok(())
}

/// The requests of hosts as they are written down: the changes, or what puts them back.
pub(super) fn requests(state: &State, hosts: &[usize], back: bool) -> Result<Vec<(usize, Ask)>, FormError> {
    let request = |index: &usize| {
        let host = &state.hosts[*index];
        let changes = if back { &host.undo } else { &host.changes };
        let asked = changes.iter().map(plan::decoded).collect::<Result<Vec<_>, _>>();
        Ok((*index, Ask::Make(asked.map_err(FormError::Damaged)?)))
    };
    hosts.iter().map(request).collect()
}

/// How often a wave is read while it soaks, at least.
const READINGS: u64 = 5;

/// The longest time between two readings, in milliseconds.
const LONGEST_MS: u64 = 10_000;

/// Watches a wave, and lets it pass.
async fn soak<W: World>(world: &W, state: &mut State) -> Result<(), Stopped<W::Error>> {
    let hosts = state.at(Step::Changed);
    let begun = world.now_ms();
    let step = (state.setting.soak_ms / READINGS).clamp(1, LONGEST_MS);
    // Rates need two readings, however long it takes to get them.
    let mut readings = 0;
    while !hosts.is_empty() && (readings < 2 || world.now_ms().saturating_sub(begun) < state.setting.soak_ms)
    {
        if world.is_pause_asked() {
            return pause(world, state, "`kprobectl rollout pause` asked for it".to_owned());
        }
        // A process that ended may have read a moment ago, and a rate needs time.
        if readings > 0 || hosts.iter().any(|index| state.hosts[*index].last.is_some()) {
            world.wait(Duration::from_millis(step)).await.map_err(Stopped::World)?;
        }
        let hosts = state.at(Step::Changed);
        if !read(world, state, &hosts).await? {
            return Ok(());
        }
        readings += 1;
    }
    let passed = state.at(Step::Changed);
    for index in &passed {
        state.hosts[*index].step = Step::Passed;
    }
    happened(world, state, "passed", &passed, worst(state, &passed))?;
    state.wave += 1;
    world.save(state).map_err(Stopped::World)
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

/// Reads hosts, and judges them. False: the wave does not go on.
async fn read<W: World>(world: &W, state: &mut State, hosts: &[usize]) -> Result<bool, Stopped<W::Error>> {
    let asks = hosts.iter().map(|index| (*index, Ask::Read)).collect();
    let (mut failed, mut missing, mut silent, mut refused) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut said = |state: &mut State, index: usize, said| match said {
        Ok(Said::Read(reading)) => {
            let host = &mut state.hosts[index];
            let before = host.before.get_or_insert_with(|| (*reading).clone());
            let judgement = judge(before, host.last.as_ref(), &reading, &host.armed, &state.setting.gates);
            host.figures = judgement.figures;
            host.last = Some(*reading);
            let what: Vec<_> = judgement.failed.iter().chain(&judgement.missing).cloned().collect();
            host.note = what.join("; ");
            if !judgement.failed.is_empty() {
                failed.push(index);
            } else if !judgement.missing.is_empty() {
                missing.push(index);
            }
        }
        other => trouble(state, index, other, &mut silent, &mut refused),
    };
    world.ask(state, asks, &mut said).await.map_err(Stopped::World)?;
    if !failed.is_empty() {
        fail(world, state, "gate", &failed)?;
        return Ok(false);
    }
    // A host that will not be read is as one that cannot be.
    silent.extend(refused);
    if !missing.is_empty() {
        let reason = reason(state, "data is missing", &missing);
        pause(world, state, reason)?;
        return Ok(false);
    }
    if !leave_out(world, state, &silent)? {
        return Ok(false);
    }
    world.save(state).map_err(Stopped::World)?;
    Ok(true)
}

/// Notes why a host did not answer as it should.
pub(super) fn trouble(
    state: &mut State,
    index: usize,
    said: Result<Said, Trouble>,
    silent: &mut Vec<usize>,
    refused: &mut Vec<usize>,
) {
    let trouble = match said {
        Err(trouble) => trouble,
        Ok(_) => Trouble { is_refusal: false, message: "it answered something else".to_owned() },
    };
    state.hosts[index].note = trouble.message;
    if trouble.is_refusal { refused.push(index) } else { silent.push(index) }
}

/// Goes on without hosts, if so many are tolerated, or pauses. True: it goes on.
fn leave_out<W: World>(world: &W, state: &mut State, silent: &[usize]) -> Result<bool, Stopped<W::Error>> {
    if silent.is_empty() {
        return Ok(true);
    }
    let before = state.hosts.iter().filter(|host| host.step == Step::LeftOut).count();
    if (before + silent.len()) as u64 > state.setting.tolerated {
        let reason = reason(state, "no answer", silent);
        pause(world, state, reason)?;
        return Ok(false);
    }
    for index in silent {
        state.hosts[*index].step = Step::LeftOut;
    }
    let message = reason(state, "no answer", silent);
    happened(world, state, "left_out", silent, message)?;
    Ok(true)
}

/// A gate is not passed.
fn fail<W: World>(
    world: &W,
    state: &mut State,
    gate: &str,
    hosts: &[usize],
) -> Result<(), Stopped<W::Error>> {
    let what = match gate {
        "verdict" => "the change is refused",
        "errors" => "the change failed",
        _ => "a gate is not passed",
    };
    let reason = reason(state, what, hosts);
    happened(world, state, "gate_failed", hosts, reason.clone())?;
    match state.setting.on_failure {
        OnFailure::Undo => take_back(world, state, reason),
        OnFailure::Pause => pause(world, state, reason),
    }
}

/// Hosts in a reason are few: the others are in the state.
const NAMED: usize = 3;

pub(super) fn reason(state: &State, what: &str, hosts: &[usize]) -> String {
    let mut parts: Vec<_> = hosts
        .iter()
        .take(NAMED)
        .map(|index| format!("{}: {}", state.hosts[*index].name, state.hosts[*index].note))
        .collect();
    if hosts.len() > NAMED {
        parts.push(format!("and {} more hosts", hosts.len() - NAMED));
    }
    format!("{what}: {}", parts.join("; "))
}
