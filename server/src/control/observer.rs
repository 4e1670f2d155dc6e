//! Reads from the kernel what it has of the probes.
//!
//! Reads each list once, however many probes are looked at, and of each probe three short files. Never writes.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::doctor::ftrace_enabled;
use super::observed::{Observed, ObservedEvent, Switch, Switches};
use super::probe::Probe;
use crate::definition::ProbeKind;
use crate::tracefs::{
    CurrentInstance, Instance, KprobeList, Presence, RegisteredProbe, Tracefs, TracefsError,
};

/// Looks at what the kernel has.
#[derive(Clone, Debug)]
pub struct Observer {
    /// Tracefs.
    pub tracefs: Tracefs,
    /// The daemon's instance.
    pub instance: Arc<CurrentInstance>,
    /// Usually `/proc`.
    pub procfs: PathBuf,
}

/// Lists of the whole host.
struct Lists {
    kprobes: KprobeList,
    /// Modules that are loaded. Absent when no probe is in one.
    modules: Option<HashSet<String>>,
    unarmed: Unarmed,
}

impl Observer {
    /// Looks at these probes. What the control thread is just changing can look like a change of somebody else: see [`super::ProbeStates`].
    pub fn observe(&self, probes: &[Arc<Probe>]) -> Observed {
        self.instance.look(|instance| self.read(instance, probes)).unwrap_or_else(|error| {
            let unknown = ObservedEvent::Unknown(error.to_string());
            let instance = self.instance.get();
            Observed {
                switches: self.switches(&instance).unwrap_or_else(|_| Switches {
                    instance: instance.root().display().to_string(),
                    recording: false,
                    limited_to_tasks: false,
                    kprobes: true,
                    ftrace: true,
                }),
                events: probes.iter().map(|probe| (probe.uid, unknown.clone())).collect(),
            }
        })
    }

    fn read(&self, instance: &Instance, probes: &[Arc<Probe>]) -> Result<Observed, TracefsError> {
        let switches = self.switches(instance)?;
        let in_module = probes.iter().any(|probe| probe.module().is_some());
        let lists = Lists {
            kprobes: self.tracefs.kprobe_list()?,
            modules: in_module.then(|| self.modules()),
            unarmed: Unarmed::of(&self.tracefs.registered().unwrap_or_default()),
        };
        let mut events = HashMap::with_capacity(probes.len());
        for probe in probes {
            let event = match self.event(instance, &lists, probe) {
                Ok(event) => event,
                // Its files went while they were read: with the instance, or alone.
                Err(error) if !instance.root().is_dir() => return Err(error),
                Err(error) => match self.presence(&self.tracefs.kprobe_list()?, probe)? {
                    presence if presence.is_ours() => ObservedEvent::Unknown(error.to_string()),
                    presence => ObservedEvent::Lost(presence),
                },
            };
            events.insert(probe.uid, event);
        }
        Ok(Observed { switches, events })
    }

    pub(super) fn switches(&self, instance: &Instance) -> Result<Switches, TracefsError> {
        Ok(Switches {
            instance: instance.root().display().to_string(),
            recording: instance.is_recording()?,
            limited_to_tasks: instance.is_limited_to_tasks()?,
            kprobes: self.tracefs.kprobes_enabled() != Some(false),
            ftrace: ftrace_enabled(&self.procfs),
        })
    }

    fn presence(&self, list: &KprobeList, probe: &Probe) -> Result<Presence, TracefsError> {
        match &probe.own {
            Some(own) => self.tracefs.presence_in(list, own),
            None if self.tracefs.has_event(probe.name.group(), probe.name.event()) => Ok(Presence::Foreign),
            None => Ok(Presence::Absent),
        }
    }

    fn event(
        &self,
        instance: &Instance,
        lists: &Lists,
        probe: &Probe,
    ) -> Result<ObservedEvent, TracefsError> {
        let presence = self.presence(&lists.kprobes, probe)?;
        if !presence.is_ours() {
            return Ok(ObservedEvent::Lost(presence));
        }
        let is_loaded = |module| lists.modules.as_ref().is_some_and(|modules| modules.contains(module));
        Ok(ObservedEvent::There {
            switch: match instance.switch(&probe.name)?.as_str() {
                "1" => Switch::On,
                "0" => Switch::Off,
                _ => Switch::Held,
            },
            filter: instance.filter(&probe.name)?,
            shared: presence == Presence::Shared,
            unarmed: lists.unarmed.has(probe),
            module_is_absent: probe.module().is_some_and(|module| !is_loaded(module)),
        })
    }

    /// Names of all modules that are loaded (kernel/module/procfs.c: m_show).
    fn modules(&self) -> HashSet<String> {
        let text = std::fs::read_to_string(self.procfs.join("modules")).unwrap_or_default();
        let live = text.lines().filter(|line| line.split(' ').nth(4) == Some("Live"));
        live.filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect()
    }
}

/// Places at which the kernel has kprobes, all of them marked as disabled.
#[derive(Debug, Default)]
struct Unarmed(HashSet<(ProbeKind, String)>);

impl Unarmed {
    fn of(registered: &[RegisteredProbe]) -> Self {
        let place = |probe: &RegisteredProbe| (probe.kind, probe.location.clone());
        let armed: HashSet<_> =
            registered.iter().filter(|probe| !probe.disabled && !probe.gone).map(place).collect();
        let disabled = registered.iter().filter(|probe| probe.disabled && !probe.gone).map(place);
        Self(disabled.filter(|place| !armed.contains(place)).collect())
    }

    /// Whether the kprobe of that probe is one of them. The list says no more than the place: where several share one, and some are armed, it is
    /// taken for armed. On a function that begins with ENDBR the kernel moves the entry behind it (arch/x86/kernel/kprobes/core.c:
    /// arch_adjust_kprobe_addr).
    fn has(&self, probe: &Probe) -> bool {
        const ENDBR_BYTES: u64 = 4;
        let place = probe.location.split_once(':').map_or(probe.location.as_str(), |(_, place)| place);
        let Some((function, offset)) = place.rsplit_once("+0x") else { return false };
        let Ok(offset) = u64::from_str_radix(offset, 16) else { return false };
        let at = |offset: u64| self.0.contains(&(probe.kind, format!("{function}+{offset:#x}")));
        at(offset) || (offset == 0 && at(ENDBR_BYTES))
    }
}
