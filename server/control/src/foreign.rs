//! Foreign events: the events of `kprobe_events` that are not probes of this daemon.
//!
//! Owns which events are foreign, and what can be known of them. Only reads: foreign events are
//! never written to, unless they are adopted (see [`super::adopt`]).

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use kprobed_proto::v1;

use super::adopt::{Obstacle, has_guards, judge};
use super::{Probe, Registry};
use crate::error::Error;
use kprobed_host::tracefs::{HitCounts, Tracefs};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::{Hits, ProbeName};
use kprobed_verdict::checker::Checker;

/// Finds foreign events.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// Tracefs.
    pub tracefs: Tracefs,
    /// The daemon's own probes.
    pub registry: Arc<Registry>,
    /// Judges whether they can be adopted.
    pub checker: Arc<Checker>,
    /// The names of the daemon's instance: during a hand-over there are both.
    pub own_instances: [String; 2],
}

/// Lines of the kernel by the name of their event.
type ByName = BTreeMap<String, Vec<String>>;

/// The place in a line of the kernel.
pub fn place(line: &str) -> &str {
    line.split(' ').nth(1).unwrap_or_default()
}

impl Foreign {
    /// Up to `most` events whose name and first place `selected` accepts, in the order of their names, after `after`.
    ///
    /// # Errors
    /// When tracefs cannot be read.
    pub fn page(
        &self,
        after: Option<&str>,
        most: usize,
        selected: impl Fn(&str, &str) -> bool,
    ) -> Result<Vec<v1::ForeignEvent>, Error> {
        let by_name = self.by_name()?;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = by_name.range::<str, _>((start, Bound::Unbounded));
        let selected =
            rest.filter(|(name, lines)| selected(name, lines.first().map_or("", |line| place(line))));
        let page: Vec<_> = selected.take(most).collect();
        if page.is_empty() {
            return Ok(Vec::new());
        }
        let counts = self.tracefs.hit_counts().unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot read the hits of foreign events");
            HitCounts::default()
        });
        let counted: HashMap<_, _> = counts.rows().map(|row| (row.listing, row.hits)).collect();
        let recorders = self.tracefs.recorders();
        let mut facts = self.checker.recent_facts();
        let events = page.into_iter().filter_map(|(name, lines)| {
            let (group, event) = name.split_once('/')?;
            let first = lines.first()?;
            let enabled_in: Vec<_> = self.tracefs.recording(&recorders, (group, event)).cloned().collect();
            let probe = ProbeName::new(group, event).ok().and_then(|name| self.registry.get(&name));
            let is_recorded = probe.as_ref().is_some_and(|probe| probe.kind == ProbeKind::Event);
            let judged = match probe.as_deref() {
                Some(probe) => Err(obstacle(probe)),
                None => judge(&self.checker, &mut facts, (group, event), lines),
            };
            let (definition, obstacle) = match judged {
                Ok(outcome) => (outcome.text.to_string(), Obstacle::new("", "")),
                Err(obstacle) => (String::new(), obstacle),
            };
            let hits = sum(lines.iter().map(|line| counted.get(line.as_str()).copied()));
            let kind = if first.starts_with('r') { v1::ProbeKind::Return } else { v1::ProbeKind::Entry };
            Some(v1::ForeignEvent {
                name: name.clone(),
                kernel_definitions: lines.clone(),
                kind: kind.into(),
                place: place(first).to_owned(),
                made_by_kprobed: lines.iter().any(|line| has_guards(line))
                    || (!is_recorded && enabled_in.iter().any(|name| self.own_instances.contains(name))),
                enabled_in,
                hits: hits.map(|hits| hits.hits),
                nmissed: hits.map(|hits| hits.nmissed),
                obstacle: obstacle.code.to_owned(),
                obstacle_message: obstacle.message,
                definition,
            })
        });
        Ok(events.collect())
    }

    /// The tracing instances besides the daemon's in which an event is switched on; an empty name for the top one.
    pub fn enabled_in(&self, name: &ProbeName) -> Vec<String> {
        let recorders = self.tracefs.recorders();
        let on = self.tracefs.recording(&recorders, name.parts());
        on.filter(|name| !self.own_instances.contains(name)).cloned().collect()
    }

    /// The lines that are not ours.
    fn by_name(&self) -> Result<ByName, Error> {
        let mut by_name = ByName::new();
        for listed in self.tracefs.kprobe_list()?.probes() {
            let Some((group, event)) = listed.group_and_event() else { continue };
            let ours = listed.name.as_ref().and_then(|name| self.registry.listed(name, &listed.line));
            if ours.is_none() {
                let name = format!("{group}/{event}");
                by_name.entry(name).or_default().push(listed.line.clone());
            }
        }
        Ok(by_name)
    }
}

/// The obstacle to adopting an event whose name a probe has.
fn obstacle(probe: &Probe) -> Obstacle {
    let name = &probe.name;
    let message = if probe.kind == ProbeKind::Event {
        format!("a probe records it as an event of the host: delete that first (`kprobectl delete {name}`)")
    } else {
        "kprobed has a probe of this name, whose event another program has replaced or added to".to_owned()
    };
    Obstacle::new("NAME_OF_PROBE", message)
}

