//! Comparing the daemon and the kernel after a fault with the states that are allowed.
//!
//! Owns the comparison. Never makes a change.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{Probe, ProbeKind, ProbeState};

use crate::crash_state::{Model, Possible, Term};
use crate::daemon::{DaemonGuest, READ, TRACEFS};

/// Another program's event, which must stay as it is.
pub(crate) const FOREIGN: &str = "p:theirs/foreign vfs_statx x=%di:u64";

/// Another one, which a plan adopts.
pub(crate) const ADOPTED: &str = "theirs/adopted";

/// The event of the host that the base has a probe of, and the one that a plan records, with their filters. Both are
/// rare.
pub(crate) const EVENTS: [(&str, &str); 2] =
    [("sched/sched_process_exec", "pid > 1"), ("sched/sched_process_exit", "pid > 2")];

/// What may be there.
pub(crate) struct Expected {
    /// What the daemon shows that has met an error and goes on.
    pub(crate) live: Possible,
    /// What is there after the next start.
    pub(crate) found: Possible,
    /// Changes that were acknowledged to the client, and those that the daemon has to make whatever
    /// happens.
    pub(crate) acknowledged: usize,
    /// Whether the daemon has answered: what it shows is what the kernel has.
    pub(crate) is_answered: bool,
}

/// What a daemon shows that has met an error: what it acknowledged, and nothing that it refused.
/// The kernel has that and no more.
pub(crate) fn check_live(guest: &DaemonGuest, expected: &Expected) -> Result<()> {
    let look = || -> Result<()> {
        let probes = guest.probes()?;
        expected.live.find(&probes)?;
        if !expected.is_answered {
            return Ok(());
        }
        let events = guest.tracefs("kprobe_events")?;
        for probe in &probes {
            ensure!(
                !is_defined(probe) || events.lines().any(|line| line == probe.kernel_definition),
                "not in the kernel: {probe:?}\n{events}"
            );
        }
        let listed: BTreeSet<_> = probes.iter().map(|probe| probe.name.as_str()).collect();
        let left: Vec<_> =
            names(&events).filter(|name| name.starts_with("kprobes/") && !listed.contains(name)).collect();
        ensure!(left.is_empty(), "the kernel has {left:?}, and the daemon shows no such probe\n{events}");
        Ok(())
    };
    look().with_context(|| format!("after the error:\n{}", guest.log()))
}

/// What is there after a start without faults, in the daemon and in the kernel; answers the state.
pub(crate) fn check(guest: &DaemonGuest, expected: &Expected, adoptable: bool) -> Result<Model> {
    judge(guest, expected, adoptable)
        .with_context(|| format!("{}\n{}", guest.tracefs("kprobe_events").unwrap_or_default(), guest.log()))
}

/// Whether the kernel has an event that the daemon has defined for it.
fn is_defined(probe: &Probe) -> bool {
    let is_in_kernel = matches!(probe.state(), ProbeState::Armed | ProbeState::Disabled);
    is_in_kernel && probe.kind() != ProbeKind::Event
}

fn is_of_host(name: &str) -> bool {
    EVENTS.iter().any(|(event, _)| *event == name)
}

/// The names of listed events.
fn names(events: &str) -> impl Iterator<Item = &str> {
    events.lines().filter_map(|line| line.split([':', ' ']).nth(1))
}

/// Everything of the kernel that is compared, read with one process.
struct Kernel {
    events: String,
    foreign_switch: String,
    instances: String,
    /// `GROUP/EVENT/FILE:CONTENT` for each switch and filter in the daemon's instance.
    switches: String,
}

impl Kernel {
    fn read(guest: &DaemonGuest, instance: &str) -> Result<Self> {
        let files: Vec<_> = ["kprobes/*", "theirs/*", EVENTS[0].0, EVENTS[1].0]
            .iter()
            .flat_map(|event| [format!("{event}/enable"), format!("{event}/filter")])
            .collect();
        // The probes record what the workload does.
        let read = guest.shell(&format!(
            "workload number 5 > /dev/null && cd {TRACEFS} && cat kprobe_events && echo = \
             && cat instances/theirs/events/theirs/foreign/enable && echo = && ls instances && echo = \
             && cd {instance}/events && grep -s '' {}",
            files.join(" ")
        ))?;
        let parts: Vec<_> = read.split("=\n").collect();
        // A definition has no line that ends with the separator: its fields have types.
        let [events, foreign_switch, instances, switches] = parts[..] else { anyhow::bail!("{read}") };
        Ok(Self {
            events: events.to_owned(),
            foreign_switch: foreign_switch.to_owned(),
            instances: instances.to_owned(),
            switches: switches.to_owned(),
        })
    }
}

