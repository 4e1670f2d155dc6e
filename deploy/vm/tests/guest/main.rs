//! Guest tests, on real kernels.
//!
//! `KPROBED_VM_KERNELS` selects the kernels (`6.1,6.12` when it is not set), `KPROBED_VM_EFFORT`
//! how much is drawn and counted ([`effort`]), and whether tests that are not about the kernel
//! run on all of them ([`About`]). The tests of one kernel share a machine, which is
//! booted when the first of them needs it; a test that ends its machine boots one of its own. They
//! run one after the other, because they measure the machine; the kernels run in parallel, since
//! most machines have one CPU.

mod accounting;
mod aggregation;
mod api;
mod arming;
mod attached;
mod audit;
mod boot;
mod budget;
mod busy_deletion;
mod certificates;
mod changes;
mod command_line;
mod container;
mod container_spec;
mod costs;
mod crash;
mod crash_acts;
mod crash_check;
mod crash_follower;
mod crash_plans;
mod crash_state;
mod daemon;
mod dangerous;
mod declarations;
mod definitions;
mod deletion;
mod dialects;
mod differential;
mod effort;
mod exporters;
mod filters;
mod fixture;
mod fleet;
mod forecast;
mod foreign;
mod full_disk;
mod growth;
mod history;
mod history_limit;
mod hostile;
mod kernel_module;
mod kernels;
mod landings;
mod languages;
mod languages_host;
mod leases;
mod livepatch;
mod machine;
mod manifests;
mod merge;
mod nats;
mod neighbour_war;
mod neighbours;
mod offline;
mod otlp;
mod overload;
mod packaging;
mod plans;
mod power_cuts;
mod profiles;
mod prometheus;
mod prototype_table;
mod prototypes;
mod readers;
mod rebuilt_module;
mod recipes;
mod reconcile;
mod refusals;
mod report;
mod roles;
mod rollout;
mod sandbox;
mod seeds;
mod start_errors;
mod survival;
mod systemd;
mod together;
mod torn_deletion;
mod triggers;
mod types;
mod values;
mod verdicts;
mod watch;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use fixture::Kernels;
use kprobed_vm::progress;
use libtest_mimic::{Arguments, Trial};

/// A test: its name, and what it does with the fixture of one kernel.
type Test = (&'static str, fn(&fixture::Fixture) -> anyhow::Result<()>);

/// What the tests of a theme are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// What a kernel does, or what the daemon says of it: they run on each kernel.
    Kernel,
    /// The daemon's own matters, such as clients, files and receivers, that need some kernel below. With
    /// little effort each runs on one of the kernels, in turns.
    Daemon,
}

use About::{Daemon, Kernel};

