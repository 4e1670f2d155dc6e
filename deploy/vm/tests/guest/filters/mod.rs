//! Differential test of filters: the kernel's verdicts and selections against the daemon's.
//!
//! Every filter gets a probe of its own, all of them at one place, with one more that has no
//! filter: the events that the kernel records for a filtered probe must be those that the daemon
//! selects from the unfiltered one. The filter that the daemon would give to the kernel
//! ([`BoundFilter::kernel_text`]) must select the same events, or more. Filters are drawn anew for
//! each commit; `KPROBED_VM_SEED` repeats a draw.

mod case;
mod generator;
mod guest;
mod selection;
mod table;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, ensure};
use kprobed_host::kernel::SymbolTable;
use kprobed_trace::decode::Value;
use kprobed_trace::filter::KernelFilterFeatures;
use kprobed_vm::progress;

use self::case::{Agreement, Case, Outcome};
use self::guest::Probes;
use crate::Test;
use crate::differential::Random;
use crate::effort;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Daemon {
        filters_select_what_the_kernel_selects,
    }
};

/// Filters that are drawn for each kernel, beside those that are written down.
fn drawn() -> usize {
    effort::pick(16, 200)
}

fn filters_select_what_the_kernel_selects(fixture: &Fixture) -> Result<()> {
    let mut random = Random::of_theme("filters");
    let paths = generator::paths(&mut random);
    let mut filters: Vec<String> = table::WRITTEN.iter().map(|text| (*text).to_owned()).collect();
    filters.extend((0..drawn()).map(|_| generator::filter(&mut random, &paths)));
    // With those of `three`, which no number has the size of, kernels before 6.1 panic: `dangerous`
    // shows that the daemon refuses them.
    filters.retain(|text| !(fixture.is_older_than(6, 1) && text.contains("three")));

    let mut probes = Probes::boot(fixture)?;
    let symbols = SymbolTable::parse(&probes.kallsyms()?);
    let schema = probes.schema()?;
    let new = !fixture.is_older_than(6, 12);
    let features = KernelFilterFeatures { functions: new, cpu_lists: new };
    let mut texts = filters.clone();
    let mut cases = Vec::new();
    for (index, text) in filters.iter().enumerate() {
        let mut case = Case::new(text, index, &schema, &symbols);
        if let Some(text) = case.pushed_down(features) {
            case.pushed = Some(texts.len());
            texts.push(text);
        }
        cases.push(case);
    }
    probes.set(&texts)?;
    let recorded = probes.record(&paths)?;
    let unfiltered = &recorded[texts.len()];
    ensure!(unfiltered.columns.len() >= paths.len(), "only {} events", unfiltered.columns.len());
    let faults = unfiltered
        .columns
        .fields
        .iter()
        .any(|field| (0..unfiltered.columns.len()).any(|row| field.value(row, 0) == Some(Value::Fault)));
    ensure!(!faults, "something could not be read: {:?}", unfiltered.columns);

    let (mut differences, mut different, mut excused) = (String::new(), 0, BTreeMap::<&str, usize>::new());
    let (mut both, mut neither, mut partial, mut pushed) = (0, 0, 0, 0);
    for case in &cases {
        let outcomes = [
            case.of_text(probes.verdicts(), &recorded, unfiltered)?,
            case.of_pushed_down(&texts, probes.verdicts(), &recorded, unfiltered)?,
        ];
        for outcome in outcomes {
            match outcome {
                Outcome::Agree(Agreement::Refused) => neither += 1,
                Outcome::Agree(Agreement::Taken { is_part }) => {
                    both += 1;
                    partial += usize::from(is_part);
                }
                Outcome::Agree(Agreement::PushedDown) => pushed += 1,
                Outcome::NothingPushedDown => {}
                Outcome::Differ { what, known } => {
                    let code = case.code();
                    let reason = known.iter().find(|known| (known.applies)(case.text, code, !new));
                    if let Some(known) = reason {
                        *excused.entry(known.reason).or_default() += 1;
                    } else {
                        writeln!(differences, "{}\n    {what}", case.text)?;
                        different += 1;
                    }
                }
            }
        }
    }
    for (reason, count) in &excused {
        progress::note(format_args!("{count} differ, as they should: {reason}"));
    }
    ensure!(different == 0, "{different} of {} filters differ:\n{differences}", texts.len());
    // Shares of all filters, so that they mean the same however many are drawn.
    let more_than = |count: usize, per_mille: usize| count * 1000 > filters.len() * per_mille;
    ensure!(
        more_than(both, 275) && more_than(neither, 61) && more_than(partial, 122) && more_than(pushed, 244),
        "{both} taken by both, {partial} of them select a part, {neither} refused, {pushed} pushed down"
    );
    progress::note(format_args!(
        "{} filters: {both} taken by both (of {} events, {partial} selected a part), {neither} refused by both, {pushed} pushed down",
        filters.len(),
        unfiltered.columns.len()
    ));
    Ok(())
}
