//! Guest tests, on real kernels.
//!
//! `KPROBED_VM_KERNELS` selects the kernels (`6.1,6.12` when it is not set), `KPROBED_VM_TESTS` the
//! tests, by parts of their names, separated by commas (all when it is not set), and
//! `KPROBED_VM_EFFORT` how much is drawn and counted ([`effort`]), and whether tests that are not
//! about the kernel run on all of them, and those that are slow run at all ([`About`]). What is
//! drawn, on which kernel such a test runs, and which slow ones do, follows from the commit
//! ([`differential::random`]).
//!
//! The tests of one kernel share a machine, which is booted when the first of them needs it; a test
//! that ends its machine boots one of its own. [`schedule`] says when each runs.

/// The tests of a theme, by what they are about.
macro_rules! tests {
    ($($about:ident { $($test:ident),+ $(,)? })+) => {
        &[$($((stringify!($test), $crate::About::$about, $test)),+),+]
    };
}

mod accounting;
mod aggregation;
mod api;
mod arming;
mod audit;
mod budget;
mod busy_deletion;
mod calls;
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
mod fake_is_true;
mod filters;
mod fixture;
mod fleet;
mod forecast;
mod foreign;
mod full_disk;
mod growth;
mod history;
mod host_events;
mod hostile;
mod kernel_memory;
mod kernel_module;
mod kernels;
mod landings;
mod languages;
mod languages_host;
mod leases;
mod lines;
mod livepatch;
mod machine;
mod manifests;
mod module_tables;
mod nats;
mod neighbour_war;
mod neighbours;
mod offline;
mod otlp;
mod overload;
mod packages;
mod packaging;
mod pages;
mod paths;
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
mod schedule;
mod seeds;
mod stacks;
mod start_errors;
mod survival;
mod systemd;
mod together;
mod torn_deletion;
mod trials;
mod triggers;
mod types;
mod values;
mod verdicts;
mod watch;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use fixture::{Fixture, Kernels};
use kprobed_vm::progress;
use libtest_mimic::{Arguments, Trial};
use schedule::Schedule;

/// A test: its name, what it is about, and what it does with the fixture of one kernel.
type Test = (&'static str, About, fn(&Fixture) -> Result<()>);

/// What a test is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// What a kernel does, or what the daemon says of it: it runs on each kernel.
    Kernel,
    /// The daemon's own matters, such as clients, files and receivers, that need some kernel below;
    /// cases that each commit draws anew; or what takes many seconds, and what two kernels seldom do
    /// otherwise. With little effort it runs on one of the kernels; which one, the commit decides.
    Daemon,
    /// As one about the daemon, and so slow, and so seldom the only one that fails, that with little
    /// effort one commit of [`schedule::SELDOM`] has it.
    Seldom,
    /// As `Seldom`, and of the slowest, which take minutes: one commit of [`schedule::RARELY`] has it.
    Rarely,
    /// The machine that tests run in. As one about the daemon, and only if its source or that kernel
    /// is another one than when it passed last; where it has never run, as one that runs seldom.
    Harness,
}

impl About {
    /// The machine that such a test is about: see [`trials::machine`]. Empty for others.
    fn machine(self, series: &str) -> String {
        if self == Self::Harness { trials::machine(series) } else { String::new() }
    }
}

/// All tests.
const TESTS: &[(&str, &[Test])] = &[
    ("machine", machine::TESTS),
    ("seeds", seeds::TESTS),
    ("dialects", dialects::TESTS),
    ("prototype_table", prototype_table::TESTS),
    ("prototypes", prototypes::TESTS),
    ("values", values::TESTS),
    ("types", types::TESTS),
    ("calls", calls::TESTS),
    ("dangerous", dangerous::TESTS),
    ("landings", landings::TESTS),
    ("refusals", refusals::TESTS),
    ("definitions", definitions::TESTS),
    ("filters", filters::TESTS),
    ("verdicts", verdicts::TESTS),
    ("offline", offline::TESTS),
    ("module_tables", module_tables::TESTS),
    ("arming", arming::TESTS),
    ("fake_is_true", fake_is_true::TESTS),
    ("api", api::TESTS),
    ("languages", languages::TESTS),
    ("otlp", otlp::TESTS),
    ("nats", nats::TESTS),
    ("budget", budget::TESTS),
    ("forecast", forecast::TESTS),
    ("changes", changes::TESTS),
    ("declarations", declarations::TESTS),
    ("together", together::TESTS),
    ("paths", paths::TESTS),
    ("plans", plans::TESTS),
    ("rollout", rollout::TESTS),
    ("watch", watch::TESTS),
    ("command_line", command_line::TESTS),
    ("recipes", recipes::TESTS),
    ("host_events", host_events::TESTS),
    ("audit", audit::TESTS),
    ("neighbours", neighbours::TESTS),
    ("reconcile", reconcile::TESTS),
    ("reconcile_triggers", triggers::TESTS),
    ("roles", roles::TESTS),
    ("sandbox", sandbox::TESTS),
    ("costs", costs::TESTS),
    ("neighbour_war", neighbour_war::TESTS),
    ("foreign", foreign::TESTS),
    ("packages", packages::TESTS),
    ("packaging", packaging::TESTS),
    ("pages", pages::TESTS),
    ("systemd", systemd::TESTS),
    ("manifests", manifests::TESTS),
    ("container", container::TESTS),
    ("survival", survival::TESTS),
    ("crash", crash::TESTS),
    ("power_cuts", power_cuts::TESTS),
    ("leases", leases::TESTS),
    ("lines", lines::TESTS),
    ("stacks", stacks::TESTS),
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
    ("fleet", fleet::TESTS),
    ("overload", overload::TESTS),
    ("start_errors", start_errors::TESTS),
    ("hostile", hostile::TESTS),
];

