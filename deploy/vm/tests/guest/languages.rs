//! Clients in other languages: the examples of the reference pages, run as documented, and the
//! Python client.
//!
//! Both run on the host, against the daemon in the guest. Their tools come from the Python package
//! index, once; without a network, and without them in the cache, the tests say so and do nothing,
//! except in CI, where they fail.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_vm::machine::Command;
use kprobed_vm::python::{Environment, NoNetwork, Requirements};
use kprobed_vm::{daemon, progress, workspace};
use serde_json::Value;

use crate::Test;
use crate::certificates::{Authority, serve_tls};
use crate::differential::random::is_ci;
use crate::fixture::{Fixture, programs};
use crate::languages_host::{Package, run, socket};

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        documented_examples_work,
    }
    Seldom {
        python_reads_what_kprobectl_reads,
        python_speaks_tls,
    }
};

/// The tools. `None`: they are not here, and there is no network to fetch them.
pub(crate) fn tools(fixture: &Fixture) -> Result<Option<Environment>> {
    match Environment::ensure(fixture.lab()?.cache(), Requirements::LANGUAGES) {
        Ok(tools) => Ok(Some(tools)),
        Err(error) if error.is::<NoNetwork>() && !is_ci() => {
            progress::note(format_args!("\n######## NOT TESTED, what needs Python packages: {error}\n"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// One example, and the call that it shows.
struct Example {
    call: String,
    command: String,
}

impl Example {
    /// Examples make and delete what others read. Those of the page come in this order.
    fn turn(&self) -> usize {
        const FIRST: [&str; 4] = ["list-services", "CheckProbe", "CreateProbe", "CreateAggregation"];
        const LAST: [&str; 2] = ["DeleteAggregation", "DeleteProbe"];
        let among = |list: &[&str]| list.iter().position(|call| *call == self.call);
        let last = among(&LAST).map(|at| FIRST.len() + 1 + at);
        among(&FIRST).or(last).unwrap_or(FIRST.len())
    }
}

/// All examples of the pages.
fn examples(proto: &Path) -> Result<Vec<Example>> {
    let mut pages = vec![proto.join("README.md")];
    for page in fs::read_dir(proto.join("reference"))? {
        pages.push(page?.path());
    }
    let mut found = Vec::new();
    for page in &pages {
        let text = fs::read_to_string(page)?;
        let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
        for command in blocks.filter(|block| block.starts_with("buf curl ")) {
            let call = match command.split("kprobed.v1.").nth(1).and_then(|path| path.split('/').nth(1)) {
                Some(call) => call.trim().to_owned(),
                None if command.contains("--list-services") => "list-services".to_owned(),
                None => bail!("{}: which call is this? {command}", page.display()),
            };
            found.push(Example { call, command: command.to_owned() });
        }
    }
    found.sort_by_key(Example::turn);
    Ok(found)
}

fn documented_examples_work(fixture: &Fixture) -> Result<()> {
    let Some(tools) = tools(fixture)? else { return Ok(()) };
    let guest = fixture.daemon()?;
    let root = workspace::root().context("no workspace")?;
    let directory = tempfile::tempdir()?;
    let address = guest.machine.address(daemon::PORT).context("no forward")?;
    let here = socket(directory.path(), address)?;
    let examples = examples(&root.join("proto"))?;
    ensure!(examples.len() >= 18, "only {} examples were found", examples.len());
    for Example { call, command } in &examples {
        let documented = "/run/kprobed/kprobed.sock";
        ensure!(command.contains(documented), "{call}: it does not use the socket");
        if call.contains("Aggregation") && !fixture.counts_events() {
            continue;
        }
        let output = run(&tools, "sh", &["-c", &command.replace(documented, &here)], directory.path(), &[])
            .with_context(|| format!("{call}: {command}"))?;
        check(call, &output).with_context(|| format!("{call}: {command}\n{output}"))?;
        if call == "CreateProbe" {
            guest.workload(&["open", "/etc/passwd", "0", "0", "3"])?;
            guest.ledger()?;
        }
    }
    ensure!(guest.probes()?.is_empty(), "the examples leave something behind");
    Ok(())
}

/// Whether an example shows what its page promises.
fn check(call: &str, output: &str) -> Result<()> {
    if call == "list-services" {
        for service in ["ProbeService", "EventService", "HostService"] {
            let name = format!("kprobed.v1.{service}");
            ensure!(output.lines().any(|line| line == name), "no {name}");
        }
        return Ok(());
    }
    let answers: Vec<Value> =
        serde_json::Deserializer::from_str(output).into_iter().collect::<Result<_, _>>()?;
    let first = answers.first().context("no answer")?;
    let has = |list: &Value, key: &str, value: &str| {
        list.as_array().is_some_and(|list| list.iter().any(|one| one[key] == value))
    };
    let good = match call {
        "CheckProbe" => {
            let explained = first["explanation"].as_str();
            first["verdict"] == "VERDICT_ACCEPTED"
                && explained.is_none_or(|words| words.contains("each time"))
        }
        "CreateProbe" => first["probe"]["state"] == "PROBE_STATE_ARMED",
        "GetProbe" => first["probe"]["name"] == "kprobes/open",
        "UpdateProbe" => first["probe"]["filter"].as_str().is_some_and(|filter| filter.contains("/etc/")),
        "ListProbes" => has(&first["probes"], "name", "kprobes/open"),
        "StreamEvents" => answers.iter().any(|answer| {
            let events = answer["rows"]["events"].as_array().into_iter().flatten();
            // 64 bits are text in the JSON of protobuf.
            events.into_iter().any(|event| event["comm"] == "workload" && event["timestampNs"].is_string())
        }),
        "GetLedger" => has(&first["probes"], "probe", "kprobes/open"),
        "ListHits" => has(&first["series"], "probe", "kprobes/open"),
        "ListFunctions" => has(&first["functions"], "name", "vfs_read"),
        "DescribeFunction" => first["function"]["name"] == "vfs_read",
        "GetHost" => first["kernelRelease"].is_string(),
        "CreateAggregation" => first["aggregation"]["name"] == "by-comm",
        "StreamAggregation" => {
            answers.len() == 2
                && first["started"]["name"] == "by-comm"
                && answers[1]["snapshot"]["name"] == "by-comm"
        }
        "DeleteAggregation" => first["snapshot"]["name"] == "by-comm",
        "DeleteProbe" => first["profile"]["probe"] == "kprobes/open",
        "ListForeignProbes" => first.is_object(),
        _ => bail!("a new example: say here what it shows"),
    };
    ensure!(good, "this is not what the page promises");
    Ok(())
}

const VALUES: &str = "p:lang/values do_sys_openat2 filename=+0(%si):string dfd=%di:s32 bad=+0(\\0x10):u32 \
                      bytes=+0(%si):u8[3] big=\\18446744073709551615:u64";
const BACK: &str = "r:lang/back do_sys_openat2 fd=$retval:s64";

fn python_reads_what_kprobectl_reads(fixture: &Fixture) -> Result<()> {
    let Some(tools) = tools(fixture)? else { return Ok(()) };
    let package = Package::install(&tools)?;
    let guest = fixture.daemon()?;
    for (definition, name, filter) in [
        (VALUES, "lang/values", "comm == \"workload\" && filename == \"/etc/passwd\""),
        (BACK, "lang/back", "comm == \"workload\" && fd >= 0"),
    ] {
        guest.add(definition)?;
        guest.wait_for(guest.client.set_filter(name, filter))??;
    }
    for _ in 0..3 {
        guest.workload(&["open", "/etc/passwd", "0", "0", "7"])?;
        // Reads what the kernel's buffers hold: the next round is another batch.
        guest.ledger()?;
    }
    // What is in the history stays as it is from here on.
    for name in ["lang/values", "lang/back"] {
        guest.wait_for(guest.client.set_enabled(name, false))??;
    }
    guest
        .machine
        .spawn("opener", &Command::shell("while :; do workload open /etc/passwd 0 0 1; sleep 0.05; done"))?;
    let address = guest.machine.address(daemon::PORT).context("no forward")?;
    let tested = package.test(
        &tools,
        &["test_columns.py", "test_daemon.py"],
        &[
            ("KPROBED_SERVER", &format!("tcp://{address}")),
            ("KPROBED_SOCKET", &format!("unix:{}", socket(package.path(), address)?)),
            ("KPROBECTL", &programs()?.kprobectl.display().to_string()),
        ],
    );
    guest.machine.kill_process("opener")?;
    tested
}

fn python_speaks_tls(fixture: &Fixture) -> Result<()> {
    let Some(tools) = tools(fixture)? else { return Ok(()) };
    let package = Package::install(&tools)?;
    let guest = fixture.own_daemon("python-tls", daemon::DEFAULT_CONFIG)?;
    let authority = Authority::new()?;
    authority.certify(&guest)?;
    authority.write_client(package.path())?;
    fs::write(package.path().join("stranger.pem"), Authority::new()?.pem())?;
    guest.stop()?;
    serve_tls(&guest)?;
    let address = guest.machine.address(daemon::PORT).context("no forward")?;
    package.test(
        &tools,
        &["test_tls.py"],
        &[
            ("KPROBED_TLS", &format!("https://{address}")),
            ("KPROBED_CERTIFICATES", &package.path().display().to_string()),
        ],
    )?;
    Ok(())
}
