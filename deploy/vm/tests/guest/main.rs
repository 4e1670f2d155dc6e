//! Guest tests: each runs once per kernel, on real kernels.
//!
//! `KPROBED_VM_KERNELS` selects the kernels (`6.1,6.12` when it is not set), `KPROBED_VM_EFFORT`
//! how much is drawn and counted ([`effort`]). The tests of one kernel share a machine, which is
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
mod hostile;
mod kernel_module;
mod kernels;
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

/// All tests, in the order in which they run.
const TESTS: &[(&str, &[Test])] = &[
    ("boot", boot::TESTS),
    ("machine", machine::TESTS),
    ("seeds", seeds::TESTS),
    ("dialects", dialects::TESTS),
    ("prototype_table", prototype_table::TESTS),
    ("prototypes", prototypes::TESTS),
    ("values", values::TESTS),
    ("types", types::TESTS),
    ("dangerous", dangerous::TESTS),
    ("refusals", refusals::TESTS),
    ("definitions", definitions::TESTS),
    ("filters", filters::TESTS),
    ("verdicts", verdicts::TESTS),
    ("offline", offline::TESTS),
    ("arming", arming::TESTS),
    ("api", api::TESTS),
    ("languages", languages::TESTS),
    ("otlp", otlp::TESTS),
    ("nats", nats::TESTS),
    ("recipes", recipes::TESTS),
    ("budget", budget::TESTS),
    ("forecast", forecast::TESTS),
    ("changes", changes::TESTS),
    ("declarations", declarations::TESTS),
    ("together", together::TESTS),
    ("plans", plans::TESTS),
    ("rollout", rollout::TESTS),
    ("watch", watch::TESTS),
    ("command_line", command_line::TESTS),
    ("attached", attached::TESTS),
    ("audit", audit::TESTS),
    ("neighbours", neighbours::TESTS),
    ("reconcile", reconcile::TESTS),
    ("reconcile_triggers", triggers::TESTS),
    ("roles", roles::TESTS),
    ("sandbox", sandbox::TESTS),
    ("costs", costs::TESTS),
    ("neighbour_war", neighbour_war::TESTS),
    ("foreign", foreign::TESTS),
    ("packaging", packaging::TESTS),
    ("systemd", systemd::TESTS),
    ("manifests", manifests::TESTS),
    ("container", container::TESTS),
    ("survival", survival::TESTS),
    ("crash", crash::TESTS),
    ("power_cuts", power_cuts::TESTS),
    ("leases", leases::TESTS),
    ("livepatch", livepatch::TESTS),
    ("rebuilt_module", rebuilt_module::TESTS),
    ("kernels", kernels::TESTS),
    ("full_disk", full_disk::TESTS),
    ("profiles", profiles::TESTS),
    ("accounting", accounting::TESTS),
    ("readers", readers::TESTS),
    ("deletion", deletion::TESTS),
    ("busy_deletion", busy_deletion::TESTS),
    ("torn_deletion", torn_deletion::TESTS),
    ("exporters", exporters::TESTS),
    ("prometheus", prometheus::TESTS),
    ("growth", growth::TESTS),
    ("aggregation", aggregation::TESTS),
    ("history", history::TESTS),
    ("merge", merge::TESTS),
    ("fleet", fleet::TESTS),
    ("overload", overload::TESTS),
    ("start_errors", start_errors::TESTS),
    ("hostile", hostile::TESTS),
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
    for (theme, name, test) in
        TESTS.iter().flat_map(|(theme, tests)| tests.iter().map(move |(n, t)| (theme, n, *t)))
    {
        for fixture in &fixtures {
            let fixture = Arc::clone(fixture);
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
        let themes: Vec<_> = TESTS.iter().map(|(theme, _)| *theme).collect();
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
