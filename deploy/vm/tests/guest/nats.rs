//! NATS JetStream: a daemon publishes the events of a real kernel to Debian's own server, over TLS
//! with certificates on both sides and a password, while server and daemon are killed;
//! `kprobectl observe --from` reads them back.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::ExporterState;
use kprobed_vm::cache::Cache;
use kprobed_vm::protocol;
use kprobed_vm::unpacked::Unpacked;
use serde_json::Value;
use tempfile::TempDir;

use crate::Test;
use crate::certificates::Authority;
use crate::daemon::{self, FIRST, NUMBERS, OwnProgram, Said, kprobectl};
use crate::exporters::{self, exporter, is_drained};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        what_is_published_is_what_was_recorded,
    }
};

const CALLS: i64 = 5000;

/// The server, with the files of all who are concerned.
struct Server {
    /// Before the directory, which it writes to until it is killed.
    process: Option<OwnProgram>,
    program: PathBuf,
    directory: TempDir,
    port: u16,
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
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(OwnProgram(command.spawn()?));
        Ok(())
    }

    /// What `kprobectl observe --from` says on the host.
    fn observe(&self, arguments: &str) -> Result<Said> {
        let keys = "--ca ca.pem --cert client.pem --key client.key --password password";
        let observe = format!("observe --from tls://127.0.0.1:{} {keys} {arguments}", self.port);
        Said::new(&kprobectl(self.directory.path(), &observe)?.output()?)
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
    guest.add(&format!("{NUMBERS} flags=%flags"))?;
    guest.add("p:other __x64_sys_getpgid")?;
    exporter(&guest, is_drained)?;
    guest.call(FIRST, CALLS)?;
    exporter(&guest, is_drained)?;

    // The server is killed, and comes back.
    drop(server.process.take());
    guest.call(FIRST + CALLS, CALLS)?;
    let failing = exporter(&guest, |exporter| exporter.state() == ExporterState::Failing)?;
    ensure!(failing.error.contains("connect to") || failing.error.contains("publish to"), "{failing:?}");
    server.spawn()?;
    let ledger = exporter(&guest, is_drained)?;
    let both = 2 * CALLS.unsigned_abs();
    ensure!(ledger.acknowledged == both && ledger.dropped == 0 && ledger.expired == 0, "{ledger:?}");

    // The daemon is killed while it publishes.
    exporters::kill_while_it_sends(&mut guest, both)?;

    let seen = by_number(&guest.ctl("observe kprobes/numbers --oldest --until-now -q -o json")?)?;
    let Said { code, stdout: printed, stderr: notes } = server.observe("--oldest --until-now -o json")?;
    ensure!(code == 0, "{code}: {notes}");
    let published = by_number(&printed)?;
    exporters::compare(&seen, &published, 11_000).context(notes)?;
    let last: Value = serde_json::from_str(printed.lines().last().context("nothing printed")?)?;
    ensure!(last["ledger"]["answered"] == 1 && last["ledger"]["targeted"] == 1, "{last}");

    selections(&server, published.len())
}

/// What a person would ask the stream for.
fn selections(server: &Server, all: usize) -> Result<()> {
    let said = server.observe("--hosts nosuch --oldest")?;
    ensure!(said.code == 2 && said.stderr.contains("the stream has no host `nosuch`"), "{said:?}");
    for (options, expected) in [
        ("--since 1h", all),
        ("kprobes/other --oldest", 0),
        ("--oldest --comm work*", all),
        ("--oldest --cpu 9999", 0),
        ("--oldest --filter 'n >= 0 && comm == \"workload\"'", all),
        ("--oldest --sample 2", all.div_ceil(2)),
        ("--oldest --fields n", all),
    ] {
        let Said { code, stdout, stderr } = server.observe(&format!("{options} --until-now -o json"))?;
        let found = by_number(&stdout)?.len();
        ensure!(code == 0 && found == expected, "{options}: {code}, {found} of {expected}: {stderr}");
    }
    fs::write(server.file("password"), "kprobed:wrong-word\n")?;
    let said = server.observe("--oldest --until-now")?;
    ensure!(said.code == 3 && said.stderr.contains("cannot connect to"), "{said:?}");
    ensure!(!said.stderr.contains("wrong-word"), "{said:?}");
    Ok(())
}
