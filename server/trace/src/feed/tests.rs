//! Tests of the event feed: every event once, in order, from the history into live events, and a
//! report of every missing one.

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::pipeline::samples::{hub, publish, source};
use crate::pipeline::{Hub, View};
use crate::spool::{BootId, SpoolError, SpoolOptions};
use kprobed_lang::model::Labels;

const BOOT: BootId = BootId([7; 16]);

/// The events here are of 1970.
const AGES: Duration = Duration::from_hours(100 * 365 * 24);

/// A run of the daemon.
struct Run {
    hub: Arc<Hub>,
    log: Log,
}

impl Run {
    fn start(directory: &Path) -> Self {
        let options = SpoolOptions::new(directory, 64 << 20, AGES, Duration::from_millis(50));
        let hub = hub();
        let history = Arc::new(History::start(options, BOOT, &hub).unwrap());
        let epoch = history.epoch();
        let now = Cursor { boot_id: BOOT, epoch, sequence: 0 };
        Self { hub, log: Log { history: Some(history), now } }
    }

    fn without_history() -> Self {
        Self { hub: hub(), log: Log { history: None, now: Cursor { boot_id: BOOT, epoch: 9, sequence: 0 } } }
    }

    async fn stop(self) {
        self.hub.close();
        self.log.history.unwrap().stop().await;
    }

    async fn open(&self, view: View, place: HistoryStart) -> Result<Feed, FeedError> {
        let start = FeedStart { place: Some(place), until_now: false };
        Feed::open(&self.log, self.hub.subscribe(view), start).await
    }

    /// All items up to now, in short form.
    async fn all(&self, view: View, place: HistoryStart) -> Vec<String> {
        let start = FeedStart { place: Some(place), until_now: true };
        let mut feed = Feed::open(&self.log, self.hub.subscribe(view), start).await.unwrap();
        let mut told = Vec::new();
        while let Some(item) = feed.next().await.unwrap() {
            told.push(self.short(item));
        }
        told
    }

    fn short(&self, item: Item) -> String {
        let run = |epoch: u64| epoch.cast_signed() - self.log.now.epoch.cast_signed();
        match item {
            Item::Epoch { cursor, may_miss } => {
                let which = if run(cursor.epoch) == 0 { "this" } else { "earlier" };
                format!("epoch {which} at {}{}", cursor.sequence, if may_miss { " may miss" } else { "" })
            }
            Item::CaughtUp(sequence) => format!("caught up at {sequence}"),
            Item::Batch(batch) => {
                format!("{}+{} of cpu{}", batch.sequence, batch.events, batch.cpu)
            }
            Item::Loss(loss) => format!("{:?} {:?}", loss.cause, loss.count),
            Item::Watermark(watermark_ns) => format!("watermark {watermark_ns}"),
            Item::Progress(sequence) => format!("at {sequence}"),
            Item::Mark(mark) => panic!("{mark:?}"),
        }
    }

    fn cursor(&self, sequence: u64) -> HistoryStart {
        HistoryStart::Cursor(Cursor { sequence, ..self.log.now })
    }
}

fn filtered(text: &str) -> View {
    View { filter: Some(crate::filter::Filter::parse(text).unwrap()), ..View::default() }
}

