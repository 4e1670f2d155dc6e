use super::*;
use crate::model::{HitProfile, Hits, Labels, ProbeName, ProbeUid};

fn new_probe(event: &str) -> NewProbe {
    NewProbe {
        name: ProbeName::new("kprobes", event).unwrap(),
        definition: format!("p:{event} vfs_read"),
        kernel_definition: format!("p:kprobes/{event} vfs_read"),
        enabled: true,
        filter: String::new(),
        labels: labels("team=storage"),
        time: SystemTime::now(),
    }
}

/// Labels as they are printed.
fn labels(text: &str) -> Labels {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    Labels::new(pairs.map(|(key, value)| (key.to_owned(), value.to_owned()))).unwrap()
}

fn key(id: &str, fingerprint: &str) -> RequestKey {
    RequestKey { id: id.to_owned(), fingerprint: Fingerprint(fingerprint.to_owned()) }
}

#[tokio::test]
async fn a_probe_lives_through_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let uid = store.begin_create(&new_probe("a")).await.unwrap();
    assert_eq!(store.probes().await.unwrap()[0].phase, Phase::Pending);
    store.settle_create(uid, "p:kprobes/a vfs_read", Some(&key("r1", "create a"))).await.unwrap();
    assert_eq!(store.probes().await.unwrap()[0].labels, labels("team=storage"));
    let wanted = Wanted { enabled: false, filter: "x == 1", labels: &labels("tier=,team=net") };
    store.update(uid, wanted, SystemTime::now(), None).await.unwrap();
    store.close().await;

    let store = Store::open(directory.path()).await.unwrap();
    let probes = store.probes().await.unwrap();
    assert_eq!(probes.len(), 1);
    assert_eq!((probes[0].uid, probes[0].phase, probes[0].revision), (uid, Phase::Settled, 2));
    assert_eq!((probes[0].enabled, probes[0].filter.as_str()), (false, "x == 1"));
    assert_eq!(probes[0].labels, labels("tier=,team=net"));
    assert_eq!(store.carried_out(&key("r1", "create a")).await.unwrap(), Some(uid));
    assert_eq!(store.carried_out(&key("r2", "create a")).await.unwrap(), None);
    assert!(matches!(store.carried_out(&key("r1", "create b")).await, Err(StoreError::RequestReused(_))));
}

#[tokio::test]
async fn uids_are_never_given_out_twice() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let first = store.begin_create(&new_probe("a")).await.unwrap();
    assert!(store.begin_create(&new_probe("a")).await.is_err(), "the name is taken");
    store.forget(first).await.unwrap();
    let second = store.begin_create(&new_probe("a")).await.unwrap();
    assert!(second > first);
}

#[tokio::test]
async fn labels_go_with_their_probe() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let gone = store.begin_create(&new_probe("a")).await.unwrap();
    let plain = NewProbe { labels: Labels::default(), ..new_probe("b") };
    let stays = store.begin_create(&plain).await.unwrap();
    store.forget(gone).await.unwrap();
    let left: i64 =
        sqlx::query_scalar("SELECT count(*) FROM probe_label").fetch_one(&store.pool).await.unwrap();
    assert_eq!(left, 0);
    let probes = store.probes().await.unwrap();
    assert_eq!((probes.len(), probes[0].uid, probes[0].labels.is_empty()), (1, stays, true));
    // What is there and could not have been written is not taken for labels.
    sqlx::query("INSERT INTO probe_label (probe_uid, key, value) VALUES (?, 'a b', '')")
        .bind(stays.0)
        .execute(&store.pool)
        .await
        .unwrap();
    assert!(matches!(store.probes().await, Err(StoreError::Corrupt { what: "label", .. })));
}

#[tokio::test]
async fn a_database_without_labels_gets_them() {
    let directory = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(directory.path().join("kprobed.db"))
        .create_if_missing(true)
        .foreign_keys(true);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    // As the version before labels left it.
    Migrator::with_migrations(MIGRATIONS.iter().filter(|one| one.version == 1).cloned().collect())
        .run(&pool)
        .await
        .unwrap();
    sqlx::query(
        "INSERT INTO probe VALUES (7, 'kprobes', 'old', 'p:old vfs_read', 'p:kprobes/old vfs_read', '', 1, '', 'settled', 1, 0, 0)",
    )
    .execute(&pool)
    .await
    .unwrap();
    pool.close().await;

    let store = Store::open(directory.path()).await.unwrap();
    let probes = store.probes().await.unwrap();
    assert_eq!((probes.len(), probes[0].uid, probes[0].labels.is_empty()), (1, ProbeUid(7), true));
    let wanted = Wanted { enabled: true, filter: "", labels: &labels("team=net") };
    store.update(ProbeUid(7), wanted, SystemTime::now(), None).await.unwrap();
    assert_eq!(store.probes().await.unwrap()[0].labels, labels("team=net"));
}

