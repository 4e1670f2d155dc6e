//! The recipes for rsyslog and syslog-ng, with Debian's programs on the host: every event of a
//! guest is a line of their file.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::cache::Cache;
use kprobed_vm::machine;
use kprobed_vm::unpacked::Unpacked;
use kprobed_vm::{progress, protocol};
use serde_json::Value;

use crate::Test;
use crate::container::deploy;
use crate::daemon::config;
use crate::exporters::{exporter, is_drained};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        rsyslog_writes_every_event,
        syslog_ng_writes_every_event,
    }
};

const PATIENCE: Duration = Duration::from_mins(1);
/// The background process that carries messages to the host.
const RELAY: &str = "relay-messages";

const FIRST: i64 = 1_000_000;
const CALLS: i64 = 2000;

/// Where Debian has libraries on this architecture.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// A program that takes messages.
struct Taker {
    child: Child,
    port: u16,
    lines: PathBuf,
    log: PathBuf,
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A recipe with another port and another file; and these.
fn recipe(name: &str, directory: &Path, first_line: &str) -> Result<(PathBuf, u16, PathBuf)> {
    // It has no way to say which port it has: one that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let lines = directory.join("events.jsonl");
    let text = fs::read_to_string(deploy()?.join("pipelines").join(name))?;
    let body: Vec<String> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.replace("6514", &port.to_string()))
        .map(|line| line.replace("/var/log/kprobed-events.jsonl", &lines.display().to_string()))
        .collect();
    let text = format!("{first_line}{}\n", body.join("\n"));
    ensure!(text.contains(&port.to_string()) && text.contains(&lines.display().to_string()), "{text}");
    let file = directory.join(name);
    fs::write(&file, text)?;
    Ok((file, port, lines))
}

impl Taker {
    fn start(command: &mut Command, directory: &Path, port: u16, lines: PathBuf) -> Result<Self> {
        let log = directory.join("log");
        let output = fs::File::create(&log)?;
        let child = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()?;
        let taker = Self { child, port, lines, log };
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            ensure!(begun.elapsed() < PATIENCE, "it does not listen: {}", taker.said());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(taker)
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Objects in its file.
    fn objects(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(&self.lines).unwrap_or_default();
        // The last line may not be whole.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
    }
}

/// Events of a guest go to the program, and are those that a client sees.
fn check(fixture: &Fixture, taker: &Taker) -> Result<()> {
    let guest = fixture.new_daemon(&config(
        "[export.jsonl]\npath = \"tcp://127.0.0.1:6514\"\nformat = \"syslog\"\nprobes = [\"kprobes/numbers\"]",
    ))?;
    let host = Ipv4Addr::from(protocol::HOST_ADDRESS);
    let relay = format!("exec /init relay 127.0.0.1:6514 {host}:{}", taker.port);
    guest.machine.spawn(RELAY, &machine::Command::shell(&relay))?;
    guest.add("p:numbers __x64_sys_getsid n=+0x70(%di):s32 regs=%di comm=$comm")?;
    exporter(&guest, is_drained)?;
    guest.call(FIRST, CALLS)?;
    exporter(&guest, is_drained)?;
    let printed = guest.ctl("observe kprobes/numbers --oldest --no-follow -q -o json")?;
    let seen = printed.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let seen: Vec<Value> = seen.into_iter().filter(|line| line["type"] == "event").collect();
    ensure!(seen.len() == usize::try_from(CALLS)?, "{} events", seen.len());
    let begun = Instant::now();
    loop {
        let mut taken = taker.objects()?;
        taken.retain(|object| object["type"] == "event");
        for object in &mut taken {
            // A client knows whom it asked.
            let host = object.as_object_mut().and_then(|object| object.remove("host"));
            ensure!(host.is_some(), "{object}");
        }
        if taken.len() >= seen.len() {
            ensure!(taken == seen, "the file has other events than a client sees");
            break;
        }
        ensure!(begun.elapsed() < PATIENCE, "{} of {} events: {}", taken.len(), seen.len(), taker.said());
        std::thread::sleep(Duration::from_millis(100));
    }
    progress::note(format_args!("{} events are lines of the file", seen.len()));
    Ok(guest.machine.signal(RELAY, machine::Signal::SIGKILL)?)
}

fn cache() -> Result<Cache> {
    Cache::from_environment().context("no cache directory")
}

fn rsyslog_writes_every_event(fixture: &Fixture) -> Result<()> {
    let package = Unpacked::ensure_with_missing(&cache()?, "rsyslog")?;
    let directory = tempfile::tempdir()?;
    let (file, port, lines) = recipe("rsyslog.conf", directory.path(), "")?;
    let taker = Taker::start(
        Command::new(package.program("usr/sbin/rsyslogd"))
            .env("LD_LIBRARY_PATH", package.libraries(&LIBRARIES))
            .arg("-n")
            .arg("-f")
            .arg(file)
            .arg("-i")
            .arg(directory.path().join("pid"))
            .arg("-M")
            .arg(package.program("usr/lib/x86_64-linux-gnu/rsyslog")),
        directory.path(),
        port,
        lines,
    )?;
    check(fixture, &taker)
}

fn syslog_ng_writes_every_event(fixture: &Fixture) -> Result<()> {
    let package = Unpacked::ensure_with_missing(&cache()?, "syslog-ng-core")?;
    let modules = package.program("usr/lib/syslog-ng");
    let version = fs::read_dir(&modules)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|name| name.starts_with(|first: char| first.is_ascii_digit()))
        .context("no version")?;
    let directory = tempfile::tempdir()?;
    let (file, port, lines) = recipe("syslog-ng.conf", directory.path(), &format!("@version: {version}\n"))?;
    let libraries = package.libraries(&[LIBRARIES[0], LIBRARIES[1], "usr/lib/syslog-ng"]);
    let taker =
        Taker::start(
            Command::new(package.program("usr/sbin/syslog-ng"))
                .env("LD_LIBRARY_PATH", libraries)
                .args(["-F", "--no-caps", "-f"])
                .arg(file)
                .arg("--module-path")
                .arg(modules.join(&version))
                .args(["-R", "-p", "-c"].into_iter().zip(["persist", "pid", "control"]).flat_map(
                    |(option, name)| [option.into(), directory.path().join(name).into_os_string()],
                )),
            directory.path(),
            port,
            lines,
        )?;
    check(fixture, &taker)
}
