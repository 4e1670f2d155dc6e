//! Benchmark of live events: the daemon with a counting client, and other tools on the same events
//! of the same host.
//!
//! `README.md` beside this directory explains the figures.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark")]

mod accounts;
mod arguments;
mod bpftrace;
mod daemon;
mod function;
mod host;
mod kprobed;
mod lab;
mod measured;
mod perf;
mod producer;
mod profile;
mod report;
mod subscriber;
mod tool;
mod trace_cmd;
mod trace_pipe;
mod workload;

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use clap::Parser as _;

use arguments::Arguments;
use host::Tracefs;
use kprobed::Use;
use kprobed_client::api::Pace;
use lab::Lab;
use measured::Measured;
use report::Report;
use workload::Workload;

/// A tool that others are compared with: its name, its program, the package that has it, and how to
/// run it.
type Peer = (&'static str, &'static str, &'static str, fn(&Lab<'_>) -> anyhow::Result<Vec<Measured>>);

const PEERS: [Peer; 4] = [
    ("trace_pipe", "cat", "coreutils", trace_pipe::run),
    ("trace-cmd", "trace-cmd", "trace-cmd", trace_cmd::run),
    ("perf", "perf", "linux-perf", perf::run),
    ("bpftrace", "bpftrace", "bpftrace", bpftrace::run),
];

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(workload) = arguments.produce {
        return producer::main(workload);
    }
    if !arguments.bench {
        println!("skipped: this takes minutes and all of two CPUs; `cargo bench` says --bench");
        return Ok(());
    }
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: recording events needs root");
        return Ok(());
    }
    let tracefs = match Tracefs::find() {
        Ok(tracefs) => tracefs,
        Err(error) => {
            println!("skipped: {error:#}");
            return Ok(());
        }
    };
    host::pin(host::READER_CPU)?;
    if arguments.install {
        install()?;
    }
    let directory = match &arguments.directory {
        Some(directory) => tempfile::tempdir_in(directory)?,
        None => tempfile::tempdir()?,
    };
    let mut report = Report::default();
    let wanted = match arguments.workloads.as_slice() {
        [] => [Workload::Syscalls, Workload::Uprobe, Workload::Varied, Workload::Kprobe].as_slice(),
        some => some,
    };
    for workload in wanted.iter().copied() {
        let needs = match workload {
            Workload::Syscalls => "events/raw_syscalls",
            Workload::Uprobe | Workload::Varied => "uprobe_events",
            Workload::Kprobe => "kprobe_events",
        };
        if !tracefs.has(needs) {
            report.notes.push(format!("{}: this kernel has no `{needs}`", workload.name()));
            continue;
        }
        let _event = workload.define(&tracefs)?;
        let lab = Lab { tracefs: &tracefs, arguments: &arguments, workload, directory: directory.path() };
        if arguments.profile {
            kprobed::run(&lab, Use { profile: true, ..Use::plain(&lab) })?;
            continue;
        }
        compare(&lab, &mut report);
        if arguments.wants("alone") {
            alone(&lab, &mut report)?;
        }
        if workload == Workload::Syscalls && arguments.wants("latency") {
            for pace in [Pace::Latency, Pace::Unspecified] {
                for daemon in daemons(&lab) {
                    report.latency.push(kprobed::latency(&lab, daemon, pace)?);
                }
            }
        }
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(())
}

/// All sides in turn, and that several times. One that fails is left out from there on.
fn compare(lab: &Lab<'_>, report: &mut Report) {
    let mut runs: Vec<Measured> = Vec::new();
    let mut failed = HashSet::new();
    for round in 0..lab.arguments.rounds {
        let mut uses = uses(lab);
        // What is measured after another run finds a machine that is warm: each side has both places.
        if round % 2 == 1 {
            uses.reverse();
        }
        let mut take = |name: &'static str, run: &dyn Fn() -> anyhow::Result<Vec<Measured>>| {
            if failed.contains(name) || !lab.arguments.wants(name) {
                return;
            }
            match run() {
                Ok(rows) => runs.extend(rows),
                Err(error) => {
                    report.notes.push(format!("{} on {}: {error:#}", name, lab.workload.name()));
                    failed.insert(name);
                }
            }
        };
        for how in uses {
            let wanted = if how.subscribers > 1 || how.history { "alone" } else { "kprobed" };
            take(wanted, &|| kprobed::run(lab, how));
        }
        for (name, program, package, run) in PEERS {
            take(name, &|| {
                anyhow::ensure!(
                    tool::exists(program),
                    "`{program}` is not here; it is in Debian's `{package}` (--install)"
                );
                run(lab)
            });
        }
    }
    let mut names: Vec<String> = Vec::new();
    for run in &runs {
        if !names.contains(&run.side) {
            names.push(run.side.clone());
        }
    }
    for name in names {
        let of_side = runs.iter().filter(|run| run.side == name).cloned().collect();
        report.sides.extend(report::median(of_side));
    }
}

/// The daemon, and another one if there is one, by name.
fn daemons<'a>(lab: &Lab<'a>) -> Vec<(&'static str, &'a Path)> {
    let other = lab.arguments.other.as_deref().map(|program| ("other", program));
    std::iter::once(("kprobed", lab.arguments.daemon.as_path())).chain(other).collect()
}

/// What daemons are used for in each round: one client, several, and with the history.
fn uses<'a>(lab: &Lab<'a>) -> Vec<Use<'a>> {
    let plain = Use::plain(lab);
    let mut uses = vec![
        plain,
        Use { side: "kprobed, 2 clients", subscribers: 2, ..plain },
        Use { side: "kprobed, 5 clients", subscribers: 5, ..plain },
        Use { side: "kprobed, history", history: true, ..plain },
    ];
    if let Some(daemon) = lab.arguments.other.as_deref() {
        let others = ["other", "other, 2 clients", "other, 5 clients", "other, history"];
        let others: Vec<_> =
            others.iter().zip(&uses).map(|(side, how)| Use { side, daemon, ..*how }).collect();
        // In turn with the first.
        uses = uses.into_iter().zip(others).flat_map(|(one, other)| [one, other]).collect();
    }
    uses
}

/// Measurements of the daemon alone.
fn alone(lab: &Lab<'_>, report: &mut Report) -> anyhow::Result<()> {
    let plain = Use::plain(lab);
    if lab.workload != Workload::Syscalls {
        return Ok(());
    }
    let per_second = 3_000_000 / lab.workload.events_each();
    let sustained = Use { side: "kprobed, 3 M/s, 10 s", iterations: 10 * per_second, per_second, ..plain };
    report.sides.extend(kprobed::run(lab, sustained)?);
    report.idle = Some(kprobed::idle(lab)?);
    Ok(())
}

/// Installs the programs that are not here.
fn install() -> anyhow::Result<()> {
    for (_, program, package, _) in PEERS {
        if !tool::exists(program) {
            let status = Command::new("apt-get")
                .args(["install", "--yes", "--no-install-recommends", package])
                .status()?;
            anyhow::ensure!(status.success(), "apt-get cannot install {package}: {status}");
        }
    }
    Ok(())
}
