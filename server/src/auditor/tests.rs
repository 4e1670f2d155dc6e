//! Tests of the auditor, with a database on disk and a clock that is moved by hand.

use std::time::SystemTime;

use kprobed_audit::{Action, Chain, Head, Record};
use proptest::prelude::*;

use super::joined::{MOST, MOST_OF_ONE, WINDOW};
use super::*;
use kprobed_control::auth::AuditQueue;

fn refusal(principal: &str, probe: &str) -> Entry {
    Entry { probe: probe.to_owned(), ..Entry::new(Action::Refused, principal) }
}

async fn entries(store: &Store) -> Vec<Record> {
    let page = store.audit_page(0, 10_000).await.unwrap();
    let mut chain = Chain::after(page.after, None).unwrap();
    let verified =
        page.entries.iter().map(|one| chain.verify(one.sequence, &one.record, one.digest).unwrap());
    let verified = verified.collect();
    assert_eq!(chain.head(), store.audit_head().await.unwrap());
    verified
}

#[tokio::test]
async fn equal_refusals_are_written_once_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), SystemTime::now()).await.unwrap();
    let (queue, inbox) = AuditQueue::new();
    for _ in 0..500 {
        queue.note(refusal("uid:1000", "a/b"));
        queue.note(refusal("uid:1001", "a/b"));
    }
    queue.note(refusal("uid:1000", "a/c"));
    drop(queue);
    Auditor { store: store.clone(), inbox, most: 1000 }.run(CancellationToken::new()).await;
    let written: Vec<_> = entries(&store)
        .await
        .into_iter()
        .map(|record| (record.entry.principal, record.entry.probe, record.entry.times))
        .collect();
    let has = |principal: &str, probe: &str, times| {
        written.contains(&(principal.to_owned(), probe.to_owned(), times))
    };
    assert!(has("uid:1000", "a/b", 1) && has("uid:1000", "a/b", 499), "{written:?}");
    assert!(has("uid:1001", "a/b", 1) && has("uid:1001", "a/b", 499), "{written:?}");
    assert!(has("uid:1000", "a/c", 1) && written.len() == 5, "{written:?}");
}

#[tokio::test]
async fn a_full_queue_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), SystemTime::now()).await.unwrap();
    let (queue, inbox) = AuditQueue::new();
    for _ in 0..1500 {
        queue.note(refusal("uid:1000", "a/b"));
    }
    drop(queue);
    Auditor { store: store.clone(), inbox, most: 1000 }.run(CancellationToken::new()).await;
    let times: u64 = entries(&store).await.iter().map(|record| record.entry.times).sum();
    assert_eq!(times, 1500);
}

#[tokio::test]
async fn a_log_within_its_limit_keeps_its_chain() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), SystemTime::now()).await.unwrap();
    let mut noted = Head::default();
    for turn in 0..30 {
        let batch: Vec<_> = (0..10).map(|index| refusal("uid:0", &format!("a/{turn}_{index}"))).collect();
        store.add_audit(&batch).await.unwrap();
        store.rotate_audit(100).await.unwrap();
        let kept = entries(&store).await;
        assert!(kept.len() <= 100, "{}", kept.len());
        if turn == 25 {
            noted = store.audit_head().await.unwrap();
        }
    }
    let page = store.audit_page(0, 1000).await.unwrap();
    assert!(page.after.sequence > 100);
    let mut chain = Chain::after(page.after, Some(noted)).unwrap();
    let mut rotated = 0;
    for one in &page.entries {
        let record = chain.verify(one.sequence, &one.record, one.digest).unwrap();
        rotated += usize::from(record.entry.action == Action::Rotated);
    }
    assert!(rotated > 0);
}

proptest! {
    /// Whatever arrives, nothing is left out of the counts, and what is written stays within bounds.
    #[test]
    fn the_counts_add_up(
        arrivals in prop::collection::vec((0_u8..40, 0_u16..200, 0_u64..30), 1..2000),
    ) {
        let (mut joined, mut now) = (Joined::default(), Instant::now());
        let (begin, mut written, mut count) = (now, 0, 0_usize);
        for (principal, probe, wait) in &arrivals {
            now += Duration::from_secs(*wait) / 10;
            for entry in joined.take_over(now, false) {
                written += entry.times;
                count += 1;
            }
            let entry = refusal(&format!("uid:{principal}"), &format!("a/{probe}"));
            if let Some(entry) = joined.add(entry, now) {
                written += entry.times;
                count += 1;
            }
        }
        for entry in joined.take_over(now, true) {
            written += entry.times;
            count += 1;
        }
        prop_assert_eq!(written, arrivals.len() as u64);
        prop_assert!(joined.due().is_none());
        let windows = usize::try_from((now - begin).as_secs() / WINDOW.as_secs()).unwrap() + 2;
        prop_assert!(count <= windows * 2 * (MOST + MOST_OF_ONE), "{count} in {windows}");
    }
}
