//! Events of the host: trace events that the daemon records and did not define.
//!
//! Owns which of them there are, the judgement of their filters, and in which tracing instances an event is enabled,
//! whoever enabled it. What perf and BPF have attached to an event does not show in tracefs. Writes to instances of the
//! daemon only: switch and filter of such an event at the top level may be in use by others, so a filter is not tried
//! there, as [`super::Tracefs::try_filter`] does it.

use std::sync::Arc;

use super::format::Format;
use super::own_events::is_gone;
use super::{Instance, OwnEvent, Refusal, Tracefs, TracefsError};
use kprobed_lang::model::ProbeName;

impl Tracefs {
    /// The event of the host that has a name now.
    ///
    /// # Errors
    /// [`TracefsError`].
    pub fn host_event(&self, name: &ProbeName) -> Result<Option<OwnEvent>, TracefsError> {
        let text = match self.format_text(name.group(), name.event()) {
            Ok(text) => text,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // The rest says how to print it, and modules complete that
        // (kernel/trace/trace_events.c:trace_event_update_all).
        let fields = text.split("\nprint fmt:").next().unwrap_or_default().to_owned();
        let id = Format::parse(&text).ok().map(|format| format.id);
        Ok(id.map(|id| OwnEvent { name: name.clone(), listing: String::new(), id, fields }))
    }

    /// Whether an event can be switched on. The entries of `ftrace/` describe what tracers write,
    /// and have no switch.
    pub fn has_switch(&self, group: &str, event: &str) -> bool {
        self.files.exists(&self.root().join("events").join(group).join(event).join("enable"))
    }

    /// Has the kernel judge a filter of an event of the host, in an instance of that name, which is made for it and
    /// records nothing. One that a killed daemon has left is used, and removed.
    ///
    /// # Errors
    /// The kernel's errno and, if it has one, its message.
    pub fn try_filter_apart(&self, instance: &str, name: &ProbeName, filter: &str) -> Result<(), Refusal> {
        let apart = match Instance::find(self, instance) {
            Some(left) => left,
            None => Instance::make(self, instance).map_err(|error| (error, None))?,
        };
        // Each instance has an `error_log` of its own (since 5.2, kernel/trace/trace.c:init_tracer_tracefs).
        let own = Self::over(Arc::clone(&apart.files), apart.root(), "");
        let verdict = own.write_filter(&apart.event(name).join("filter"), filter);
        if let Err(error) = apart.remove() {
            tracing::warn!(%error, "cannot remove the instance in which a filter was judged");
        }
        verdict
    }

    /// The names of all tracing instances that there are now. The one at the top, with an empty name, is the first.
    pub fn recorders(&self) -> Vec<String> {
        let mut names = self.files.names(&self.root().join("instances")).unwrap_or_default();
        names.push(String::new());
        names.sort_unstable();
        names
    }

    /// The `recorders` in which an event is enabled, or held by a trigger. An instance that was
    /// removed records nothing.
    pub fn recording<'a>(
        &self,
        recorders: &'a [String],
        (group, event): (&str, &str),
    ) -> impl Iterator<Item = &'a String> {
        let file = ["events", group, event, "enable"].iter().collect::<std::path::PathBuf>();
        let root = self.root().to_owned();
        recorders.iter().filter(move |recorder| {
            let of = if recorder.is_empty() { root.clone() } else { root.join("instances").join(recorder) };
            self.files.read_trimmed(&of.join(&file)).is_ok_and(|text| text != "0")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tracefs::{Deleted, Presence};

    fn format(name: &str, id: u16, field: &str) -> String {
        format!(
            "name: {name}\nID: {id}\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
             \n\tfield:{field};\toffset:8;\tsize:4;\tsigned:1;\n\nprint fmt: \"\"\n"
        )
    }

    /// A tracefs with one tracepoint, and an event of another program under the same name as a line.
    fn tracefs() -> (tempfile::TempDir, Tracefs) {
        let directory = tempfile::tempdir().unwrap();
        let event = directory.path().join("events/sched/sched_switch");
        fs::create_dir_all(&event).unwrap();
        fs::write(event.join("format"), format("sched_switch", 316, "pid_t prev_pid")).unwrap();
        fs::write(event.join("enable"), "0\n").unwrap();
        fs::write(directory.path().join("kprobe_events"), "p:theirs/one vfs_read\n").unwrap();
        let tracefs = Tracefs::new(directory.path(), directory.path());
        (directory, tracefs)
    }

    #[test]
    fn an_event_of_the_host_is_known_by_its_id_and_fields() {
        let (directory, tracefs) = tracefs();
        let name: ProbeName = "sched/sched_switch".parse().unwrap();
        let own = tracefs.host_event(&name).unwrap().unwrap();
        assert!(own.is_of_host() && own.id == 316);
        assert_eq!(tracefs.presence(&own).unwrap(), Presence::Ours);
        assert!(tracefs.has_switch("sched", "sched_switch"));
        // Its module was loaded anew; or its owner has defined another one, which got the id again.
        let file = directory.path().join("events/sched/sched_switch/format");
        for (id, field) in [(317, "pid_t prev_pid"), (316, "pid_t next_pid")] {
            fs::write(&file, format("sched_switch", id, field)).unwrap();
            assert_eq!(tracefs.presence(&own).unwrap(), Presence::Foreign);
        }
        let printed = format("sched_switch", 316, "pid_t prev_pid").replace("fmt: \"\"", "fmt: \"%d\"");
        fs::write(&file, printed).unwrap();
        assert_eq!(tracefs.presence(&own).unwrap(), Presence::Ours);
        fs::remove_dir_all(directory.path().join("events/sched/sched_switch")).unwrap();
        assert_eq!(tracefs.presence(&own).unwrap(), Presence::Absent);
        assert_eq!(tracefs.host_event(&name).unwrap(), None);
    }

    #[test]
    fn what_another_program_has_defined_is_never_deleted() {
        let (directory, tracefs) = tracefs();
        let event = directory.path().join("events/theirs/one");
        fs::create_dir_all(&event).unwrap();
        fs::write(event.join("format"), format("one", 1500, "u64 x")).unwrap();
        let own = tracefs.host_event(&"theirs/one".parse().unwrap()).unwrap().unwrap();
        let list = tracefs.kprobe_list().unwrap();
        assert_eq!(tracefs.delete_own(&list, &own).unwrap(), Deleted::NotThere(Presence::Foreign));
        let left = fs::read_to_string(directory.path().join("kprobe_events")).unwrap();
        assert_eq!(left, "p:theirs/one vfs_read\n");
    }

    #[test]
    fn who_has_an_event_switched_on_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let tracefs = Tracefs::new(directory.path(), directory.path());
        for (of, text) in
            [("", "0\n"), ("instances/on/", "1\n"), ("instances/held/", "1*\n"), ("instances/off/", "0\n")]
        {
            let event = directory.path().join(of).join("events/g/e");
            fs::create_dir_all(&event).unwrap();
            fs::write(event.join("enable"), text).unwrap();
        }
        fs::create_dir_all(directory.path().join("instances/without")).unwrap();
        let all = tracefs.recorders();
        let names = |event: &str| tracefs.recording(&all, ("g", event)).collect::<Vec<_>>();
        assert_eq!(all, ["", "held", "off", "on", "without"]);
        assert_eq!(names("e"), ["held", "on"]);
        assert!(names("other").is_empty());
        fs::write(directory.path().join("events/g/e/enable"), "1\n").unwrap();
        assert_eq!(names("e"), ["", "held", "on"]);
    }
}