#[tokio::test]
async fn what_was_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path());
    let (a, b) = (source("a", 1), source("b", 2));
    publish(&run.hub, &a, 0, 4, 1000);
    publish(&run.hub, &b, 1, 6, 2000);
    run.hub.publish_loss(Loss::on(1, LossCause::Overrun, Some(5), 3000));
    publish(&run.hub, &a, 1, 2, 3000);
    let whole = [
        "epoch this at 0",
        "0+4 of cpu0",
        "4+6 of cpu1",
        "Overrun Some(5)",
        "10+2 of cpu1",
        "caught up at 12",
    ];
    assert_eq!(run.all(View::default(), HistoryStart::Oldest).await, whole);
    assert_eq!(run.all(View::default(), run.cursor(10)).await[1..], whole[3..]);
    assert_eq!(run.all(View::default(), run.cursor(12)).await, ["epoch this at 12", "caught up at 12"]);
    let named = View { probes: vec![kprobed_lang::model::Glob::new("kprobes/b")], ..View::default() };
    assert_eq!(run.all(named, HistoryStart::Oldest).await[1], "4+6 of cpu1");
    // Thread ids count from 0 in each batch.
    let told = run.all(filtered("pid >= 3"), HistoryStart::Oldest).await;
    assert_eq!(told[1..], ["0+1 of cpu0", "4+3 of cpu1", "Overrun Some(5)", "caught up at 12"]);
    // Exactly the last events, of the selected ones or of all.
    let told = run.all(View::default(), HistoryStart::Last(5)).await;
    assert_eq!(told[1..], ["4+3 of cpu1", "Overrun Some(5)", "10+2 of cpu1", "caught up at 12"]);
    let told = run.all(filtered("pid >= 3"), HistoryStart::Last(2)).await;
    assert_eq!(told[1..], ["4+2 of cpu1", "Overrun Some(5)", "caught up at 12"]);
    // The offset of the wall clock is 0 here.
    let since = HistoryStart::SinceWall;
    let told = run.all(View::default(), since(2004)).await;
    assert_eq!(told[1..], ["4+2 of cpu1", "Overrun Some(5)", "10+2 of cpu1", "caught up at 12"]);
    // The loss was reported just now, in this year.
    assert_eq!(run.all(View::default(), since(3002)).await[1..], ["Overrun Some(5)", "caught up at 12"]);
    let ledger = run.log.history.as_ref().unwrap().counts();
    assert_eq!((ledger.read, ledger.stored, ledger.not_stored), (12, 12, 0));
    assert!(run.hub.counts().is_empty(), "the recorder is no subscriber of anybody");
    run.stop().await;
}

#[tokio::test]
async fn labels_of_the_past_are_those_of_then() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path());
    let labelled = |text: &str| View { labels: text.parse().unwrap(), ..View::default() };
    let (a, b) = (source("a", 1), source("b", 2));
    publish(&run.hub, &a, 0, 4, 1000);
    publish(&run.hub, &b, 0, 3, 1500);
    // When this returns, the events published so far are stored, so that their labels cannot be
    // those set below.
    assert_eq!(run.all(labelled("!team"), HistoryStart::Oldest).await.len(), 4);
    a.origin.set_labels(Labels::new([("team".to_owned(), "net".to_owned())]).unwrap());
    run.hub.selections_changed();
    publish(&run.hub, &a, 0, 2, 2000);
    for (selector, expected) in [
        ("team in (net,storage)", &["7+2 of cpu0"][..]),
        ("!team", &["0+4 of cpu0", "4+3 of cpu0"]),
        ("team!=storage", &["0+4 of cpu0", "4+3 of cpu0", "7+2 of cpu0"]),
        ("team notin (net)", &["0+4 of cpu0", "4+3 of cpu0"]),
    ] {
        let told = run.all(labelled(selector), HistoryStart::Oldest).await;
        assert_eq!(told[1..told.len() - 1], *expected, "{selector}");
    }
    // Also where they are counted from the end.
    let told = run.all(labelled("!team"), HistoryStart::Last(5)).await;
    assert_eq!(told[1..told.len() - 1], ["0+2 of cpu0", "4+3 of cpu0"]);
    run.stop().await;
}

#[tokio::test]
async fn another_run_goes_on_where_the_last_one_ended() {
    let directory = tempfile::tempdir().unwrap();
    let first = Run::start(directory.path());
    let a = source("a", 1);
    publish(&first.hub, &a, 0, 4, 1000);
    publish(&first.hub, &a, 0, 2, 2000);
    let (cursor, end) = (first.cursor(4), first.cursor(6));
    first.stop().await;

    let second = Run::start(directory.path());
    // Nothing was stored in this run yet.
    let told = second.all(View::default(), end).await;
    assert_eq!(told, ["epoch earlier at 6", "epoch this at 0", "caught up at 0"]);
    // The second run uses the schema number again.
    publish(&second.hub, &source("b", 1), 0, 3, 500);
    let told = second.all(filtered("probe == \"kprobes/b\" || pid == 1"), cursor).await;
    let expected = ["epoch earlier at 4", "4+1 of cpu0", "epoch this at 0", "0+3 of cpu0", "caught up at 3"];
    assert_eq!(told, expected);
    second.stop().await;
}

