//! Tests of the store on a real disk; the modules below use simulated ones.

mod bad;
mod costs;
pub(crate) mod disk;
mod faults;
mod files;
mod leases;
mod readers;
mod reserve;
pub(crate) mod simulated;
mod trips;
mod vfs;

use kprobed_audit::{Action, Chain, Entry};
use kprobed_rights::Principal;
use sqlx::{Connection as _, SqliteConnection};

use super::*;
use std::cell::RefCell;
use std::sync::Once;
use std::time::Duration;

use kprobed_lang::model::{Hits, KernelChange, Labels, Lease, Metadata, Moment, ProbeName, ProbeUid};
use kprobed_verdict::checker::DefinitionText;

async fn open(directory: &Path) -> Store {
    Store::open(directory, SystemTime::now()).await.unwrap().store
}

fn new_probe(event: &str) -> Record {
    let spec = ProbeSpec {
        definition: Arc::new(DefinitionText::new(format!("p:{event} vfs_read"))),
        enabled: true,
        filter: String::new(),
        labels: labels("team=storage"),
        metadata: with_leases().remove(0),
    };
    let name = ProbeName::new("kprobes", event).unwrap();
    Record::new(name, spec, format!("p:kprobes/{event} vfs_read"), SystemTime::now())
}

/// A new probe with another specification.
fn new_probe_with(event: &str, change: impl FnOnce(&mut ProbeSpec)) -> Record {
    let mut record = new_probe(event);
    change(&mut record.spec);
    record
}

/// A new probe, made at that time.
fn new_probe_at(event: &str, ns: i64) -> Record {
    Record { create_time: from_ns(ns), update_time: from_ns(ns), ..new_probe(event) }
}

/// An intent with an entry of the audit log.
impl From<(Intent, Option<RequestKey>)> for Intended {
    fn from((intent, request): (Intent, Option<RequestKey>)) -> Self {
        Self { intent, request, reversal: None, entry: Some(Arc::new(entry())), ends_trip: false }
    }
}

fn entry() -> Entry {
    Entry::new(Action::Changed, "uid:0")
}

fn creation(record: Record) -> Intent {
    Intent::Create { record: Box::new(record), meaning: Some("{}".to_owned()) }
}

/// One of each kind of lease.
fn with_leases() -> Vec<Metadata> {
    let end = Moment { wall: from_ns(7_200_000_000_123), boot_id: "boot".into(), boot_ns: 7_200_000_000_456 };
    let for_a_time = Metadata {
        description: "slow\nopens".to_owned(),
        owner: "storage".to_owned(),
        declared_by: Some("10-storage.yaml".to_owned()),
        lease: Some(Lease::Until { duration: Duration::from_hours(2), end }),
        on_kernel_change: KernelChange::ArmAnyway,
    };
    let held = Metadata { lease: Some(Lease::Held { holder: "h1".to_owned() }), ..Metadata::default() };
    vec![for_a_time, held, Metadata::default()]
}

#[tokio::test]
async fn metadata_comes_back_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let mut made = Vec::new();
    for (metadata, event) in with_leases().into_iter().zip(["a", "b", "c"]) {
        create(&store, new_probe_with(event, |spec| spec.metadata = metadata.clone())).await.unwrap();
        made.push(metadata);
    }
    let found = async || {
        store.probes().await.unwrap().into_iter().map(|row| row.record.spec.metadata).collect::<Vec<_>>()
    };
    assert_eq!(found().await, made);
    let uid = store.probes().await.unwrap().remove(0).record.uid;
    for metadata in with_leases() {
        let (before, mut now) = (settings(uid, true, "", "", 1), settings(uid, true, "", "", 2));
        now.spec.metadata = metadata.clone();
        update(&store, before, now, None).await.unwrap();
        assert_eq!(found().await.remove(0), metadata);
    }
}

