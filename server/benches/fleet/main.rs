//! Benchmark of `kprobectl` on a fleet of a thousand hosts: wall time, processor time, memory,
//! connections.
//!
//! Each host is the daemon with its own sockets, certificates asked for on both sides, its own store and
//! control thread, over a kernel in memory, with made events. Every answer is checked, so that a figure
//! never comes from a command that gave up.

#![expect(clippy::print_stdout, reason = "a benchmark")]

#[allow(dead_code, clippy::allow_attributes, reason = "the tests of the rules need more of it")]
#[expect(clippy::unwrap_used, reason = "written for tests")]
#[path = "../../fixtures/world.rs"]
mod world;

mod answers;
mod certificates;
mod command;
mod events;
mod host;
mod inventory;
mod observed;
mod quiet;
#[allow(dead_code, clippy::allow_attributes, reason = "the tests of the daemon need more of it")]
#[expect(clippy::unwrap_used, reason = "written for tests")]
#[path = "../../tests/daemon/server.rs"]
mod server;
mod stored_kernel;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Parser;
use serde_json::Value;
use tokio::runtime::Builder;

use answers::Expected;
use command::{Kprobectl, Took};
use events::Publisher;
use host::{HITS, PROBES};
use inventory::{Fleet, Way};

/// How long a host may take to say something, and how long the others wait for it: long enough that
/// those that are silent have failed before.
const PATIENCE: [&str; 4] = ["--timeout", "3s", "--max-wait", "6s"];

/// Starts as many daemons as are requested, and has `kprobectl` ask all of them.
#[derive(Clone, Debug, Parser)]
#[command(name = "fleet", args_override_self = true)]
struct Arguments {
    /// Hosts
    #[arg(long)]
    hosts: Option<NonZeroUsize>,
    /// Events of each host in a second
    #[arg(long, default_value_t = NonZeroUsize::MIN.saturating_add(9))]
    rate: NonZeroUsize,
    /// The command; without it, the one that was built beside this benchmark
    #[arg(long)]
    kprobectl: Option<PathBuf>,
    /// Given by `cargo bench`, and not by `cargo test --benches`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Whether an answer is what a host answers.
type IsRight = fn(&Value) -> bool;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    // Listeners and connections are of this process too.
    kprobed::front::raise_limit();
    let hosts = arguments.hosts.map_or(if arguments.bench { 1000 } else { 40 }, NonZeroUsize::get);
    let servers = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let fleet = Fleet::start(hosts, &servers)?;
    let kprobectl = Kprobectl::new(arguments.kprobectl.clone(), &fleet)?;
    let publisher = Publisher::start(fleet.hubs(), arguments.rate.get())?;
    Took::print_head();
    let sizes = [1, 10, 100, fleet.healthy.len()];
    for size in sizes.into_iter().filter(|size| *size <= fleet.healthy.len()) {
        measure(&kprobectl, &fleet, Ask { size, ..Ask::of(&["list"]) })?;
    }
    let all = Ask { size: fleet.healthy.len(), ..Ask::of(&["list"]) };
    measure(&kprobectl, &fleet, Ask { way: Way::Unix, ..all })?;
    measure(&kprobectl, &fleet, Ask { parallel: NonZeroUsize::MIN, ..all })?;
    measure(&kprobectl, &fleet, Ask { parallel: NonZeroUsize::MIN.saturating_add(hosts), ..all })?;
    let document = document(&fleet)?;
    let commands: [(&[&str], IsRight); 7] = [
        (&["check", "p:x vfs_read+1"], |answer| answer["kernel_reason"] == "BAD_INSN_BNDRY"),
        (&["doctor"], |answer| answer["checks"].is_array()),
        (&["get", "kprobes/open_00"], |answer| answer["profile"]["hits"] == count(HITS)),
        // What the kernel counts, without a buffer to record it.
        (&["ledger"], |answer| has_each_probe(&answer["probes"])),
        (&["hits"], has_each_probe),
        (&["diff", "-f", &document], is_one_change),
        (&["apply", "-f", &document, "--yes"], is_one_change),
    ];
    for (command, is_right) in commands {
        measure(&kprobectl, &fleet, Ask { command, is_right, ..all })?;
    }
    measure(&kprobectl, &fleet, Ask { with_bad: true, ..all })?;
    let seconds = if arguments.bench { 10 } else { 2 };
    for with_bad in [false, true] {
        observe(&kprobectl, &fleet, seconds, with_bad)?;
    }
    publisher.stop();
    servers.shutdown_background();
    Ok(())
}

