//! The real Prometheus scrapes the daemon: metrics equal the ledger, the rules pass their tests,
//! and every expression of the dashboard has a value.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::cache::Cache;
use kprobed_vm::machine::PATIENCE;
use kprobed_vm::progress;
use kprobed_vm::unpacked::Unpacked;
use serde_json::Value;

use crate::Test;
use crate::container::{deploy, run};
use crate::daemon::{OwnProgram, config, wait};
use crate::fixture::{Fixture, METRICS_PORT};

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        prometheus_scrapes_the_daemon,
    }
};

/// A server of this test's own, which ends with it.
struct Server {
    _program: OwnProgram,
    address: SocketAddr,
    log: PathBuf,
}

/// The body of an answer to GET.
fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: prometheus\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no head")?;
    ensure!(head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"), "{path}: {head}\n{body}");
    Ok(body.to_owned())
}

fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

impl Server {
    fn start(program: &Path, directory: &Path, target: SocketAddr) -> Result<Self> {
        let rules = deploy()?.join("prometheus/kprobed.rules.yml");
        let scrape = fs::read_to_string(deploy()?.join("prometheus/scrape.yml"))?;
        let config = scrape
            .replace("127.0.0.1:9464", &target.to_string())
            .replace("scrape_interval: 15s", "scrape_interval: 1s")
            .replace("kprobed.rules.yml", &rules.display().to_string());
        ensure!(config.contains(&target.to_string()) && config.contains("1s"), "{config}");
        let file = directory.join("prometheus.yml");
        fs::write(&file, format!("global: {{evaluation_interval: 1s}}\n{config}"))?;
        // It has no way to say which port it has: one that was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = directory.join("prometheus.log");
        let output = fs::File::create(&log)?;
        let program = Command::new(program)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let server = Self { _program: OwnProgram(program), address, log };
        server.until(|| Ok(get(address, "/-/ready").is_ok()))?;
        Ok(server)
    }

    fn until(&self, done: impl Fn() -> Result<bool>) -> Result<()> {
        let log = || format!("Prometheus:\n{}", fs::read_to_string(&self.log).unwrap_or_default());
        wait(PATIENCE, log, || Ok(done()?.then_some(())))
    }

    /// What an expression is now.
    fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let text = get(self.address, &format!("/api/v1/query?query={}", encoded(expression)))
            .with_context(|| expression.to_owned())?;
        let answer: Value = serde_json::from_str(&text)?;
        ensure!(answer["status"] == "success", "{expression}: {answer}");
        Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
    }

    /// The only value of an expression.
    fn value(&self, expression: &str) -> Result<Option<f64>> {
        let result = self.query(expression)?;
        ensure!(result.len() < 2, "{expression}: {result:?}");
        let text = result.first().and_then(|sample| sample["value"][1].as_str());
        text.map(|text| Ok(text.parse()?)).transpose()
    }
}

/// The tools of Prometheus take what is shipped.
fn check_files(promtool: &Path) -> Result<()> {
    let directory = deploy()?.join("prometheus");
    for arguments in [
        &["check", "rules", "kprobed.rules.yml"][..],
        &["test", "rules", "kprobed.test.yml"],
        &["check", "config", "scrape.yml"],
    ] {
        run(Command::new(promtool).args(arguments).current_dir(&directory))?;
    }
    Ok(())
}

/// Expressions of the dashboard, with what Grafana puts into them.
fn expressions() -> Result<Vec<String>> {
    let text = fs::read_to_string(deploy()?.join("grafana/kprobed.json"))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let expressions: Vec<String> = targets
        .filter_map(|target| target["expr"].as_str())
        .map(|expression| {
            expression
                .replace("$instance", ".*")
                .replace("$probe", ".*")
                .replace("$__rate_interval", "1m")
                .replace("$__range", "5m")
        })
        .collect();
    ensure!(expressions.len() > 15 && !expressions.iter().any(|text| text.contains('$')), "{expressions:?}");
    Ok(expressions)
}

fn prometheus_scrapes_the_daemon(fixture: &Fixture) -> Result<()> {
    let cache = Cache::from_environment().context("no cache directory")?;
    let package = Unpacked::ensure(&cache, "prometheus")?;
    let promtool = package.program("usr/bin/promtool");
    check_files(&promtool)?;
    let guest = fixture.new_daemon(&config(&format!(
        "[export.prometheus]\nlisten = \"0.0.0.0:{METRICS_PORT}\"\n[export.jsonl]\npath = \"/tmp/events.jsonl\""
    )))?;
    guest.add("p:scraped __x64_sys_getsid")?;
    guest.workload(&["numbers", "1000000", "3000"])?;
    let target = guest.machine.address(METRICS_PORT).context("no forward")?;
    check_metrics(&promtool, &get(target, "/metrics")?)?;

    let directory = tempfile::tempdir()?;
    let server = Server::start(&package.program("usr/bin/prometheus"), directory.path(), target)?;
    let hits = "kprobed_probe_hits_total{probe=\"kprobes/scraped\"}";
    server.until(|| Ok(server.value(hits)?.is_some()))?;
    guest.workload(&["numbers", "2000000", "2000"])?;
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let expected = guest.ledger_of("kprobes/scraped")?.hits.context("no hits")? as f64;
    ensure!(expected >= 5000.0, "{expected} hits");
    server.until(|| Ok(server.value(hits)? == Some(expected)))?;
    for term in ["read", "lost", "own"] {
        let expression = format!("kprobed_probe_events_total{{probe=\"kprobes/scraped\",term=\"{term}\"}}");
        ensure!(server.value(&expression)?.is_some(), "{expression} has no value");
    }
    // The rules are in force, and nothing is wrong.
    server.until(|| Ok(!server.query("kprobed:probe_hits:rate5m")?.is_empty()))?;
    let firing = server.query("ALERTS{alertstate=\"firing\"}")?;
    ensure!(firing.is_empty(), "{firing:?}");
    let mut empty = Vec::new();
    for expression in expressions()? {
        if server.query(&expression)?.is_empty() {
            empty.push(expression);
        }
    }
    // Without TLS there is no certificate; all else has values.
    ensure!(empty.len() == 1 && empty[0].contains("tls_not_after"), "no values: {empty:#?}");
    progress::note(format_args!("{} expressions of the dashboard have values", expressions()?.len() - 1));
    drop(server);
    Ok(())
}

/// `promtool check metrics` reads the older text format, which knows no `# EOF`; names and help are
/// the same.
fn check_metrics(promtool: &Path, text: &str) -> Result<()> {
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // OpenMetrics names a counter without `_total` in its head.
    let counters: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let lines = text.lines().filter(|line| *line != "# EOF").map(|line| {
        let head = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        match head.and_then(|rest| rest.split(' ').next()) {
            Some(name) if counters.contains(&name) => line.replacen(name, &format!("{name}_total"), 1),
            _ => line.to_owned(),
        }
    });
    let lines: Vec<String> = lines.collect();
    child.stdin.take().context("no input")?.write_all(format!("{}\n", lines.join("\n")).as_bytes())?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "promtool check metrics: {said}\n{}",
        String::from_utf8_lossy(&output.stdout)
    );
    Ok(())
}
