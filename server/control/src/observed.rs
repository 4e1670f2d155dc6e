//! Observed state: what the kernel has of the probes, read at one time, and the probe state that
//! follows from it.
//!
//! Owns that decision, a plain function over what was read; [`super::Observer`] reads. A state that
//! a client sees is never remembered: other programs can switch, filter and remove our events at
//! any time.

use std::collections::HashMap;
use std::time::Duration;

use super::livepatched;
use super::probe::{Probe, ProbeState, Trouble};
use super::step::Seen;
use kprobed_host::kernel::Livepatches;
use kprobed_host::tracefs::{Alteration, InstanceFile, Presence};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::ProbeUid;
use kprobed_verdict::validate::Arming;

/// Whether an event records in our instance, as far as its own switch is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    On,
    Off,
    /// A trigger that another program has set decides when it records.
    Held,
    /// It is on without its call stacks, or off with them.
    Partly,
}

/// What the kernel has of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ObservedEvent {
    /// Our event does not exist; `Presence` is what was found.
    Lost(Presence),
    /// Our event exists.
    There {
        /// Its switch, its filter, and whether the kernel has armed it.
        seen: Seen,
        /// Another program has added places to it.
        shared: bool,
        /// Its module is not loaded.
        module_is_absent: bool,
    },
    /// The event could not be read.
    Unknown(String),
}

/// What keeps probes from firing or from being recorded, whatever their own switches are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Switches {
    /// The directory of our instance.
    pub(super) instance: String,
    /// Files of our instance that are not as the daemon wants them.
    pub(super) altered: Vec<Alteration>,
    /// Debugfs `kprobes/enabled`.
    pub(super) kprobes: bool,
    /// `kernel.ftrace_enabled`.
    pub(super) ftrace: bool,
    /// How often the daemon looks for what others have changed, and repairs it. Absent if it does not.
    pub(super) repaired_every: Option<Duration>,
}

impl Switches {
    /// The differences for which probes do not record what was asked. The daemon undoes them.
    pub(super) fn harmful(&self) -> impl Iterator<Item = &Alteration> {
        self.altered.iter().filter(|alteration| !alteration.file.is_size())
    }
}

/// Everything that was read.
#[derive(Clone, Debug)]
pub struct Observed {
    pub(super) switches: Switches,
    pub(super) events: HashMap<ProbeUid, ObservedEvent>,
    pub(super) livepatches: Livepatches,
}

impl Observed {
    /// The state of a probe.
    pub fn state(&self, probe: &Probe) -> ProbeState {
        let unknown = || ObservedEvent::Unknown("it was not looked at".to_owned());
        let event = self.events.get(&probe.uid).cloned().unwrap_or_else(unknown);
        match (state(probe, &event, &self.switches), probe.left_alone) {
            (ProbeState::Drifted(trouble) | ProbeState::Failed(trouble), Some(times)) => {
                let reason =
                    format!("{}; it was repaired {times} times, and is left alone now", trouble.reason);
                ProbeState::Failed(Trouble { reason, ..trouble })
            }
            (state, _) => state,
        }
    }

    /// The probe with its state, and with what its writer should know of the livepatch that has
    /// redirected its function: for as long as it does.
    pub fn shown(&self, probe: &Probe) -> Probe {
        let place = (probe.location.as_str(), probe.kind, probe.arming);
        let warning = livepatched::warning(&self.livepatches, place, probe.spec.definition.as_str());
        let mut shown = Probe { state: self.state(probe), ..probe.clone() };
        shown.warnings.extend(warning);
        shown
    }
}

