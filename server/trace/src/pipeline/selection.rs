//! Selection of a subscriber: which events of a batch it gets.
//!
//! Owns what a subscriber's view means for each probe, and the state of sampling and of the rate
//! limit. Several threads may select for a subscriber at once, each from another batch: filters run
//! without a lock. Never encodes events: `encodings` does.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::hidden::hidden;
use super::view::View;
use super::{Draft, Group, Origin};
use crate::decode::Schema;
use crate::filter::{Binding, BoundFilter, Filter, FilterCode, FilterError, Functions, RowOf};
use crate::wire::{Projected, Task};
use kprobed_host::kernel::FactsCache;

/// A view bound to one probe.
#[derive(Debug)]
struct SelectedProbe {
    filter: BoundFilter,
    /// Whether the filter compares texts of symbols, with the addresses hidden that have no symbol.
    hides_names: bool,
    projected: Arc<Projected>,
}

/// Binds filters to probes.
pub struct Binder {
    hostname: String,
    facts: Option<Arc<FactsCache>>,
}

impl fmt::Debug for Binder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Binder").field("hostname", &self.hostname).finish_non_exhaustive()
    }
}

impl Binder {
    /// A binder for a host, with the facts of its kernel if they are known.
    pub const fn new(hostname: String, facts: Option<Arc<FactsCache>>) -> Self {
        Self { hostname, facts }
    }

    /// Binds the filter of a view to the events of one source, given by name and fields. A view without a filter
    /// selects all of them.
    ///
    /// # Errors
    /// [`FilterError`] if the filter does not fit the events, or would tell an address that the view
    /// hides: before its functions are looked up, since that tells one too.
    pub fn bind(&self, view: &View, probe: &str, schema: &Schema) -> Result<BoundFilter, FilterError> {
        let Some(filter) = &view.filter else { return Ok(BoundFilter::Always) };
        if view.hides_addresses()
            && let Some(span) = filter.tells_address(|name| schema.can_hold_address(name))
        {
            return Err(FilterError::new(
                FilterCode::Address,
                span,
                "this comparison would tell a kernel address, and none of your roles shows addresses",
                "compare with numbers that are not addresses, or ask for a rule with `addresses` in `reads`",
            ));
        }
        let facts = self.facts.as_ref().and_then(|cache| cache.last());
        let functions = facts.as_ref().map(|facts| &facts.symbols as &dyn Functions);
        filter.bind(schema, &Binding { probe, host: &self.hostname, functions })
    }
}

/// The selected rows of one group.
#[derive(Clone, Debug)]
pub(super) struct Picked {
    /// Index of the group in the batch.
    pub(super) group: usize,
    /// Which of its rows; absent for all.
    pub(super) rows: Option<Vec<u32>>,
    pub(super) projected: Arc<Projected>,
}

/// The selected events of a batch, and the terms that count the others.
#[derive(Debug, Default)]
pub(super) struct Selected {
    pub(super) groups: Vec<Picked>,
    pub(super) events: u64,
    pub(super) terms: SelectionTerms,
}

/// Ledger terms of the events that are not selected.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SelectionTerms {
    pub(super) not_selected: u64,
    pub(super) filtered: u64,
    pub(super) sampled_out: u64,
    pub(super) limited: u64,
}

/// A subscriber's selection, with its state.
#[derive(Debug, Default)]
pub(super) struct Selector {
    /// The bound view of each schema: absent for a probe that is not selected.
    probes: Mutex<HashMap<u32, Option<Arc<SelectedProbe>>>>,
    thinning: Mutex<Thinning>,
}

/// Sampling and rate limit, which thin out the selected events.
#[derive(Debug, Default)]
struct Thinning {
    /// Number of events that sampling has counted.
    sampled: u64,
    budget: Budget,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A token bucket of one second. A token is a billion parts, one for each nanosecond at a rate of
/// one a second.
#[derive(Debug, Default)]
struct Budget {
    /// Absent before the first event.
    at_ns: Option<u64>,
    parts: u128,
}

const PARTS: u128 = 1_000_000_000;

impl Budget {
    /// Takes up to `wanted` tokens at a time.
    fn take(&mut self, wanted: u64, per_second: u64, now_ns: u64) -> u64 {
        let rate = u128::from(per_second);
        let elapsed_ns = self.at_ns.map_or(u64::MAX, |at_ns| now_ns.saturating_sub(at_ns));
        self.parts = (self.parts + u128::from(elapsed_ns) * rate).min(rate * PARTS);
        self.at_ns = self.at_ns.max(Some(now_ns));
        let granted = wanted.min(u64::try_from(self.parts / PARTS).unwrap_or(u64::MAX));
        self.parts -= u128::from(granted) * PARTS;
        granted
    }
}

impl Selector {
    /// Selects from a batch.
    pub(super) fn select(&self, view: &View, binder: &Binder, draft: &Draft) -> Selected {
        let mut selected = self.choose(view, binder, draft);
        self.thin_out(view, draft, &mut selected);
        selected
    }

