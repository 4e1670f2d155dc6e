//! Observer: reads what the kernel has of the probes.
//!
//! Owns which files are read: each list at most once, however many probes are looked at, and three
//! short files of each probe. Owns also when a look that a client asks for must be repeated by the control thread.
//! Never writes.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::observed::{Observed, ObservedEvent, Switch, Switches};
use super::own;
use super::probe::{Probe, ProbeState};
use super::step::Seen;
use super::{ControlHandle, Registry};
use crate::error::Error;
use kprobed_host::kernel::Livepatches;
use kprobed_host::tracefs::{
    Alteration, CachedReading, CurrentInstance, Instance, InstanceFile, KprobeList, Presence,
    RegisteredProbe, Tracefs, TracefsError,
};
use kprobed_lang::definition::ProbeKind;

/// Reads what the kernel has.
#[derive(Clone, Debug)]
pub struct Observer {
    /// Tracefs.
    pub tracefs: Tracefs,
    /// The daemon's instance.
    pub instance: Arc<CurrentInstance>,
    /// Usually `/proc`.
    pub procfs: PathBuf,
    /// Usually `/sys`.
    pub sysfs: PathBuf,
    /// How often the daemon repairs what others have changed. Absent if it does not.
    pub repaired_every: Option<Duration>,
    /// Places listed as disabled. The kernel lists a place so only if it was switched on while
    /// kprobes were off (kernel/kprobes.c: enable_kprobe), or if it is off: no other place can be
    /// unarmed than those listed so since kprobes were last switched.
    unarmed: Arc<CachedReading<Unarmed>>,
}

/// Lists of the whole host.
struct Lists {
    kprobes: Arc<KprobeList>,
    /// Modules that are loaded. Absent when no probe is in one, or if that cannot be read.
    modules: Option<HashSet<String>>,
    /// Absent while kprobes are off as a whole.
    unarmed: Option<Arc<Unarmed>>,
    /// Whether `unarmed` was read for this look.
    is_read: bool,
}

impl Observer {
    /// An observer of what tracefs, its instance, `/proc` and `/sys` show.
    pub fn new(tracefs: Tracefs, instance: Arc<CurrentInstance>, procfs: PathBuf, sysfs: PathBuf) -> Self {
        let unarmed = Arc::new(CachedReading::new(vec![tracefs.kprobes_switch()]));
        Self { tracefs, instance, procfs, sysfs, repaired_every: None, unarmed }
    }

    /// Has the next look read every list, whether another program has written to it or not.
    pub(super) fn forget(&self) {
        self.tracefs.forget_kprobe_list();
        self.unarmed.forget();
    }

    /// Reads what the kernel has of these probes. A change that the control thread is just making
    /// can look like a change by another program: see [`ProbeStates`].
    pub fn observe(&self, probes: &[Arc<Probe>]) -> Observed {
        self.instance.look(|instance| self.read(instance, probes)).unwrap_or_else(|error| {
            let unknown = ObservedEvent::Unknown(error.to_string());
            let instance = self.instance.get();
            Observed {
                // What cannot be read is not taken for what the daemon wants.
                switches: self.switches(&instance).unwrap_or_else(|_| Switches {
                    instance: instance.root().display().to_string(),
                    altered: vec![Alteration {
                        file: InstanceFile::Recording,
                        found: "not known".to_owned(),
                        wanted: "1".to_owned(),
                    }],
                    kprobes: true,
                    ftrace: true,
                    repaired_every: self.repaired_every,
                }),
                events: probes.iter().map(|probe| (probe.uid, unknown.clone())).collect(),
                livepatches: self.livepatches(),
            }
        })
    }

