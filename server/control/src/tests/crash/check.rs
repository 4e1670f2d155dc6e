//! What has to be so after a fault, in the daemon, in the kernel and in the database.

use std::collections::BTreeSet;
use std::sync::Arc;

use kprobed_fake::FakeKernel;
use kprobed_host::tracefs::ControlFiles as _;

use super::daemon::{Daemon, INSTANCE};
use super::model::{EVENTS, Expected, Model, Term, shown};
use crate::store::tests::simulated::whole_log;
use crate::{Probe, ProbeState};

/// Another program's event, which stays as it is.
const FOREIGN: &str = "p:theirs/foreign do_sys_openat2 x=%di:u64";

/// Another one, which an act adopts.
pub(super) const ADOPTED: &str = "theirs/adopted";

/// The instance of another program.
const THEIRS: &str = "theirs";

/// What another program does, and its name.
type NeighbourAct = (&'static str, fn(&FakeKernel));

/// What another program may do at any time.
pub(super) const NEIGHBOURS: &[NeighbourAct] = &[
    ("switches off a probe", |kernel| {
        kernel.set(&ours("kprobes/keep", "enable"), "0").ok();
    }),
    ("takes the filter of a probe away", |kernel| {
        kernel.set(&ours("kprobes/keep", "filter"), "0").ok();
    }),
    ("puts its own event in the place of a probe", |kernel| {
        kernel.set(&ours("kprobes/target", "enable"), "0").ok();
        kernel.add("kprobe_events", "-:kprobes/target").ok();
        kernel.add("kprobe_events", "p:kprobes/target tcp_sendmsg theirs=%di:u64").ok();
    }),
    ("removes a probe", |kernel| {
        kernel.set(&ours("kprobes/target", "enable"), "0").ok();
        kernel.add("kprobe_events", "-:kprobes/target").ok();
    }),
    ("takes the name of a probe that is about to be made", |kernel| {
        kernel.add("kprobe_events", "p:kprobes/new0 tcp_sendmsg theirs=%di:u64").ok();
    }),
    ("switches a probe on in its own instance", |kernel| {
        kernel.set(&format!("instances/{THEIRS}/events/kprobes/target/enable"), "1").ok();
    }),
    ("stops the recording", |kernel| {
        kernel.set(&format!("instances/{INSTANCE}/tracing_on"), "0").ok();
    }),
];

fn ours(event: &str, file: &str) -> String {
    format!("instances/{INSTANCE}/events/{event}/{file}")
}

/// Makes what another program has on this host.
pub(super) fn make_foreign(kernel: &FakeKernel) {
    let theirs = kernel.neighbour();
    theirs.make_instance(&theirs.root().join("instances").join(THEIRS)).unwrap();
    theirs.add("kprobe_events", FOREIGN).unwrap();
    theirs.set(&format!("instances/{THEIRS}/events/theirs/foreign/enable"), "1").unwrap();
}

macro_rules! ensure {
    ($condition:expr, $($said:tt)+) => {
        if !$condition {
            return Err(format!($($said)+));
        }
    };
}

/// The kernel as anybody can read it.
struct Kernel {
    theirs: FakeKernel,
    events: String,
    instance: String,
    /// There is another instance of the daemon.
    is_left: bool,
}

fn is_recording(kernel: &FakeKernel, instance: &str) -> bool {
    kernel.text(&format!("instances/{instance}/tracing_on")).is_ok_and(|text| text == "1\n")
}

impl Kernel {
    fn read(daemon: &Daemon) -> Result<Self, String> {
        let theirs = daemon.kernel.neighbour();
        let names = theirs.names(&theirs.root().join("instances")).map_err(|error| error.to_string())?;
        ensure!(names.iter().any(|name| name == THEIRS), "the instance of another program is gone");
        let mut own: Vec<_> = names.into_iter().filter(|name| name != THEIRS).collect();
        // A filter was judged in it, and the kernel did not remove it: the next start does.
        let temporary = format!("{INSTANCE}-temporary");
        let has_temporary = own.contains(&temporary);
        own.retain(|name| *name != temporary);
        let is_ours = |name: &String| name == INSTANCE || *name == format!("{INSTANCE}-next");
        ensure!(own.iter().all(is_ours) && !own.is_empty(), "instances {own:?}");
        // One that could not be removed records nothing, and the next start removes it.
        let has_both = own.len() > 1;
        own.retain(|name| !has_both || is_recording(&theirs, name));
        ensure!(own.len() == 1, "both instances record: {own:?}, or none does");
        let events = theirs.text("kprobe_events").unwrap();
        Ok(Self { instance: own.remove(0), is_left: has_both || has_temporary, events, theirs })
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.events.lines().filter_map(|line| line.split([':', ' ']).nth(1))
    }

    fn has(&self, line: &str) -> bool {
        self.events.lines().any(|listed| listed == line)
    }

    /// A file of an event in the daemon's instance.
    fn of(&self, event: &str, file: &str) -> String {
        let path = format!("instances/{}/events/{event}/{file}", self.instance);
        self.theirs.text(&path).map_or_else(|error| error.to_string(), |text| text.trim().to_owned())
    }

    /// What is not the daemon's is as it was.
    fn check_foreign(&self) -> Result<(), String> {
        ensure!(self.has(FOREIGN), "the event of another program is gone:\n{}", self.events);
        let switch = self.theirs.text(&format!("instances/{THEIRS}/events/theirs/foreign/enable"));
        ensure!(switch.is_ok_and(|text| text == "1\n"), "the event of another program is off");
        let top = self.theirs.text("events/theirs/foreign/enable");
        ensure!(top.is_ok_and(|text| text == "0\n"), "the event of another program is on");
        Ok(())
    }
}

fn is_in_kernel(state: &ProbeState) -> bool {
    matches!(state, ProbeState::Armed | ProbeState::Disabled | ProbeState::Tripped(_))
}

/// What is shown of a probe is what the kernel has.
fn check_shown(kernel: &Kernel, probe: &Probe) -> Result<(), String> {
    let (name, state) = (probe.name.to_string(), &probe.state);
    if !is_in_kernel(state) {
        return Ok(());
    }
    let listed = probe.own.as_ref().map(|own| own.listing.clone()).unwrap_or_default();
    let is_there = !probe.spec.definition.as_str().contains(':') || kernel.has(&listed);
    ensure!(is_there, "{name} is {state:?}, and not in the kernel:\n{}", kernel.events);
    let is_on = kernel.of(&name, "enable");
    let wanted = if *state == ProbeState::Armed { "1" } else { "0" };
    ensure!(is_on == wanted, "{name} is {state:?}, and its switch is {is_on}");
    let filter = kernel.of(&name, "filter");
    let is_filter = if probe.spec.filter.is_empty() {
        filter == "none"
    } else {
        filter.contains(&probe.spec.filter) && !filter.contains("parse_error")
    };
    ensure!(is_filter, "{name} has the filter {filter:?}, and not {:?}", probe.spec.filter);
    Ok(())
}

/// An event of the host that no probe stands for is off, and has no filter.
fn check_events(kernel: &Kernel, model: &Model) -> Result<(), String> {
    for (name, _) in EVENTS.iter().filter(|(name, _)| !model.contains_key(*name)) {
        let (switch, filter) = (kernel.of(name, "enable"), kernel.of(name, "filter"));
        ensure!(switch == "0" && filter == "none", "{name} has the switch {switch} and the filter {filter}");
    }
    Ok(())
}

/// The state that is shown, if it is one of these.
fn find<'m>(possible: &'m [Model], probes: &[Arc<Probe>]) -> Result<&'m Model, String> {
    let found = shown(probes);
    possible.iter().find(|model| **model == found).ok_or_else(|| {
        // Only what differs from the state that is nearest.
        let difference = |model: &Model| -> Vec<String> {
            let names: BTreeSet<_> = model.keys().chain(found.keys()).collect();
            let differs = names.into_iter().filter(|name| model.get(*name) != found.get(*name));
            let state = |name: &str| {
                probes.iter().find(|probe| probe.name.to_string() == name).map(|probe| &probe.state)
            };
            differs
                .map(|name| {
                    format!("{name}: {:?} ({:?}), not {:?}", found.get(name), state(name), model.get(name))
                })
                .collect()
        };
        let nearest = possible.iter().map(difference).min_by_key(Vec::len).unwrap_or_default();
        let some: Vec<_> = nearest.iter().take(3).cloned().collect();
        format!("none of {} states: {} differ: {}", possible.len(), nearest.len(), some.join("; "))
    })
}