    /// Removes some of the chosen events, if the view asks for it: those between samples, and those
    /// over the rate limit.
    pub(super) fn thin_out(&self, view: &View, draft: &Draft, selected: &mut Selected) {
        let is_sampled = view.sample_one_in > 1;
        if !is_sampled && view.max_events_per_second == 0 {
            return;
        }
        let mut thinning = lock(&self.thinning);
        if is_sampled {
            thinning.sample(view.sample_one_in, draft, selected);
        }
        if view.max_events_per_second > 0 {
            thinning.limit(view.max_events_per_second, draft, selected);
        }
        selected.groups.retain(|group| group.rows.as_ref().is_none_or(|rows| !rows.is_empty()));
    }

    /// The events that match the view, before sampling and the rate limit.
    pub(super) fn choose(&self, view: &View, binder: &Binder, draft: &Draft) -> Selected {
        let mut selected = Selected::default();
        for (index, group) in draft.groups.iter().enumerate() {
            let rows = group.columns.len() as u64;
            let Some(probe) = self.probe(view, binder, &group.origin) else {
                selected.terms.not_selected += rows;
                continue;
            };
            let kept = if probe.hides_names {
                let mut shown = group.clone();
                shown.columns.replace_unnamed(hidden);
                passing(&probe.filter, draft, &shown)
            } else {
                passing(&probe.filter, draft, group)
            };
            let passed = kept.as_ref().map_or(rows, |kept| kept.len() as u64);
            selected.events += passed;
            selected.terms.filtered += rows - passed;
            if passed > 0 {
                let projected = Arc::clone(&probe.projected);
                selected.groups.push(Picked { group: index, rows: kept, projected });
            }
        }
        selected
    }

    /// The view bound to a probe. It binds under the lock: a result from before
    /// [`forget`](Self::forget) must not be stored after it.
    fn probe(&self, view: &View, binder: &Binder, origin: &Origin) -> Option<Arc<SelectedProbe>> {
        let mut probes = lock(&self.probes);
        let probe = probes
            .entry(origin.schema_id)
            .or_insert_with(|| SelectedProbe::of(view, binder, origin).map(Arc::new));
        probe.clone()
    }

    /// Forgets all bound views: labels or other facts of probes have changed.
    pub(super) fn forget(&self) {
        lock(&self.probes).clear();
    }
}

impl Thinning {
    fn sample(&mut self, one_in: u64, draft: &Draft, selected: &mut Selected) {
        let before = selected.events;
        selected.keep(draft, |_, _| {
            let taken = self.sampled.is_multiple_of(one_in);
            self.sampled = self.sampled.wrapping_add(1);
            taken
        });
        selected.terms.sampled_out = before - selected.events;
    }

    fn limit(&mut self, per_second: u64, draft: &Draft, selected: &mut Selected) {
        let before = selected.events;
        let mut granted = self.budget.take(before, per_second, draft.last_ns());
        if granted < before {
            selected.keep(draft, |_, _| {
                let taken = granted > 0;
                granted = granted.saturating_sub(1);
                taken
            });
        }
        selected.terms.limited = before - selected.events;
    }
}

impl Selected {
    /// Whether it has all rows of its groups, so that subscribers can share its encoding.
    pub(super) fn is_whole(&self) -> bool {
        self.groups.iter().all(|group| group.rows.is_none())
    }

    /// Keeps of the selected rows those for which `taken` says so.
    fn keep(&mut self, draft: &Draft, mut taken: impl FnMut(usize, u32) -> bool) {
        self.events = 0;
        for picked in &mut self.groups {
            let rows = draft.groups.get(picked.group).map_or(0, |group| group.columns.len());
            let kept: Vec<u32> = match &picked.rows {
                None => (0..u32::try_from(rows).unwrap_or(u32::MAX))
                    .filter(|row| taken(picked.group, *row))
                    .collect(),
                Some(rows) => rows.iter().copied().filter(|row| taken(picked.group, *row)).collect(),
            };
            self.events += kept.len() as u64;
            picked.rows = (kept.len() != rows).then_some(kept);
        }
    }

