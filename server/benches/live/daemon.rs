//! Starting and stopping the daemon, with a state, a socket and an instance of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kprobed_client::api::CreateProbeRequest;
use kprobed_client::{Client, ConnectOptions, Target};
use nix::sys::signal::Signal;

use crate::accounts::{self, Threads};
use crate::lab::Lab;
use crate::tool::Tool;

/// A daemon that records the workload.
#[derive(Debug)]
pub(crate) struct Daemon {
    tool: Tool,
    pub(crate) socket: PathBuf,
}

impl Daemon {
    /// Starts it and records the events of one producer. `history`: keeps what it reads on disk
    /// too.
    pub(crate) fn start(lab: &Lab<'_>, program: &Path, producer: u32, history: bool) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir_in(lab.directory)?.keep();
        let socket = directory.join("kprobed.sock");
        let config = directory.join("kprobed.toml");
        let at = directory.display();
        fs::write(
            &config,
            format!(
                "[listen]\nunix = \"{}\"\n[state]\ndirectory = \"{at}/state\"\n[spool]\nenabled = {history}\ndirectory = \"{at}/spool\"\n\
                 [budget]\nprobe_ns_per_s = 0\nhost_ns_per_s = 0\ncalibrate = false\n\
                 [tracing]\ninstance = \"kpbench-daemon\"\nbuffer_kib = {}\nbuffer_max_kib = 0\n[log]\nlevel = \"warn,kprobed::app=error\"\n",
                socket.display(),
                lab.arguments.buffer_kib,
            ),
        )?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&config).stdout(Stdio::null());
        let tool = Tool::start(command, directory.join("kprobed.log"))?;
        let mut daemon = Self { tool, socket: socket.clone() };
        daemon.tool.wait_until("socket", || socket.exists())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = Client::connect(Target::Unix(socket), ConnectOptions::default()).await?;
            for event in lab.workload.events() {
                let request = CreateProbeRequest {
                    definition: event.path('/'),
                    filter: lab.workload.filter(producer),
                    enabled: true,
                    ..CreateProbeRequest::default()
                };
                client.create_probe(request).await?;
            }
            anyhow::Ok(())
        })?;
        Ok(daemon)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.tool.pid()
    }

    pub(crate) fn threads(&self) -> anyhow::Result<Threads> {
        accounts::threads(self.pid())
    }

    pub(crate) fn peak_rss_kib(&self) -> u64 {
        accounts::peak_rss_kib(self.pid())
    }

    /// Warnings and errors in its log.
    pub(crate) fn said(&self) -> String {
        self.tool.said()
    }

    /// Has it put the kernel in order and end.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        let said = self.said();
        if !said.is_empty() {
            eprintln!("the daemon says:\n{said}");
        }
        self.tool.end(Some(Signal::SIGTERM)).map(drop)
    }
}