/// The feed joins live events while more are published: each is delivered once, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_no_seam_between_the_history_and_the_present() {
    const BATCHES: u64 = 3000;
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path());
    let hub = Arc::clone(&run.hub);
    let publisher = std::thread::spawn(move || {
        let a = source("a", 1);
        for batch in 0..BATCHES {
            publish(&hub, &a, 0, 5, 1000 * (batch + 1));
            if batch % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    for view in [View::default(), filtered("pid >= 0"), View::default()] {
        let mut feed = run.open(view, HistoryStart::Oldest).await.unwrap();
        let (mut next, mut joined_at) = (0, BATCHES * 5);
        while next < BATCHES * 5 {
            match feed.next().await.unwrap().unwrap() {
                Item::Batch(batch) => {
                    assert_eq!((batch.sequence, batch.events), (next, 5));
                    next += 5;
                }
                Item::CaughtUp(sequence) => {
                    assert_eq!(sequence, next);
                    joined_at = next;
                }
                Item::Epoch { .. } => assert_eq!(next, 0),
                other => panic!("{other:?}"),
            }
        }
        let counts = run.hub.counts()[0].counts;
        assert_eq!(counts.replayed + counts.delivered, BATCHES * 5);
        assert_eq!(counts.replayed, joined_at);
    }
    publisher.join().unwrap();
    run.stop().await;
}

#[tokio::test]
async fn without_a_history_what_was_missed_is_told() {
    let run = Run::without_history();
    let a = source("a", 1);
    drop(run.open(View::default(), run.cursor(0)).await.unwrap());
    let keeps = run.hub.subscribe(View::default());
    keeps.attach();
    publish(&run.hub, &a, 0, 4, 1000);
    let told = run.all(View::default(), run.cursor(1)).await;
    assert_eq!(told, ["epoch this at 4", "Expired Some(3)", "caught up at 4"]);
    assert_eq!(run.all(View::default(), run.cursor(4)).await, ["epoch this at 4", "caught up at 4"]);
    let earlier = HistoryStart::Cursor(Cursor { epoch: 8, ..run.log.now });
    let told = run.all(View::default(), earlier).await;
    assert_eq!(told, ["epoch this at 4 may miss", "Expired None", "caught up at 4"]);
    let refused = run.open(View::default(), run.cursor(5)).await.unwrap_err();
    assert!(matches!(refused, FeedError::AheadOfLog { log: 4, cursor: 5 }), "{refused}");
    let refused = run.open(View::default(), HistoryStart::Last(1)).await.unwrap_err();
    assert!(matches!(refused, FeedError::NoHistory), "{refused}");
}

#[tokio::test]
async fn cursors_that_can_not_be_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path());
    let foreign = [
        Cursor { epoch: run.log.now.epoch + 1, ..run.log.now },
        Cursor { boot_id: BootId([8; 16]), ..run.log.now },
    ];
    for cursor in foreign {
        let refused = run.open(View::default(), HistoryStart::Cursor(cursor)).await.unwrap_err();
        let FeedError::History(HistoryError::Spool(error)) = &refused else { panic!("{refused}") };
        assert!(matches!(error, SpoolError::ForeignCursor { .. }), "{refused}");
    }
    run.stop().await;
}

#[tokio::test]
async fn a_history_that_has_ended_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path());
    let history = Arc::clone(run.log.history.as_ref().unwrap());
    run.stop().await;
    assert!(matches!(history.settle().await, Err(HistoryError::Ended)));
}
