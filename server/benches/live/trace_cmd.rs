//! `trace-cmd record` to a file, and `trace-cmd report` of it, as a side of the comparison.

use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::host::Instance;
use crate::lab::Lab;
use crate::measured::Measured;
use crate::producer::Producer;
use crate::tool::{Lines, Tool};

/// Files that it insists on writing, and that a kernel may refuse to everybody (lockdown,
/// containers): then it works on copies of its own, in a mount namespace of its own. They have
/// nothing to do with events.
const FOREIGN: [&str; 6] = [
    "set_ftrace_filter",
    "set_ftrace_notrace",
    "set_ftrace_pid",
    "set_ftrace_notrace_pid",
    "set_event_pid",
    "set_event_notrace_pid",
];

pub(crate) fn run(lab: &Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let instance = Instance::make(lab.tracefs, "kpbench", lab.arguments.buffer_kib)?;
    let mut producer = Producer::start(lab.workload)?;
    let data = lab.file("trace.dat");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &screened(lab, &instance)?, "sh"]);
    command.args(["trace-cmd", "record", "-B", "kpbench", "-b"]).arg(lab.arguments.buffer_kib.to_string());
    command.arg("-o").arg(&data);
    for event in lab.workload.events() {
        command.args(["-e", &event.path(':'), "-f", &lab.workload.filter(producer.pid())]);
    }
    command.stdout(fs::File::create(lab.file("trace-cmd.out"))?);
    let mut tool = Tool::start(command, lab.file("trace-cmd.log"))?;
    let last =
        lab.workload.events().pop().map(|event| instance.path(&format!("events/{}/enable", event.path('/'))));
    tool.wait_until("enabled event", || {
        last.as_ref().is_some_and(|file| fs::read_to_string(file).is_ok_and(|text| text.starts_with('1')))
    })?;
    // It still has to switch recording on, and its recorders to begin.
    std::thread::sleep(Duration::from_millis(300));
    tool.measure();
    let start = Instant::now();
    let run = producer.run(lab.arguments.iterations, 0)?;
    let cost = tool.end(Some(Signal::SIGINT))?;
    let mut record = Measured::new("trace-cmd record", lab, lab.arguments.iterations, run, cost);
    record.wall = start.elapsed();

    let start = Instant::now();
    let mut command = Command::new("trace-cmd");
    command.args(["report", "-i"]).arg(&data).stdout(Stdio::piped());
    let mut tool = Tool::start(command, lab.file("report.log"))?;
    let lines = Lines::count(tool.output()?, lab.words());
    let cost = tool.end(None)?;
    let (delivered, _) = lines.all()?;
    let mut report = Measured::new("trace-cmd report", lab, lab.arguments.iterations, run, cost);
    report.wall = start.elapsed();
    (record.delivered, report.delivered) = (delivered, delivered);
    fs::remove_file(data)?;
    Ok(vec![record, report])
}

/// Runs the arguments that follow with empty files in the place of foreign ones.
fn screened(lab: &Lab<'_>, instance: &Instance) -> anyhow::Result<String> {
    let screen = lab.file("nothing");
    fs::write(&screen, "")?;
    let top = FOREIGN.iter().map(|file| lab.tracefs.path(file));
    let own = FOREIGN.iter().map(|file| instance.path(file));
    let files = top.chain(own).chain(["/proc/sys/kernel/ftrace_enabled".into()]).filter(|file| file.exists());
    let mut script = String::new();
    for file in files {
        write!(script, "mount --bind {} {} && ", screen.display(), file.display())?;
    }
    Ok(script + "exec \"$@\"")
}
