//! The real `kprobectl` at the real daemon: output and exit codes of the commands about definitions and probes, and
//! what the daemon refuses of a stream.
//!
//! What the command makes of a daemon that is slow, breaks off or is one of many is tested beside the command itself.

mod auditing;
mod checking;
mod declaring;
mod describing;
mod foreign;
mod labels;
mod observing;
mod probes;

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use kprobed::config::Listen;
use kprobed_client::Client;

use crate::server::{Server, Setup};

/// The daemon, with a directory for files of the command.
struct Host {
    server: Server,
    files: tempfile::TempDir,
}

impl Host {
    /// A host whose user may do everything.
    async fn with(setup: Setup) -> Self {
        let rules = "[[role.allow]]\nmethods = [\"all\"]\nreads = [\"all\"]";
        let server = Server::open_with(Listen::default(), rules, setup).await;
        Self { server, files: tempfile::tempdir().unwrap() }
    }

    async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    /// The same with two probes.
    async fn with_probes() -> Self {
        let host = Self::new().await;
        let opened = ["add", "p:open do_sys_openat2 dfd=%di:s32", "--filter", "dfd == -100"];
        let of_opened =
            ["--label", "team=storage,tier=2", "--owner", "storage", "--description", "slow opens"];
        for arguments in [&[&opened[..], &of_opened].concat()[..], &["add", "r:read vfs_read", "--disabled"]]
        {
            let said = host.run(arguments);
            assert!(said.starts_with("exit: 0"), "{said}");
        }
        host
    }

    async fn client(&self) -> Client {
        self.server.client().await
    }

    /// Writes a file, and returns its path.
    fn file(&self, text: &str) -> String {
        let path = self.files.path().join("file");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments).env_clear().env("TZ", "UTC").env("COLUMNS", "100").stdin(Stdio::null());
        command.env("KPROBED_SERVER", self.server.socket());
        command
    }

    /// Runs the command, and returns exit code, output and messages. Points in time are [`TIME`], and the
    /// file is `FILE`, and whoever runs the test is `uid:0`.
    fn run(&self, arguments: &[&str]) -> String {
        self.shown(&self.command(arguments).output().unwrap())
    }

    /// The same with this on its standard input.
    fn fed(&self, arguments: &[&str], input: &[u8]) -> String {
        let mut command = self.command(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&input).unwrap());
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        self.shown(&output)
    }

    fn shown(&self, output: &Output) -> String {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let shown = format!(
            "exit: {}\n-- stdout\n{}-- stderr\n{}",
            output.status.code().map_or("none".to_owned(), |code| code.to_string()),
            text(&output.stdout),
            text(&output.stderr),
        );
        let file = self.files.path().join("file");
        let caller = format!("uid:{}", nix::unistd::getuid());
        without_times(&shown.replace(file.to_str().unwrap(), "FILE").replace(&caller, "uid:0"))
    }
}

/// What stands for every point in time.
const TIME: &str = "2026-01-31T12:00:00Z";

/// What cargo builds beside the programs of tests.
fn program() -> PathBuf {
    let mut directory = std::env::current_exe().unwrap();
    directory.pop();
    let program = directory.with_file_name("kprobectl");
    assert!(program.is_file(), "there is no {}: `cargo build -p kprobectl` builds it", program.display());
    program
}

/// With [`TIME`] in place of each point in time, so that tables keep their columns.
fn without_times(text: &str) -> String {
    let begins_time = |text: &str| {
        let form = &TIME.as_bytes()[..TIME.len() - 1];
        let is_of_form =
            |(byte, form): (u8, &u8)| byte == *form || form.is_ascii_digit() && byte.is_ascii_digit();
        text.len() > form.len() && text.bytes().zip(form).all(is_of_form)
    };
    let (mut shown, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        shown.push_str(before);
        let end = begins_time(from).then(|| from.find('Z')).flatten();
        let length = end.map_or_else(|| from.find(|c: char| !c.is_ascii_digit()), |end| Some(end + 1));
        let (word, after) = from.split_at(length.unwrap_or(from.len()));
        shown.push_str(if end.is_some() { TIME } else { word });
        rest = after;
    }
    shown + rest
}
