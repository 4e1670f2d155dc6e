//! Tests of ledger terms: every counter of the history counts.

use std::time::Duration;

use crate::history::{History, HistoryCounts};
use crate::pipeline::samples::{hub, publish, source};
use crate::spool::{BootId, SpoolOptions, SpoolStats};

const BATCH_EVENTS: u64 = 200;

/// Batches that fill several segments.
const BATCHES: u64 = 100;

/// A term without a line here does not compile; one that nothing counts fails.
#[tokio::test(flavor = "multi_thread")]
async fn every_term_of_the_history_counts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("spool");
    let (hour, second) = (Duration::from_hours(1), Duration::from_secs(1));
    let options = SpoolOptions { segment_bytes: 4 << 10, ..SpoolOptions::new(&path, 64 << 10, hour, second) };
    let hub = hub();
    let history = History::start(options, BootId([7; 16]), &hub).unwrap();
    let source = source("a", 1);
    for batch in 0..BATCHES {
        publish(&hub, &source, 0, BATCH_EVENTS, 1_000_000 * (batch + 1));
    }
    history.settle().await.unwrap();
    let before = history.counts();
    assert_eq!((before.read, before.stored, before.not_stored), (BATCHES * BATCH_EVENTS, before.read, 0));

    // The disk is taken away: the segment that is open takes some more, and none can be begun after
    // it.
    std::fs::rename(&path, directory.path().join("elsewhere")).unwrap();
    for batch in BATCHES..2 * BATCHES {
        publish(&hub, &source, 0, BATCH_EVENTS, 1_000_000 * (batch + 1));
    }
    history.settle().await.unwrap();
    let failed = history.counts().stats;
    assert!(failed.failing && failed.last_error.is_some(), "{failed:?}");

    // With the disk back, the spool says in its files what it lacks.
    std::fs::rename(directory.path().join("elsewhere"), &path).unwrap();
    for batch in 2 * BATCHES.. {
        publish(&hub, &source, 0, BATCH_EVENTS, 1_000_000 * (batch + 1));
        history.settle().await.unwrap();
        if history.counts().stats.not_stored_events > 0 {
            break;
        }
        assert!(batch < 200 * BATCHES, "{:?}", history.counts());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let counts = history.counts();
    assert_eq!(counts.read, counts.stored + counts.in_memory + counts.not_stored, "{counts:?}");
    let HistoryCounts { read, stored, in_memory: _, not_stored, expired, stats } = counts;
    let SpoolStats {
        bytes,
        segments,
        events,
        oldest,
        unwritten_events: _,
        end,
        expired_events,
        not_stored_events,
        errors,
        last_error: _,
        failing: _,
        damaged: _,
    } = stats;
    for (term, count) in [
        ("read", read),
        ("stored", stored),
        ("not_stored", not_stored),
        ("expired", expired),
        ("bytes", bytes),
        ("segments", segments),
        ("events", events),
        ("oldest", oldest.map_or(0, |(_, wall_ns)| wall_ns)),
        ("end", end.sequence),
        ("expired_events", expired_events),
        ("not_stored_events", not_stored_events),
        ("errors", errors),
    ] {
        assert!(count > 0, "nothing counted `{term}`");
    }
    hub.close();
    history.stop().await;
}