/// All tests, in the order in which they run.
const TESTS: &[(&str, About, &[Test])] = &[
    ("boot", Kernel, boot::TESTS),
    ("machine", Kernel, machine::TESTS),
    ("seeds", Kernel, seeds::TESTS),
    ("dialects", Kernel, dialects::TESTS),
    ("prototype_table", Kernel, prototype_table::TESTS),
    ("prototypes", Kernel, prototypes::TESTS),
    ("values", Kernel, values::TESTS),
    ("types", Kernel, types::TESTS),
    ("dangerous", Kernel, dangerous::TESTS),
    ("refusals", Kernel, refusals::TESTS),
    ("definitions", Kernel, definitions::TESTS),
    ("filters", Kernel, filters::TESTS),
    ("verdicts", Kernel, verdicts::TESTS),
    ("offline", Kernel, offline::TESTS),
    ("arming", Kernel, arming::TESTS),
    ("landings", Kernel, landings::TESTS),
    ("api", Daemon, api::TESTS),
    ("languages", Kernel, languages::TESTS),
    ("otlp", Daemon, otlp::TESTS),
    ("nats", Daemon, nats::TESTS),
    ("recipes", Daemon, recipes::TESTS),
    ("budget", Kernel, budget::TESTS),
    ("forecast", Kernel, forecast::TESTS),
    ("changes", Daemon, changes::TESTS),
    ("declarations", Daemon, declarations::TESTS),
    ("together", Kernel, together::TESTS),
    ("plans", Daemon, plans::TESTS),
    ("rollout", Daemon, rollout::TESTS),
    ("watch", Daemon, watch::TESTS),
    ("command_line", Daemon, command_line::TESTS),
    ("attached", Kernel, attached::TESTS),
    ("audit", Daemon, audit::TESTS),
    ("neighbours", Kernel, neighbours::TESTS),
    ("reconcile", Kernel, reconcile::TESTS),
    ("reconcile_triggers", Kernel, triggers::TESTS),
    ("roles", Kernel, roles::TESTS),
    ("sandbox", Kernel, sandbox::TESTS),
    ("costs", Daemon, costs::TESTS),
    ("neighbour_war", Kernel, neighbour_war::TESTS),
    ("foreign", Kernel, foreign::TESTS),
    ("packaging", Kernel, packaging::TESTS),
    ("systemd", Kernel, systemd::TESTS),
    ("manifests", Daemon, manifests::TESTS),
    ("container", Kernel, container::TESTS),
    ("survival", Kernel, survival::TESTS),
    ("crash", Kernel, crash::TESTS),
    ("power_cuts", Daemon, power_cuts::TESTS),
    ("leases", Daemon, leases::TESTS),
    ("livepatch", Kernel, livepatch::TESTS),
    ("rebuilt_module", Kernel, rebuilt_module::TESTS),
    ("kernels", Kernel, kernels::TESTS),
    ("full_disk", Daemon, full_disk::TESTS),
    ("profiles", Kernel, profiles::TESTS),
    ("accounting", Kernel, accounting::TESTS),
    ("readers", Kernel, readers::TESTS),
    ("deletion", Kernel, deletion::TESTS),
    ("busy_deletion", Kernel, busy_deletion::TESTS),
    ("torn_deletion", Kernel, torn_deletion::TESTS),
    ("exporters", Daemon, exporters::TESTS),
    ("prometheus", Daemon, prometheus::TESTS),
    ("growth", Kernel, growth::TESTS),
    ("aggregation", Kernel, aggregation::TESTS),
    ("history", Daemon, history::TESTS),
    ("history_limit", Daemon, history_limit::TESTS),
    ("merge", Daemon, merge::TESTS),
    ("fleet", Daemon, fleet::TESTS),
    ("overload", Kernel, overload::TESTS),
    ("start_errors", Daemon, start_errors::TESTS),
    ("hostile", Daemon, hostile::TESTS),
];

fn main() -> ExitCode {
    let kernels = Kernels::from_environment();
    if let Some(outcome) = machine::be_owner(&kernels) {
        return if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let fixtures: Vec<_> = kernels.fixtures().collect();
    let mut arguments = Arguments::from_args();
    // One more than there are CPUs, for those that wait for something in their guest. Trials that
    // share a guest take turns.
    arguments.test_threads = Some(1 + thread::available_parallelism().map_or(1, usize::from));
    let mut trials = Vec::new();
    let all =
        TESTS.iter().flat_map(|(theme, about, tests)| tests.iter().map(move |test| (theme, about, test)));
    for (turn, (theme, about, (name, test))) in all.enumerate() {
        // Who asks for a theme wants it on the kernels that were named.
        let is_on_one = *about == Daemon && arguments.filter.is_none() && !effort::is_full();
        for (at, fixture) in fixtures.iter().enumerate() {
            if is_on_one && at != turn % fixtures.len() {
                continue;
            }
            let (fixture, test) = (Arc::clone(fixture), *test);
            let name = format!("{}::{theme}::{name}", fixture.series());
            trials.push(Trial::test(name.clone(), move || report::run(&name, &fixture, test)));
        }
    }
    if let Err(error) = effort::check() {
        progress::note(error);
        return ExitCode::FAILURE;
    }
    let wanted = arguments.filter.as_deref().unwrap_or_default();
    if !trials.iter().any(|trial| trial.name().contains(wanted)) {
        let themes: Vec<_> = TESTS.iter().map(|(theme, ..)| *theme).collect();
        progress::note(format_args!(
            "no test has `{wanted}` in its name; the themes are {}",
            themes.join(", ")
        ));
        return ExitCode::FAILURE;
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    report::print();
    conclusion.exit_code()
}
