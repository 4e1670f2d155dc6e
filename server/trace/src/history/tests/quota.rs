//! Tests of limits on what accounts have in the history: what is kept, what readers get, and what is known later.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::history::recorder::wall_ns;
use crate::history::{History, HistoryItems, HistoryStart};
use crate::pipeline::samples::{group, hub, publish, source};
use crate::pipeline::{Draft, EventSource, Hub, Item, LossCause, Maker, View};
use crate::spool::{BootId, SpoolOptions};
use kprobed_host::kernel::ClockMapping;
use kprobed_lang::model::Glob;

const BOOT: BootId = BootId([7; 16]);

/// A maker with a limit that tests change.
#[derive(Debug)]
pub(super) struct TestMaker {
    account: Arc<str>,
    most: AtomicU64,
    /// What it had each time that its limit was reached.
    full: Mutex<Vec<u64>>,
}

impl TestMaker {
    pub(super) fn new(account: &str, most: u64) -> Arc<Self> {
        Arc::new(Self { account: account.into(), most: AtomicU64::new(most), full: Mutex::default() })
    }
}

impl Maker for TestMaker {
    fn account(&self) -> &Arc<str> {
        &self.account
    }

    fn most_history_bytes(&self) -> Option<u64> {
        Some(self.most.load(Ordering::Relaxed)).filter(|most| *most < u64::MAX)
    }

    fn history_is_full(&self, held: u64, more: u64) {
        assert!(held + more > self.most.load(Ordering::Relaxed));
        self.full.lock().unwrap().push(held);
    }
}

/// The source of a probe with this maker.
pub(super) fn of_maker(event: &str, schema_id: u32, maker: &Arc<TestMaker>) -> Arc<EventSource> {
    let source = source(event, schema_id);
    source.origin.set_maker(Some(Arc::<TestMaker>::clone(maker)));
    source
}

fn options(directory: &Path) -> SpoolOptions {
    let (hour, second) = (Duration::from_hours(1), Duration::from_secs(1));
    let options = SpoolOptions::new(&directory.join("spool"), 64 << 10, hour, second);
    SpoolOptions { segment_bytes: 4 << 10, ..options }
}

/// One batch with events of several probes: so many of each.
fn publish_all(hub: &Hub, sources: &[(&Arc<EventSource>, u64)], first_ns: u64) {
    let groups: Vec<_> = sources.iter().map(|(source, rows)| group(source, *rows, first_ns)).collect();
    // Of today: a spool that is opened forgets what is too old.
    let wall_offset_ns = i64::try_from(wall_ns()).unwrap();
    let clock = ClockMapping { wall_offset_ns, error_bound_ns: 0, sampled_at_ns: 0 };
    hub.publish(&Draft { cpu: 0, groups: &groups, tasks: &[], symbols: &[], clock });
}

/// What a new subscriber of everything reads, in short: events of a batch, or how many are lost.
async fn read(history: &History, hub: &Arc<Hub>) -> Vec<String> {
    read_by(history, hub, View::default()).await
}

