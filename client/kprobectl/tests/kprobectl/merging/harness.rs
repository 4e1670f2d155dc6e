//! A command on many hosts, and what it prints.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::super::command::kprobectl_in;

pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A context with these hosts.
pub(crate) fn context(hosts: &[(&str, String)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut text = "current_context: test\ncontexts:\n  test:\n    hosts:\n".to_owned();
    for (name, address) in hosts {
        writeln!(text, "      {name}: {{address: '{address}'}}").unwrap();
    }
    std::fs::write(directory.path().join("config.yaml"), text).unwrap();
    directory
}

/// A command that shows the events of all hosts, and what it prints.
pub(crate) struct Observer {
    pub(crate) child: Child,
    pub(super) lines: Receiver<String>,
    pub(super) messages: Receiver<String>,
    pub(super) seen: Vec<String>,
}

fn lines(pipe: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            if sender.send(line.unwrap()).is_err() {
                break;
            }
        }
    });
    receiver
}

impl Observer {
    pub(super) fn start(context: &Path, arguments: &[&str]) -> Self {
        Self::run(context, &[&["observe"], arguments].concat())
    }

    /// Starts any command for all hosts.
    pub(crate) fn run(context: &Path, arguments: &[&str]) -> Self {
        let mut child = kprobectl_in(context, &[&["--hosts", "all"], arguments].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Self { child, lines: lines(stdout), messages: lines(stderr), seen: Vec::new() }
    }

    /// Waits until the command says that it observes, and answers what it says.
    pub(crate) fn observing(&mut self) -> String {
        loop {
            let line = self.messages.recv_timeout(DEADLINE).unwrap();
            if line.starts_with("observing") {
                return line;
            }
        }
    }

    /// Reads lines until one fits.
    pub(super) fn until(&mut self, fits: impl Fn(&str) -> bool) {
        loop {
            let line = self.lines.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("{:#?}", self.seen));
            self.seen.push(line);
            if fits(self.seen.last().unwrap()) {
                return;
            }
        }
    }

    /// Waits for an event. It may have come before a state that was waited for: nothing says which is first.
    pub(crate) fn until_number(&mut self, number: i32) {
        let is_it = |line: &str| line.contains(&format!(r#""tid":{number},"#));
        if !self.seen.iter().any(|line| is_it(line)) {
            self.until(is_it);
        }
    }

    pub(crate) fn until_state(&mut self, host: &str, state: &str) {
        let start = format!(r#"{{"type":"host_state","host":"{host}","state":"{state}""#);
        self.until(|line| line.starts_with(&start));
    }

    /// Waits for the end: exit code, all objects, and the messages that were not read yet.
    pub(crate) fn end(mut self) -> (i32, Vec<Value>, String) {
        let begun = Instant::now();
        self.seen.extend(self.lines.iter());
        let messages: Vec<_> = self.messages.iter().collect();
        let code = self.child.wait().unwrap().code().unwrap();
        assert!(begun.elapsed() < DEADLINE, "{:?}", begun.elapsed());
        let objects = self.seen.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        (code, objects, messages.join("\n"))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.child.kill().ok();
    }
}

pub(crate) fn of_type<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|one| one["type"] == kind).collect()
}

pub(crate) fn numbers(objects: &[Value]) -> Vec<i64> {
    of_type(objects, "event").iter().map(|event| event["tid"].as_i64().unwrap()).collect()
}

pub(crate) fn account<'a>(objects: &'a [Value], host: &str) -> &'a Value {
    of_type(objects, "host").into_iter().find(|one| one["host"] == host).unwrap()
}

/// Events of different hosts are farther apart then than the error bounds of their clocks: only so
/// is their order known.
pub(crate) fn let_time_pass() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(5) {
        std::thread::yield_now();
    }
}

/// Nothing is unexplained: every event that was read was shown or not shown, and every host is in
/// one class.
pub(crate) fn assert_closed(objects: &[Value], hosts: usize) {
    let accounts = of_type(objects, "host");
    assert_eq!(accounts.len(), hosts);
    for one in &accounts {
        assert_eq!(one["closes"], true, "{one}");
        let events = of_type(objects, "event").into_iter().filter(|event| event["host"] == one["host"]);
        let (late, all): (Vec<_>, Vec<_>) = events.map(|event| (event["late"] == true, 1)).unzip();
        assert_eq!(one["shown"], all.len(), "{one}");
        assert_eq!(one["late"], late.into_iter().filter(|late| *late).count(), "{one}");
    }
    assert_eq!(objects.last().unwrap()["type"], "ledger");
    assert_eq!(objects.last().unwrap()["ledger"]["closes"], true);
    assert_eq!(objects.last().unwrap()["ledger"]["targeted"], hosts);
}
