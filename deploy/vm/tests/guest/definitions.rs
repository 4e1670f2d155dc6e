//! The language of the daemon against that of the kernel, on lines that a generator writes: errno, message and caret.
//!
//! Lines are drawn anew in each run; `KPROBED_VM_SEED=NUMBER` repeats one.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use kprobed::definition::Code;
use kprobed_vm::progress;

use crate::Test;
use crate::differential::{Compared, Random, ask_both, generator};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] =
    &[("generated_lines_get_the_kernels_answer", generated_lines_get_the_kernels_answer)];

/// Lines for each kernel.
const LINES: usize = 1500;

/// What the daemon refuses although the kernel takes it, by our code, and why.
const REFUSED_ON_PURPOSE: &[(&str, &str)] = &[];

/// What is wrong with our answer to a line, if anything is.
fn difference(compared: &Compared) -> Option<String> {
    let Compared { line, ours, kernel } = compared;
    if kernel.errno == 0 && REFUSED_ON_PURPOSE.iter().any(|(code, _)| *code == ours.rule) {
        return None;
    }
    let found = ours.diagnostics.first();
    let our_caret = found.map_or(0, |found| found.span_start as usize);
    let our_code = ours.kernel_reason.as_str();
    let same = kernel.errno == ours.errno
        && kernel.said.as_ref().is_none_or(|(text, caret)| {
            Code::from_kernel_text(text).is_some_and(|code| code.name() == our_code) && *caret == our_caret
        });
    let said = kernel
        .said
        .as_ref()
        .map_or_else(|| "nothing".to_owned(), |(text, caret)| format!("`{text}` at {caret}"));
    (!same).then(|| {
        format!(
            "{line}\n    kernel {}, {said}\n    daemon {}, {our_code} ({}) at {our_caret}",
            kernel.errno, ours.errno, ours.rule
        )
    })
}

fn generated_lines_get_the_kernels_answer(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let mut random = Random::from_environment()?;
    let with_types = false;
    let lines = (0..LINES).map(|_| generator::line(&mut random, with_types)).collect();
    let compared = ask_both(&guest, lines)?;
    let (mut differences, mut different) = (String::new(), 0);
    for wrong in compared.iter().filter_map(difference) {
        writeln!(differences, "{wrong}")?;
        different += 1;
    }
    let accepted = compared.iter().filter(|one| one.kernel.errno == 0).count();
    ensure!(different == 0, "{different} of {} differ:\n{differences}", compared.len());
    ensure!(accepted > LINES / 50, "only {accepted} of {LINES} lines are good");
    progress::note(format_args!("{LINES} lines compared, {accepted} of them accepted, no difference"));
    Ok(())
}