#[tokio::test]
async fn a_deletion_that_is_taken_back_can_be_asked_for_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let uid = store.begin_create(&new_probe("a")).await.unwrap();
    let request = key("r", "delete kprobes/a");
    store.begin_remove(uid, Some(&request)).await.unwrap();
    assert_eq!(store.probes().await.unwrap()[0].phase, Phase::Removing);
    store.abort_remove(uid).await.unwrap();
    assert_eq!(store.probes().await.unwrap()[0].phase, Phase::Settled);
    assert_eq!(store.carried_out(&request).await.unwrap(), None);
}

#[tokio::test]
async fn a_database_of_a_later_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'later', 1, x'00', 0)",
    )
    .execute(&store.pool)
    .await
    .unwrap();
    store.close().await;
    let error = Store::open(directory.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Newer { version: 9999, .. }), "{error}");
}

#[tokio::test]
async fn samples_are_paged_and_selected() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let at = |second: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(second);
    let sample = |event: &str, second| HitProfile {
        uid: ProbeUid(1),
        name: ProbeName::new("kprobes", event).unwrap(),
        boot_id: "boot".to_owned(),
        time: at(second),
        hits: Hits { hits: second, nmissed: 0 },
    };
    let all: Vec<_> =
        (0..10).map(|second| sample(if second % 2 == 0 { "even" } else { "odd" }, second)).collect();
    store.add_samples(&all).await.unwrap();

    let first = store.samples(&SampleQuery { limit: 4, ..SampleQuery::default() }).await.unwrap();
    assert_eq!(first.samples, all[..4]);
    let rest = SampleQuery { limit: 10, after: first.next.unwrap(), ..SampleQuery::default() };
    assert_eq!(store.samples(&rest).await.unwrap(), SamplePage { samples: all[4..].to_vec(), next: None });

    let odd = SampleQuery {
        name: Some(ProbeName::new("kprobes", "odd").unwrap()),
        start: Some(at(3)),
        end: Some(at(7)),
        limit: 10,
        after: 0,
    };
    let seconds: Vec<_> =
        store.samples(&odd).await.unwrap().samples.into_iter().map(|s| s.hits.hits).collect();
    assert_eq!(seconds, [3, 5]);

    store.drop_samples_before(at(8)).await.unwrap();
    let left = store.samples(&SampleQuery { limit: 10, ..SampleQuery::default() }).await.unwrap();
    assert_eq!(left.samples, all[8..]);
}

#[tokio::test]
async fn an_attached_event_lives_through_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    let name = ProbeName::new("raw_syscalls", "sys_enter").unwrap();
    let gone =
        store.begin_attach(&ProbeName::new("irq", "gone").unwrap(), "", SystemTime::now()).await.unwrap();
    let uid = store.begin_attach(&name, "id == 1", from_ns(7)).await.unwrap();
    assert!(uid.0 < 0 && uid != gone, "never the uid of a probe: {uid}");
    assert!(store.begin_attach(&name, "", SystemTime::now()).await.is_err(), "the name is taken");
    store.settle_attach(uid, "id == 2").await.unwrap();
    store.begin_detach(gone).await.unwrap();
    store.close().await;

    let store = Store::open(directory.path()).await.unwrap();
    let stored = store.attachments().await.unwrap();
    let phases: Vec<_> = stored.iter().map(|row| (row.name.to_string(), row.phase)).collect();
    assert_eq!(
        phases,
        [("irq/gone".to_owned(), Phase::Removing), ("raw_syscalls/sys_enter".to_owned(), Phase::Settled)]
    );
    let kept = StoredAttachment {
        uid,
        name: name.clone(),
        filter: "id == 2".to_owned(),
        phase: Phase::Settled,
        create_time: from_ns(7),
    };
    assert_eq!(stored[1], kept);
    store.forget_attachment(uid).await.unwrap();
    store.forget_attachment(gone).await.unwrap();
    assert_eq!(store.attachments().await.unwrap(), []);
    assert!(store.begin_attach(&name, "", SystemTime::now()).await.unwrap() < uid, "ids are not used again");
}