#[tokio::test]
async fn who_made_a_probe_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let of = |names: [&str; 2]| Principal::of_names(&names.map(str::to_owned)).unwrap();
    let (alice, bob) = (of(["uid:1000", "group:storage"]), of(["uid:1001", "user:bob"]));
    let store = open(directory.path()).await;
    let uid = create(&store, new_probe_with("a", |_| {}).by(&alice)).await.unwrap();
    create(&store, new_probe_with("b", |_| {}).by(&bob)).await.unwrap();
    create(&store, new_probe_with("c", |_| {})).await.unwrap();
    // Whoever changes it.
    update(&store, settings(uid, true, "", "", 1), settings(uid, false, "", "", 2), None).await.unwrap();
    store.close().await;
    let found = open(directory.path()).await.probes().await.unwrap();
    let creators = found.iter().map(|row| row.record.creator.as_str());
    assert_eq!(creators.collect::<Vec<_>>(), ["uid:1000", "uid:1001", ""]);
    // With the names by which roles know it.
    let makers: Vec<_> = found.iter().map(|row| row.record.maker().map(|maker| maker.names())).collect();
    assert_eq!(makers, [Some(alice.names()), Some(bob.names()), None]);
}

/// A probe after so many changes.
fn settings(uid: ProbeUid, enabled: bool, filter: &str, text: &str, revision: i64) -> Record {
    // Like that of a new probe at first.
    let owner = format!("owner {revision}");
    let changed = || Metadata { owner, ..Metadata::default() };
    let metadata = if revision == 1 { with_leases().remove(0) } else { changed() };
    let spec = ProbeSpec {
        enabled,
        filter: filter.to_owned(),
        labels: labels(text),
        metadata,
        ..ProbeSpec::default()
    };
    Record { uid, spec, revision, update_time: from_ns(revision), ..new_probe("any") }
}

/// Labels as they are printed.
fn labels(text: &str) -> Labels {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    Labels::new(pairs.map(|(key, value)| (key.to_owned(), value.to_owned()))).unwrap()
}

fn key(id: &str, fingerprint: &str) -> RequestKey {
    RequestKey {
        principal: "uid:1".to_owned(),
        id: id.to_owned(),
        fingerprint: Fingerprint(fingerprint.to_owned()),
    }
}

async fn create(store: &Store, record: Record) -> Result<ProbeUid, StoreError> {
    store.begin(&[(creation(record), None).into()]).await?.durable().map(|uids| uids[0])
}

async fn settle(
    store: &Store,
    uid: ProbeUid,
    listing: &str,
    request: Option<RequestKey>,
) -> Result<(), StoreError> {
    store.settle(&[(Settled::Created { uid, listing: listing.to_owned() }, request)]).await
}

async fn update(
    store: &Store,
    before: Record,
    wanted: Record,
    request: Option<RequestKey>,
) -> Result<(), StoreError> {
    store.begin(&[(updating(before, wanted), request).into()]).await?.durable().map(drop)
}

fn updating(before: Record, wanted: Record) -> Intent {
    Intent::Update { before: Box::new(before), wanted: Box::new(wanted), meaning: None }
}

fn undo_update(before: Record, request: Option<RequestKey>) -> Undo {
    Undo::Update { before: Box::new(before), meaning: None, request }
}

