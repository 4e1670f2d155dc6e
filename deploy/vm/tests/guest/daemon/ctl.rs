//! `kprobectl` on the host, where it takes a tenth of the time that it takes in an emulated guest.
//!
//! It reaches the daemon over the guest's forwarded port, as the principal `loopback`. Tests of the
//! unix socket, of its peers, and of commands that start programs run it in the guest.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::daemon;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{DaemonGuest, PATIENCE};
use crate::fixture::programs;

/// How a command has ended, and what it has printed.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    pub(crate) fn new(output: &Output) -> Result<Self> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        let code = output.status.code().with_context(|| format!("{}: {stdout}{stderr}", output.status))?;
        Ok(Self { code, stdout, stderr })
    }

    pub(crate) fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// The lines of its output, as objects.
    pub(crate) fn objects(&self) -> Result<Vec<Value>> {
        objects(&self.stdout).with_context(|| self.stderr.clone())
    }
}

/// The lines of a text, as objects.
pub(crate) fn objects(text: &str) -> Result<Vec<Value>> {
    let objects = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
    objects.with_context(|| text.to_owned())
}

/// Those of them that are events.
pub(crate) fn events(text: &str) -> Result<Vec<Value>> {
    Ok(objects(text)?.into_iter().filter(|object| object["type"] == "event").collect())
}

/// The events among the lines of a text that other programs have written to as well.
pub(crate) fn events_among_others(text: &str) -> Vec<Value> {
    let objects = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.filter(|object| object["type"] == "event").collect()
}

/// The command, in a directory that also has its configuration and its state. Its arguments are
/// separated by blanks; what is between single quotes is one.
pub(crate) fn kprobectl(home: &Path, arguments: &str) -> Result<Command> {
    let mut command = Command::new(&programs()?.kprobectl);
    command
        .env("KPROBECTL_CONFIG", home.join("config.yaml"))
        .env("XDG_STATE_HOME", home)
        .env("NO_COLOR", "1")
        .current_dir(home)
        .stdin(Stdio::null());
    for (index, part) in arguments.split('\'').enumerate() {
        match index % 2 {
            0 => command.args(part.split_whitespace()),
            _ => command.arg(part),
        };
    }
    Ok(command)
}

impl DaemonGuest {
    /// How a client on the host reaches the daemon.
    pub(crate) fn target(&self) -> Result<String> {
        let address = self.machine.address(daemon::PORT).context("the machine forwards no port")?;
        Ok(format!("tcp://{address}"))
    }

    fn command(&self, arguments: &str) -> Result<Command> {
        kprobectl(self.home.path(), &format!("--server {} {arguments}", self.target()?))
    }

    /// What `kprobectl` says to these arguments.
    pub(crate) fn ctl_says(&self, arguments: &str) -> Result<Said> {
        Said::new(&self.command(arguments)?.output()?)
    }

    /// The same, with this on its standard input.
    pub(crate) fn ctl_fed(&self, arguments: &str, text: &str) -> Result<Said> {
        self.write_for_ctl("fed", text)?;
        Said::new(&self.command(arguments)?.stdin(File::open(self.home.path().join("fed"))?).output()?)
    }

    /// What it prints, when it succeeds.
    pub(crate) fn ctl(&self, arguments: &str) -> Result<String> {
        let said = self.ctl_says(arguments)?;
        ensure!(said.code == 0, "kprobectl {arguments}: {said:?}");
        Ok(said.stdout)
    }

    /// What it prints, when it succeeds, has all of this in it.
    pub(crate) fn ctl_shows(&self, arguments: &str, parts: &[&str]) -> Result<()> {
        let printed = self.ctl(arguments)?;
        ensure!(parts.iter().all(|part| printed.contains(part)), "{arguments}: not {parts:?}: {printed}");
        Ok(())
    }

