//! Tests of stored ends of leases.

use super::*;

async fn leased(store: &Store, event: &str, lease: Lease) -> ProbeUid {
    let metadata = Metadata { lease: Some(lease), ..Metadata::default() };
    create(store, new_probe_with(event, |spec| spec.metadata = metadata)).await.unwrap()
}

/// An end at this hour of the wall clock, and so many nanoseconds after a boot.
fn end(hours: u64, boot_id: &str, boot_ns: u64) -> Moment {
    Moment { wall: from_ns(0) + Duration::from_hours(hours), boot_id: boot_id.into(), boot_ns }
}

fn until(end: Moment) -> Lease {
    Lease::Until { duration: Duration::from_hours(2), end }
}

#[tokio::test]
async fn what_is_counted_is_that_of_the_lease_that_the_probe_has() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let uid = leased(&store, "a", until(end(1000, "boot", 7))).await;
    let held = Lease::Held { holder: "h1".to_owned() };
    let held_uid = leased(&store, "b", held.clone()).await;
    let stored = async || {
        let rows = store.probes().await.unwrap();
        rows.into_iter().map(|row| (row.record.spec.metadata.lease, row.lease_ended)).collect::<Vec<_>>()
    };
    // The host was booted. A hold has no end, and a probe that has gone has none either.
    let counted = end(1000, "next boot", 3);
    let all = [uid, held_uid, ProbeUid(99)].map(|uid| (uid, counted.clone()));
    store.write_leases(&all, &[], &[]).await.unwrap();
    assert_eq!(stored().await, [(Some(until(counted.clone())), None), (Some(held.clone()), None)]);
    let ended = [(uid, counted.wall), (ProbeUid(99), counted.wall)];
    store.write_leases(&[], &ended, &[Entry::new(Action::Ended, OWN_NAME)]).await.unwrap();
    let last = store.audit_page(0, 100).await.unwrap().entries.pop().unwrap();
    assert!(last.record.contains(r#""action":"ended""#), "{last:?}");
    assert_eq!(stored().await[0], (Some(until(counted.clone())), Some(counted.wall)));
    // It is renewed: neither that it had ended nor how it was counted is about its new lease.
    let renewed = end(4000, "next boot", 9);
    let (before, mut now) = (settings(uid, true, "", "", 1), settings(uid, true, "", "", 2));
    now.spec.metadata = Metadata { lease: Some(until(renewed.clone())), ..Metadata::default() };
    update(&store, before, now, None).await.unwrap();
    store.write_leases(&[(uid, counted.clone())], &[], &[]).await.unwrap();
    assert_eq!(stored().await[0], (Some(until(renewed)), Some(counted.wall)));
}
