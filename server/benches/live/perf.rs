//! `perf record` to a file, and `perf script` of it, as a side of the comparison.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::ensure;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;

use crate::lab::Lab;
use crate::measured::Measured;
use crate::producer::Producer;
use crate::tool::{Lines, Tool};

pub(crate) fn run(lab: &Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut producer = Producer::start(lab.workload)?;
    let data = lab.file("perf.data");
    let [control, answers] = ["perf.control", "perf.answers"].map(|name| lab.file(name));
    for fifo in [&control, &answers] {
        drop(fs::remove_file(fifo));
        nix::unistd::mkfifo(fifo, Mode::S_IRWXU)?;
    }
    let mut command = Command::new("perf");
    command.args(["record", "--all-cpus", "--delay", "-1", "--output"]).arg(&data);
    command.arg("--mmap-pages").arg((lab.arguments.buffer_kib / 4).to_string());
    command.arg(format!("--control=fifo:{},{}", control.display(), answers.display()));
    for event in lab.workload.events() {
        command.args(["--event", &event.path(':'), "--filter", &lab.workload.filter(producer.pid())]);
    }
    command.stdout(Stdio::null());
    let mut tool = Tool::start(command, lab.file("perf.log"))?;
    enable(&mut tool, &control, &answers)?;
    tool.measure();
    let start = Instant::now();
    let run = producer.run(lab.arguments.iterations, 0)?;
    let cost = tool.end(Some(Signal::SIGINT))?;
    let mut record = Measured::new("perf record", lab, lab.arguments.iterations, run, cost);
    record.wall = start.elapsed();

    let start = Instant::now();
    let mut command = Command::new("perf");
    command.args(["script", "--show-lost-events", "--input"]).arg(&data).stdout(Stdio::piped());
    let mut tool = Tool::start(command, lab.file("script.log"))?;
    let lines = Lines::count(tool.output()?, lab.words());
    let cost = tool.end(None)?;
    let (delivered, others) = lines.all()?;
    let mut script = Measured::new("perf script", lab, lab.arguments.iterations, run, cost);
    script.wall = start.elapsed();
    let lost = |line: &String| line.split_once("PERF_RECORD_LOST lost ")?.1.trim().parse::<u64>().ok();
    let told = Some(others.iter().filter_map(lost).sum());
    (record.delivered, script.delivered, record.told, script.told) = (delivered, delivered, told, told);
    fs::remove_file(data)?;
    Ok(vec![record, script])
}

/// Has it begin, and waits until it has.
fn enable(tool: &mut Tool, control: &std::path::Path, answers: &std::path::Path) -> anyhow::Result<()> {
    // Opening a fifo waits for its other end, which may have ended with an error instead.
    let mut control = fs::OpenOptions::new().read(true).write(true).open(control)?;
    let answers = fs::OpenOptions::new().read(true).write(true).open(answers)?;
    control.write_all(b"enable\n")?;
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut answer = [0; 4];
        let result = (&answers).read_exact(&mut answer);
        drop(done.send(result.map(|()| answer)));
    });
    let mut answer = None;
    tool.wait_until("answer", || {
        answer = is_done.try_recv().ok();
        answer.is_some()
    })?;
    ensure!(
        answer.is_some_and(|answer| answer.is_ok_and(|answer| &answer == b"ack\n")),
        "perf does not begin"
    );
    Ok(())
}
