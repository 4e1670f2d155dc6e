//! `cat trace_pipe` of an instance of its own to `/dev/null`, as a side of the comparison.

use std::process::{Command, Stdio};

use crate::host::Instance;
use crate::lab::Lab;
use crate::measured::Measured;
use crate::producer::Producer;
use crate::tool::{Tool, settle};

pub(crate) fn run(lab: &Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let instance = Instance::make(lab.tracefs, "kpbench", lab.arguments.buffer_kib)?;
    let mut producer = Producer::start(lab.workload)?;
    for event in lab.workload.events() {
        let directory = format!("events/{}", event.path('/'));
        instance.write(&format!("{directory}/filter"), &lab.workload.filter(producer.pid()))?;
        instance.write(&format!("{directory}/enable"), "1")?;
    }
    let mut command = Command::new("cat");
    command.arg(instance.path("trace_pipe")).stdout(Stdio::null());
    let mut tool = Tool::start(command, lab.file("cat.log"))?;
    let files = format!("/proc/{}/fd", tool.pid());
    tool.wait_until("open trace_pipe", || {
        let links = std::fs::read_dir(&files).into_iter().flatten().flatten();
        links.filter_map(|link| std::fs::read_link(link.path()).ok()).any(|file| file.ends_with("trace_pipe"))
    })?;
    tool.measure();
    let start = std::time::Instant::now();
    let run = producer.run(lab.arguments.iterations, 0)?;
    let end = settle(u64::MAX, || instance.stat("read events"))?;
    let cost = tool.cost();
    let mut measured = Measured::new("trace_pipe", lab, lab.arguments.iterations, run, cost);
    measured.delivered = instance.stat("read events")?;
    measured.told = Some(instance.stat("overrun")? + instance.stat("dropped events")?);
    measured.wall = end - start;
    Ok(vec![measured])
}