/// The name of a test on one kernel.
fn trial_of(fixture: &Fixture, test: &str) -> String {
    format!("{}::{test}", fixture.series())
}

/// A part of the names of the tests that are to run, or several.
fn wanted(arguments: &Arguments) -> Vec<String> {
    let listed = env::var("KPROBED_VM_TESTS").unwrap_or_default();
    let listed = listed.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned);
    listed.chain(arguments.filter.clone()).collect()
}

fn main() -> ExitCode {
    let kernels = Kernels::from_environment();
    if let Some(outcome) = machine::be_owner(&kernels) {
        return if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if let Err(error) = effort::check() {
        progress::note(error);
        return ExitCode::FAILURE;
    }
    let fixtures: Vec<_> = kernels.fixtures().collect();
    let mut arguments = Arguments::from_args();
    let wanted = wanted(&arguments);
    // Who asks for a test wants it, and on the kernels that were named.
    let is_whole = !wanted.is_empty() || effort::is_full();
    let notes = trials::noted();
    let (mut chosen, mut passed, mut left_out) = (Vec::new(), 0, Vec::new());
    let (mut seldom, mut rarely) =
        (schedule::Draw::new(schedule::SELDOM), schedule::Draw::new(schedule::RARELY));
    for (theme, tests) in TESTS {
        for (name, about, test) in *tests {
            let name = format!("{theme}::{name}");
            let has_run = || fixtures.iter().any(|fixture| notes.contains_key(&trial_of(fixture, &name)));
            let is_drawn = match about {
                About::Kernel | About::Daemon => true,
                About::Seldom => seldom.next_is_due(),
                About::Rarely => rarely.next_is_due(),
                About::Harness => {
                    // Asked whatever has run: otherwise, all that follow would be drawn in another way.
                    let is_due = seldom.next_is_due();
                    is_due || has_run()
                }
            };
            if !is_whole && !is_drawn {
                left_out.push(name);
                continue;
            }
            let one = schedule::kernel_of(&name, fixtures.len());
            for (at, fixture) in fixtures.iter().enumerate() {
                let trial = trial_of(fixture, &name);
                let is_wanted = wanted.is_empty() || wanted.iter().any(|part| trial.contains(part));
                let is_due = is_whole || *about == About::Kernel || at == one;
                if !is_wanted || !is_due {
                    continue;
                }
                let with = about.machine(fixture.series());
                let has_passed = notes.get(&trial).is_some_and(|noted| noted.passed_with == with);
                if !is_whole && !with.is_empty() && has_passed {
                    passed += 1;
                } else {
                    chosen.push((trial, with, Arc::clone(fixture), *test));
                }
            }
        }
    }
    let is_unknown = |part: &&String| !chosen.iter().any(|(trial, ..)| trial.contains(part.as_str()));
    let unknown: Vec<_> = wanted.iter().filter(is_unknown).map(String::as_str).collect();
    if chosen.is_empty() || !unknown.is_empty() {
        let themes: Vec<_> = TESTS.iter().map(|(theme, ..)| *theme).collect();
        progress::note(format_args!(
            "no test has `{}` in its name; the themes are {}",
            unknown.join("` or `"),
            themes.join(", ")
        ));
        return ExitCode::FAILURE;
    }
    if passed > 0 {
        progress::note(format_args!(
            "{passed} tests of the guests' machine are left out: they passed with this source, kernel and QEMU"
        ));
    }
    if !left_out.is_empty() {
        progress::note(format_args!("other commits, and a whole run, have {}", left_out.join(", ")));
    }
    let schedule = Arc::new(Schedule::new(chosen.iter().map(|(name, ..)| name.as_str()).collect(), &notes));
    // Each has a thread, and the schedule says when it begins.
    arguments.test_threads = Some(chosen.len());
    let mut trials = Vec::new();
    for (name, with, fixture, test) in chosen {
        let schedule = Arc::clone(&schedule);
        trials.push(Trial::test(name.clone(), move || report::run(&name, with, &fixture, test, &schedule)));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    report::print();
    conclusion.exit_code()
}
