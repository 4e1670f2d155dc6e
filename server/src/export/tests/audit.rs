//! Tests of the audit log in what exporters send.

use kprobed_audit::{Action, Entry, Evidence, ExportedLine};

use super::*;
use crate::config::export::JsonLinesTarget;
use crate::export::jsonl::JsonLinesSink;

/// Writes so many entries to the log.
pub(super) async fn audit(run: &Run, entries: u64) {
    for number in 0..entries {
        let entry = Entry { reason: format!("\"{number}\"\n\u{e9}"), ..Entry::new(Action::Refused, "uid:7") };
        run.store.add_audit(&[entry]).await.unwrap();
    }
}

/// Waits for a value.
pub(super) async fn eventually<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), found).await.unwrap_or_else(|_| panic!("{what}"))
}

/// The sink of a file.
fn file_sink(place: &Place) -> JsonLinesSink {
    let settings = jsonl(&place.file).jsonl.unwrap();
    JsonLinesSink::new(&settings, JsonLinesTarget::File(place.file.clone()), "here").unwrap()
}

/// The heads in the lines that end chunks.
fn heads(path: &Path) -> Vec<Head> {
    let text = fs::read_to_string(path).unwrap();
    let ends = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let ends = ends.filter(|line| line["type"] == "progress");
    ends.map(|line| line["audit_head"].as_str().unwrap().parse().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_each_chunk_in_a_file_has_the_head() {
    let place = Place::new();
    let run = Run::start(place.directory.path()).await;
    audit(&run, 3).await;
    let exporters = run.export_to(file_sink(&place), Selection::default());
    run.drained(&exporters).await;
    publish(&run.hub, &source("a", 1), 0, 10, 1000);
    run.drained(&exporters).await;
    let head = run.store.audit_head().await.unwrap();
    assert_eq!((head.sequence, heads(&place.file).last()), (3, Some(&head)));
    // The log goes on, and nothing happens to the probes: the head leaves the host all the same, once.
    audit(&run, 2).await;
    let head = run.store.audit_head().await.unwrap();
    eventually("the head of a host without events", async || {
        (heads(&place.file).last() == Some(&head)).then_some(())
    })
    .await;
    let lines = heads(&place.file).len();
    audit(&run, 1).await;
    let last = run.store.audit_head().await.unwrap();
    eventually("the next head", async || (heads(&place.file).last() == Some(&last)).then_some(())).await;
    assert_eq!(heads(&place.file).len(), lines + 1);
    assert_eq!(events(&place.file), (1000..1010).collect::<Vec<_>>());
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_side_that_fails_gets_the_head_later() {
    let place = Place::new();
    let run = Run::start(place.directory.path()).await;
    let sink = Fake::default();
    let exporters = run.export_to(sink.clone(), Selection::default());
    run.drained(&exporters).await;
    sink.fails.store(true, Ordering::Relaxed);
    audit(&run, 4).await;
    let head = run.store.audit_head().await.unwrap();
    failing(&exporters).await;
    assert_ne!(*sink.head.lock().unwrap(), Some(head));
    sink.fails.store(false, Ordering::Relaxed);
    eventually("the head", async || (*sink.head.lock().unwrap() == Some(head)).then_some(())).await;
    run.stop().await;
}

/// The entries in lines, in their order: each is as it was written, and none contradicts another.
pub(super) fn entries_of(lines: impl Iterator<Item = impl AsRef<str>>) -> Vec<u64> {
    let mut evidence = Evidence::default();
    let mut numbers = Vec::new();
    for line in lines {
        match ExportedLine::read(line.as_ref()).unwrap() {
            ExportedLine::Entry { host, entry } => {
                assert_eq!(host, "here");
                evidence.entry(&entry).unwrap();
                numbers.push(entry.sequence);
            }
            ExportedLine::Head { head, .. } => evidence.head(head).unwrap(),
            ExportedLine::Other => {}
        }
    }
    assert_eq!(evidence.missing(), []);
    numbers
}

/// The entries in a file.
fn in_file(path: &Path) -> Vec<u64> {
    entries_of(fs::read_to_string(path).unwrap().lines())
}

/// Waits until the receiver of the only exporter has the log up to this entry.
pub(super) async fn exported(exporters: &Exporters, last: u64) -> AuditCounts {
    eventually(&format!("entry {last} is sent"), async || {
        let counts = exporters.statuses().remove(0).audit?;
        (counts.place?.sequence == last && counts.queued == Some(0)).then_some(counts)
    })
    .await
}

/// With a section of the configuration that exports the log to a file.
fn with_audit(path: &Path) -> Export {
    let mut export = jsonl(path);
    export.jsonl.as_mut().unwrap().audit = true;
    export
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_entry_is_in_the_file_once_over_restarts() {
    let place = Place::new();
    let (mut last, mut times) = (0, Vec::new());
    for round in 0..4_u64 {
        let run = Run::start(place.directory.path()).await;
        // What was written before the daemon had an exporter is sent, too; and more than one page.
        audit(&run, 300).await;
        let exporters = run.export(&with_audit(&place.file));
        run.drained(&exporters).await;
        for batch in 1..=5 {
            let first_ns = (round * 10 + batch) * 1000;
            publish(&run.hub, &source("a", 1), 0, 3, first_ns);
            times.extend(first_ns..first_ns + 3);
            audit(&run, 2).await;
        }
        last += 310;
        let counts = exported(&exporters, last).await;
        assert_eq!((counts.dropped, counts.expired), (0, 0));
        // After the power cut, what the file had lost is sent once more.
        let is_sent = if round == 3 { counts.acknowledged > 310 } else { counts.acknowledged == 310 };
        assert!(is_sent, "{round}: {counts:?}");
        run.drained(&exporters).await;
        run.stop().await;
        if round == 1 {
            // Killed in the middle of a chunk: what has no end goes, and is written again.
            let text = fs::read_to_string(&place.file).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            let again = lines.iter().find(|line| line.contains(r#""type":"audit""#)).unwrap();
            let torn = format!("{again}\n{}", &again[..50]);
            fs::OpenOptions::new()
                .append(true)
                .open(&place.file)
                .unwrap()
                .write_all(torn.as_bytes())
                .unwrap();
        }
        if round == 2 {
            // A power cut has taken the end of the file, which the database does not know.
            let text = fs::read_to_string(&place.file).unwrap();
            let ends: Vec<usize> = text.match_indices(r#"{"type":"progress""#).map(|(at, _)| at).collect();
            let kept = ends[ends.len() - 3];
            fs::write(&place.file, &text[..=kept + text[kept..].find('\n').unwrap()]).unwrap();
        }
    }
    assert_eq!(in_file(&place.file), (1..=last).collect::<Vec<_>>());
    assert_eq!(events(&place.file), times);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_side_that_fails_or_hangs_gets_every_entry_later_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let sink = Fake::default();
    let exporters = run.export_with(sink.clone(), Selection::default(), true);
    run.drained(&exporters).await;
    let mut last = 0;
    for bad in [&sink.fails, &sink.hangs] {
        bad.store(true, Ordering::Relaxed);
        audit(&run, 20).await;
        last += 20;
        failing(&exporters).await;
        let counts = exporters.statuses().remove(0).audit.unwrap();
        assert_eq!((counts.queued, counts.acknowledged), (Some(20), last - 20));
        bad.store(false, Ordering::Relaxed);
        exported(&exporters, last).await;
    }
    let numbers = |sink: &Fake| -> Vec<u64> {
        sink.entries.lock().unwrap().iter().map(|entry| entry.sequence).collect()
    };
    assert_eq!(numbers(&sink), (1..=last).collect::<Vec<_>>());
    let mut evidence = Evidence::default();
    sink.entries.lock().unwrap().iter().for_each(|entry| evidence.entry(entry).unwrap());
    assert_eq!(evidence.last(), run.store.audit_head().await.unwrap());
    run.stop().await;
    // It goes on where it was, although this receiver does not say where it is.
    let run = Run::start(directory.path()).await;
    audit(&run, 1).await;
    let again = Fake::default();
    let exporters = run.export_with(again.clone(), Selection::default(), true);
    exported(&exporters, last + 1).await;
    assert_eq!(numbers(&again), [last + 1]);
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_were_deleted_before_they_were_sent_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let run = Run::start(directory.path()).await;
    let sink = Fake::default();
    let exporters = run.export_with(sink.clone(), Selection::default(), true);
    run.drained(&exporters).await;
    audit(&run, 5).await;
    exported(&exporters, 5).await;
    sink.fails.store(true, Ordering::Relaxed);
    audit(&run, 35).await;
    failing(&exporters).await;
    let deleted = run.store.rotate_audit(20).await.unwrap();
    assert!(deleted > 10, "{deleted}");
    sink.fails.store(false, Ordering::Relaxed);
    let counts = exported(&exporters, 41).await;
    assert_eq!((counts.expired, counts.acknowledged), (deleted - 5, 41 - (deleted - 5)));
    let found = check(&exporters.statuses(), SystemTime::now()).unwrap().finding;
    assert!(found.contains(&format!("{} entries of the audit log were deleted", deleted - 5)), "{found}");
    // The receiver sees the gap, and can verify what follows it.
    let mut evidence = Evidence::default();
    sink.entries.lock().unwrap().iter().for_each(|entry| evidence.entry(entry).unwrap());
    assert_eq!(evidence.missing(), [6..=deleted]);
    assert_eq!(evidence.last(), run.store.audit_head().await.unwrap());
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_was_begun_anew_is_sent_from_its_beginning() {
    // Shorter than what the receiver has, and longer.
    for length in [4, 40] {
        let place = Place::new();
        let run = Run::start(place.directory.path()).await;
        audit(&run, 30).await;
        let exporters = run.export(&with_audit(&place.file));
        exported(&exporters, 30).await;
        run.stop().await;
        // The database is lost, the file of the receiver is not.
        let other = tempfile::tempdir().unwrap();
        let run = Run::start(other.path()).await;
        audit(&run, length).await;
        let exporters = run.export(&with_audit(&place.file));
        let counts = exported(&exporters, length).await;
        assert_eq!((counts.acknowledged, counts.expired), (length, 0));
        run.stop().await;
        let text = fs::read_to_string(&place.file).unwrap();
        let mut evidence = Evidence::default();
        let (mut numbers, mut contradiction) = (Vec::new(), None);
        for line in text.lines() {
            if let ExportedLine::Entry { entry, .. } = ExportedLine::read(line).unwrap() {
                numbers.push(entry.sequence);
                contradiction = contradiction.or(evidence.entry(&entry).err());
            }
        }
        assert_eq!(numbers, (1..=30).chain(1..=length).collect::<Vec<_>>());
        let contradiction = contradiction.unwrap().to_string();
        assert!(contradiction.starts_with("entry 1 has the digest"), "{contradiction}");
    }
}