    /// Removes events before a time stamp, in nanoseconds of the trace clock.
    pub(super) fn begin_at(&mut self, draft: &Draft, begin_ns: u64) {
        self.keep_times(draft, |time_ns| time_ns >= begin_ns);
    }

    /// Removes the earliest `skip` events, and counts `skip` down.
    pub(super) fn skip(&mut self, draft: &Draft, skip: &mut u64) {
        let mut times = Vec::new();
        self.keep_times(draft, |time_ns| {
            times.push(time_ns);
            true
        });
        times.sort_unstable();
        let first = usize::try_from(*skip).ok().and_then(|skip| times.get(skip).copied());
        let before = self.events;
        match first {
            // Of the events at the time of the first kept one, the last ones are kept.
            Some(first_ns) => {
                let earlier = times.partition_point(|time_ns| *time_ns < first_ns) as u64;
                let mut equal = skip.saturating_sub(earlier);
                self.keep_times(draft, |time_ns| {
                    let left_out = time_ns < first_ns || (time_ns == first_ns && equal > 0);
                    equal -= u64::from(left_out && time_ns == first_ns);
                    !left_out
                });
            }
            None => self.keep_times(draft, |_| false),
        }
        *skip -= before - self.events;
    }

    fn keep_times(&mut self, draft: &Draft, mut taken: impl FnMut(u64) -> bool) {
        self.keep(draft, |group, row| {
            let times = draft.groups.get(group).map(|group| &group.columns.timestamps_ns);
            times.and_then(|times| times.get(row as usize)).is_some_and(|time_ns| taken(*time_ns))
        });
        self.groups.retain(|group| group.rows.as_ref().is_none_or(|rows| !rows.is_empty()));
    }
}

/// The rows that a filter lets through; absent for all.
fn passing(filter: &BoundFilter, draft: &Draft, group: &Group) -> Option<Vec<u32>> {
    let program = match filter {
        BoundFilter::Always => return None,
        BoundFilter::Never => return Some(Vec::new()),
        BoundFilter::Program(program) => program,
    };
    let columns = &group.columns;
    // Tasks come sorted, and most events are of the same one as the event before.
    let mut last: Option<(i32, Option<&Task>)> = None;
    let mut kept = Vec::new();
    for row in 0..u32::try_from(columns.len()).unwrap_or(u32::MAX) {
        let tid = columns.tid(row as usize).unwrap_or_default();
        let task = match last {
            Some((known, task)) if known == tid => task,
            _ => {
                let found = draft.tasks.binary_search_by_key(&tid, |task| task.tid).ok();
                let task = found.and_then(|index| draft.tasks.get(index));
                last = Some((tid, task));
                task
            }
        };
        let event = RowOf {
            columns,
            row: row as usize,
            cpu: draft.cpu,
            type_id: group.origin.type_id,
            tgid: task.map(|task| task.tgid).filter(|tgid| *tgid != 0 || tid == 0),
            comm: task.map(|task| &*task.comm),
        };
        if program.matches(&event) {
            kept.push(row);
        }
    }
    (kept.len() != columns.len()).then_some(kept)
}

/// Whether a filter names a field with texts of symbols.
fn compares_names(filter: &Filter, schema: &Schema) -> bool {
    let mut found = false;
    filter.fields(&mut |name, _| {
        found |= schema.fields.iter().any(|field| field.name == name && field.names_addresses());
    });
    found
}

impl SelectedProbe {
    fn of(view: &View, binder: &Binder, origin: &Origin) -> Option<Self> {
        if !view.selects(&origin.name, &origin.labels()) || !view.permits(&origin.name, origin.uid) {
            return None;
        }
        // A filter that cannot be bound to a probe matches none of its events.
        let bound = binder.bind(view, &origin.name.to_string(), &origin.schema);
        let filter = bound.unwrap_or(BoundFilter::Never);
        let hides_names = matches!(filter, BoundFilter::Program(_))
            && view.hides_addresses()
            && view.filter.as_ref().is_some_and(|filter| compares_names(filter, &origin.schema));
        Some(Self { filter, hides_names, projected: Arc::new(view.projection.of(&origin.schema.fields)) })
    }
}
