//! Tests of stored lease clocks.

use std::collections::HashMap;

use super::*;

async fn leased(store: &Store, event: &str, lease: Option<Lease>) -> ProbeUid {
    let metadata = Metadata { lease, ..Metadata::default() };
    create(store, new_probe_with(event, |spec| spec.metadata = metadata)).await.unwrap()
}

fn until(hours: u64) -> Lease {
    Lease::Until { duration: Duration::from_hours(2), expire_time: from_ns(0) + Duration::from_hours(hours) }
}

fn counted(uid: ProbeUid, end_boot_ns: u64, ended: Option<SystemTime>, hours: u64) -> CountedLease {
    let clock = LeaseClock { boot_id: "this boot".to_owned(), end_boot_ns, ended };
    CountedLease { uid, clock, expire_time: from_ns(0) + Duration::from_hours(hours) }
}

#[tokio::test]
async fn what_is_counted_is_that_of_the_lease_that_the_probe_has() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let uid = leased(&store, "a", Some(until(1000))).await;
    let held = leased(&store, "b", Some(Lease::Held { holder: "h1".to_owned() })).await;
    let first = counted(uid, 7, None, 1000);
    let others = [counted(held, 8, None, 1), counted(ProbeUid(99), 9, None, 1)];
    store.count_leases(&[std::slice::from_ref(&first), &others[..]].concat(), &[]).await.unwrap();
    let clocks = async || store.lease_clocks().await.unwrap();
    // A hold has no clock, and a probe that has gone has none either.
    assert_eq!(clocks().await, HashMap::from([(uid, first.clock)]));
    // The wall clock was set: the end is shown as another time, and is the same.
    let ended = counted(uid, 7, Some(from_ns(5)), 3000);
    let entry = Entry::new(Action::Ended, OWN_NAME);
    store.count_leases(std::slice::from_ref(&ended), &[entry]).await.unwrap();
    let last = store.audit_page(0, 100).await.unwrap().entries.pop().unwrap();
    assert!(last.record.contains(r#""action":"ended""#), "{last:?}");
    assert_eq!(store.probes().await.unwrap()[0].record.spec.metadata.lease, Some(until(3000)));
    assert_eq!(clocks().await, HashMap::from([(uid, ended.clock)]));
    // It is renewed, and the daemon dies before that is stored.
    let (before, mut now) = (settings(uid, true, "", "", 1), settings(uid, true, "", "", 2));
    now.spec.metadata = Metadata { lease: Some(until(4000)), ..Metadata::default() };
    update(&store, before, now, None).await.unwrap();
    assert_eq!(clocks().await, HashMap::new());
    store.undo(Undo::Probe(uid)).await;
    store.count_leases(&[counted(uid, 1, None, 1)], &[]).await.unwrap();
    assert_eq!(clocks().await, HashMap::new());
}
