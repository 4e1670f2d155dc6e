//! From one instance to the next: what was held comes out once, in the order of time, with the losses that matter.

use std::collections::HashSet;

use super::super::collector::Collector;
use super::super::counters::BufferCounters;
use super::super::cut::{Cuts, Line, Seen, Side};
use super::super::held::{HeldLost, HeldPages, Wanted};
use super::super::turn::Turn;
use super::*;
use kprobed_host::kernel::{FactsCache, KernelPaths};
use kprobed_host::ring::PageLayout;
use kprobed_host::tracefs::Tracefs;

const HEADER_PAGE: &str = include_str!("../../../../fixtures/ring/small-mix/header_page");

fn layout() -> PageLayout {
    PageLayout::parse(HEADER_PAGE).unwrap()
}

fn held(pages: Vec<(Vec<u8>, HeldLost)>) -> HeldPages {
    HeldPages::of(pages, &layout())
}

/// A page with events of task 5 at these times.
fn page(times: &[u64]) -> Vec<u8> {
    let first = times.first().copied().unwrap_or_default();
    let mut data = Vec::new();
    let mut now = first;
    for time in times {
        let delta = u32::try_from(time - now).unwrap();
        // Four words of payload.
        data.extend((delta << 5 | 4).to_le_bytes());
        let mut payload = [0; 16];
        payload[0] = 7;
        payload[4] = 5;
        data.extend(payload);
        now = *time;
    }
    let mut page = first.to_le_bytes().to_vec();
    page.extend((data.len() as u64).to_le_bytes());
    page.extend(data);
    page
}

fn both_ends(last: &[u64], next: &[u64], start: u64) -> Cuts {
    let seen = |side, times: &[u64]| -> Vec<Seen> {
        let of_window = times.iter().filter(|time| **time >= start);
        of_window.map(|time_ns| Seen { line: Line::Task(5), time_ns: *time_ns, side }).collect()
    };
    let seen = [seen(Side::Last, last), seen(Side::Next, next)].concat();
    Cuts::find(seen, &(start..=1000), HashSet::from([7]))
}

/// What a subscriber gets of two instances, and what the ledger says: read and lost.
fn published(last: &HeldPages, next: &HeldPages, cuts: Option<&Cuts>) -> (Vec<u64>, Vec<String>, (u64, u64)) {
    let layout = layout();
    let hub = hub();
    let subscription = subscribe(&hub, &[], QueueLimits::default());
    let table = SourceTable::default();
    table.insert([(7, source("a", 1))]);
    let nowhere = std::path::PathBuf::from("/nonexistent");
    let paths = KernelPaths {
        procfs: nowhere.clone(),
        sysfs: nowhere.clone(),
        debugfs: nowhere.clone(),
        tracefs: nowhere.clone(),
    };
    let mut tasks = TaskNames::new(Tracefs::new(&nowhere, &nowhere), nowhere.clone());
    let mut addresses = AddressNames::new(Arc::new(FactsCache::new(paths)));
    let counters = BufferCounters::default();
    let mut turn = Turn {
        cpu: 0,
        layout: &layout,
        sources: &table,
        counters: &counters,
        hub: &hub,
        tasks: &mut tasks,
        addresses: &mut addresses,
    };
    turn.held((last, &layout), (next, &layout), cuts, &mut Collector::default());
    let items = taken(&subscription);
    let mut times = Vec::new();
    for item in &items {
        if let Item::Batch(batch) = item {
            for group in &read_batch(&batch.message).unwrap().groups {
                let offsets =
                    group.offsets_ns.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
                times.extend(offsets.map(|offset| group.base_ns + u64::from(offset)));
            }
        }
    }
    let counts = counters.counts(0);
    (times, summary(&items), (counts.read, counts.overrun))
}

#[test]
fn every_hit_comes_from_one_instance() {
    // The copies of a hit are one apart; the next instance was switched on at 15, between those of the second hit.
    let last = [10, 14, 20, 30, 40, 50];
    let next = [16, 21, 31, 41, 51, 61];
    let cuts = both_ends(&last, &next[..5], 15);
    let pages = |times: &[u64]| {
        held(vec![(page(&times[..2]), HeldLost::Nothing), (page(&times[2..]), HeldLost::Nothing)])
    };
    let (times, told, counts) = published(&pages(&last), &pages(&next), Some(&cuts));
    assert_eq!(times, [10, 14, 21, 31, 41, 51, 61]);
    assert_eq!((told.len(), counts), (1, (7, 0)), "{told:?}");
}

