//! Creating and deleting many probes with the kernel's interface alone: the baseline that the
//! daemon is compared with.
//!
//! Uses as few system calls as possible. Never changes a probe of another group.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

/// Name of the instance, and the group of the events.
const NAME: &str = "cycle";

/// Defines, enables, disables and deletes one probe for each definition (what follows the name),
/// and prints the seconds of each.
pub(crate) fn run(tracefs: &Path, definitions: &Path, output: &mut impl Write) -> io::Result<()> {
    let text = fs::read_to_string(definitions)?;
    let places: Vec<&str> = text.lines().collect();
    let (events, instance) = (tracefs.join("kprobe_events"), tracefs.join("instances").join(NAME));
    fs::create_dir(&instance)?;
    let lines = |line: &dyn Fn(usize, &str) -> String| {
        places.iter().enumerate().map(|(number, place)| line(number, place)).collect::<Vec<_>>().join("\n")
    };
    let switch = |value: &str| {
        (0..places.len()).try_for_each(|number| {
            let file = instance.join(format!("events/{NAME}/p{number}/enable"));
            OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
        })
    };
    let mut time = |what: &str, work: &dyn Fn() -> io::Result<()>| {
        let begun = Instant::now();
        work()?;
        writeln!(output, "{what} {}", begun.elapsed().as_secs_f64())
    };
    time("define", &|| append(&events, &lines(&|number, place| format!("p:{NAME}/p{number} {place}"))))?;
    time("enable", &|| switch("1"))?;
    time("disable", &|| switch("0"))?;
    // With the instance goes what would be emptied by each deletion.
    time("delete", &|| {
        fs::remove_dir(&instance)?;
        append(&events, &lines(&|number, _place| format!("-:{NAME}/p{number}")))
    })
}

/// One write: the kernel takes one line after the other.
pub(crate) fn append(path: &Path, lines: &str) -> io::Result<()> {
    let written = OpenOptions::new().append(true).open(path)?.write(lines.as_bytes())?;
    if written == lines.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}