/// The state of a probe, given what the kernel has.
pub(super) fn state(probe: &Probe, event: &ObservedEvent, switches: &Switches) -> ProbeState {
    if !probe.state.is_in_kernel() {
        return probe.state.clone();
    }
    let ObservedEvent::There { seen: Seen { switch, filter, unarmed }, shared, module_is_absent } = event
    else {
        let lost = lost(event);
        // The daemon does not take a name from another program.
        let is_repaired = matches!(event, ObservedEvent::Lost(Presence::Absent));
        let hint = if is_repaired { repaired(probe, switches, lost.hint) } else { lost.hint };
        return match event {
            ObservedEvent::Lost(Presence::Absent) if probe.kind == ProbeKind::Event => {
                ProbeState::HeldBack(Trouble::event_absent())
            }
            ObservedEvent::Lost(_) if probe.kind == ProbeKind::Event => ProbeState::Drifted(Trouble {
                code: "EVENT_IS_NEW",
                reason: "its event is new: it was defined or loaded since the daemon last recorded it"
                    .to_owned(),
                hint: repaired(probe, switches, "enable the probe: that records the new event".to_owned()),
            }),
            _ => ProbeState::Failed(Trouble { hint, ..lost }),
        };
    };
    let mut troubles = Vec::new();
    let mut trouble =
        |code: &'static str, reason: String, hint: String| troubles.push(Trouble { code, reason, hint });
    let repaired = |by_hand: String| repaired(probe, switches, by_hand);
    if probe.is_to_record() && !module_is_absent {
        silent(probe, switches, &mut trouble);
    }
    match (probe.is_to_record(), switch) {
        (true, Switch::Off) => trouble(
            "SWITCHED_OFF",
            "its event is switched off in the daemon's instance".to_owned(),
            repaired("enable the probe: that switches its event on again".to_owned()),
        ),
        (_, Switch::Held) => trouble(
            "TRIGGER",
            "a trigger of another program in the daemon's instance decides when it records".to_owned(),
            format!("remove the trigger in `{}/events/{}/trigger`", switches.instance, probe.name),
        ),
        (true, Switch::Partly) => trouble(
            "STACKS_OFF",
            "another program has switched off its event, or its call stacks, in the daemon's instance"
                .to_owned(),
            repaired("enable the probe: that switches both on again".to_owned()),
        ),
        (false, Switch::On | Switch::Partly) => trouble(
            "SWITCHED_ON",
            "another program has switched its event on in the daemon's instance".to_owned(),
            repaired("disable the probe: that switches its event off again".to_owned()),
        ),
        (true, Switch::On) if *unarmed && switches.kprobes => trouble(
            "NOT_ARMED",
            "the kernel has not armed it, since it was enabled while kprobes were switched off".to_owned(),
            repaired("enable the probe: that arms it".to_owned()),
        ),
        _ => {}
    }
    if filter.trim() != probe.spec.filter.trim() {
        let has = if filter.is_empty() {
            "removed its filter".to_owned()
        } else {
            format!("changed its filter to `{filter}`")
        };
        let again = if probe.is_to_record() { "enable" } else { "disable" };
        trouble(
            "FILTER_CHANGED",
            format!("another program has {has} in the daemon's instance"),
            repaired(format!("{again} the probe: that sets its own filter again")),
        );
    }
    if *shared {
        trouble(
            "SHARED",
            "another program has added a probe point to its event, whose hits are recorded too".to_owned(),
            format!("remove the other lines of `{}` from `kprobe_events`", probe.name),
        );
    }
    match Trouble::all(&troubles) {
        Some(trouble) => ProbeState::Drifted(trouble),
        // The daemon takes it out as soon as it notices.
        None if *module_is_absent && probe.trip.is_none() => {
            ProbeState::HeldBack(Trouble::module_absent(probe.module().unwrap_or_default(), &probe.warnings))
        }
        None => probe.settled(),
    }
}