#[test]
fn losses_before_the_cut_are_those_of_the_last_instance() {
    let last = held(vec![(page(&[10]), HeldLost::Nothing), (page(&[20, 30]), HeldLost::Events(Some(9)))]);
    // It lost copies of the same hits.
    let next = held(vec![(page(&[21, 31]), HeldLost::Events(Some(4)))]);
    let cuts = both_ends(&[10, 20, 30], &[21, 31], 22);
    let (times, told, counts) = published(&last, &next, Some(&cuts));
    assert_eq!((times, counts), (vec![10, 20, 31], (3, 9)));
    assert_eq!(told, ["1 of cpu0", "Overrun Some(9) on cpu0 before 20", "2 of cpu0"]);
}

#[test]
fn losses_after_the_window_are_those_of_the_next_instance() {
    let last = held(vec![(page(&[10, 20]), HeldLost::Nothing), (page(&[1040]), HeldLost::Events(Some(9)))]);
    let next = held(vec![(page(&[11, 21]), HeldLost::Nothing), (page(&[1051]), HeldLost::Events(Some(4)))]);
    let cuts = both_ends(&[10, 20], &[11, 21], 5);
    let (times, told, counts) = published(&last, &next, Some(&cuts));
    assert_eq!((times, counts), (vec![11, 21, 1051], (3, 4)));
    assert_eq!(told, ["2 of cpu0", "Overrun Some(4) on cpu0 before 1051", "1 of cpu0"]);
}

#[test]
fn a_gap_in_the_window_is_found() {
    let seen = |last: Vec<(Vec<u8>, HeldLost)>, next: Vec<(Vec<u8>, HeldLost)>, has_ended| {
        let wanted = Wanted { window: 100..=200, both: HashSet::from([7]), has_ended };
        let (layout, mut seen) = (layout(), Vec::new());
        let whole = held(last).note(Side::Last, 0, &layout, &wanted, &mut seen)
            && held(next).note(Side::Next, 0, &layout, &wanted, &mut seen);
        whole.then(|| seen.iter().map(|copy| (copy.time_ns, copy.side)).collect::<Vec<_>>())
    };
    let whole = || vec![(page(&[90, 110, 190, 210]), HeldLost::Nothing)];
    let gap = |before: &[u64], after: &[u64]| {
        vec![(page(before), HeldLost::Nothing), (page(after), HeldLost::Events(Some(1)))]
    };
    let both = [Side::Last, Side::Next].map(|side| [(110, side), (190, side)]).concat();
    assert_eq!(seen(whole(), whole(), false), Some(both.clone()));
    // Before the window and behind it nothing matters, as long as the next instance has all that the last one may have lost.
    assert_eq!(seen(gap(&[50], &[90, 110, 190, 210]), whole(), true), Some(both.clone()));
    assert_eq!(seen(gap(&[90, 110, 190, 210], &[300]), whole(), true), Some(both.clone()));
    assert_eq!(seen(whole(), gap(&[90, 110, 190, 210], &[300]), true), Some(both));
    assert_eq!(seen(whole(), gap(&[50], &[90, 110, 190, 210]), true), None);
    for (before, after) in [(&[90][..], &[150][..]), (&[150], &[190]), (&[150], &[300]), (&[50], &[300])] {
        assert_eq!(seen(gap(before, after), whole(), true), None, "{before:?} {after:?}");
        assert_eq!(seen(whole(), gap(before, after), true), None, "{before:?} {after:?}");
    }
}

#[test]
fn without_cuts_nothing_is_taken_from_the_next() {
    let last = held(vec![(page(&[10, 20]), HeldLost::Nothing), (page(&[30]), HeldLost::Events(Some(2)))]);
    let next = held(vec![(page(&[21, 31]), HeldLost::Events(Some(1)))]);
    let (times, _, counts) = published(&last, &next, None);
    assert_eq!((times, counts), (vec![10, 20, 30], (3, 2)));
}

#[test]
fn a_page_that_makes_no_sense_is_told() {
    let last = held(vec![
        (page(&[10]), HeldLost::Nothing),
        (vec![1, 2, 3], HeldLost::Nothing),
        (page(&[20]), HeldLost::Nothing),
    ]);
    let (times, told, _) = published(&last, &held(Vec::new()), None);
    assert_eq!(times, [10, 20]);
    assert!(told.iter().any(|item| item.starts_with("Undecodable Some(1)")), "{told:?}");
}