#[tokio::test]
async fn an_adopted_event_is_settled_from_the_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let request = key("r", "adopt kprobes/a");
    let listing = "p:kprobes/a vfs_read".to_owned();
    let intent = Intent::Adopt { record: Box::new(new_probe("a")), meaning: None, listing };
    let uid = store.begin(&[(intent.clone(), Some(request.clone())).into()]).await.unwrap().uids[0];
    let row = store.probes().await.unwrap().remove(0);
    assert_eq!(
        (row.record.uid, row.phase, row.kernel_listing.as_str()),
        (uid, Phase::Settled, "p:kprobes/a vfs_read")
    );
    let spec = row.record.spec;
    assert_eq!((spec.labels, spec.metadata), (labels("team=storage"), with_leases().remove(0)));
    assert_eq!(store.carried_out(&request).await.unwrap(), Some(uid));
    // A second one of that name is refused, and nothing of it is written.
    let other = key("other", "adopt kprobes/a");
    assert!(store.begin(&[(intent, Some(other.clone())).into()]).await.is_err());
    assert_eq!((store.probes().await.unwrap().len(), store.carried_out(&other).await.unwrap()), (1, None));
    // It was not adopted after all: identified by its uid, or by its name if the disk has not said
    // whether it has the row.
    store.undo_all(vec![Undo::Adoption("kprobes/a".parse().unwrap(), Some(request.clone()))]).await;
    assert!(store.probes().await.unwrap().is_empty());
    assert_eq!(store.carried_out(&request).await.unwrap(), None);
}

#[tokio::test]
async fn a_probe_lives_through_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let uid = create(&store, new_probe("a")).await.unwrap();
    assert_eq!(store.probes().await.unwrap()[0].phase, Phase::Pending);
    settle(&store, uid, "p:kprobes/a vfs_read", Some(key("r1", "create a"))).await.unwrap();
    assert_eq!(store.probes().await.unwrap()[0].record.spec.labels, labels("team=storage"));
    let before = settings(uid, true, "", "team=storage", 1);
    update(&store, before, settings(uid, false, "x == 1", "tier=,team=net", 2), None).await.unwrap();
    store.close().await;

    let store = open(directory.path()).await;
    let probes = store.probes().await.unwrap();
    assert_eq!(probes.len(), 1);
    let Record { uid: found, spec, revision, .. } = &probes[0].record;
    assert_eq!((*found, probes[0].phase, *revision), (uid, Phase::Settled, 2));
    assert_eq!((spec.enabled, spec.filter.as_str()), (false, "x == 1"));
    assert_eq!(spec.labels, labels("tier=,team=net"));
    assert_eq!(store.carried_out(&key("r1", "create a")).await.unwrap(), Some(uid));
    assert_eq!(store.carried_out(&key("r2", "create a")).await.unwrap(), None);
    assert!(matches!(store.carried_out(&key("r1", "create b")).await, Err(StoreError::RequestReused(_))));
}

#[tokio::test]
async fn an_id_of_a_request_belongs_to_its_principal() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let uid = create(&store, new_probe("a")).await.unwrap();
    let mine = key("deploy", "create a");
    settle(&store, uid, "p:kprobes/a vfs_read", Some(mine.clone())).await.unwrap();
    // Of another it is not known, and it can use it for something else.
    let same = RequestKey { principal: "uid:2".to_owned(), ..mine.clone() };
    let other = RequestKey { principal: "uid:2".to_owned(), ..key("deploy", "create b") };
    assert_eq!(store.carried_out(&same).await.unwrap(), None);
    assert_eq!(store.carried_out(&other).await.unwrap(), None);
    let theirs = create(&store, new_probe("b")).await.unwrap();
    settle(&store, theirs, "p:kprobes/b vfs_read", Some(other.clone())).await.unwrap();
    assert_eq!(store.carried_out(&mine).await.unwrap(), Some(uid));
    assert_eq!(store.carried_out(&other).await.unwrap(), Some(theirs));
    // What is taken back is its own, too.
    store.undo(Undo::Creation(theirs, Some(other.clone()))).await;
    assert_eq!(store.carried_out(&other).await.unwrap(), None);
    assert_eq!(store.carried_out(&mine).await.unwrap(), Some(uid));
}

