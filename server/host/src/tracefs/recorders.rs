//! Tracing instances in which an event is enabled, whoever enabled it.
//!
//! Never writes anything. What perf and BPF have attached to an event does not show in tracefs.

use super::Tracefs;

/// A tracing instance of the host. The one at the top has an empty name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recorder(String);

impl Recorder {
    /// Its name below `instances/`; empty for the one at the top.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Tracefs {
    /// All tracing instances that there are now, the one at the top first.
    pub fn recorders(&self) -> Vec<Recorder> {
        let names = self.files.names(&self.root().join("instances")).unwrap_or_default();
        let mut names: Vec<_> = names.into_iter().map(Recorder).collect();
        names.sort_unstable();
        names.insert(0, Recorder(String::new()));
        names
    }

    /// The `recorders` in which an event is enabled, or held by a trigger. An instance that was
    /// removed records nothing.
    pub fn recording<'a>(
        &self,
        recorders: &'a [Recorder],
        (group, event): (&str, &str),
    ) -> impl Iterator<Item = &'a Recorder> {
        let file = ["events", group, event, "enable"].iter().collect::<std::path::PathBuf>();
        let root = self.root().to_owned();
        recorders.iter().filter(move |recorder| {
            let of =
                if recorder.0.is_empty() { root.clone() } else { root.join("instances").join(&recorder.0) };
            self.files.read_trimmed(&of.join(&file)).is_ok_and(|text| text != "0")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
        let names = |event: &str| {
            tracefs.recording(&all, ("g", event)).map(|one| one.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(all.iter().map(Recorder::name).collect::<Vec<_>>(), ["", "held", "off", "on", "without"]);
        assert_eq!(names("e"), ["held", "on"]);
        assert!(names("other").is_empty());
        fs::write(directory.path().join("events/g/e/enable"), "1\n").unwrap();
        assert_eq!(names("e"), ["", "held", "on"]);
    }
}