async fn read_by(history: &History, hub: &Arc<Hub>, view: View) -> Vec<String> {
    let subscription = Arc::new(hub.subscribe(view));
    let mut reader = history.read(HistoryStart::Oldest, subscription).await.unwrap();
    let mut all = Vec::new();
    loop {
        let HistoryItems { items, is_last } = reader.next_items().unwrap();
        all.extend(items.iter().filter_map(|item| match item {
            Item::Batch(delivery) => Some(format!("{}+{}", delivery.sequence, delivery.events)),
            Item::Loss(loss) => {
                assert_eq!(loss.cause, LossCause::HistoryLimit);
                Some(format!("lost {}", loss.count.unwrap()))
            }
            _ => None,
        }));
        if is_last {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_reached_its_limit_leaves_room_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let hub = hub();
    let history = History::start(options(directory.path()), BOOT, &hub).unwrap();
    let (alice, bob) = (TestMaker::new("uid:1", 2000), TestMaker::new("uid:2", u64::MAX));
    let (a, b) = (of_maker("a", 1, &alice), of_maker("b", 2, &bob));
    let (other, nobodys) = (of_maker("c", 3, &alice), source("d", 4));
    let batches = 40;
    for batch in 0..batches {
        publish_all(&hub, &[(&a, 3), (&b, 2), (&nobodys, 1)], 1_000 * (batch + 1));
    }
    history.settle().await.unwrap();
    let held = history.held("uid:1");
    assert!((1500..=2000).contains(&held), "{held}");
    let counts = history.counts();
    let kept = counts.stored + counts.in_memory;
    assert_eq!((counts.read, counts.not_stored), (6 * batches, 0));
    assert_eq!(kept + counts.over_limit, counts.read);
    assert!(counts.over_limit.is_multiple_of(3) && counts.over_limit > 0, "{counts:?}");
    let full = batches - counts.over_limit / 3;
    assert_eq!(*alice.full.lock().unwrap(), [held], "said once");
    // Readers get all that others have recorded, and a report of the rest, before the batch that has the gap: a client
    // that goes on after that batch has been told.
    let expected: Vec<_> = (0..full)
        .map(|batch| format!("{}+6", 6 * batch))
        .chain((full..batches).flat_map(|batch| ["lost 3".to_owned(), format!("{}+3", 6 * batch + 3)]))
        .collect();
    assert_eq!(read(&history, &hub).await, expected);

    // Who does not select its probes gets no loss. Who selects some of them gets those of them.
    let of = |names: &[&str]| View {
        probes: names.iter().map(|name| Glob::new(*name)).collect(),
        ..View::default()
    };
    let others = read_by(&history, &hub, of(&["*/b", "*/d"])).await;
    assert!(others.len() as u64 == batches && others.iter().all(|one| one.ends_with("+3")), "{others:?}");
    let its = read_by(&history, &hub, of(&["*/a"])).await;
    let lost = its.iter().filter(|one| *one == "lost 3").count() as u64;
    assert_eq!((lost, its.len() as u64), (batches - full, batches));

    // Batches of its events alone are one gap, whatever the probe.
    for batch in 0..5 {
        publish(&hub, &other, 0, 1, 100_000 + batch);
    }
    publish(&hub, &nobodys, 0, 1, 200_000);
    history.settle().await.unwrap();
    let rest = ["lost 5".to_owned(), format!("{}+1", 6 * batches + 5)];
    assert_eq!(read(&history, &hub).await[expected.len()..], rest);
    // So are those at the end of the log.
    publish(&hub, &other, 0, 2, 210_000);
    publish(&hub, &a, 0, 3, 220_000);
    assert_eq!(read(&history, &hub).await.last().unwrap(), "lost 5");
    assert_eq!(history.held("uid:1"), held);

    // Of many probes there is only the sum, for every reader: what is said of them takes no room.
    let many: Vec<_> = (10..110).map(|schema_id| of_maker("e", schema_id, &alice)).collect();
    let some: Vec<_> = many.iter().map(|source| (source, 1)).chain([(&nobodys, 1)]).collect();
    let before = history.counts().stats.bytes;
    publish_all(&hub, &some, 230_000);
    publish_all(&hub, &some, 240_000);
    let others = read_by(&history, &hub, of(&["*/d"])).await;
    assert_eq!(
        others.iter().filter(|one| one.starts_with("lost ")).collect::<Vec<_>>(),
        ["lost 100", "lost 100"]
    );
    let bytes = history.counts().stats.bytes - before;
    assert!(bytes < 1000, "{bytes} bytes for 200 events that were left out, and 2 that were not");

    // With a higher limit it goes on, and hears of that one too.
    alice.most.store(2500, Ordering::Relaxed);
    publish(&hub, &a, 0, 1, 300_000);
    history.settle().await.unwrap();
    let more = history.held("uid:1");
    assert!(held < more && more <= 2500, "{more}");
    let small = more - held;
    alice.most.store(more + small + 5, Ordering::Relaxed);
    publish(&hub, &a, 0, 100, 400_000);
    history.settle().await.unwrap();
    assert_eq!(history.held("uid:1"), more, "a batch that does not fit is not stored");
    assert_eq!(*alice.full.lock().unwrap(), [held, more]);

    publish(&hub, &a, 0, 1, 500_000);
    history.settle().await.unwrap();
    assert_eq!(history.held("uid:1"), more, "nor is a small one: less than a sixteenth is free");
    // If there is room for it, it is, whatever was too large before.
    alice.most.store(4000, Ordering::Relaxed);
    for (at, events) in [(600_000, 1000), (700_000, 1), (800_000, 1000)] {
        publish(&hub, &a, 0, events, at);
    }
    history.settle().await.unwrap();
    let now = history.held("uid:1");
    assert!(more < now && now <= 2800, "{now}");
    assert_eq!(*alice.full.lock().unwrap(), [held, more, more], "said once");

    // What has expired makes room: others fill the rest of the spool.
    for batch in 0..2000 {
        publish(&hub, &b, 0, 5, 1_000_000 + batch);
    }
    history.settle().await.unwrap();
    assert_eq!(history.held("uid:1"), 0);
    publish(&hub, &a, 0, 1, 9_000_000);
    history.settle().await.unwrap();
    assert!(history.held("uid:1") > 0);
    assert_eq!(alice.full.lock().unwrap().len(), 3);
    let counts = history.counts();
    assert_eq!(counts.read, counts.stored + counts.in_memory + counts.not_stored + counts.over_limit);
    hub.close();
    history.stop().await;
}

/// What accounts have, as a daemon finds it that only starts and stops.
async fn known_to_the_next(directory: &Path) -> (u64, u64) {
    let hub = hub();
    let history = History::start(options(directory), BOOT, &hub).unwrap();
    let held = (history.held("uid:1"), history.held("uid:2"));
    hub.close();
    history.stop().await;
    held
}

/// A second daemon knows what its predecessors have stored, whether they ended in order or not.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_account_has_is_known_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let run = async |is_killed: bool| {
        let hub = hub();
        let history = History::start(options(directory.path()), BOOT, &hub).unwrap();
        let before = history.held("uid:1");
        let alice = TestMaker::new("uid:1", u64::MAX);
        let (a, b) = (of_maker("a", 1, &alice), of_maker("b", 2, &TestMaker::new("uid:2", u64::MAX)));
        for batch in 0..30 {
            publish_all(&hub, &[(&a, 3), (&b, 2)], 1_000 * (batch + 1));
        }
        history.settle().await.unwrap();
        let held = (history.held("uid:1"), history.held("uid:2"));
        if is_killed {
            // What is on the disk now is what a daemon leaves that is killed.
            let copy = tempfile::tempdir().unwrap();
            std::fs::create_dir(copy.path().join("spool")).unwrap();
            for file in std::fs::read_dir(directory.path().join("spool")).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), copy.path().join("spool").join(file.file_name())).unwrap();
            }
            assert_eq!(known_to_the_next(copy.path()).await, held);
            assert_eq!(known_to_the_next(copy.path()).await, held, "the sums were written");
        }
        hub.close();
        history.stop().await;
        (before, held)
    };
    let (none, (alices, bobs)) = run(true).await;
    assert!(none == 0 && alices > bobs && bobs > 0);
    let (before, (after, _)) = run(false).await;
    assert_eq!((before, after), (alices, 2 * alices));
}
