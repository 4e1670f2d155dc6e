//! Tests of crashes: runs of the daemon, one after the other, that end in order or are cut off at
//! any byte.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// An entry: its events, its bytes, and how many events before it were never appended.
    Append {
        events: u32,
        bytes: usize,
        skip: u64,
    },
    Loss,
    Flush,
    /// A new segment for later entries.
    Age,
    /// The run ends in order.
    Close,
    /// The run ends with this many of 256 parts of its last segment on disk.
    Crash {
        part: u8,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let append = (0_u32..20, 0_usize..1500, prop_oneof![9 => Just(0_u64), 1 => 1_u64..9]);
    prop_oneof![
        12 => append.prop_map(|(events, bytes, skip)| Step::Append { events, bytes, skip }),
        2 => Just(Step::Loss),
        2 => Just(Step::Flush),
        1 => Just(Step::Age),
        1 => Just(Step::Close),
        1 => any::<u8>().prop_map(|part| Step::Crash { part }),
    ]
}

/// Entries appended in one run.
#[derive(Debug, Default)]
struct Run {
    entries: Vec<SpoolEntry>,
    next: u64,
    ended: Option<bool>,
}

impl Run {
    fn entry(&self, sequence: u64) -> SpoolEntry {
        self.entries.iter().find(|entry| entry.sequence == sequence && entry.events > 0).unwrap().clone()
    }
}

fn run_of(epoch: u64, epochs: &[u64]) -> usize {
    epochs.iter().position(|known| *known == epoch).unwrap()
}

/// The reader must return the appended entries, except those that have expired at the beginning and
/// those that never reached the disk at the end of a run.
fn check(spool: &Spool, runs: &[Run], epochs: &[u64]) {
    let mut reader = reader(spool, HistoryStart::Oldest);
    let mut run: Option<usize> = None;
    let mut at = 0;
    let mut events = 0;
    let mut expired = 0;
    let end_of_run = |run: Option<usize>, at: u64| {
        if let Some(run) = run.map(|run| &runs[run]) {
            assert!(at <= run.next);
            assert!(run.ended != Some(true) || at == run.next, "a run that ended in order is complete");
        }
    };
    let mut losses = 0;
    while let Some(item) = reader.next().unwrap() {
        match item {
            SpoolItem::EpochStart(start) => {
                end_of_run(run, at);
                let next = run_of(start.at.epoch, epochs);
                // Runs without an entry are not listed.
                let before = runs[..next].iter().rposition(|run| !run.entries.is_empty());
                if let (Some(run), Some(before)) = (run, before)
                    && run == before
                {
                    assert_eq!(start.previous_ended_cleanly, runs[before].ended);
                }
                (run, at) = (Some(next), 0);
            }
            SpoolItem::Missing(missing) => {
                let run = &runs[run.unwrap()];
                let (from, to) = (missing.from.unwrap(), missing.to.unwrap());
                assert_eq!(from, at);
                let inside = run.entries.iter().filter(|entry| entry.sequence >= from && entry.sequence < to);
                let stored: u64 = inside.map(|entry| u64::from(entry.events)).sum();
                match missing.cause {
                    MissingCause::Expired => {
                        assert_eq!(from, 0, "only the beginning expires");
                        expired += stored;
                    }
                    MissingCause::NotStored => assert_eq!(stored, 0),
                    MissingCause::Damaged => panic!("nothing was damaged: {missing:?}"),
                }
                at = to;
            }
            SpoolItem::Entry(entry) => {
                let run = &runs[run.unwrap()];
                if entry.events == 0 {
                    assert!(run.entries.contains(&entry));
                    losses += 1;
                } else {
                    assert_eq!(entry.sequence, at);
                    assert_eq!(entry, run.entry(at));
                }
                at = entry.end().unwrap();
                events += u64::from(entry.events);
            }
        }
    }
    end_of_run(run, at);
    let stats = spool.stats();
    assert_eq!((stats.events, stats.expired_events), (events, expired));
    let known: usize =
        runs.iter().map(|run| run.entries.iter().filter(|entry| entry.events == 0).count()).sum();
    assert!(losses <= known);
    assert!(stats.bytes <= 24 << 10);
}

fn options(directory: &Path) -> SpoolOptions {
    SpoolOptions { max_bytes: 24 << 10, ..super::options(directory) }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]
    #[test]
    fn what_is_read_is_what_was_put_in(steps in vec(step(), 0..120)) {
        let mut directory = tempfile::tempdir().unwrap();
        let (mut spool, mut writer, _) = Spool::open(options(directory.path()), BOOT, NOW_NS).unwrap();
        let mut epochs = vec![spool.stats().end.epoch];
        let mut runs = vec![Run::default()];
        for step in steps {
            let run = runs.last_mut().unwrap();
            match step {
                Step::Append { events, bytes, skip } => {
                    let sequence = run.next + skip;
                    // Every entry has a time of now, so that none is too old.
                    let entry = SpoolEntry { first_ns: 0, last_ns: 1, ..super::events(sequence, events, bytes) };
                    writer.append(&entry, &[]).unwrap();
                    run.next = sequence + u64::from(events);
                    run.entries.push(entry);
                }
                Step::Loss => {
                    let entry = SpoolEntry { first_ns: 0, last_ns: 1, ..loss(run.next) };
                    writer.append(&entry, &[]).unwrap();
                    run.entries.push(entry);
                }
                Step::Flush => writer.flush().unwrap(),
                Step::Age => writer.tick(std::time::Instant::now(), NOW_NS + 300 * SECOND_NS).unwrap(),
                Step::Close => {
                    run.ended = Some(true);
                    writer.close().unwrap();
                    drop(spool);
                    let recovery;
                    let wall_ns = NOW_NS + epochs.len() as u64;
                    (spool, writer, recovery) = Spool::open(options(directory.path()), BOOT, wall_ns).unwrap();
                    prop_assert_eq!((recovery.cut_segments, recovery.set_aside), (0, 0));
                    epochs.push(spool.stats().end.epoch);
                    runs.push(Run::default());
                }
                Step::Crash { part } => {
                    run.ended = Some(false);
                    let copy = crashed(directory.path());
                    let name = |id: SegmentId| copy.path().join(id.to_string());
                    let own = SegmentId { epoch: *epochs.last().unwrap(), number: 0 };
                    if let Some(last) = files(copy.path(), ".seg").last().filter(|last| **last >= name(own)) {
                        let file = std::fs::OpenOptions::new().write(true).open(last).unwrap();
                        let length = file.metadata().unwrap().len();
                        file.set_len(length * u64::from(part) / 256).unwrap();
                    }
                    let recovery;
                    let wall_ns = NOW_NS + epochs.len() as u64;
                    (spool, writer, recovery) = Spool::open(options(copy.path()), BOOT, wall_ns).unwrap();
                    prop_assert_eq!(recovery.set_aside, 0);
                    prop_assert_eq!(recovery.cut_segments, recovery.reasons.len() as u64);
                    directory = copy;
                    // Entries that were cut off never existed.
                    let end = read(&spool, HistoryStart::Oldest);
                    let left = end.iter().rev().find_map(|item| match item {
                        SpoolItem::EpochStart(start) if start.at.epoch == own.epoch => Some(true),
                        _ => None,
                    });
                    if left.is_none() {
                        run.entries.clear();
                    }
                    epochs.push(spool.stats().end.epoch);
                    runs.push(Run::default());
                }
            }
        }
        check(&spool, &runs, &epochs);
    }
}