/// The database has nothing unfinished, and an audit log without a gap.
async fn check_database(daemon: &Daemon, probes: &[Arc<Probe>]) -> Result<(), String> {
    let journal = daemon.store().journal().await.map_err(|error| error.to_string())?;
    ensure!(journal.is_empty(), "unfinished: {journal:?}");
    let stored = daemon.store().probes().await.map_err(|error| error.to_string())?;
    let stored: BTreeSet<_> = stored.iter().map(|row| row.record.name.to_string()).collect();
    let listed: BTreeSet<_> = probes.iter().map(|probe| probe.name.to_string()).collect();
    ensure!(stored == listed, "rows of {stored:?}, and {listed:?} are shown");
    ensure!(!whole_log(daemon.store()).await.is_empty(), "the audit log is empty");
    Ok(())
}

/// A daemon that has met an error and goes on: it shows what it acknowledged and nothing that it refused, and the
/// kernel has that.
pub(super) async fn check_live(daemon: &Daemon, expected: &Expected) -> Result<(), String> {
    let probes = daemon.probes().await;
    find(&expected.live, &probes)?;
    let kernel = Kernel::read(daemon)?;
    kernel.check_foreign()?;
    if expected.is_settling {
        return Ok(());
    }
    check_events(&kernel, &shown(&probes))?;
    for probe in &probes {
        check_shown(&kernel, probe)?;
    }
    // What the kernel did not give back is in the journal, by which the next start removes it.
    let store = daemon.store();
    let rows = store.probes().await.map_err(|error| error.to_string())?;
    let journal = store.journal().await.map_err(|error| error.to_string())?;
    let rows = rows.iter().map(|row| &row.record.name).chain(journal.iter().map(|change| &change.name));
    let rows: BTreeSet<_> = rows.map(ToString::to_string).collect();
    let left: Vec<_> =
        kernel.names().filter(|name| name.starts_with("kprobes/") && !rows.contains(*name)).collect();
    ensure!(left.is_empty(), "the kernel has {left:?}, which no row knows");
    Ok(())
}