#[tokio::test]
async fn a_change_that_is_taken_back_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let uid = create(&store, new_probe("a")).await.unwrap();
    settle(&store, uid, "p:kprobes/a vfs_read", None).await.unwrap();
    let (before, request) = (settings(uid, true, "", "team=storage", 1), key("r", "update kprobes/a"));
    let wanted = settings(uid, false, "x", "", 2);
    update(&store, before.clone(), wanted, Some(request.clone())).await.unwrap();
    let found = store.probes().await.unwrap().remove(0).record;
    assert_eq!((found.spec.enabled, found.revision, found.spec.labels.is_empty()), (false, 2, true));
    store.undo(undo_update(before.clone(), Some(request.clone()))).await;
    let now = store.probes().await.unwrap().remove(0).record;
    assert_eq!((now.revision, now.update_time), (before.revision, before.update_time));
    // An update never changes the definition.
    assert_eq!(now.spec, ProbeSpec { definition: Arc::clone(&now.spec.definition), ..before.spec });
    assert_eq!(store.carried_out(&request).await.unwrap(), None, "so that it can be asked for again");
}

#[tokio::test]
async fn a_file_that_was_taken_away_is_not_written_to() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    store.check().await.unwrap();
    let (wal, aside) = (directory.path().join("kprobed.db-wal"), directory.path().join("aside"));
    std::fs::rename(&wal, &aside).unwrap();
    let refused = create(&store, new_probe("a")).await.unwrap_err();
    assert!(refused.to_string().ends_with("kprobed.db`: the file was moved or removed"), "{refused}");
    assert!(store.health().failing);
    std::fs::rename(&aside, &wal).unwrap();
    create(&store, new_probe("a")).await.unwrap();
    assert!(!store.health().failing && store.health().last_failure.is_some());
}

#[tokio::test]
async fn uids_are_never_given_out_twice() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let first = create(&store, new_probe("a")).await.unwrap();
    settle(&store, first, "", None).await.unwrap();
    let twice: [Intended; 2] = ["b", "b"].map(|name| (creation(new_probe(name)), None).into());
    assert!(store.begin(&twice).await.is_err(), "the name is taken");
    store.undo(Undo::Probe(first)).await;
    let second = create(&store, new_probe("a")).await.unwrap();
    assert!(second > first);
}

#[tokio::test]
async fn labels_go_with_their_probe() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let gone = create(&store, new_probe("a")).await.unwrap();
    let plain = new_probe_with("b", |spec| spec.labels = Labels::default());
    let stays = create(&store, plain).await.unwrap();
    store.undo(Undo::Probe(gone)).await;
    let count = async |connection: &mut SqliteConnection| {
        Ok(sqlx::query_scalar::<_, i64>("SELECT count(*) FROM probe_label").fetch_one(connection).await?)
    };
    assert_eq!(store.database.read(count).await.unwrap(), 0);
    let probes = store.probes().await.unwrap();
    assert_eq!(
        (probes.len(), probes[0].record.uid, probes[0].record.spec.labels.is_empty()),
        (1, stays, true)
    );
    // A value that the daemon cannot have written is not read as labels.
    let insert = async |transaction: &mut SqliteConnection| {
        sqlx::query("INSERT INTO probe_label (probe_uid, key, value) VALUES (?, 'a b', '')")
            .bind(stays.0)
            .execute(transaction)
            .await?;
        Ok(())
    };
    store.database.write(insert).await.unwrap();
    // It costs the label, and is said.
    let probes = store.probes().await.unwrap();
    assert!(probes.len() == 1 && probes[0].record.spec.labels.is_empty() && probes[0].unreadable.is_none());
    let said: Vec<_> = store.bad_values().iter().map(ToString::to_string).collect();
    assert!(said.len() == 1 && said[0].contains("`key` of row") && said[0].contains("\"a b\""), "{said:?}");
}

#[tokio::test]
async fn a_deletion_that_is_taken_back_can_be_asked_for_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let uid = create(&store, new_probe("a")).await.unwrap();
    let request = key("r", "delete kprobes/a");
    store.begin(&[(Intent::Remove(uid), Some(request.clone())).into()]).await.unwrap();
    assert_eq!(store.probes().await.unwrap()[0].phase, Phase::Removing);
    store.undo(Undo::Deletion(uid)).await;
    assert_eq!(store.probes().await.unwrap()[0].phase, Phase::Settled);
    assert_eq!(store.carried_out(&request).await.unwrap(), None);
}

