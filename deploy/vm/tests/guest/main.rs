//! Tests in guests: each trial runs once per kernel, on real kernels.
//!
//! `KPROBED_VM_KERNELS` chooses the kernels (`6.1,6.12` when it is not set). The trials of one kernel share a machine, which
//! is booted when the first of them asks for it; a trial that ends its machine boots one of its own. They run one after
//! the other, because what they measure is the machine.

mod accounting;
mod aggregation;
mod api;
mod arming;
mod attached;
mod boot;
mod daemon;
mod definitions;
mod deletion;
mod dialects;
mod differential;
mod filters;
mod fixture;
mod history;
mod machine;
mod overload;
mod packaging;
mod prototype_table;
mod prototypes;
mod readers;
mod refusals;
mod seeds;
mod survival;
mod types;
mod values;
mod verdicts;

use std::process::ExitCode;
use std::sync::Arc;

use fixture::Kernels;
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
    ("refusals", refusals::TESTS),
    ("definitions", definitions::TESTS),
    ("filters", filters::TESTS),
    ("verdicts", verdicts::TESTS),
    ("arming", arming::TESTS),
    ("api", api::TESTS),
    ("attached", attached::TESTS),
    ("packaging", packaging::TESTS),
    ("survival", survival::TESTS),
    ("accounting", accounting::TESTS),
    ("readers", readers::TESTS),
    ("deletion", deletion::TESTS),
    ("aggregation", aggregation::TESTS),
    ("history", history::TESTS),
    ("overload", overload::TESTS),
];

fn main() -> ExitCode {
    let kernels = Kernels::from_environment();
    if let Some(outcome) = machine::be_owner(&kernels) {
        return if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    for fixture in kernels.fixtures() {
        for (theme, name, test) in
            TESTS.iter().flat_map(|(theme, tests)| tests.iter().map(move |(n, t)| (theme, n, *t)))
        {
            let fixture = Arc::clone(&fixture);
            let name = format!("{}::{theme}::{name}", fixture.series());
            trials
                .push(Trial::test(name, move || test(&fixture).map_err(|error| format!("{error:?}").into())));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    conclusion.exit_code()
}
