//! bpftrace as a side of the comparison: it prints a line for each event.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::lab::Lab;
use crate::measured::Measured;
use crate::producer::Producer;
use crate::tool::{Lines, Tool, settle};

/// It holds the workload up so much that fewer events do.
const FEWER: u64 = 10;

pub(crate) fn run(lab: &Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut producer = Producer::start(lab.workload)?;
    let mut command = Command::new("bpftrace");
    command.arg("-e").arg(lab.workload.bpftrace(producer.pid())?).stdout(Stdio::piped());
    // Pages of the buffer of each CPU. Without a limit on locked memory that can be raised, it says
    // so and goes on.
    command.env("BPFTRACE_PERF_RB_PAGES", (lab.arguments.buffer_kib / 4).to_string());
    let mut tool = Tool::start(command, lab.file("bpftrace.log"))?;
    let lines = Lines::count(tool.output()?, lab.words());
    // It does not say when it is ready: single events until it prints one.
    tool.wait_until("event", || producer.run(1, 0).is_ok() && lines.so_far() > 0)?;
    settle(u64::MAX, || Ok(lines.so_far()))?;
    let before = lines.so_far();
    let iterations = lab.arguments.iterations / FEWER;
    tool.measure();
    let start = Instant::now();
    let run = producer.run(iterations, 0)?;
    let expected = before + iterations * lab.workload.events_each();
    let end = settle(expected, || Ok(lines.so_far()))?;
    let cost = tool.cost();
    let delivered = lines.so_far() - before;
    tool.end(Some(Signal::SIGINT))?;
    let (_, others) = lines.all()?;
    let mut measured = Measured::new("bpftrace", lab, iterations, run, cost);
    measured.delivered = delivered;
    measured.wall = (end - start).max(Duration::ZERO);
    let lost = |line: &String| line.strip_prefix("Lost ")?.split(' ').next()?.parse::<u64>().ok();
    measured.told = Some(others.iter().filter_map(lost).sum());
    Ok(vec![measured])
}