/// Why nothing is recorded of a probe that is on.
fn silent(probe: &Probe, switches: &Switches, trouble: &mut impl FnMut(&'static str, String, String)) {
    if !switches.kprobes && probe.kind != ProbeKind::Event {
        trouble("KPROBES_OFF", KPROBES_OFF.to_owned(), format!("`{KPROBES_ON}`, then enable the probe"));
    }
    if !switches.ftrace && probe.arming == Some(Arming::Ftrace) {
        trouble(
            "FTRACE_OFF",
            "`kernel.ftrace_enabled` is 0, and a probe at a function entry does not fire then".to_owned(),
            "`sysctl kernel.ftrace_enabled=1`".to_owned(),
        );
    }
    for alteration in switches.harmful() {
        let (code, reason) = altered(alteration);
        let hint = match alteration.file {
            InstanceFile::Clock => {
                "enable the probe: that sets the clock again, and empties the buffers".to_owned()
            }
            file => format!("enable the probe: that sets `{}` again", file.name()),
        };
        trouble(code, reason, repaired(probe, switches, hint));
    }
}

/// What to do about a change that the daemon undoes, if it repairs: nothing, unless it has left the probe alone.
fn repaired(probe: &Probe, switches: &Switches, by_hand: String) -> String {
    match switches.repaired_every.filter(|_| probe.left_alone.is_none()) {
        Some(interval) => format!(
            "the daemon repairs it automatically: a reconcile pass runs every {interval:?}, and waits longer if it is changed again and again; \
             `kprobectl doctor --repair --force` runs one now, and waits for nothing"
        ),
        None => by_hand,
    }
}

/// What another program has made of a file of the daemon's instance: a code and the reason for which
/// probes do not record what was asked.
pub fn altered(alteration: &Alteration) -> (&'static str, String) {
    let Alteration { file, found, wanted } = alteration;
    let name = file.name();
    match file {
        InstanceFile::Recording => (
            "RECORDING_OFF",
            format!(
                "another program has switched recording off in the daemon's instance (`{name}` is {found})"
            ),
        ),
        InstanceFile::Clock => (
            "CLOCK_CHANGED",
            format!(
                "another program has set the clock of the daemon's instance to `{found}`: times of events are wrong"
            ),
        ),
        InstanceFile::Tasks => (
            "LIMITED_TO_TASKS",
            "another program has limited the daemon's instance to some tasks (`set_event_pid`)".to_owned(),
        ),
        InstanceFile::Cpus => (
            "LIMITED_TO_CPUS",
            format!("another program has limited the daemon's instance to some CPUs (`{name}` is {found})"),
        ),
        InstanceFile::TasksLeftOut => (
            "TASKS_LEFT_OUT",
            format!(
                "another program has changed which tasks the daemon's instance leaves out: `{name}` is not the list of the daemon's threads"
            ),
        ),
        InstanceFile::EventFork
        | InstanceFile::Overwrite
        | InstanceFile::PauseOnTrace
        | InstanceFile::BufferSize
        | InstanceFile::SubBufferSize => (
            "INSTANCE_CHANGED",
            format!("another program has changed `{name}` of the daemon's instance from {wanted} to {found}"),
        ),
    }
}

/// The text while all kprobes are off.
pub(super) const KPROBES_OFF: &str =
    "kprobes are switched off on this host (`/sys/kernel/debug/kprobes/enabled` is 0)";

/// The command that switches them on.
pub const KPROBES_ON: &str = "echo 1 > /sys/kernel/debug/kprobes/enabled";

/// Why the kernel does not have a probe that it had.
pub(super) fn lost(event: &ObservedEvent) -> Trouble {
    let trouble =
        |code, reason: &str, hint: &str| Trouble { code, reason: reason.to_owned(), hint: hint.to_owned() };
    match event {
        ObservedEvent::Lost(Presence::Foreign | Presence::Ours | Presence::Shared) => trouble(
            "NAME_TAKEN",
            "its event was removed, and the kernel's event of this name is another program's",
            "delete the probe; or remove that event, and enable the probe",
        ),
        ObservedEvent::Lost(Presence::Absent) | ObservedEvent::There { .. } => trouble(
            "REMOVED",
            "another program has removed its event from the kernel",
            "enable the probe: that defines its event again",
        ),
        ObservedEvent::Unknown(reason) => {
            trouble("CANNOT_READ", &format!("its event cannot be read: {reason}"), "")
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples as tests;
    use crate::store::Trip;

    fn probe(enabled: bool, filter: &str) -> Probe {
        tests::probe(1, "kprobes/fork")
            .with(|record| (record.spec.enabled, record.spec.filter) = (enabled, filter.to_owned()))
    }

    fn all_on() -> Switches {
        let instance = "/sys/kernel/tracing/instances/kprobed".to_owned();
        Switches { instance, altered: Vec::new(), kprobes: true, ftrace: true, repaired_every: None }
    }

    fn altered_file(file: InstanceFile) -> Vec<Alteration> {
        vec![Alteration { file, found: "0".to_owned(), wanted: "1".to_owned() }]
    }

    fn event(switch: Switch, filter: &str) -> ObservedEvent {
        let seen = Seen { switch, filter: filter.to_owned(), unarmed: false };
        ObservedEvent::There { seen, shared: false, module_is_absent: false }
    }

    fn drift(state: &ProbeState) -> &Trouble {
        match state {
            ProbeState::Drifted(trouble) => trouble,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_state_is_what_the_kernel_has() {
        let on = all_on();
        assert_eq!(state(&probe(true, ""), &event(Switch::On, ""), &on), ProbeState::Armed);
        assert_eq!(state(&probe(false, "a == 1"), &event(Switch::Off, "a == 1"), &on), ProbeState::Disabled);
        let off = state(&probe(true, ""), &event(Switch::Off, ""), &on);
        assert!(drift(&off).reason.contains("its event is switched off"), "{off:?}");
        let on_again = state(&probe(false, ""), &event(Switch::On, ""), &on);
        assert!(drift(&on_again).hint.starts_with("disable"), "{on_again:?}");
        let filtered = state(&probe(true, ""), &event(Switch::On, "a == 2"), &on);
        assert!(drift(&filtered).reason.contains("`a == 2`"), "{filtered:?}");
        // Two at once are both said.
        let both = state(&probe(true, "a == 1"), &event(Switch::Off, ""), &on);
        assert!(drift(&both).reason.contains("off") && drift(&both).reason.contains("removed its filter"));
    }

    #[test]
    fn a_hint_says_what_the_daemon_does_by_itself() {
        let repairs = Switches { repaired_every: Some(Duration::from_secs(30)), ..all_on() };
        let hint = |probe: &Probe, event: &ObservedEvent, switches: &Switches| {
            state(probe, event, switches).trouble().unwrap().hint.clone()
        };
        let on = probe(true, "a == 1");
        let off = event(Switch::Off, "a == 1");
        let undone = [
            off.clone(),
            event(Switch::On, ""),
            ObservedEvent::Lost(Presence::Absent),
            ObservedEvent::There {
                seen: Seen { switch: Switch::On, filter: "a == 1".to_owned(), unarmed: true },
                shared: false,
                module_is_absent: false,
            },
        ];
        for event in &undone {
            let by_itself = hint(&on, event, &repairs);
            assert!(by_itself.contains("a reconcile pass runs every 30s"), "{event:?}: {by_itself}");
            // Without --force, it would not touch one that was repaired a short time ago.
            assert!(by_itself.contains("`kprobectl doctor --repair --force`"), "{event:?}: {by_itself}");
            assert!(hint(&on, event, &all_on()).starts_with("enable the probe"), "{event:?}");
        }
        let altered = altered_file(InstanceFile::Recording);
        let silenced = Switches { altered, ..repairs.clone() };
        assert!(hint(&on, &event(Switch::On, "a == 1"), &silenced).contains("automatically"));
        // It has given up, and what only others can do is said.
        let left_alone = Probe { left_alone: Some(5), ..on.clone() };
        assert!(hint(&left_alone, &off, &repairs).starts_with("enable the probe"));
        for event in [event(Switch::Held, "a == 1"), ObservedEvent::Lost(Presence::Foreign)] {
            assert!(!hint(&on, &event, &repairs).contains("automatically"), "{event:?}");
        }
        let no_kprobes = Switches { kprobes: false, ..repairs };
        assert!(hint(&on, &event(Switch::On, "a == 1"), &no_kprobes).contains(KPROBES_ON));
    }

    #[test]
    fn a_probe_that_was_disarmed_for_its_cost_is_wanted_off() {
        let trip = Trip { code: "OVER_PROBE_BUDGET".to_owned(), message: "disarmed".to_owned() };
        let probe = probe(true, "").with(|record| record.trip = Some(trip));
        let trouble = probe.tripped().unwrap();
        assert_eq!((trouble.code, trouble.reason.as_str()), ("OVER_PROBE_BUDGET", "disarmed"));
        let on = all_on();
        assert_eq!(state(&probe, &event(Switch::Off, ""), &on), ProbeState::Tripped(trouble.clone()));
        // Nothing that keeps probes from firing matters to it.
        let silent = Switches { altered: altered_file(InstanceFile::Recording), kprobes: false, ..all_on() };
        assert_eq!(state(&probe, &event(Switch::Off, ""), &silent), ProbeState::Tripped(trouble));
        let on_again = state(&probe, &event(Switch::On, ""), &on);
        assert_eq!(drift(&on_again).code, "SWITCHED_ON");
    }

    #[test]
    fn switches_of_the_host_are_told() {
        let at_entry = probe(true, "");
        let inside = Probe { arming: Some(Arming::Breakpoint), ..at_entry.clone() };
        let there = event(Switch::On, "");
        let no_ftrace = Switches { ftrace: false, ..all_on() };
        assert!(drift(&state(&at_entry, &there, &no_ftrace)).reason.contains("ftrace_enabled"));
        assert_eq!(state(&inside, &there, &no_ftrace), ProbeState::Armed);
        let of_instance = InstanceFile::ALL.into_iter().filter(|file| !file.is_size());
        let of_instance = of_instance.map(|file| {
            let word = if file == InstanceFile::Clock { "clock" } else { file.name() };
            (Switches { altered: altered_file(file), ..all_on() }, word)
        });
        for (switches, word) in
            of_instance.chain([(Switches { kprobes: false, ..all_on() }, "kprobes/enabled")])
        {
            assert!(drift(&state(&inside, &there, &switches)).reason.contains(word), "{word}");
            // It is as it should be: off.
            assert_eq!(state(&probe(false, ""), &event(Switch::Off, ""), &switches), ProbeState::Disabled);
        }
    }

    #[test]
    fn an_event_of_the_host_waits_and_comes_again() {
        let probe = Probe { kind: ProbeKind::Event, arming: None, ..probe(true, "a == 1") };
        let silent = Switches { kprobes: false, ftrace: false, ..all_on() };
        assert_eq!(state(&probe, &event(Switch::On, "a == 1"), &silent), ProbeState::Armed);
        let of = |presence| state(&probe, &ObservedEvent::Lost(presence), &silent);
        assert_eq!(of(Presence::Absent), ProbeState::HeldBack(Trouble::event_absent()));
        assert_eq!(drift(&of(Presence::Foreign)).code, "EVENT_IS_NEW");
        assert_eq!(drift(&state(&probe, &event(Switch::Off, "a == 1"), &silent)).code, "SWITCHED_OFF");
        assert_eq!(drift(&state(&probe, &event(Switch::On, ""), &silent)).code, "FILTER_CHANGED");
    }

    #[test]
    fn what_is_gone_is_not_armed() {
        let state = |presence| state(&probe(true, ""), &ObservedEvent::Lost(presence), &all_on());
        let ProbeState::Failed(gone) = state(Presence::Absent) else { panic!("it is gone") };
        assert!(gone.reason.contains("removed") && gone.hint.contains("again"), "{gone:?}");
        let ProbeState::Failed(taken) = state(Presence::Foreign) else { panic!("it is gone") };
        assert!(taken.reason.contains("another program's") && taken.hint.contains("delete"), "{taken:?}");
    }

    fn any_event() -> impl Strategy<Value = ObservedEvent> {
        let switch = [Switch::On, Switch::Off, Switch::Held, Switch::Partly];
        let switch = prop::sample::select(switch.to_vec());
        let there = (switch, prop_oneof![Just(""), Just("a == 1")], any::<[bool; 3]>()).prop_map(
            |(switch, filter, [shared, unarmed, module_is_absent])| {
                let seen = Seen { switch, filter: filter.to_owned(), unarmed };
                ObservedEvent::There { seen, shared, module_is_absent }
            },
        );
        let presence = prop_oneof![Just(Presence::Absent), Just(Presence::Foreign)];
        prop_oneof![4 => there, 1 => presence.prop_map(ObservedEvent::Lost)]
    }

    proptest! {
        /// The state is "armed" if and only if everything is as it must be for the probe to record
        /// what was asked; and every difference has a reason.
        #[test]
        fn armed_is_armed(
            enabled: bool,
            filtered: bool,
            event in any_event(),
            altered in prop::option::of(prop::sample::select(InstanceFile::ALL.to_vec())),
            [kprobes, ftrace]: [bool; 2],
        ) {
            let probe = probe(enabled, if filtered { "a == 1" } else { "" });
            let records_all = altered.is_none_or(InstanceFile::is_size);
            let altered = altered.map(altered_file).unwrap_or_default();
            let switches = Switches { altered, kprobes, ftrace, ..all_on() };
            let records = match &event {
                ObservedEvent::There { seen: Seen { switch, filter, unarmed }, shared, module_is_absent } => {
                    *switch == Switch::On && *filter == probe.spec.filter && !shared && !unarmed && !module_is_absent
                        && records_all && kprobes && ftrace
                }
                _ => false,
            };
            let state = state(&probe, &event, &switches);
            prop_assert_eq!(state == ProbeState::Armed, enabled && records);
            match state {
                ProbeState::Drifted(trouble) | ProbeState::Failed(trouble) => {
                    prop_assert!(!trouble.reason.is_empty() && !trouble.hint.is_empty());
                }
                ProbeState::Disabled => prop_assert!(!enabled),
                ProbeState::HeldBack(trouble) => prop_assert!(trouble.waits_for_module()),
                ProbeState::Armed => {}
                _ => prop_assert!(false),
            }
        }
    }
}