    fn read(&self, instance: &Instance, probes: &[Arc<Probe>]) -> Result<Observed, TracefsError> {
        let switches = self.switches(instance)?;
        let in_module = probes.iter().any(|probe| probe.module().is_some());
        let mut lists = Lists {
            kprobes: self.tracefs.kprobe_list()?,
            modules: in_module.then(|| self.modules()).flatten(),
            unarmed: switches.kprobes.then(|| self.unarmed()),
            is_read: false,
        };
        let mut events = HashMap::with_capacity(probes.len());
        for probe in probes {
            let event = match self.event(instance, &mut lists, probe) {
                Ok(event) => event,
                // Its files went while they were read: with the instance, or alone.
                Err(error) if !instance.root().is_dir() => return Err(error),
                Err(error) => match own::presence(&self.tracefs, &*self.tracefs.kprobe_list()?, probe)? {
                    presence if presence.is_ours() => ObservedEvent::Unknown(error.to_string()),
                    presence => ObservedEvent::Lost(presence),
                },
            };
            events.insert(probe.uid, event);
        }
        Ok(Observed { switches, events, livepatches: self.livepatches() })
    }

    fn unarmed(&self) -> Arc<Unarmed> {
        let read = || Ok::<_, TracefsError>(Unarmed::of(&self.tracefs.registered()?));
        self.unarmed.get(read).unwrap_or_default()
    }

    /// Whether the kernel does not arm a probe that is on. A probe that was off when the list was
    /// read can be armed by now.
    fn is_unarmed(&self, lists: &mut Lists, probe: &Probe) -> bool {
        let has = |lists: &Lists| lists.unarmed.as_ref().is_some_and(|unarmed| unarmed.has(probe));
        if has(lists) && !lists.is_read {
            self.unarmed.forget();
            (lists.unarmed, lists.is_read) = (Some(self.unarmed()), true);
        }
        has(lists)
    }

    /// The livepatches of this host.
    pub(super) fn livepatches(&self) -> Livepatches {
        Livepatches::read(&self.sysfs)
    }

    pub(super) fn switches(&self, instance: &Instance) -> Result<Switches, TracefsError> {
        Ok(Switches {
            instance: instance.root().display().to_string(),
            altered: instance.alterations(&self.instance.form(), &self.procfs)?,
            kprobes: self.tracefs.kprobes_enabled() != Some(false),
            ftrace: ftrace_enabled(&self.procfs),
            repaired_every: self.repaired_every,
        })
    }

    fn event(
        &self,
        instance: &Instance,
        lists: &mut Lists,
        probe: &Probe,
    ) -> Result<ObservedEvent, TracefsError> {
        let presence = own::presence(&self.tracefs, &lists.kprobes, probe)?;
        if !presence.is_ours() {
            return Ok(ObservedEvent::Lost(presence));
        }
        let has_stacks = probe.spec.stack && instance.has_stacks(&probe.name)?;
        let switch = match instance.switch(&probe.name)?.as_str() {
            "1*" if has_stacks => Switch::On,
            "1" | "0*" if probe.spec.stack => Switch::Partly,
            "1" => Switch::On,
            "0" => Switch::Off,
            _ => Switch::Held,
        };
        let kernel = instance.filter(&probe.name)?;
        let filter = own::written_filter(&self.tracefs, probe, kernel);
        let unarmed = switch == Switch::On && self.is_unarmed(lists, probe);
        let is_loaded = |module| lists.modules.as_ref().is_none_or(|modules| modules.contains(module));
        Ok(ObservedEvent::There {
            seen: Seen { switch, filter, unarmed },
            shared: presence == Presence::Shared,
            module_is_absent: probe.module().is_some_and(|module| !is_loaded(module)),
        })
    }

