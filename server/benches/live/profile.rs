//! A profile of the daemon: `perf record`, sampled by the clock, so that no hardware counters are
//! needed.

use std::process::{Command, Stdio};

use anyhow::ensure;
use nix::sys::signal::Signal;

use crate::lab::Lab;
use crate::tool::Tool;

/// A profile being taken. It costs the daemon some per cent.
#[derive(Debug)]
pub(crate) struct Profile {
    tool: Tool,
    data: std::path::PathBuf,
}

impl Profile {
    pub(crate) fn start(lab: &Lab<'_>, pid: u32) -> anyhow::Result<Self> {
        let data = lab.file("profile.data");
        let mut command = Command::new("perf");
        command.args(["record", "--event", "cpu-clock", "--freq", "4999", "--pid", &pid.to_string()]);
        command.arg("--output").arg(&data).stdout(Stdio::null());
        let tool = Tool::start(command, lab.file("profile.log"))?;
        std::thread::sleep(std::time::Duration::from_millis(500));
        Ok(Self { tool, data })
    }

    /// The functions with the most samples.
    pub(crate) fn print(self) -> anyhow::Result<()> {
        self.tool.end(Some(Signal::SIGINT))?;
        let mut command = Command::new("perf");
        command.args([
            "report",
            "--stdio",
            "--fields",
            "overhead,comm,dso,symbol",
            "--percent-limit",
            "0.8",
            "--input",
        ]);
        let output = command.arg(&self.data).output()?;
        ensure!(output.status.success(), "perf report: {}", String::from_utf8_lossy(&output.stderr));
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if !line.is_empty() && !line.starts_with('#') {
                println!("  {}", line.trim_end());
            }
        }
        Ok(())
    }
}
