//! Tests of stored trips.

use std::collections::HashMap;

use super::*;

fn trip(uid: ProbeUid, message: &str) -> StoredTrip {
    StoredTrip { uid, code: "OVER_PROBE_BUDGET".to_owned(), message: message.to_owned() }
}

#[tokio::test]
async fn a_trip_lasts_until_its_probe_is_switched_or_goes() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let uid = create(&store, new_probe("a")).await.unwrap();
    let other = create(&store, new_probe("b")).await.unwrap();
    settle(&store, uid, "p:kprobes/a vfs_read", None).await.unwrap();
    store
        .set_trips(&[trip(uid, "disarmed"), trip(other, "disarmed"), trip(ProbeUid(99), "disarmed")], &[])
        .await
        .unwrap();
    let trips = async || store.trips().await.unwrap();
    assert_eq!(
        trips().await,
        HashMap::from([(uid, trip(uid, "disarmed")), (other, trip(other, "disarmed"))])
    );
    store.set_trips(&[trip(uid, "again")], &[]).await.unwrap();
    assert_eq!(trips().await[&uid], trip(uid, "again"));
    // Other changes of the probe leave it as it is.
    let change = |ends_trip, revision| Intended {
        ends_trip,
        ..(
            updating(settings(uid, true, "", "", revision), settings(uid, true, "", "a=b", revision + 1)),
            None,
        )
            .into()
    };
    store.begin(&[change(false, 1)]).await.unwrap();
    assert!(trips().await.contains_key(&uid));
    store.begin(&[change(true, 2)]).await.unwrap();
    assert_eq!(trips().await.into_keys().collect::<Vec<_>>(), [other]);
    store.undo(Undo::Probe(other)).await;
    assert_eq!(trips().await, HashMap::new());
}