    /// Names of all modules that are loaded, or begin to run (kernel/module/procfs.c: m_show). Absent if that cannot be
    /// read.
    pub(super) fn modules(&self) -> Option<HashSet<String>> {
        let text = std::fs::read_to_string(self.procfs.join("modules")).ok()?;
        let there = text.lines().filter(|line| line.split(' ').nth(4) != Some("Unloading"));
        Some(there.filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect())
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

    /// Whether the kprobe of that probe is one of them. The list shows only the place: if several
    /// kprobes share it, and some are armed, the probe counts as armed. On a function that begins
    /// with ENDBR the kernel moves the entry after it (arch/x86/kernel/kprobes/core.c:
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

/// Whether ftrace is switched on. On a kernel without the switch it is.
pub fn ftrace_enabled(procfs: &Path) -> bool {
    std::fs::read_to_string(procfs.join("sys/kernel/ftrace_enabled")).map_or(true, |text| text.trim() != "0")
}

/// Looks up the states of probes.
#[derive(Clone, Debug)]
pub struct ProbeStates {
    /// Looks at the kernel.
    pub observer: Observer,
    /// Repeats the look while nothing is being changed.
    pub control: ControlHandle,
    /// Notes what was seen.
    pub registry: Arc<Registry>,
}

impl ProbeStates {
    /// These probes with their states, by a look at them that was just made. If a probe looks as if another program
    /// had changed it, the control thread looks again: the difference may be a change that the control thread is just
    /// making. Probes that it has deleted meanwhile are left out.
    ///
    /// # Errors
    /// When the daemon is stopping.
    pub async fn of(&self, probes: &[Arc<Probe>], observed: &Observed) -> Result<Vec<Arc<Probe>>, Error> {
        let shown: Vec<_> = probes.iter().map(|probe| observed.shown(probe)).collect();
        let doubtful = probes.iter().zip(&shown).filter(|(known, shown)| is_doubtful(known, shown));
        let doubtful: Vec<_> = doubtful.map(|(probe, _)| probe.uid).collect();
        if doubtful.is_empty() {
            return Ok(shown.into_iter().map(|probe| self.registry.seen(probe)).collect());
        }
        let again = self.control.observe(doubtful.clone()).await?;
        let mut again: HashMap<_, _> = again.into_iter().map(|probe| (probe.uid, probe)).collect();
        let doubtful: HashSet<_> = doubtful.into_iter().collect();
        let looked_at = |probe: Probe| {
            if doubtful.contains(&probe.uid) {
                again.remove(&probe.uid)
            } else {
                Some(self.registry.seen(probe))
            }
        };
        Ok(shown.into_iter().filter_map(looked_at).collect())
    }
}

/// Whether the kernel has something other than what the last change left.
fn is_doubtful(known: &Probe, shown: &Probe) -> bool {
    match &shown.state {
        ProbeState::Drifted(_) => true,
        ProbeState::Failed(_) => known.state != shown.state,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::samples::probe;
    use crate::store::Record;
    use kprobed_host::tracefs::OwnEvent;
    use kprobed_lang::model::ProbeName;
    use kprobed_verdict::checker::DefinitionText;
    use kprobed_verdict::validate::Arming;

    /// Files as the kernel has them, in a directory.
    struct Host {
        directory: tempfile::TempDir,
        observer: Observer,
    }

    impl Host {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let instance = directory.path().join("instances/kprobed");
            fs::create_dir_all(instance.join("per_cpu/cpu0")).unwrap();
            fs::create_dir_all(directory.path().join("debug/kprobes")).unwrap();
            fs::create_dir_all(directory.path().join("proc/sys/kernel")).unwrap();
            let tracefs = Tracefs::new(directory.path(), directory.path().join("debug"));
            let found = Instance::find(&tracefs, "kprobed").unwrap();
            let instance = Arc::new(CurrentInstance::new(found));
            let (procfs, sysfs) = (directory.path().join("proc"), directory.path().join("sys"));
            let observer = Observer::new(tracefs, instance, procfs, sysfs);
            let host = Self { directory, observer };
            host.write("kprobe_events", "");
            host.write("instances/kprobed/tracing_on", "1\n");
            host.write("instances/kprobed/set_event_pid", "");
            host.write("instances/kprobed/tracing_cpumask", "1\n");
            host.write("instances/kprobed/set_event_notrace_pid", "17\n");
            host.write("proc/self/task/17/comm", "kprobed\n");
            host.write("proc/4711/comm", "other\n");
            host.write("instances/kprobed/options/event-fork", "1\n");
            host.write("instances/kprobed/options/overwrite", "1\n");
            host.write("instances/kprobed/options/pause-on-trace", "0\n");
            host.write("instances/kprobed/trace_clock", "local global counter [boot] tai\n");
            host.write("debug/kprobes/enabled", "1\n");
            host.write("debug/kprobes/list", "");
            host.write("proc/sys/kernel/ftrace_enabled", "1\n");
            host.write("proc/modules", "");
            host
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// A probe that is on, and its event.
        fn add(&self, uid: i64, place: &str) -> Arc<Probe> {
            let name = ProbeName::new("kprobes", &format!("p{uid}")).unwrap();
            let listing = format!("p:{name} {place}");
            let list = fs::read_to_string(self.directory.path().join("kprobe_events")).unwrap();
            self.write("kprobe_events", &format!("{list}{listing}\n"));
            self.write(&format!("events/{name}/id"), &format!("{}\n", 1000 + uid));
            self.write(&format!("instances/kprobed/events/{name}/enable"), "1\n");
            self.write(&format!("instances/kprobed/events/{name}/filter"), "none\n");
            let id = u16::try_from(1000 + uid).unwrap();
            let of_listing = |record: &mut Record| {
                record.spec.definition = Arc::new(DefinitionText::new(listing.clone()));
                record.kernel_definition.clone_from(&listing);
            };
            let probe = probe(uid, &name.to_string()).with(of_listing);
            Arc::new(Probe {
                own: Some(OwnEvent::made(&name, &listing, id)),
                location: place.to_owned(),
                arming: Some(Arming::Breakpoint),
                ..probe
            })
        }

        fn state(&self, probe: &Arc<Probe>) -> ProbeState {
            self.observer.observe(std::slice::from_ref(probe)).state(probe)
        }

        /// What is said of a probe that does not do what was asked.
        fn trouble(&self, probe: &Arc<Probe>) -> String {
            match self.state(probe) {
                ProbeState::Drifted(trouble) | ProbeState::Failed(trouble) => trouble.reason,
                other => panic!("{other:?}"),
            }
        }
    }

    fn waits(state: &ProbeState) -> bool {
        matches!(state, ProbeState::HeldBack(trouble) if trouble.waits_for_module())
    }

    #[test]
    fn a_probe_whose_module_has_come_is_ours() {
        let host = Host::new();
        let mut probe = Probe::clone(&host.add(1, "veth:veth_open"));
        let line = |letters: &str| format!("{letters}:kprobes/p1 veth:veth_open ret=$retval");
        probe.own.as_mut().unwrap().listing = line("r");
        let probe = Arc::new(probe);
        host.write("kprobe_events", &format!("{}\n", line("r")));
        assert!(waits(&host.state(&probe)));
        // The kernel has given it a number of instances.
        host.write("kprobe_events", &format!("{}\n", line("r10")));
        host.write("proc/modules", "veth 32768 0 - Live 0xffffffffc0000000\n");
        assert_eq!(host.state(&probe), ProbeState::Armed);
        host.write("kprobe_events", &format!("{}\n", line("p")));
        assert!(host.trouble(&probe).contains("another program's"));
    }

    #[test]
    fn every_file_counts() {
        let host = Host::new();
        let probe = host.add(1, "vfs_read+0x0");
        assert_eq!(host.state(&probe), ProbeState::Armed);
        for (path, other, word) in [
            ("instances/kprobed/tracing_on", "0\n", "tracing_on"),
            ("instances/kprobed/set_event_pid", "17\n", "set_event_pid"),
            ("instances/kprobed/trace_clock", "[local] boot\n", "to `local`"),
            ("instances/kprobed/tracing_cpumask", "2\n", "tracing_cpumask"),
            ("instances/kprobed/set_event_notrace_pid", "17\n4711\n", "set_event_notrace_pid"),
            ("instances/kprobed/options/event-fork", "0\n", "event-fork"),
            ("instances/kprobed/options/overwrite", "0\n", "overwrite"),
            ("instances/kprobed/options/pause-on-trace", "1\n", "pause-on-trace"),
            ("debug/kprobes/enabled", "0\n", "kprobes/enabled"),
            ("instances/kprobed/events/kprobes/p1/enable", "0\n", "switched off"),
            ("instances/kprobed/events/kprobes/p1/enable", "1*\n", "trigger"),
            ("instances/kprobed/events/kprobes/p1/filter", "x == 1\n", "`x == 1`"),
            ("events/kprobes/p1/id", "1700\n", "another program's"),
            ("kprobe_events", "p:kprobes/p1 vfs_write+0x0\n", "another program's"),
            ("kprobe_events", "p:kprobes/p1 vfs_read+0x0\np:kprobes/p1 vfs_write\n", "added a probe point"),
            ("kprobe_events", "", "removed its event"),
            ("debug/kprobes/list", "0 k vfs_read+0x0 [DISABLED][FTRACE]\n", "not armed"),
            ("debug/kprobes/list", "0 k vfs_read+0x4 [DISABLED]\n", "not armed"),
        ] {
            let file = host.directory.path().join(path);
            let before = fs::read_to_string(&file).unwrap();
            fs::write(&file, other).unwrap();
            // A probe that is on can be listed as disabled only if kprobes were off when it was
            // switched on.
            let switched = || host.write("debug/kprobes/enabled", "1\n");
            if path == "debug/kprobes/list" {
                switched();
            }
            let said = host.trouble(&probe);
            assert!(said.contains(word), "{path} {other}: {said}");
            fs::write(&file, before).unwrap();
            assert_eq!(host.state(&probe), ProbeState::Armed, "{path}");
        }
        // A filter that was refused is shown, and not in force.
        host.write(
            "instances/kprobed/events/kprobes/p1/filter",
            "foo == 1\n^\nparse_error: Field not found\n",
        );
        assert_eq!(host.state(&probe), ProbeState::Armed);
        // Of two kprobes at a place, one that is armed may be ours.
        host.write("debug/kprobes/list", "0 k vfs_read+0x0 [DISABLED]\n0 k vfs_read+0x0\n");
        host.write("debug/kprobes/enabled", "1\n");
        assert_eq!(host.state(&probe), ProbeState::Armed);
        // It was off when the list was read, and was switched on since.
        host.write("debug/kprobes/list", "0 k vfs_read+0x0 [DISABLED]\n");
        host.write("debug/kprobes/enabled", "1\n");
        host.write("instances/kprobed/events/kprobes/p1/enable", "0\n");
        assert!(host.trouble(&probe).contains("switched off"));
        host.write("debug/kprobes/list", "0 k vfs_read+0x0\n");
        host.write("instances/kprobed/events/kprobes/p1/enable", "1\n");
        assert_eq!(host.state(&probe), ProbeState::Armed);
    }

    #[test]
    fn modules_come_and_go() {
        let host = Host::new();
        let probe = host.add(1, "btrfs:btrfs_sync_file+0x0");
        assert!(waits(&host.state(&probe)));
        host.write("proc/modules", "btrfs 1900544 0 - Unloading 0x0\n");
        assert!(waits(&host.state(&probe)));
        // The kernel arms what it has before the module begins to run.
        host.write("proc/modules", "btrfs 1900544 0 - Loading 0x0\n");
        assert_eq!(host.state(&probe), ProbeState::Armed);
        host.write("proc/modules", "ext4 1 0 - Live 0x0\nbtrfs 1900544 0 - Live 0x0\n");
        assert_eq!(host.state(&probe), ProbeState::Armed);
    }

    #[test]
    fn livepatches_come_and_go() {
        let host = Host::new();
        let inside = host.add(1, "vfs_read+0x9");
        let entry = Arc::new(Probe {
            arming: Some(Arming::Ftrace),
            location: "vfs_read+0x0".to_owned(),
            ..Probe::clone(&inside)
        });
        let back = Arc::new(Probe { kind: ProbeKind::Return, ..Probe::clone(&entry) });
        let shown = |probe: &Arc<Probe>| host.observer.observe(std::slice::from_ref(probe)).shown(probe);
        assert!(shown(&inside).warnings.is_empty() && shown(&entry).warnings.is_empty());
        let patch = host.directory.path().join("sys/kernel/livepatch/fix");
        fs::create_dir_all(patch.join("vmlinux/vfs_read,1")).unwrap();
        for (enabled, transition, expected) in [
            ("1\n", "1\n", Some("is redirecting `vfs_read`")),
            ("1\n", "0\n", Some("the code at +0x9 is not run")),
            ("0\n", "1\n", Some("is being switched off")),
            ("0\n", "0\n", None),
        ] {
            fs::write(patch.join("enabled"), enabled).unwrap();
            fs::write(patch.join("transition"), transition).unwrap();
            for probe in [&inside, &entry, &back] {
                assert_eq!(shown(probe).state, ProbeState::Armed);
                assert_eq!(shown(probe).warnings.len(), usize::from(expected.is_some()));
                // Only the one inside is ignored, and there is something to do about it.
                let hinted = shown(probe).warnings.iter().any(|warning| warning.hint.is_some());
                assert_eq!(hinted, expected.is_some() && Arc::ptr_eq(probe, &inside));
            }
            if let Some(expected) = expected {
                assert!(
                    shown(&inside).warnings[0].message.contains(expected),
                    "{:?}",
                    shown(&inside).warnings
                );
            }
            // What is switched off is as it should be.
            let off = Arc::new(Probe::clone(&inside).with(|record| record.spec.enabled = false));
            host.write("instances/kprobed/events/kprobes/p1/enable", "0\n");
            assert_eq!(shown(&off).state, ProbeState::Disabled);
            assert_eq!(shown(&off).warnings.len(), usize::from(expected.is_some()));
            host.write("instances/kprobed/events/kprobes/p1/enable", "1\n");
        }
        fs::remove_dir_all(patch).unwrap();
        assert!(shown(&inside).warnings.is_empty() && shown(&entry).warnings.is_empty());
    }

    #[test]
    fn a_probe_and_its_call_stacks_are_on_together() {
        let host = Host::new();
        let mut probe = Probe::clone(&host.add(1, "vfs_read+0x0"));
        probe.record.spec.stack = true;
        let probe = Arc::new(probe);
        for (switch, triggers, expected) in [
            ("1*", "stacktrace:unlimited if !(COMM ~ \"kprobed*\")\n", None),
            ("1", "# Available triggers:\n# traceon stacktrace\n", Some("STACKS_OFF")),
            ("0*", "stacktrace:unlimited if !(COMM ~ \"kprobed*\")\n", Some("STACKS_OFF")),
            ("0", "# Available triggers:\n", Some("SWITCHED_OFF")),
            ("1*", "traceoff:unlimited\n", Some("TRIGGER")),
        ] {
            host.write("instances/kprobed/events/kprobes/p1/enable", &format!("{switch}\n"));
            host.write("instances/kprobed/events/kprobes/p1/trigger", triggers);
            assert_eq!(
                host.state(&probe).trouble().map(|trouble| trouble.code),
                expected,
                "{switch} {triggers}"
            );
        }
    }

    #[test]
    fn each_probe_has_its_own_state() {
        let host = Host::new();
        let probes: Vec<_> = (0..300).map(|uid| host.add(uid, "vfs_read+0x0")).collect();
        host.write("instances/kprobed/events/kprobes/p7/enable", "0\n");
        let observed = host.observer.observe(&probes);
        let odd: Vec<_> = probes.iter().filter(|probe| observed.state(probe) != ProbeState::Armed).collect();
        assert_eq!(odd.iter().map(|probe| probe.uid.0).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn what_cannot_be_read_is_not_armed() {
        let host = Host::new();
        let probe = host.add(1, "vfs_read+0x0");
        fs::remove_dir_all(host.directory.path().join("instances/kprobed")).unwrap();
        assert!(host.trouble(&probe).contains("cannot be read"));
    }
}
