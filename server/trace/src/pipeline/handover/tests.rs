//! Tests of the hand-over: held events are published once, in the order of time, with the losses
//! that matter.

use std::collections::HashSet;
use std::sync::Arc;

use super::super::collector::Collector;
use super::super::counters::BufferCounters;
use super::super::ring::{Gap, PageRead};
use super::super::samples::{hub, source};
use super::super::tests::{subscribe, summary, taken};
use super::super::{Item, QueueLimits, SourceTable};
use super::cutover::TaskKey;
use super::*;
use crate::wire::read_batch;
use kprobed_host::kernel::{FactsCache, KernelPaths};
use kprobed_host::ring::Page;

const HEADER_PAGE: &str = include_str!("../../../../fixtures/ring/small-mix/header_page");

fn layout() -> PageLayout {
    PageLayout::parse(HEADER_PAGE).unwrap()
}

fn held(pages: impl IntoIterator<Item = (Vec<u8>, Option<Gap>)>) -> HeldPages {
    let (layout, mut held) = (layout(), HeldPages::default());
    for (bytes, gap) in pages {
        held.push(&PageRead { bytes: &bytes, page: Page::parse(&bytes, &layout), gap }, &layout);
    }
    held
}

fn lost(count: u64) -> Gap {
    Gap { count: Some(count) }
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

fn both_ends(last: &[u64], next: &[u64], start: u64) -> Cutover {
    let seen = |side, times: &[u64]| -> Vec<EventCopy> {
        let of_window = times.iter().filter(|time| **time >= start);
        of_window.map(|time_ns| EventCopy { task: TaskKey::Task(5), time_ns: *time_ns, side }).collect()
    };
    let seen = [seen(Side::Old, last), seen(Side::New, next)].concat();
    Cutover::find(seen, &(start..=1000), HashSet::from([7]))
}

/// The items of a subscriber from two instances, and the ledger terms read and lost.
fn published(
    last: &HeldPages,
    next: &HeldPages,
    cuts: Option<&Cutover>,
) -> (Vec<u64>, Vec<String>, (u64, u64)) {
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
    let counters = BufferCounters::default();
    let mut target = Target::new(
        Arc::new(table),
        Arc::clone(&hub),
        (Tracefs::new(&nowhere, &nowhere), nowhere.clone()),
        Arc::new(FactsCache::new(paths)),
    );
    let mut decoding =
        Decoding { cpu: 0, counters: &counters, collector: &mut Collector::default(), target: &mut target };
    publish((last, &layout), (next, &layout), cuts, &mut decoding);
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
    // The copies of a hit are one apart; the next instance was switched on at 15, between those of
    // the second hit.
    let last = [10, 14, 20, 30, 40, 50];
    let next = [16, 21, 31, 41, 51, 61];
    let cuts = both_ends(&last, &next[..5], 15);
    let pages = |times: &[u64]| held(vec![(page(&times[..2]), None), (page(&times[2..]), None)]);
    let (times, told, counts) = published(&pages(&last), &pages(&next), Some(&cuts));
    assert_eq!(times, [10, 14, 21, 31, 41, 51, 61]);
    assert_eq!((told.len(), counts), (1, (7, 0)), "{told:?}");
}

#[test]
fn losses_before_the_cut_are_those_of_the_last_instance() {
    let last = held(vec![(page(&[10]), None), (page(&[20, 30]), Some(lost(9)))]);
    // It lost copies of the same hits.
    let next = held(vec![(page(&[21, 31]), Some(lost(4)))]);
    let cuts = both_ends(&[10, 20, 30], &[21, 31], 22);
    let (times, told, counts) = published(&last, &next, Some(&cuts));
    assert_eq!((times, counts), (vec![10, 20, 31], (3, 9)));
    assert_eq!(told, ["1 of cpu0", "Overrun Some(9) on cpu0 before 20", "2 of cpu0"]);
}

#[test]
fn losses_after_the_window_are_those_of_the_next_instance() {
    let last = held(vec![(page(&[10, 20]), None), (page(&[1040]), Some(lost(9)))]);
    let next = held(vec![(page(&[11, 21]), None), (page(&[1051]), Some(lost(4)))]);
    let cuts = both_ends(&[10, 20], &[11, 21], 5);
    let (times, told, counts) = published(&last, &next, Some(&cuts));
    assert_eq!((times, counts), (vec![11, 21, 1051], (3, 4)));
    assert_eq!(told, ["2 of cpu0", "Overrun Some(4) on cpu0 before 1051", "1 of cpu0"]);
}

#[test]
fn a_gap_in_the_window_is_found() {
    let seen = |last: Vec<(Vec<u8>, Option<Gap>)>, next: Vec<(Vec<u8>, Option<Gap>)>, has_ended| {
        let wanted = HandoverWindow { window: 100..=200, both: HashSet::from([7]), has_ended };
        let (layout, mut seen) = (layout(), Vec::new());
        let whole = held(last).note(Side::Old, 0, &layout, &wanted, &mut seen)
            && held(next).note(Side::New, 0, &layout, &wanted, &mut seen);
        whole.then(|| seen.iter().map(|copy| (copy.time_ns, copy.side)).collect::<Vec<_>>())
    };
    let whole = || vec![(page(&[90, 110, 190, 210]), None)];
    let gap = |before: &[u64], after: &[u64]| vec![(page(before), None), (page(after), Some(lost(1)))];
    let both = [Side::Old, Side::New].map(|side| [(110, side), (190, side)]).concat();
    assert_eq!(seen(whole(), whole(), false), Some(both.clone()));
    // Gaps before and after the window do not matter, as long as the next instance has all events
    // that the last one may have lost.
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
    let last = held(vec![(page(&[10, 20]), None), (page(&[30]), Some(lost(2)))]);
    let next = held(vec![(page(&[21, 31]), Some(lost(1)))]);
    let (times, _, counts) = published(&last, &next, None);
    assert_eq!((times, counts), (vec![10, 20, 30], (3, 2)));
}

#[test]
fn a_page_that_makes_no_sense_is_told() {
    let last = held(vec![(page(&[10]), None), (vec![1, 2, 3], None), (page(&[20]), None)]);
    let (times, told, _) = published(&last, &held(Vec::new()), None);
    assert_eq!(times, [10, 20]);
    assert!(told.iter().any(|item| item.starts_with("Undecodable Some(1)")), "{told:?}");
}