    /// What it says, whether it succeeds or not, has all of this in it.
    pub(crate) fn ctl_tells(&self, arguments: &str, parts: &[&str]) -> Result<()> {
        let said = self.ctl_says(arguments)?.all();
        ensure!(parts.iter().all(|part| said.contains(part)), "{arguments}: not {parts:?}: {said}");
        Ok(())
    }

    /// The directory in which it runs.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Writes a file that it reads by this name.
    pub(crate) fn write_for_ctl(&self, name: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.home.path().join(name), text)?)
    }

    /// Starts it in the background.
    pub(crate) fn start_ctl(&self, arguments: &str) -> Result<Running> {
        Running::start(self.command(arguments)?)
    }

    /// Starts it in the background, and waits until it has said something.
    pub(crate) fn start_ctl_until(&self, arguments: &str, said: &str) -> Result<Running> {
        let mut running = self.start_ctl(arguments)?;
        running.until(said, |running| Ok(running.printed()?.contains(said)))?;
        Ok(running)
    }

    /// Starts it in the background, and waits until it says that it observes.
    pub(crate) fn start_observing(&self, arguments: &str) -> Result<Running> {
        self.start_ctl_until(arguments, "observing ")
    }

    /// What `kprobectl observe` prints with these arguments, until it ends, while `work` is done:
    /// that begins when it is subscribed.
    pub(crate) fn observe(&self, arguments: &str, work: impl FnOnce() -> Result<()>) -> Result<String> {
        let subscribers = || Ok::<_, anyhow::Error>(self.ledger()?.subscribers.len());
        let before = subscribers()?;
        let mut observer = self.start_ctl(&format!("observe {arguments}"))?;
        observer.until("it is subscribed", |_| Ok(subscribers()? != before))?;
        work()?;
        let said = observer.end()?;
        ensure!(said.code == 0, "{said:?}");
        Ok(said.stdout)
    }
}

/// A program on the host while it runs. Dropping it kills it.
pub(crate) struct OwnProgram(pub(crate) Child);

impl Drop for OwnProgram {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The command while it runs. Dropping it kills it.
pub(crate) struct Running {
    program: OwnProgram,
    out: File,
    err: File,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let (out, err) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let program = OwnProgram(command.stdout(out.try_clone()?).stderr(err.try_clone()?).spawn()?);
        Ok(Self { program, out, err })
    }

    /// All that it has printed by now.
    pub(crate) fn printed(&self) -> Result<String> {
        Ok(format!("{}{}", content(&self.out)?, content(&self.err)?))
    }

    /// The whole lines of its output by now, as objects.
    pub(crate) fn objects(&self) -> Result<Vec<Value>> {
        let text = content(&self.out)?;
        objects(text.rfind('\n').map_or("", |end| &text[..end]))
    }

    /// How it has ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.program.0.try_wait()?)
    }

    /// Waits until something is so, while it runs.
    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !is_so(self)? {
            ensure!(self.ended()?.is_none(), "it has ended: {}", self.printed()?);
            ensure!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}: {}", self.printed()?);
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Interrupts it, as Ctrl-C does, and waits until it has ended, with success.
    pub(crate) fn end_by_interrupt(&mut self) -> Result<Said> {
        kill(Pid::from_raw(i32::try_from(self.program.0.id())?), Signal::SIGINT)?;
        let said = self.end()?;
        ensure!(said.code == 0, "{said:?}");
        Ok(said)
    }

    /// Waits until it has ended.
    pub(crate) fn end(&mut self) -> Result<Said> {
        let begun = Instant::now();
        while self.ended()?.is_none() {
            ensure!(begun.elapsed() < PATIENCE, "it does not end: {}", self.printed()?);
            thread::sleep(Duration::from_millis(10));
        }
        let status = self.program.0.wait()?;
        let code = status.code().with_context(|| format!("{status}"))?;
        Ok(Said { code, stdout: content(&self.out)?, stderr: content(&self.err)? })
    }
}

/// What is in a file from its beginning; the program that writes it has the same place in it.
fn content(file: &File) -> Result<String> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len())?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