#[tokio::test]
async fn a_database_of_another_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let insert = async |transaction: &mut SqliteConnection| {
        sqlx::query(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'later', 1, x'00', 0)",
        )
        .execute(transaction)
        .await?;
        Ok(())
    };
    store.database.write(insert).await.unwrap();
    store.close().await;
    let error = Store::open(directory.path(), from_ns(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::OtherVersion { migration: 9999, .. }), "{error}");
}

#[tokio::test]
async fn a_meaning_lives_as_long_as_its_probe() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let first = create(&store, new_probe("first")).await.unwrap();
    let intent = Intent::Create { record: Box::new(new_probe("without")), meaning: None };
    let without = store.begin(&[(intent, None).into()]).await.unwrap().uids[0];
    let meanings = store.meanings().await.unwrap();
    assert_eq!((meanings.get(&first).and_then(Option::as_deref), meanings.len()), (Some("{}"), 1));
    store.set_meanings(&[(first, "1".to_owned()), (without, "2".to_owned())]).await.unwrap();
    let meanings = store.meanings().await.unwrap();
    assert_eq!((meanings[&first].as_deref(), meanings[&without].as_deref()), (Some("1"), Some("2")));
    // Nothing is written for a probe that does not exist, nor for the others of the same call.
    assert!(store.set_meanings(&[(first, "3".to_owned()), (ProbeUid(99), "4".to_owned())]).await.is_err());
    store.undo(Undo::Probe(without)).await;
    let meanings = store.meanings().await.unwrap();
    assert_eq!((meanings[&first].as_deref(), meanings.len()), (Some("1"), 1));
    // An acceptance is one transaction with what it changes, and is taken back with it.
    let after = |revision| Box::new(settings(first, true, "", "team=storage", revision));
    let meaning = Accepted { before: Some("1".to_owned()), now: Some("2".to_owned()) };
    let accept = Intent::Update { before: after(1), wanted: after(2), meaning: Some(meaning) };
    store.begin(&[(accept, Some(key("a", "accept"))).into()]).await.unwrap();
    assert_eq!(store.meanings().await.unwrap()[&first].as_deref(), Some("2"));
    let undo = Undo::Update { before: after(1), meaning: Some("1".to_owned()), request: None };
    store.undo(undo).await;
    assert_eq!(store.meanings().await.unwrap()[&first].as_deref(), Some("1"));
}

/// A probe, one that is changed, and one that is replaced, atomically.
async fn begin_together(store: &Store) -> Vec<ProbeUid> {
    let mut uids = Vec::new();
    for event in ["changed", "replaced"] {
        let uid = create(store, new_probe(event)).await.unwrap();
        settle(store, uid, &format!("p:kprobes/{event} vfs_read"), None).await.unwrap();
        uids.push(uid);
    }
    let before = |uid| settings(uid, true, "", "team=storage", 1);
    let reversal = |uid| Some(Box::new(before(uid)));
    let update = updating(before(uids[0]), settings(uids[0], false, "x == 1", "tier=2", 2));
    let request = Some(key("u", "update changed"));
    let together = [
        Intended { intent: update, request, reversal: reversal(uids[0]), entry: None, ends_trip: false },
        Intended {
            intent: Intent::Remove(uids[1]),
            request: None,
            reversal: reversal(uids[1]),
            entry: Some(Arc::new(entry())),
            ends_trip: false,
        },
        (creation(new_probe("replaced")), None).into(),
    ];
    uids.push(store.begin(&together).await.unwrap().uids[2]);
    uids
}