/// What is there after a start without faults.
pub(super) async fn check(daemon: &Daemon, expected: &Expected) -> Result<(), String> {
    let probes = daemon.probes().await;
    let state = find(&expected.found, &probes)?;
    let kernel = Kernel::read(daemon)?;
    ensure!(!kernel.is_left, "an instance is left");
    kernel.check_foreign()?;
    for probe in &probes {
        let term = state[&probe.name.to_string()].term;
        let is_as_wanted = match (term, probe.spec.enabled) {
            (Term::Ended, _) => matches!(probe.state, ProbeState::Expired(_)),
            (Term::HeldBack, _) => matches!(probe.state, ProbeState::HeldBack(_)),
            (Term::Tripped, _) => matches!(probe.state, ProbeState::Tripped(_)),
            (_, true) => probe.state == ProbeState::Armed,
            (_, false) => probe.state == ProbeState::Disabled,
        };
        ensure!(is_as_wanted, "{} is {:?}, and {term:?}", probe.name, probe.state);
        check_shown(&kernel, probe)?;
    }
    let mut wanted: BTreeSet<_> = state
        .iter()
        .filter(|(_, wanted)| wanted.term.is_in_kernel() && !wanted.is_of_the_host())
        .map(|(name, _)| name.as_str())
        .collect();
    wanted.insert("theirs/foreign");
    let in_kernel: Vec<_> = kernel.names().collect();
    let unique: BTreeSet<_> = in_kernel.iter().copied().collect();
    ensure!(unique.len() == in_kernel.len(), "twice in the kernel:\n{}", kernel.events);
    let other: Vec<_> = unique.symmetric_difference(&wanted).filter(|name| **name != ADOPTED).collect();
    ensure!(other.is_empty(), "{other:?} is in the kernel or is wanted, not both:\n{}", kernel.events);
    check_events(&kernel, state)?;
    check_database(daemon, &probes).await
}

/// What is so whatever another program has done.
pub(super) async fn check_beside_neighbour(daemon: &Daemon) -> Result<(), String> {
    let probes = daemon.probes().await;
    let kernel = Kernel::read(daemon)?;
    kernel.check_foreign()?;
    for probe in &probes {
        check_shown(&kernel, probe)?;
    }
    let listed: BTreeSet<_> = probes.iter().map(|probe| probe.name.to_string()).collect();
    for line in kernel.events.lines() {
        let name = line.split([':', ' ']).nth(1).unwrap_or_default();
        let is_theirs = line.contains(" theirs=") || name.starts_with("theirs/");
        ensure!(is_theirs || listed.contains(name), "no row stands for {line}");
    }
    check_database(daemon, &probes).await
}
