//! One filter: the kernel's verdict and selection, and the daemon's.

use std::sync::Arc;

use anyhow::{Result, ensure};
use kprobed_host::kernel::SymbolTable;
use kprobed_trace::decode::Schema;
use kprobed_trace::filter::{Binding, BoundFilter, Filter, FilterError, KernelFilterFeatures};

use super::guest::Recorded;
use super::selection::Selection;
use super::table::{self, Known};

/// A filter.
pub(super) struct Case<'a> {
    pub(super) text: &'a str,
    /// Place of its probe.
    at: usize,
    ours: Result<Bound, FilterError>,
    /// Place of the probe for what the kernel is to do for it.
    pub(super) pushed: Option<usize>,
}

struct Bound {
    filter: BoundFilter,
    /// Of its canonical text.
    canonical: BoundFilter,
    /// Whether what the kernel is to do for it is all of it.
    is_exact: bool,
}

/// What came of a comparison.
pub(super) enum Outcome {
    Agree(Agreement),
    /// The kernel cannot filter by any part of it.
    NothingPushedDown,
    Differ {
        what: String,
        /// Differences that may be the reason.
        known: &'static [Known],
    },
}

pub(super) enum Agreement {
    /// Neither the kernel nor the daemon accepts it.
    Refused,
    /// Both select the same: some events but not all, or else.
    Taken { is_part: bool },
    /// The kernel selects what the daemon does, or at least that if the table says so.
    PushedDown,
}

impl<'a> Case<'a> {
    pub(super) fn new(text: &'a str, at: usize, schema: &Arc<Schema>, symbols: &SymbolTable) -> Self {
        let ours = Filter::parse(text).and_then(|filter| {
            let binding = Binding { probe: "ft/plain", host: "guest", functions: Some(symbols) };
            let canonical = Filter::parse(&filter.to_string())?.bind(schema, &binding)?;
            Ok(Bound { filter: filter.bind(schema, &binding)?, canonical, is_exact: false })
        });
        Self { text, at, ours, pushed: None }
    }

    /// What the kernel is to do for it.
    pub(super) fn pushed_down(&mut self, features: KernelFilterFeatures) -> Option<String> {
        let bound = self.ours.as_mut().ok()?;
        let pushed = bound.filter.kernel_text(features);
        bound.is_exact = pushed.exact;
        pushed.text
    }

    /// What we have against it; empty for nothing.
    pub(super) fn code(&self) -> &'static str {
        self.ours.as_ref().err().map_or("", |error| error.code.name())
    }

    /// Compares verdicts and selections.
    pub(super) fn of_text(
        &self,
        verdicts: &[Option<String>],
        recorded: &[Recorded],
        unfiltered: &Recorded,
    ) -> Result<Outcome> {
        let bound = match (&self.ours, &verdicts[self.at]) {
            (Ok(bound), None) => bound,
            (Err(_), Some(_)) => return Ok(Outcome::Agree(Agreement::Refused)),
            (Ok(_), Some(verdict)) => {
                let what = format!("the kernel refuses it: {verdict}");
                return Ok(Outcome::Differ { what, known: table::TAKEN });
            }
            (Err(error), None) => {
                let what = format!("we refuse it: {error:?}");
                return Ok(Outcome::Differ { what, known: table::REFUSED });
            }
        };
        let filtered = &recorded[self.at];
        let kernel = Selection::all(filtered)?;
        let chosen = Selection::ours(&bound.filter, filtered, filtered.id)?;
        if kernel != chosen {
            let what = format!("of {} that the kernel selects, we do {}", kernel.events(), chosen.events());
            return Ok(Outcome::Differ { what, known: table::DECISIONS });
        }
        let ours = Selection::ours(&bound.filter, unfiltered, filtered.id)?;
        let canonical = Selection::ours(&bound.canonical, unfiltered, filtered.id)?;
        ensure!(ours == canonical, "{}: its canonical text selects something else", self.text);
        let events = ours.events();
        if kernel != ours {
            let what = format!("the kernel selects {}, we {events}", kernel.events());
            return Ok(Outcome::Differ { what, known: table::SELECTIONS });
        }
        let is_part = events > 0 && events < unfiltered.columns.len();
        Ok(Outcome::Agree(Agreement::Taken { is_part }))
    }

    /// Compares what the kernel did for it with what it is to do.
    pub(super) fn of_pushed_down(
        &self,
        texts: &[String],
        verdicts: &[Option<String>],
        recorded: &[Recorded],
        unfiltered: &Recorded,
    ) -> Result<Outcome> {
        let (Ok(bound), Some(at)) = (&self.ours, self.pushed) else { return Ok(Outcome::NothingPushedDown) };
        let text = &texts[at];
        if let Some(verdict) = &verdicts[at] {
            let what = format!("the kernel refuses what it is to do, {text}: {verdict}");
            return Ok(Outcome::Differ { what, known: table::PUSHED_DOWN });
        }
        let filtered = &recorded[at];
        let kernel = Selection::all(filtered)?;
        let ours = Selection::ours(&bound.filter, unfiltered, filtered.id)?;
        if kernel.holds(&ours) && (!bound.is_exact || kernel == ours) {
            return Ok(Outcome::Agree(Agreement::PushedDown));
        }
        let (theirs, ours) = (kernel.events(), ours.events());
        let exactly = if bound.is_exact { "exactly" } else { "at least" };
        let what =
            format!("the kernel is to do {text}: it selects {theirs}, which is not {exactly} our {ours}");
        Ok(Outcome::Differ { what, known: table::PUSHED_DOWN })
    }
}