fn judge(guest: &DaemonGuest, expected: &Expected, adoptable: bool) -> Result<Model> {
    let probes = guest.probes()?;
    let state = expected.found.find(&probes)?;
    for probe in &probes {
        let (wanted, reason) = match state.get(&probe.name).map(|wanted| wanted.term) {
            Some(Term::Ended(_)) => (ProbeState::Expired, "LEASE_ENDED"),
            Some(Term::HeldBack) => (ProbeState::HeldBack, "CODE_CHANGED"),
            _ if probe.enabled => (ProbeState::Armed, ""),
            _ => (ProbeState::Disabled, ""),
        };
        ensure!(probe.state() == wanted && probe.state_reason == reason, "{probe:?}");
    }
    let instance = guest.instance()?;
    let kernel = Kernel::read(guest, &instance)?;
    // The kernel has these probes, each once, and the events of the other program.
    let events = &kernel.events;
    let in_kernel = || state.iter().filter(|(_, wanted)| wanted.term.is_in_kernel());
    let foreign = ["theirs/foreign", ADOPTED];
    let foreign = &foreign[..if adoptable && !state.contains_key(ADOPTED) { 2 } else { 1 }];
    let mut found: Vec<_> = names(events).collect();
    found.sort_unstable();
    let mut wanted: Vec<_> =
        in_kernel().map(|(name, _)| name.as_str()).filter(|name| !is_of_host(name)).collect();
    wanted.extend(foreign);
    wanted.sort_unstable();
    ensure!(found == wanted, "the kernel has {found:?}, not {wanted:?}");
    ensure!(events.lines().any(|line| line == FOREIGN), "the event of another program was changed");
    ensure!(kernel.foreign_switch.trim() == "1", "{}", kernel.foreign_switch);
    for probe in probes.iter().filter(|probe| is_defined(probe)) {
        let argument =
            |line: &str| -> Option<String> { Some(line.split(' ').nth(2)?.split('=').next()?.to_owned()) };
        ensure!(argument(&probe.definition) == argument(&probe.kernel_definition), "{probe:?}");
        ensure!(events.lines().any(|line| line == probe.kernel_definition), "{probe:?}\n{events}");
    }
    let mut switches: Vec<_> = kernel.switches.lines().map(str::to_owned).collect();
    switches.sort_unstable();
    let both = |name: &str, enabled: bool, filter: &str| {
        let filter = if filter.is_empty() { "none" } else { filter };
        [format!("{name}/enable:{}", u8::from(enabled)), format!("{name}/filter:{filter}")]
    };
    // A field that is read from memory is only compared where it was read.
    let is_proven = |name: &str| {
        let is_it = |line: &&str| line.contains(&format!(":{name} ")) && line.contains(" __kpd_g0=");
        events.lines().any(|line| is_it(&line))
    };
    let filter_of = |name: &str, filter: &str| {
        if filter.starts_with("number") && is_proven(name) {
            format!("{filter}{READ}")
        } else {
            filter.to_owned()
        }
    };
    let mut wanted: Vec<_> = in_kernel()
        .flat_map(|(name, wanted)| both(name, wanted.enabled, &filter_of(name, &wanted.filter)))
        .collect();
    wanted.extend(foreign.iter().flat_map(|name| both(name, false, "")));
    let left = EVENTS.iter().filter(|(name, _)| !state.contains_key(*name));
    wanted.extend(left.flat_map(|(name, _)| both(name, false, "")));
    wanted.sort_unstable();
    ensure!(switches == wanted, "{switches:#?} is not {wanted:#?}");
    let own = instance.rsplit('/').next().unwrap_or_default();
    let mut instances = [own, "theirs"];
    instances.sort_unstable();
    ensure!(kernel.instances.lines().eq(instances), "{}", kernel.instances);
    closes(guest, state)?;
    Ok(state.clone())
}

/// The probes record, and every hit is accounted for.
fn closes(guest: &DaemonGuest, state: &Model) -> Result<()> {
    let ledger = guest.ledger()?;
    ensure!(ledger.problems.is_empty(), "{:?}", ledger.problems);
    let is_probe =
        |name: &str| !is_of_host(name) && state.get(name).is_none_or(|wanted| wanted.term.is_in_kernel());
    for probe in ledger.probes.iter().filter(|probe| is_probe(&probe.probe)) {
        let hits = probe.hits.with_context(|| format!("no hits: {probe:?}"))?;
        ensure!(hits == probe.read + probe.undecodable + probe.not_read, "{probe:?}");
        ensure!(probe.undecodable == 0 && probe.lost.unwrap_or(0) == 0, "{probe:?}");
    }
    let read = ledger.probes.iter().find(|probe| probe.probe == "kprobes/many8").map(|probe| probe.read);
    ensure!(read.is_none_or(|read| read >= 5), "{:?}", ledger.probes);
    Ok(())
}
