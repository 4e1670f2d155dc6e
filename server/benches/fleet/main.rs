//! What the fleet commands of `kprobectl` need on a thousand hosts: wall time, processor time, memory, connections.
//!
//! Each host is the real gRPC server, with its own sockets, certificates asked for on both sides, and its own hub, over a stored kernel and made
//! events. What stands between it and a kernel is missing (the control thread and the readers): commands that need those cannot be measured so.
//! Every answer is checked, so that a figure never comes from a command that gave up.

#![expect(clippy::print_stdout, reason = "a benchmark")]

use kprobed::kernel;
#[allow(dead_code, clippy::allow_attributes, reason = "the tests of the rules need more of it")]
#[expect(clippy::unwrap_used, reason = "written for tests")]
#[path = "../../src/validate/tests/world.rs"]
mod world;

mod answers;
mod certificates;
mod command;
mod events;
mod host;
mod inventory;
mod observed;
mod quiet;
mod stored_kernel;
mod tracefs;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Parser;
use tokio::runtime::Builder;

use answers::Expected;
use command::{Kprobectl, Took};
use events::Publisher;
use inventory::{Fleet, Way};

/// How long a host may take to say something, and how long the others wait for it: long enough that those that are silent have failed before.
const PATIENCE: [&str; 4] = ["--timeout", "3s", "--max-wait", "6s"];

/// Starts as many daemons as are asked for, and has `kprobectl` ask all of them.
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
    let commands: [&[&str]; 3] = [&["check", "p:x vfs_read+1"], &["doctor"], &["exporters"]];
    for command in commands {
        measure(&kprobectl, &fleet, Ask { command, ..all })?;
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

/// One request to many hosts.
#[derive(Clone, Copy)]
struct Ask<'a> {
    command: &'a [&'a str],
    /// Of the healthy hosts.
    size: usize,
    /// Those that do not answer too.
    with_bad: bool,
    way: Way,
    parallel: NonZeroUsize,
}

impl<'a> Ask<'a> {
    fn of(command: &'a [&'a str]) -> Self {
        Self {
            command,
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
    let what = format!("{}, {} at a time, {}", ask.command.join(" "), ask.parallel, ask.way.name());
    expected.check(&ran).with_context(|| format!("`{what}` on {} hosts", expected.hosts()))?;
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
    let arguments = ["observe", "--hosts", &names, "--duration", &duration, "-o", "json"];
    quiet::wait()?;
    let ran = kprobectl.run(Way::Tls, &[&arguments, PATIENCE.as_slice()].concat())?;
    let seen = observed::check(&ran, &expected)
        .with_context(|| format!("`observe` of {} hosts", expected.hosts()))?;
    ran.took.print(&format!("observe, {} events in {duration}", seen.events), expected.hosts());
    Ok(())
}