/// The reversals that a crash left to be written.
async fn reversals(store: &Store) -> Vec<Undo> {
    let rows = store.probes().await.unwrap().into_iter();
    rows.filter(|row| row.is_reversed).map(|row| Undo::Reversal { before: Box::new(row.record) }).collect()
}

async fn rows(store: &Store) -> Vec<(i64, bool, Phase, i64)> {
    let rows = store.probes().await.unwrap().into_iter();
    let row = |StoredProbe { record, phase, .. }| (record.uid.0, record.spec.enabled, phase, record.revision);
    let mut rows: Vec<_> = rows.map(row).collect();
    rows.sort_unstable_by_key(|row| row.0);
    rows
}

#[tokio::test]
async fn what_is_made_together_is_taken_back_together() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let uids = begin_together(&store).await;
    let [changed, replaced, new] = [uids[0].0, uids[1].0, uids[2].0];
    store.close().await;
    // The daemon ended in between. What is read is right before anything is written.
    let store = open(directory.path()).await;
    let begun = [
        (changed, true, Phase::Settled, 1),
        (replaced, true, Phase::Settled, 1),
        (new, true, Phase::Pending, 1),
    ];
    assert_eq!(rows(&store).await, begun);
    store.undo_all(reversals(&store).await).await;
    assert!(reversals(&store).await.is_empty());
    let end = [begun[0], begun[1], (new, true, Phase::Removing, 1)];
    assert_eq!(rows(&store).await, end);
    assert_eq!(store.carried_out(&key("u", "update changed")).await.unwrap(), None);
    // The old one has its name again.
    assert!(create(&store, new_probe("replaced")).await.is_err());
}

#[tokio::test]
async fn what_is_made_together_is_good_together() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let uids = begin_together(&store).await;
    let whole = |uid| (Settled::Whole { uid, undo: Undo::Deletion(uid) }, None);
    let created = Settled::Created { uid: uids[2], listing: "p:kprobes/replaced vfs_read".to_owned() };
    store.settle(&[whole(uids[0]), (created, None), whole(uids[1])]).await.unwrap();
    assert!(reversals(&store).await.is_empty());
    let [changed, replaced, new] = [uids[0].0, uids[1].0, uids[2].0];
    let good = [
        (changed, false, Phase::Settled, 2),
        (replaced, true, Phase::Removing, 1),
        (new, true, Phase::Settled, 1),
    ];
    assert_eq!(rows(&store).await, good);
    store.undo(Undo::Probe(uids[1])).await;
    assert_eq!(rows(&store).await, [good[0], good[2]]);
}

#[tokio::test]
async fn the_history_of_states_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let uid = create(&store, new_probe("a")).await.unwrap();
    let record = |number: i64| kprobed_lang::model::StateRecord {
        uid,
        time: from_ns(number),
        state: "DRIFTED".to_owned(),
        reason: "SWITCHED_OFF".to_owned(),
        message: format!("number {number}"),
        hint: "enable it".to_owned(),
    };
    let kept = i64::from(KEPT_STATES);
    store.add_states(&(0..kept + 3).map(record).collect::<Vec<_>>()).await.unwrap();
    let found = store.states_of(uid).await.unwrap();
    assert_eq!(found, (3..kept + 3).rev().map(record).collect::<Vec<_>>());
    // They are deleted with their probe, and none is written for one that has gone.
    store.undo(Undo::Probe(uid)).await;
    store.add_states(&[record(9)]).await.unwrap();
    assert!(store.states_of(uid).await.unwrap().is_empty());
}

