//! NATS JetStream: a daemon publishes the events of a real kernel to Debian's own server, over TLS
//! with certificates on both sides and a password, while server and daemon are killed;
//! `kprobectl observe --from` reads them back.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::ExporterState;
use kprobed_vm::cache::Cache;
use kprobed_vm::unpacked::Unpacked;
use kprobed_vm::{machine, progress, protocol};
use serde_json::Value;
use tempfile::TempDir;

use crate::Test;
use crate::certificates::Authority;
use crate::daemon;
use crate::exporters::{self, exporter, is_drained};
use crate::fixture::{Fixture, programs};

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        what_is_published_is_what_was_recorded,
    }
};

const FIRST: i64 = 1_000_000;
const CALLS: i64 = 5000;

/// The server, with the files of all who are concerned.
struct Server {
    program: PathBuf,
    directory: TempDir,
    port: u16,
    process: Option<Child>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill().ok();
    }
}

impl Server {
    /// Certificates for the address at which a guest finds it, and for that of the host itself; and
    /// the server.
    fn start() -> Result<(Self, Authority)> {
        let package = Unpacked::ensure(&Cache::from_environment().context("no cache")?, "nats-server")?;
        let found = ["usr/sbin/nats-server", "usr/bin/nats-server"].map(|path| package.program(path));
        let program = found.into_iter().find(|path| path.exists()).context("the package has no server")?;
        let directory = tempfile::tempdir()?;
        let authority = Authority::new()?;
        let own = authority.sign_all(&[&Ipv4Addr::from(protocol::HOST_ADDRESS).to_string(), "127.0.0.1"])?;
        fs::write(directory.path().join("server.pem"), own.cert_pem)?;
        fs::write(directory.path().join("server.key"), own.key_pem)?;
        authority.write_client(directory.path())?;
        fs::write(directory.path().join("password"), "kprobed:secret-word\n")?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut server = Self { program, directory, port, process: None };
        let path = |name: &str| server.file(name).display().to_string();
        let config = format!(
            "host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: '{}' }}\n\
             authorization {{ user: kprobed, password: 'secret-word' }}\n\
             tls {{ cert_file: '{}', key_file: '{}', ca_file: '{}', verify: true }}\n",
            path("store"),
            path("server.pem"),
            path("server.key"),
            path("ca.pem"),
        );
        fs::write(server.file("server.conf"), config)?;
        server.spawn()?;
        Ok((server, authority))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn spawn(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(self.file("server.conf")).arg("-l").arg(self.file("log"));
        self.process =
            Some(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// `kprobectl observe --from` on the host: its code, its output and its messages.
    fn observe(&self, arguments: &[&str]) -> Result<(Option<i32>, String, String)> {
        let output = Command::new(&programs()?.kprobectl)
            .args(["observe", "--from", &format!("tls://127.0.0.1:{}", self.port)])
            .args(["--ca", "ca.pem", "--cert", "client.pem", "--key", "client.key", "--password", "password"])
            .args(arguments)
            .env("XDG_STATE_HOME", self.directory.path())
            .env("KPROBECTL_CONFIG", self.file("config.yaml"))
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
    }
}

fn config(port: u16) -> String {
    let host = Ipv4Addr::from(protocol::HOST_ADDRESS);
    daemon::config(&format!(
        "[tracing]\nbuffer_kib = 16384\non_exit = \"keep\"\n\
         [export.nats]\nurl = \"tls://{host}:{port}\"\nprobes = [\"*/numbers\"]\nheartbeat_ms = 200\n\
         password_file = \"/etc/kprobed/nats.password\"\n[export.nats.create]\nmax_mib = 256\n\
         [export.nats.tls]\nca = \"/etc/kprobed/nats-ca.pem\"\ncertificate = \"/etc/kprobed/nats.pem\"\nkey = \"/etc/kprobed/nats.key\"",
    ))
}

/// Events by their numbers, without what only a merge of hosts adds.
fn by_number(text: &str) -> Result<BTreeMap<i64, Value>> {
    let is_in_order = |event: &Value| event.get("late").is_none_or(|late| *late == false);
    ensure!(daemon::events(text)?.iter().all(is_in_order), "{text}");
    exporters::by_number(text, &["host", "corrected_time", "late"])
}

fn what_is_published_is_what_was_recorded(fixture: &Fixture) -> Result<()> {
    let (mut server, authority) = Server::start()?;
    let config = config(server.port);
    let identity = authority.sign("kprobed.test")?;
    let mut guest = fixture.daemon()?;
    for (name, text) in [
        ("nats-ca.pem", authority.pem().as_bytes()),
        ("nats.pem", &identity.cert_pem),
        ("nats.key", &identity.key_pem),
        ("nats.password", b"kprobed:secret-word\n"),
    ] {
        guest.machine.put(&format!("/etc/kprobed/{name}"), 0o600, text)?;
    }
    guest.renew(&config)?;
    guest.add("p:numbers __x64_sys_getsid n=+0x70(%di):s32 flags=%flags")?;
    guest.add("p:other __x64_sys_getpgid")?;
    exporter(&guest, is_drained)?;
    guest.call(FIRST, CALLS)?;
    exporter(&guest, is_drained)?;

    // The server is killed, and comes back.
    server.kill()?;
    guest.call(FIRST + CALLS, CALLS)?;
    let failing = exporter(&guest, |exporter| exporter.state() == ExporterState::Failing)?;
    ensure!(failing.error.contains("connect to") || failing.error.contains("publish to"), "{failing:?}");
    server.spawn()?;
    let ledger = exporter(&guest, is_drained)?;
    let both = 2 * CALLS.unsigned_abs();
    ensure!(ledger.acknowledged == both && ledger.dropped == 0 && ledger.expired == 0, "{ledger:?}");

    // The daemon is killed while it publishes.
    let workload =
        machine::Command::new("workload").args(["numbers", "2000000", "200000", "--pause-us", "200"]);
    guest.machine.spawn("numbers", &workload.args(["--until", "/tmp/enough"]))?;
    exporter(&guest, |exporter| exporter.acknowledged > both + 1000)?;
    guest.kill()?;
    guest.restart(&config)?;
    exporter(&guest, |exporter| exporter.acknowledged > 1000)?;
    guest.shell("touch /tmp/enough")?;
    ensure!(guest.machine.wait("numbers", Duration::from_mins(1))?.success());
    exporter(&guest, is_drained)?;

    let seen = by_number(&guest.ctl("observe kprobes/numbers --oldest --until-now -q -o json")?)?;
    let (code, printed, notes) = server.observe(&["--oldest", "--until-now", "-o", "json"])?;
    ensure!(code == Some(0), "{code:?}: {notes}");
    let published = by_number(&printed)?;
    for (number, event) in &seen {
        let other = published.get(number).with_context(|| format!("{number} was not published: {notes}"))?;
        ensure!(event == other, "the daemon has {event}, and the stream {other}");
    }
    // What was published a moment before the daemon was killed need not be in its history.
    let only_published = published.len() - seen.len();
    progress::note(format_args!(
        "{} events published, {only_published} of them in no history",
        published.len()
    ));
    ensure!(
        seen.len() > 11_000 && only_published < 10_000,
        "{} seen, {} published",
        seen.len(),
        published.len()
    );
    let last: Value = serde_json::from_str(printed.lines().last().context("nothing printed")?)?;
    ensure!(last["ledger"]["answered"] == 1 && last["ledger"]["targeted"] == 1, "{last}");

    selections(&server, published.len())?;
    Ok(())
}

/// What a person would ask the stream for.
fn selections(server: &Server, all: usize) -> Result<()> {
    let (code, _, notes) = server.observe(&["--hosts", "nosuch", "--oldest"])?;
    ensure!(code == Some(2) && notes.contains("the stream has no host `nosuch`"), "{code:?}: {notes}");
    let (code, printed, notes) = server.observe(&["--since", "1h", "--until-now", "-o", "json"])?;
    ensure!(code == Some(0) && by_number(&printed)?.len() == all, "{code:?}: {notes}");
    let (code, printed, notes) =
        server.observe(&["kprobes/other", "--oldest", "--until-now", "-o", "json"])?;
    ensure!(code == Some(0) && by_number(&printed)?.is_empty(), "{code:?}: {notes}");
    for (options, expected) in [
        (["--comm", "work*"], all),
        (["--cpu", "9999"], 0),
        (["--filter", "n >= 0 && comm == \"workload\""], all),
        (["--sample", "2"], all.div_ceil(2)),
        (["--fields", "n"], all),
    ] {
        let (code, printed, notes) =
            server.observe(&[&["--oldest", "--until-now", "-o", "json"], &options[..]].concat())?;
        let found = by_number(&printed)?.len();
        ensure!(code == Some(0) && found == expected, "{options:?}: {found} of {expected}: {notes}");
    }
    fs::write(server.file("password"), "kprobed:wrong-word\n")?;
    let (code, _, notes) = server.observe(&["--oldest", "--until-now"])?;
    ensure!(code == Some(3) && notes.contains("cannot connect to"), "{code:?}: {notes}");
    ensure!(!notes.contains("wrong-word"), "{notes}");
    Ok(())
}
