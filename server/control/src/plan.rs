//! Plans: everything that is done to the kernel for some changes, in order, as shell commands.
//!
//! Owns the order of the steps of several changes, and which instance the daemon uses between them.
//! Plain functions, which never write: [`super::judge`] makes the plan of a request from the same
//! values that [`super::change`] carries out.

use std::collections::{BTreeMap, HashSet};

use super::handover::Recorded;
use super::job::Job;
use super::remove::Room;
use super::step::Step;
use kprobed_host::tracefs::{Alteration, OwnEvent};
use kprobed_lang::model::ProbeName;

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStep {
    /// The event that it is about. Absent for a step that is about everything that is recorded.
    pub event: Option<ProbeName>,
    /// The command for a shell in the tracing directory.
    pub command: String,
}

/// Quoted for a shell, in single quotes.
fn quoted(text: &str) -> String {
    text.replace('\'', r"'\''")
}

/// A plan that is being made.
#[derive(Debug)]
pub(super) struct KernelPlan {
    /// The daemon's instance after the steps so far.
    instance: String,
    /// The instance that can replace it, and the size of its buffers.
    other: String,
    buffer_kib: u64,
    pub(super) steps: Vec<PlannedStep>,
    /// Events that are made or changed, as they are once the steps so far are done.
    changed: BTreeMap<ProbeName, Recorded>,
    deleted: HashSet<ProbeName>,
}

impl KernelPlan {
    /// An empty plan. `instance` is the daemon's present one, and `other` the one that can replace
    /// it, with buffers of that size.
    pub(super) fn new(instance: &str, other: &str, buffer_kib: u64) -> Self {
        let (instance, other) = (instance.to_owned(), other.to_owned());
        let (changed, deleted) = (BTreeMap::new(), HashSet::new());
        Self { instance, other, buffer_kib, steps: Vec::new(), changed, deleted }
    }

    fn event(&mut self, name: &ProbeName, step: &Step) {
        let event = format!("instances/{}/events/{name}", self.instance);
        let command = match step {
            Step::Disable => format!("echo 0 > {event}/enable"),
            Step::Enable => format!("echo 1 > {event}/enable"),
            Step::Define { line } => format!("echo '{}' >> kprobe_events", quoted(line)),
            Step::Filter { after, .. } if after.is_empty() => format!("echo 0 > {event}/filter"),
            Step::Filter { after, .. } => format!("echo '{}' > {event}/filter", quoted(after)),
            Step::Delete => format!("echo '-:{name}' >> kprobe_events"),
        };
        self.steps.push(PlannedStep { event: Some(name.clone()), command });
    }

    /// A step for the daemon's instance, or an instance as a whole.
    fn instance(&mut self, command: String) {
        self.steps.push(PlannedStep { event: None, command });
    }

    /// Switches recording on or off.
    fn record(&mut self, on: bool) {
        self.instance(format!("echo {} > instances/{}/tracing_on", u8::from(on), self.instance));
    }

    /// Adds the creation and change of events, in the order in which [`super::execute`] does that.
    pub(super) fn change(&mut self, jobs: &[&Job]) {
        let steps = jobs.iter().flat_map(|job| job.steps().map(|step| (&job.probe.name, step)));
        let mut steps: Vec<_> = steps.collect();
        steps.sort_by_key(|(_, step)| step.order());
        for (name, step) in steps {
            self.event(name, step);
        }
        for job in jobs.iter().filter(|job| job.probe.state.is_in_kernel()) {
            let (name, filter) = (job.probe.name.clone(), job.probe.spec.filter.clone());
            let enabled = job.probe.is_to_record();
            self.deleted.remove(&name);
            let is_of_host = job.probe.is_of_host();
            self.changed
                .insert(name.clone(), Recorded { name, filter, enabled, stacks: None, id: 0, is_of_host });
        }
    }

