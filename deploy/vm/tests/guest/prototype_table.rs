//! The table of function prototypes: the kernel accepts each translation.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::ProbeState;
use kprobed_vm::progress;

use crate::Test;
use crate::differential::Random;
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        the_kernel_takes_every_row_of_the_table,
    }
};

/// Prototypes, and the lines that they are on kernels with and without the type `char`.
const TABLE: &str = include_str!("../../../../server/fixtures/prototype/pairs.tsv");

/// Functions of 2018 that kernels have no more, or not under that name.
const GONE: [&str; 5] = ["do_IRQ", "__vfs_read", "SyS_openat", "SyS_open", "link_path_walk"];
/// One that newer compilers leave whole again.
const BACK: &str = "link_path_walk";
/// A function that all kernels have, with as many parameters as a prototype may need.
const INSTEAD: &str = "vfs_write";

fn the_kernel_takes_every_row_of_the_table(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let has_char = guest.has_feature("char")?;
    let (mut rows, mut elsewhere, mut tried) = (0, 0, 0);
    let start = Instant::now();
    // With little effort every second one; kernels that are tested together take different ones.
    let first = Random::of_theme("prototype_table").below(2) + usize::from(fixture.is_older_than(6, 12));
    let is_drawn = |row: usize| effort::is_full() || (row + first).is_multiple_of(2);
    for row in TABLE.lines().skip(1) {
        let columns: Vec<_> = row.split('\t').collect();
        let [_, prototype, with_char, without_char] = columns[..] else { anyhow::bail!("{row}") };
        let (function, parameters) = prototype.split_once('(').context("no parenthesis")?;
        let mut expected = if has_char { with_char.to_owned() } else { by_argument(without_char) };
        let mut text = prototype.to_owned();
        let is_gone = GONE.contains(&function) && (function != BACK || fixture.is_older_than(6, 18));
        rows += 1;
        elsewhere += usize::from(is_gone);
        if !is_drawn(rows) {
            continue;
        }
        if is_gone {
            let refusal = guest.refusal(prototype)?;
            ensure!(refusal.reason == "BAD_PROBE_ADDR", "{prototype}: {refusal:?}");
            text = format!("{INSTEAD}({parameters}");
            expected = expected.replace(function, INSTEAD);
        }
        let probe = guest.add(&text)?;
        ensure!(probe.state() == ProbeState::Armed, "{probe:?}");
        let written = without_guards(&probe.kernel_definition);
        ensure!(written == expected, "{text}: {written} is not {expected}");
        // What the kernel took, in its own words.
        let listed = guest.tracefs("kprobe_events")?;
        let listed = without_guards(listed.trim_end());
        ensure!(listed.lines().count() == 1 && arguments(listed) == arguments(&expected), "{text}: {listed}");
        guest.delete(&probe.name)?;
        tried += 1;
    }
    let took = start.elapsed();
    progress::note(format!("{tried} of {rows} prototypes in {took:.1?}, {elsewhere} of all on {INSTEAD}"));
    let expected = if fixture.is_older_than(6, 18) { 19 } else { 17 };
    ensure!((rows, elsewhere) == (77, expected), "{rows} rows, {elsewhere} elsewhere");
    Ok(())
}

/// The line without what the daemon adds to it, which tells faults from values.
fn without_guards(line: &str) -> &str {
    line.split_once(" __kpd_").map_or(line, |(asked_for, _)| asked_for)
}

/// What a line records: the words after the event and the place.
fn arguments(line: &str) -> Vec<&str> {
    line.split(' ').skip(2).collect()
}

/// The line with arguments instead of the registers that they are in.
fn by_argument(line: &str) -> String {
    let registers = ["%di", "%si", "%dx", "%cx", "%r8", "%r9"];
    registers
        .iter()
        .zip(1..)
        .fold(line.to_owned(), |line, (register, number)| line.replace(register, &format!("$arg{number}")))
}
