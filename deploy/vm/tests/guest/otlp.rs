//! OTLP, received by the official generated classes: events, pairs and metrics of a real kernel,
//! over TLS, while the receiver is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::ExporterState;
use kprobed_vm::machine::PATIENCE;
use kprobed_vm::python::Environment;
use kprobed_vm::{progress, protocol, workspace};
use serde_json::Value;
use tempfile::TempDir;

use crate::Test;
use crate::certificates::Authority;
use crate::daemon::{self, FIRST, NUMBERS, OwnProgram, wait};
use crate::exporters::{exporter, is_drained};
use crate::fixture::Fixture;
use crate::languages::tools;

pub(crate) const TESTS: &[Test] = tests! {
    Seldom {
        a_receiver_gets_what_clients_see,
    }
};

const CALLS: i64 = 2000;

/// A receiver on the host.
struct Receiver {
    /// Before the directory, which it writes to until it is killed.
    program: Option<OwnProgram>,
    directory: TempDir,
}

impl Receiver {
    /// Its key and its certificate; gives back that of the authority, in PEM.
    fn new() -> Result<(Self, String)> {
        let directory = tempfile::tempdir()?;
        let authority = Authority::new()?;
        let own = authority.sign("receiver.test")?;
        fs::write(directory.path().join("server.pem"), own.cert_pem)?;
        fs::write(directory.path().join("server.key"), own.key_pem)?;
        Ok((Self { directory, program: None }, authority.pem()))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts it; where it was, if it was started before. Its port.
    fn start(&mut self, tools: &Environment) -> Result<u16> {
        let root = workspace::root().context("no workspace")?;
        fs::remove_file(self.file("ready")).ok();
        let log = fs::File::create(self.file("log"))?;
        let program = Command::new(tools.program("python"))
            .arg(root.join("deploy/vm/python/otlp_sink.py"))
            .arg(self.directory.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.program = Some(OwnProgram(program));
        let log = || fs::read_to_string(self.file("log")).unwrap_or_default();
        let is_ready = || Ok(self.file("ready").exists().then_some(()));
        wait(PATIENCE, || format!("the receiver does not start: {}", log()), is_ready)?;
        Ok(fs::read_to_string(self.file("port"))?.trim().parse()?)
    }

    /// Requests of one kind. The last line may not be whole.
    fn requests(&self, signal: &str) -> Result<Vec<Value>> {
        let text = fs::read_to_string(self.file("requests.jsonl"))?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(lines.filter(|line| line["signal"] == signal).map(|line| line["request"].clone()).collect())
    }
}

/// The values of an attribute list, or of a map.
fn values(list: &Value) -> BTreeMap<String, Value> {
    let each = list.as_array().into_iter().flatten();
    each.map(|one| (one["key"].as_str().unwrap_or_default().to_owned(), one["value"].clone())).collect()
}

/// An integer, which JSON has as text.
fn integer(value: Option<&Value>) -> Option<i64> {
    value?["intValue"].as_str()?.parse().ok()
}

/// All records of a kind of list under `keys`, with the attributes of their scope.
fn inner<'a>(requests: &'a [Value], keys: [&'a str; 3]) -> impl Iterator<Item = &'a Value> {
    let list = |value: &'a Value, key: &str| value[key].as_array().map_or(&[][..], Vec::as_slice);
    requests
        .iter()
        .flat_map(move |request| list(request, keys[0]))
        .flat_map(move |resource| list(resource, keys[1]))
        .flat_map(move |scope| list(scope, keys[2]))
}

/// Events by the numbers in them: place in the log, time, CPU, thread and comm.
type Events = BTreeMap<i64, (i64, u64, i64, i64, String)>;

/// Those of the log records. What was sent again is at the same place.
fn received(receiver: &Receiver) -> Result<Events> {
    let requests = receiver.requests("logs")?;
    let mut events = Events::new();
    for record in inner(&requests, ["resourceLogs", "scopeLogs", "logRecords"]) {
        if record["eventName"] != "kprobed.event" {
            continue;
        }
        let attributes = values(&record["attributes"]);
        if attributes["kprobed.probe"]["stringValue"] != "kprobes/numbers" {
            continue;
        }
        let body = values(&record["body"]["kvlistValue"]["values"]);
        let of = |name: &str| integer(attributes.get(name)).with_context(|| format!("{name}: {record}"));
        let number = integer(body.get("n")).context("no number")?;
        let comm = attributes["thread.name"]["stringValue"].as_str().context("no comm")?.to_owned();
        let time = of("kprobed.timestamp_ns")?.unsigned_abs();
        let event = (of("kprobed.sequence")?, time, of("cpu.logical_number")?, of("thread.id")?, comm);
        let other = events.insert(number, event.clone());
        ensure!(other.as_ref().is_none_or(|other| *other == event), "{number}: {other:?}, {event:?}");
    }
    Ok(events)
}

/// What `kprobectl observe` prints, compared with what was received.
fn compare(printed: &str, received: &Events) -> Result<()> {
    let mut seen = 0;
    for line in daemon::events(printed)? {
        seen += 1;
        let number = line["fields"]["n"].as_i64().context("no number")?;
        let (_, time, cpu, tid, comm) =
            received.get(&number).with_context(|| format!("{number} was not received"))?;
        let same = line["timestamp_ns"].as_u64() == Some(*time)
            && line["cpu"].as_i64() == Some(*cpu)
            && line["tid"].as_i64() == Some(*tid)
            && line["comm"].as_str() == Some(comm);
        ensure!(same, "a client sees {line}, and {time} {cpu} {tid} {comm} was received");
    }
    ensure!(seen == received.len(), "a client sees {seen} events, and {} were received", received.len());
    Ok(())
}

/// Every call is a span, once.
fn check_spans(receiver: &Receiver, calls: usize) -> Result<()> {
    let requests = receiver.requests("traces")?;
    let mut numbers = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for span in inner(&requests, ["resourceSpans", "scopeSpans", "spans"]) {
        ensure!(span["name"] == "__x64_sys_getsid" && span["kind"] == "SPAN_KIND_INTERNAL", "{span}");
        let time = |key: &str| span[key].as_str().and_then(|time| time.parse::<u64>().ok());
        ensure!(time("startTimeUnixNano") < time("endTimeUnixNano"), "{span}");
        let attributes = values(&span["attributes"]);
        let number = integer(attributes.get("kprobed.entry.n")).with_context(|| format!("{span}"))?;
        // The call fails: there is no such process.
        ensure!(integer(attributes.get("kprobed.return.error")) == Some(-3), "{span}");
        let other = numbers.insert(number, span["spanId"].clone());
        ensure!(other.is_none_or(|other| other == span["spanId"]), "{number} has two ids");
        ids.insert(span["spanId"].to_string());
    }
    ensure!(numbers.len() == calls && ids.len() == calls, "{} spans, {} ids", numbers.len(), ids.len());
    Ok(())
}

/// The last value of a probe's hits.
fn hits(receiver: &Receiver) -> Result<Option<i64>> {
    let requests = receiver.requests("metrics")?;
    let metrics: Vec<_> = inner(&requests, ["resourceMetrics", "scopeMetrics", "metrics"])
        .filter(|metric| metric["name"] == "kprobed.probe.hits")
        .collect();
    let points = metrics.last().and_then(|metric| metric["sum"]["dataPoints"].as_array());
    let of_probe = points.into_iter().flatten().find(|point| {
        values(&point["attributes"])
            .get("probe")
            .is_some_and(|probe| probe["stringValue"] == "kprobes/numbers")
    });
    Ok(of_probe.and_then(|point| point["asInt"].as_str()?.parse().ok()))
}

fn config(port: u16) -> String {
    let host = Ipv4Addr::from(protocol::HOST_ADDRESS);
    daemon::config(&format!(
        "[tracing]\nbuffer_kib = 16384\n[export.otlp]\nendpoint = \"https://{host}:{port}\"\ntraces = true\n\
         metrics_interval_s = 1\nprobes = [\"kprobes/*\"]\n[export.otlp.tls]\nca = \"/etc/kprobed/receiver-ca.pem\"\n\
         domain = \"receiver.test\"",
    ))
}

fn a_receiver_gets_what_clients_see(fixture: &Fixture) -> Result<()> {
    let Some(tools) = tools(fixture)? else { return Ok(()) };
    let (mut receiver, authority) = Receiver::new()?;
    let port = receiver.start(&tools)?;
    let mut guest = fixture.daemon()?;
    guest.machine.put("/etc/kprobed/receiver-ca.pem", 0o600, authority.as_bytes())?;
    guest.renew(&config(port))?;
    guest.add(NUMBERS)?;
    guest.add("r:returned __x64_sys_getsid error=$retval:s64")?;
    exporter(&guest, is_drained)?;
    guest.call(FIRST, CALLS)?;
    exporter(&guest, is_drained)?;

    // The receiver is killed, and comes back.
    drop(receiver.program.take());
    guest.call(FIRST + CALLS, CALLS)?;
    let failing = exporter(&guest, |exporter| exporter.state() == ExporterState::Failing)?;
    ensure!(!failing.error.is_empty(), "{failing:?}");
    ensure!(receiver.start(&tools)? == port, "it is elsewhere");
    let ledger = exporter(&guest, is_drained)?;
    let sent = 4 * CALLS.unsigned_abs();
    ensure!(ledger.acknowledged == sent && ledger.dropped == 0 && ledger.expired == 0, "{ledger:?}");

    let events = received(&receiver)?;
    let all: Vec<i64> = events.keys().copied().collect();
    ensure!(all == (FIRST..FIRST + 2 * CALLS).collect::<Vec<_>>(), "{} numbers", all.len());
    compare(&guest.ctl("observe kprobes/numbers --oldest --until-now -q -o json")?, &events)?;

    // Spans follow with the watermark, and figures once a second.
    let calls = usize::try_from(2 * CALLS)?;
    let missing = || format!("{:?}\n{}", check_spans(&receiver, calls), guest.log());
    wait(PATIENCE, missing, || Ok(check_spans(&receiver, calls).ok()))?;
    let expected = guest.ledger_of("kprobes/numbers")?.hits.context("no hits")?;
    let is_expected = || Ok(hits(&receiver)?.filter(|hits| hits.unsigned_abs() == expected));
    wait(PATIENCE, || format!("{:?} hits, not {expected}", hits(&receiver)), is_expected)?;
    progress::note(format_args!("{} events, {calls} spans, {expected} hits", events.len()));
    Ok(())
}