thread_local! {
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What the daemon logs on this thread, which is what a test on a runtime of one thread logs.
struct ThisThreadsLog;

impl ThisThreadsLog {
    /// Keeps the log of all threads from now on. A subscriber of one thread alone would not do: `tracing` keeps
    /// for the whole process whether a line is of interest, and asks the thread that meets the line first.
    fn keep() {
        static KEPT: Once = Once::new();
        KEPT.call_once(|| {
            let log = tracing_subscriber::fmt().with_writer(|| ThisThreadsLog).finish();
            tracing::subscriber::set_global_default(log).unwrap();
        });
    }

    fn text() -> String {
        LOG.with_borrow(|bytes| String::from_utf8(bytes.clone()).unwrap())
    }
}

impl io::Write for ThisThreadsLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn entries_that_are_on_the_disk_are_in_the_daemons_log() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    ThisThreadsLog::keep();
    create(&store, new_probe("a")).await.unwrap();
    let twice: [Intended; 2] = ["b", "b"].map(|name| (creation(new_probe(name)), None).into());
    assert!(store.begin(&twice).await.is_err(), "the name is taken");
    store.add_audit(&[entry()]).await.unwrap();
    let page = store.audit_page(0, 10).await.unwrap();
    let text = ThisThreadsLog::text();
    let logged: Vec<_> = text.lines().filter(|line| line.contains("audit entry")).collect();
    assert_eq!((logged.len(), page.entries.len()), (2, 2), "{text}");
    for (line, stored) in logged.iter().zip(&page.entries) {
        assert!(
            line.contains(&stored.digest.to_string()) && line.contains(&format!("{:?}", stored.record)),
            "{line}"
        );
    }
}

/// More rows than one statement takes.
#[tokio::test]
async fn many_changes_are_stored_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let count = 2 * ROWS + 1;
    let intents = |names: &[String]| -> Vec<Intended> {
        names.iter().map(|name| (creation(new_probe(name)), None).into()).collect()
    };
    let names = |prefix: &str| (0..count).map(|number| format!("{prefix}{number}")).collect::<Vec<_>>();
    let (events, requests) = (names("n"), names("r"));
    let uids = store.begin(&intents(&events)).await.unwrap().uids;
    let settled = uids.iter().zip(&requests).map(|(uid, request)| {
        let listing = format!("p:kprobes/n{uid} vfs_read");
        (Settled::Created { uid: *uid, listing }, Some(key(request, "create")))
    });
    store.settle(&settled.collect::<Vec<_>>()).await.unwrap();
    let asked: Vec<_> =
        requests.iter().map(String::as_str).chain(["other"]).map(|id| key(id, "create")).collect();
    let remembered = store.remembered(&asked.iter().collect::<Vec<_>>()).await.unwrap();
    let has = |id: &str| remembered.contains(&("uid:1".to_owned(), id.to_owned()));
    assert_eq!((remembered.len(), has("other"), has(&requests[0])), (count, false, true));
    let of_another = RequestKey { principal: "uid:2".to_owned(), ..asked[0].clone() };
    assert!(store.remembered(&[&of_another, &asked[count]]).await.unwrap().is_empty());
    // The last one of these is there already.
    let mut others = names("m");
    others.push("n0".to_owned());
    assert!(store.begin(&intents(&others)).await.is_err());
    assert_eq!(store.probes().await.unwrap().len(), count);
    // The audit log goes on after the last entry that is stored.
    store.add_audit(&[entry()]).await.unwrap();
    let page = store.audit_page(0, 1000).await.unwrap();
    assert_eq!(page.entries.len(), count + 1);
    let mut chain = Chain::after(page.after, None).unwrap();
    for one in &page.entries {
        chain.verify(one.sequence, &one.record, one.digest).unwrap();
    }
    assert_eq!(chain.head(), store.audit_head().await.unwrap());
    let states: Vec<_> = uids
        .iter()
        .map(|uid| kprobed_lang::model::StateRecord {
            uid: *uid,
            time: from_ns(1),
            state: "ARMED".to_owned(),
            reason: String::new(),
            message: String::new(),
            hint: String::new(),
        })
        .collect();
    store.add_states(&states).await.unwrap();
    for (uid, state) in uids.iter().zip(&states) {
        assert_eq!(store.states_of(*uid).await.unwrap(), std::slice::from_ref(state));
    }
}