    /// Adds that files of the instance are restored.
    #[expect(single_use_lifetimes, reason = "`impl Trait` needs the name")]
    pub(super) fn restore<'a>(&mut self, altered: impl Iterator<Item = &'a Alteration>) {
        for Alteration { file, wanted, .. } in altered {
            let word = match wanted.as_str() {
                "" => String::new(),
                list if list.contains(' ') => format!("'{list}' "),
                word => format!("{word} "),
            };
            self.instance(format!("echo {word}> instances/{}/{}", self.instance, file.name()));
        }
    }

    /// What is recorded after the steps so far, given what is recorded now.
    pub(super) fn recorded(&self, now: Vec<Recorded>) -> Vec<Recorded> {
        let stays = now.into_iter().filter(|event| !self.deleted.contains(&event.name));
        let mut recorded: BTreeMap<_, _> = stays.map(|event| (event.name.clone(), event)).collect();
        for (name, after) in &self.changed {
            let (filter, enabled) = (after.filter.clone(), after.enabled);
            let before = recorded.remove(name).unwrap_or_else(|| after.clone());
            recorded.insert(name.clone(), Recorded { filter, enabled, ..before });
        }
        recorded.into_values().collect()
    }

    /// Adds the deletion of events, with what `room` does so that it empties no buffer in use. Those of the host are no
    /// longer recorded, and stay.
    pub(super) fn delete(&mut self, doomed: &[&OwnEvent], room: Option<&Room>) {
        for OwnEvent { name, .. } in doomed {
            self.event(name, &Step::Disable);
        }
        for OwnEvent { name, .. } in doomed.iter().filter(|event| event.is_of_host()) {
            self.event(name, &Step::Filter { before: String::new(), after: String::new() });
        }
        match room {
            None => {}
            Some(Room::Pause) => self.record(false),
            Some(Room::HandOver { recorded }) => {
                std::mem::swap(&mut self.instance, &mut self.other);
                let (next, kib) = (format!("instances/{}", self.instance), self.buffer_kib);
                self.instance(format!("mkdir {next}; echo {kib} > {next}/buffer_size_kb"));
                for event in recorded {
                    for step in event.steps() {
                        self.event(&event.name, &step);
                    }
                }
                self.record(true);
                self.instance(format!("rmdir instances/{}", self.other));
            }
        }
        for event in doomed {
            let name = &event.name;
            if !event.is_of_host() {
                self.event(name, &Step::Delete);
            }
            self.changed.remove(name);
            self.deleted.insert(name.clone());
        }
        if matches!(room, Some(Room::Pause)) {
            self.record(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::probe as test_probe;
    use crate::step::{self, Aim};
    use kprobed_host::tracefs::InstanceFile;

    fn print(steps: &[PlannedStep]) -> Vec<String> {
        steps.iter().map(|step| step.command.clone()).collect()
    }

    fn name(text: &str) -> ProbeName {
        text.parse().unwrap()
    }

    /// An event that the daemon has defined.
    fn made(event: &str) -> OwnEvent {
        OwnEvent::made(&name(event), &format!("p:{event} f"), 7)
    }

    fn job(event: &str, steps: Vec<Step>) -> Job {
        let probe = test_probe(1, &format!("kprobes/{event}"));
        Job::change(probe.with(|record| "a == 1".clone_into(&mut record.spec.filter)), steps)
    }

    #[test]
    fn steps_of_many_go_by_phases() {
        let aim = Aim { enabled: Some(true), filter: "comm == 'a'", stack: false };
        let new = job("new", step::define(r#"p:kprobes/new f a=\"it's\""#, aim));
        let filter = Step::Filter { before: "b".to_owned(), after: String::new() };
        let old = job("old", vec![Step::Disable, filter, Step::Enable]);
        let mut plan = KernelPlan::new("kprobed", "kprobed-next", 64);
        plan.change(&[&new, &old]);
        assert_eq!(
            print(&plan.steps),
            [
                "echo 0 > instances/kprobed/events/kprobes/old/enable",
                r#"echo 'p:kprobes/new f a=\"it'\''s\"' >> kprobe_events"#,
                r"echo 'comm == '\''a'\''' > instances/kprobed/events/kprobes/new/filter",
                "echo 0 > instances/kprobed/events/kprobes/old/filter",
                "echo 1 > instances/kprobed/events/kprobes/new/enable",
                "echo 1 > instances/kprobed/events/kprobes/old/enable",
            ]
        );
    }

    #[test]
    fn what_another_program_has_changed_is_restored() {
        let altered = [
            (InstanceFile::Tasks, "1", ""),
            (InstanceFile::TasksLeftOut, "", "17 18"),
            (InstanceFile::Recording, "0", "1"),
        ];
        let altered = altered.map(|(file, found, wanted)| Alteration {
            file,
            found: found.to_owned(),
            wanted: wanted.to_owned(),
        });
        let mut plan = KernelPlan::new("kprobed", "kprobed-next", 64);
        plan.restore(altered.iter());
        assert_eq!(
            print(&plan.steps),
            [
                "echo > instances/kprobed/set_event_pid",
                "echo '17 18' > instances/kprobed/set_event_notrace_pid",
                "echo 1 > instances/kprobed/tracing_on",
            ]
        );
    }

    #[test]
    fn what_records_moves_to_another_instance() {
        let recorded = |event: &str, filter: &str, enabled| Recorded {
            name: name(event),
            filter: filter.to_owned(),
            enabled,
            stacks: None,
            id: 7,
            is_of_host: false,
        };
        let mut plan = KernelPlan::new("kprobed", "kprobed-next", 64);
        plan.change(&[&job("new", Vec::new())]);
        let recorded =
            plan.recorded(vec![recorded("kprobes/stays", "x > 1", true), recorded("kprobes/off", "", false)]);
        plan.delete(&[&made("kprobes/goes")], Some(&Room::HandOver { recorded }));
        plan.event(&name("kprobes/stays"), &Step::Disable);
        let next = "instances/kprobed-next";
        assert_eq!(
            print(&plan.steps),
            [
                "echo 0 > instances/kprobed/events/kprobes/goes/enable".to_owned(),
                format!("mkdir {next}; echo 64 > {next}/buffer_size_kb"),
                format!("echo 'a == 1' > {next}/events/kprobes/new/filter"),
                format!("echo 1 > {next}/events/kprobes/new/enable"),
                format!("echo 'x > 1' > {next}/events/kprobes/stays/filter"),
                format!("echo 1 > {next}/events/kprobes/stays/enable"),
                format!("echo 1 > {next}/tracing_on"),
                "rmdir instances/kprobed".to_owned(),
                "echo '-:kprobes/goes' >> kprobe_events".to_owned(),
                format!("echo 0 > {next}/events/kprobes/stays/enable"),
            ]
        );
    }

    #[test]
    fn what_cannot_move_is_paused() {
        let mut plan = KernelPlan::new("kprobed", "kprobed-next", 64);
        plan.delete(&[&made("kprobes/a"), &made("kprobes/b")], Some(&Room::Pause));
        assert_eq!(
            print(&plan.steps),
            [
                "echo 0 > instances/kprobed/events/kprobes/a/enable",
                "echo 0 > instances/kprobed/events/kprobes/b/enable",
                "echo 0 > instances/kprobed/tracing_on",
                "echo '-:kprobes/a' >> kprobe_events",
                "echo '-:kprobes/b' >> kprobe_events",
                "echo 1 > instances/kprobed/tracing_on",
            ]
        );
    }

    #[test]
    fn an_event_of_the_host_stays_in_the_kernel() {
        let mut plan = KernelPlan::new("kprobed", "kprobed-next", 64);
        let of_host = OwnEvent { fields: "ID: 7".to_owned(), ..made("sched/sched_switch") };
        plan.delete(&[&of_host], None);
        assert_eq!(
            print(&plan.steps),
            [
                "echo 0 > instances/kprobed/events/sched/sched_switch/enable",
                "echo 0 > instances/kprobed/events/sched/sched_switch/filter",
            ]
        );
    }
}