/// The sum of several counts. Absent if one of them is.
fn sum(mut hits: impl Iterator<Item = Option<Hits>>) -> Option<Hits> {
    hits.try_fold(Hits::default(), |sum, hits| {
        let hits = hits?;
        Some(Hits { hits: sum.hits + hits.hits, nmissed: sum.nmissed + hits.nmissed })
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::samples::{self, probe};
    use kprobed_host::kernel::{FactsCache, KernelPaths};
    use kprobed_host::tracefs::Instance;
    use kprobed_lang::definition::Features;

    const LIST: &str = "p:kprobes/fork kernel_clone\np:kprobes/fork vfs_statx\nr8:other/opened do_sys_openat2 a=%di\n\
                        p:own/one vfs_read __kpd_end=$comm:string\np:own/two vfs_write\np:also/one vfs_read\n";

    fn foreign(root: &std::path::Path) -> Foreign {
        let tracefs = Tracefs::new(root, root);
        fs::create_dir_all(root.join("instances/kprobed")).unwrap();
        fs::write(root.join("kprobe_events"), LIST).unwrap();
        let profile = "fork 1 0\nfork 2 1\nopened 3 0\none 4 0\ntwo 5 0\none 6 0\n";
        fs::write(root.join("kprobe_profile"), profile).unwrap();
        for event in ["own/two", "also/one"] {
            let event = root.join("instances/kprobed/events").join(event);
            fs::create_dir_all(&event).unwrap();
            fs::write(event.join("enable"), "1\n").unwrap();
        }
        let registry = Arc::<Registry>::default();
        samples::note(&registry, probe(1, "kprobes/fork"));
        let mut of_host = Probe { kind: ProbeKind::Event, ..probe(2, "also/one") };
        of_host.own.as_mut().unwrap().listing.clear();
        samples::note(&registry, of_host);
        let nowhere = || "/nonexistent".into();
        let paths =
            KernelPaths { procfs: nowhere(), sysfs: nowhere(), tracefs: nowhere(), debugfs: nowhere() };
        let facts = Arc::new(FactsCache::new(paths));
        Foreign {
            own_instances: Instance::both_names("kprobed"),
            tracefs,
            registry,
            checker: Arc::new(Checker::new(Features::from_readme("string"), facts)),
        }
    }

    #[test]
    fn what_is_not_ours_is_listed() {
        let directory = tempfile::tempdir().unwrap();
        let foreign = foreign(directory.path());
        let all = foreign.page(None, 10, |_, _| true).unwrap();
        let told = |event: &v1::ForeignEvent| {
            (event.name.clone(), event.hits, event.made_by_kprobed, event.obstacle.clone())
        };
        let expected = [
            ("also/one", Some(6), false, "NAME_OF_PROBE"),
            ("kprobes/fork", Some(2), false, "NAME_OF_PROBE"),
            ("other/opened", Some(3), false, "UNREADABLE"),
            ("own/one", Some(4), true, "UNREADABLE"),
            ("own/two", Some(5), true, "UNREADABLE"),
        ]
        .map(|(name, hits, own, code)| (name.to_owned(), hits, own, code.to_owned()));
        assert_eq!(all.iter().map(told).collect::<Vec<_>>(), expected);
        let lines = &all[1].kernel_definitions;
        assert_eq!(*lines, ["p:kprobes/fork vfs_statx"], "our own place of the event is not foreign");
        let opened = &all[2];
        assert_eq!((opened.kind(), opened.place.as_str()), (v1::ProbeKind::Return, "do_sys_openat2"));
        assert_eq!(all[4].enabled_in, ["kprobed"]);
        // Pages follow each other.
        let names = |after, most, selected: &dyn Fn(&str) -> bool| {
            let page = foreign.page(after, most, |name, _| selected(name)).unwrap();
            page.into_iter().map(|event| event.name).collect::<Vec<_>>()
        };
        assert_eq!(names(None, 2, &|_| true), ["also/one", "kprobes/fork"]);
        assert_eq!(names(Some("kprobes/fork"), 1, &|name| name.starts_with("own/")), ["own/one"]);
        assert!(names(Some("own/two"), 9, &|_| true).is_empty());
    }

    /// During a hand-over both of its own instances record.
    #[test]
    fn what_the_daemon_records_is_no_other_program() {
        let directory = tempfile::tempdir().unwrap();
        let foreign = foreign(directory.path());
        let name = ProbeName::new("own", "two").unwrap();
        assert!(foreign.enabled_in(&name).is_empty());
        for instance in foreign.own_instances.iter().map(String::as_str).chain(["other"]) {
            let event = directory.path().join("instances").join(instance).join("events/own/two");
            fs::create_dir_all(&event).unwrap();
            fs::write(event.join("enable"), "1\n").unwrap();
        }
        assert_eq!(foreign.enabled_in(&name), ["other"]);
        fs::remove_dir_all(directory.path().join("instances/kprobed")).unwrap();
        assert_eq!(foreign.enabled_in(&name), ["other"]);
    }

    #[test]
    fn a_count_that_is_not_known_makes_the_sum_unknown() {
        let hits = |hits| Hits { hits, nmissed: 1 };
        let (one, two) = (hits(1), hits(2));
        assert_eq!(sum([Some(one), Some(two)].into_iter()), Some(Hits { hits: 3, nmissed: 2 }));
        assert_eq!(sum([Some(one), None].into_iter()), None);
    }
}