fn is_list(answer: &Value) -> bool {
    answer
        .as_array()
        .is_some_and(|all| all.len() == PROBES && all.iter().all(|probe| probe["enabled"] == true))
}

/// A count as the API's JSON has it: 64-bit numbers are text.
fn count(number: u64) -> Value {
    Value::from(number.to_string())
}

fn has_each_probe(answer: &Value) -> bool {
    let is_right = |probe: &Value| probe["hits"] == count(HITS);
    answer.as_array().is_some_and(|all| all.len() == PROBES && all.iter().all(is_right))
}

fn is_one_change(answer: &Value) -> bool {
    answer.as_array().is_some_and(|all| all.len() == 1) && answer[0]["action"] == "configured"
}

/// A file that wants one probe to have another label.
fn document(fleet: &Fleet) -> anyhow::Result<String> {
    let path = fleet.directory().join("probe.yaml");
    let text = "probe: kprobes/open_00\ndefinition: 'p do_sys_openat2 dfd=%di path=+0(%si):string'\nlabels: {team: storage}\n";
    std::fs::write(&path, text)?;
    Ok(path.display().to_string())
}

/// One request to many hosts.
#[derive(Clone, Copy)]
struct Ask<'a> {
    command: &'a [&'a str],
    /// The check of each answer.
    is_right: IsRight,
    /// Of the healthy hosts.
    size: usize,
    /// Including the hosts that do not answer.
    with_bad: bool,
    way: Way,
    parallel: NonZeroUsize,
}

impl<'a> Ask<'a> {
    fn of(command: &'a [&'a str]) -> Self {
        Self {
            command,
            is_right: is_list,
            size: 1,
            with_bad: false,
            way: Way::Tls,
            parallel: NonZeroUsize::MIN.saturating_add(63),
        }
    }
}

fn measure(kprobectl: &Kprobectl, fleet: &Fleet, ask: Ask<'_>) -> anyhow::Result<()> {
    let expected = Expected::new(fleet, ask.size, ask.with_bad);
    let parallel = ask.parallel.to_string();
    let names = expected.names();
    let options = ["--hosts", &names, "--parallel", &parallel, "-o", "json"];
    let patience = if ask.with_bad { PATIENCE.get(..2).unwrap_or_default() } else { &[] };
    let arguments = [ask.command, options.as_slice(), patience].concat();
    quiet::wait()?;
    let ran = kprobectl.run(ask.way, &arguments)?;
    let command: Vec<_> =
        ask.command.iter().map(|word| if word.starts_with('/') { "FILE" } else { word }).collect();
    let what = format!("{}, {} at a time, {}", command.join(" "), ask.parallel, ask.way.name());
    expected.check(&ran, ask.is_right).with_context(|| format!("`{what}` on {} hosts", expected.hosts()))?;
    // Those to the last hosts may be closing while those to the next are made.
    let limit = ask.parallel.get().min(expected.hosts()) * 2;
    ensure!(ran.took.connections <= limit, "{} connections", ran.took.connections);
    ran.took.print(&what, expected.hosts());
    Ok(())
}

fn observe(kprobectl: &Kprobectl, fleet: &Fleet, seconds: u64, with_bad: bool) -> anyhow::Result<()> {
    let expected = Expected::new(fleet, fleet.healthy.len(), with_bad);
    let duration = format!("{seconds}s");
    let names = expected.names();
    let arguments = ["observe", "--hosts", &names, "--for", &duration, "-o", "json"];
    quiet::wait()?;
    let ran = kprobectl.run(Way::Tls, &[&arguments, PATIENCE.as_slice()].concat())?;
    let seen = observed::check(&ran, &expected)
        .with_context(|| format!("`observe` of {} hosts", expected.hosts()))?;
    ran.took.print(&format!("observe, {} events in {duration}", seen.events), expected.hosts());
    Ok(())
}
