//! Tests of the connection that only reads.

use tokio::sync::oneshot;

use super::*;

/// Far more than it takes.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_reader_that_stops_in_the_middle_holds_up_no_change() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    create(&store, new_probe("open")).await.unwrap();
    let count = async |connection: &mut SqliteConnection| {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM probe").fetch_one(connection).await?;
        Ok::<_, StoreError>(count)
    };
    let (began, has_begun) = oneshot::channel();
    let (go_on, goes_on) = oneshot::channel();
    let reader = async {
        let read = async |connection: &mut SqliteConnection| {
            let before = count(connection).await?;
            began.send(()).unwrap();
            goes_on.await.unwrap();
            Ok((before, count(connection).await?))
        };
        store.database.read_beside(read).await.unwrap()
    };
    // The reader waits for all of this.
    let changes = async {
        has_begun.await.unwrap();
        let begun = begin(&store, &new_probe("other")).await.unwrap();
        let uid = settle(&store, begun, Some(key("a", "create"))).await.unwrap().uid;
        assert_eq!(store.carried_out(&key("a", "create")).await.unwrap(), Some(uid));
        store.check().await.unwrap();
        store.add_audit(&[entry()]).await.unwrap();
        go_on.send(()).unwrap();
    };
    let both = tokio::time::timeout(SOON, async { tokio::join!(reader, changes) });
    let (seen, ()) = both.await.expect("a change waits for a reader");
    assert_eq!(seen, (1, 1), "a reader sees one moment");
    assert_eq!(store.audit_head().await.unwrap().sequence, 3, "the next one sees all that was written");
    store.close().await;
    assert!(store.audit_head().await.is_err());
    assert!(!directory.path().join("kprobed.db-wal").exists(), "the log is in the main file");
}

#[tokio::test]
async fn what_clients_ask_for_is_read_beside_the_writer() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let uid = create(&store, new_probe("open")).await.unwrap().uid;
    let rates = RateQuery {
        start: SystemTime::UNIX_EPOCH,
        end: SystemTime::UNIX_EPOCH + Duration::from_hours(1),
        step_s: 60,
        names: None,
        uids: None,
        after: 0,
    };
    // A change that is being written, for as long as this takes.
    let (began, has_begun) = oneshot::channel();
    let (go_on, goes_on) = oneshot::channel::<()>();
    let writer = async {
        let write = async |_: &mut SqliteConnection| {
            began.send(()).unwrap();
            goes_on.await.unwrap();
            Ok(())
        };
        store.database.write(write).await.unwrap();
    };
    let reads = async {
        has_begun.await.unwrap();
        store.rates(&rates).await.unwrap();
        store.states_of(uid).await.unwrap();
        store.audit_head().await.unwrap();
        store.audit_page(0, 10).await.unwrap();
        store.exporter_place("x").await.unwrap();
        go_on.send(()).unwrap();
    };
    let both = tokio::time::timeout(SOON, async { tokio::join!(writer, reads) });
    both.await.expect("a reader waits for a change");
}
