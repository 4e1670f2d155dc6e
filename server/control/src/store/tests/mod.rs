//! Tests of the store on a real disk; the modules below use simulated ones.

mod bad;
mod costs;
pub(crate) mod disk;
mod faults;
mod files;
mod readers;
mod reserve;
pub(crate) mod simulated;
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
    Store::open(directory, SystemTime::now()).await.unwrap()
}

fn new_probe(event: &str) -> Record {
    let spec = ProbeSpec {
        definition: Arc::new(DefinitionText::new(format!("p:{event} vfs_read"))),
        enabled: true,
        filter: String::new(),
        stack: false,
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

fn entry() -> Entry {
    Entry::new(Action::Changed, "uid:0")
}

/// A change with an entry of the audit log.
fn edit(before: Option<&Record>, after: Option<&Record>, request: Option<RequestKey>) -> Edit {
    Edit { entry: Some(Arc::new(entry())), request, ..Edit::new(before, after) }
}

fn creation(record: &Record) -> Edit {
    edit(None, Some(record), None)
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
    let first = store.probes().await.unwrap().remove(0).record;
    for metadata in with_leases() {
        let mut now = settings(&first, true, "", "", 2);
        now.spec.metadata = metadata.clone();
        update(&store, &first, &now, None).await.unwrap();
        assert_eq!(found().await.remove(0), metadata);
    }
}

#[tokio::test]
async fn who_made_a_probe_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let of = |names: [&str; 2]| Principal::of_names(&names.map(str::to_owned)).unwrap();
    let (alice, bob) = (of(["uid:1000", "group:storage"]), of(["uid:1001", "user:bob"]));
    let store = open(directory.path()).await;
    let first = create(&store, new_probe_with("a", |_| {}).by(&alice)).await.unwrap();
    create(&store, new_probe_with("b", |_| {}).by(&bob)).await.unwrap();
    create(&store, new_probe_with("c", |_| {})).await.unwrap();
    // Whoever changes it.
    update(&store, &first, &settings(&first, false, "", "", 2), None).await.unwrap();
    store.close().await;
    let found = open(directory.path()).await.probes().await.unwrap();
    let creators = found.iter().map(|row| row.record.creator.as_str());
    assert_eq!(creators.collect::<Vec<_>>(), ["uid:1000", "uid:1001", ""]);
    // With the names by which roles know it.
    let makers: Vec<_> = found.iter().map(|row| row.record.maker().map(|maker| maker.names())).collect();
    assert_eq!(makers, [Some(alice.names()), Some(bob.names()), None]);
}

/// A probe after so many changes.
fn settings(of: &Record, enabled: bool, filter: &str, text: &str, revision: i64) -> Record {
    // Like that of a new probe at first.
    let owner = format!("owner {revision}");
    let changed = || Metadata { owner, ..Metadata::default() };
    let metadata = if revision == 1 { with_leases().remove(0) } else { changed() };
    let definition = Arc::clone(&of.spec.definition);
    let (stack, filter) = (true, filter.to_owned());
    let spec = ProbeSpec { enabled, filter, stack, labels: labels(text), metadata, definition };
    Record { spec, revision, update_time: from_ns(revision), ..of.clone() }
}

/// Labels as they are printed.
fn labels(text: &str) -> Labels {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    Labels::new(pairs.map(|(key, value)| (key.to_owned(), value.to_owned()))).unwrap()
}

fn key(id: &str, fingerprint: &str) -> RequestKey {
    RequestKey { principal: "uid:1".to_owned(), id: id.to_owned(), fingerprint: fingerprint.to_owned() }
}

/// Begins to make a probe.
async fn begin(store: &Store, record: &Record) -> Result<Edit, StoreError> {
    let mut edit = creation(record);
    store.begin(&mut [&mut edit]).await?;
    Ok(edit)
}

/// Makes a probe that the kernel lists as it was written.
async fn create(store: &Store, record: Record) -> Result<Record, StoreError> {
    settle(store, begin(store, &record).await?, None).await
}

async fn settle(store: &Store, mut edit: Edit, request: Option<RequestKey>) -> Result<Record, StoreError> {
    edit.request = request;
    let after = edit.after.as_mut().unwrap();
    after.kernel_listing = after.kernel_definition.clone();
    let after = Record::clone(after);
    store.settle(&[&edit]).await?;
    Ok(after)
}

async fn update(
    store: &Store,
    before: &Record,
    wanted: &Record,
    request: Option<RequestKey>,
) -> Result<(), StoreError> {
    let mut edit = edit(Some(before), Some(wanted), request);
    store.begin(&mut [&mut edit]).await?;
    store.settle(&[&edit]).await
}

/// Deletes a probe, or changes it so that it records no more, as the control thread does it.
async fn disarm(store: &Store, mut edit: Edit) -> Result<(), StoreError> {
    assert!(edit.disarms());
    edit.goes_on = true;
    if let Err(error) = store.begin(&mut [&mut edit]).await
        && !error.is_of_the_disk()
    {
        return Err(error);
    }
    match store.settle(&[&edit]).await {
        Err(error) if error.is_of_the_disk() => match store.keep(&[&edit]).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(error),
        },
        Err(error) => {
            let failed = edit.is_begun.then(|| entry().failed("of the disk"));
            store.revert(edit.is_begun.then(|| edit.uid()), failed.into_iter().collect()).await;
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

/// All that is stored of probes, and what the journal has.
async fn stored(store: &Store) -> (Vec<Record>, Vec<Interrupted>) {
    let rows = store.probes().await.unwrap().into_iter().map(|row| row.record).collect();
    (rows, store.journal().await.unwrap())
}

#[tokio::test]
async fn a_change_is_in_the_journal_until_it_is_settled() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let request = key("r", "adopt kprobes/a");
    let record = Record { kernel_listing: "p:kprobes/a vfs_read".to_owned(), ..new_probe("a") };
    let mut adoption = edit(None, Some(&record), Some(request.clone()));
    store.begin(&mut [&mut adoption]).await.unwrap();
    let record = Record { uid: adoption.uid(), ..record };
    let after = Some(StoredProbe { record: record.clone(), unreadable: None });
    let interrupted = Interrupted { uid: record.uid, name: record.name.clone(), after };
    assert!(adoption.is_begun && record.uid.0 > 0);
    assert_eq!(stored(&store).await, (vec![], vec![interrupted.clone()]));
    assert_eq!(store.carried_out(&request).await.unwrap(), None);
    // A second one of that name is refused, and nothing of it is written.
    let twice = [creation(&new_probe("b")), creation(&new_probe("b"))];
    let [mut one, mut two] = twice;
    assert!(store.begin(&mut [&mut one, &mut two]).await.is_err());
    assert_eq!(stored(&store).await, (vec![], vec![interrupted]));
    store.settle(&[&adoption]).await.unwrap();
    assert_eq!(stored(&store).await, (vec![record.clone()], vec![]));
    assert_eq!(store.carried_out(&request).await.unwrap(), Some(record.uid));
    let other = key("other", "adopt kprobes/a");
    let mut again = edit(None, Some(&new_probe("a")), Some(other.clone()));
    assert!(store.begin(&mut [&mut again]).await.is_err(), "the name is taken");
    assert_eq!(stored(&store).await, (vec![record.clone()], vec![]));
    // The disk has not said whether it has that: it was not adopted after all.
    let (after, request) = (Some(Box::new(record.clone())), Some(request));
    let reopened = Owed::Reopened { uid: record.uid, before: None, after, request: request.clone() };
    store.database.pay_or_owe(vec![reopened]).await;
    assert_eq!((stored(&store).await.0, stored(&store).await.1.len()), (vec![], 1));
    store.revert([record.uid], Vec::new()).await;
    assert_eq!(stored(&store).await, (vec![], vec![]));
    assert_eq!(store.carried_out(&request.unwrap()).await.unwrap(), None);
}

/// A name that could not be taken back is free as soon as the kernel has no event of it.
#[tokio::test]
async fn what_was_left_behind_does_not_keep_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let left = begin(&store, &new_probe("a")).await.unwrap();
    let next = create(&store, new_probe("a")).await.unwrap();
    assert!(next.uid > left.uid());
    assert_eq!(stored(&store).await, (vec![next], vec![]));
}

#[tokio::test]
async fn a_probe_lives_through_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let begun = begin(&store, &new_probe("a")).await.unwrap();
    let made = settle(&store, begun, Some(key("r1", "create a"))).await.unwrap();
    assert_eq!(store.probes().await.unwrap()[0].record, made);
    update(&store, &made, &settings(&made, false, "x == 1", "tier=,team=net", 2), None).await.unwrap();
    store.close().await;

    let store = open(directory.path()).await;
    let probes = store.probes().await.unwrap();
    assert_eq!(probes.len(), 1);
    let Record { uid, spec, revision, .. } = &probes[0].record;
    assert_eq!((*uid, *revision, stored(&store).await.1), (made.uid, 2, vec![]));
    assert_eq!((spec.enabled, spec.filter.as_str()), (false, "x == 1"));
    assert_eq!(spec.labels, labels("tier=,team=net"));
    assert_eq!(store.carried_out(&key("r1", "create a")).await.unwrap(), Some(made.uid));
    assert_eq!(store.carried_out(&key("r2", "create a")).await.unwrap(), None);
    assert!(matches!(store.carried_out(&key("r1", "create b")).await, Err(StoreError::RequestReused(_))));
}

#[tokio::test]
async fn an_id_of_a_request_belongs_to_its_principal() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let mine = key("deploy", "create a");
    let begun = begin(&store, &new_probe("a")).await.unwrap();
    let uid = settle(&store, begun, Some(mine.clone())).await.unwrap().uid;
    // Of another it is not known, and it can use it for something else.
    let same = RequestKey { principal: "uid:2".to_owned(), ..mine.clone() };
    let other = RequestKey { principal: "uid:2".to_owned(), ..key("deploy", "create b") };
    assert_eq!(store.carried_out(&same).await.unwrap(), None);
    assert_eq!(store.carried_out(&other).await.unwrap(), None);
    let begun = begin(&store, &new_probe("b")).await.unwrap();
    let theirs = settle(&store, begun, Some(other.clone())).await.unwrap().uid;
    assert_eq!(store.carried_out(&mine).await.unwrap(), Some(uid));
    assert_eq!(store.carried_out(&other).await.unwrap(), Some(theirs));
    // What is taken back is its own, too.
    let (request, after) = (Some(other.clone()), Some(Box::new(new_probe("b"))));
    store.database.pay_or_owe(vec![Owed::Reopened { uid: theirs, before: None, after, request }]).await;
    assert_eq!(store.carried_out(&other).await.unwrap(), None);
    assert_eq!(store.carried_out(&mine).await.unwrap(), Some(uid));
}

#[tokio::test]
async fn a_change_that_is_taken_back_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let before = create(&store, new_probe("a")).await.unwrap();
    let (wanted, request) = (settings(&before, false, "x", "", 2), key("r", "update kprobes/a"));
    let mut update = edit(Some(&before), Some(&wanted), Some(request.clone()));
    store.begin(&mut [&mut update]).await.unwrap();
    // Until it is settled, what is stored is what was acknowledged.
    assert_eq!((stored(&store).await.0, stored(&store).await.1.len()), (vec![before.clone()], 1));
    store.revert([before.uid], vec![entry().failed("the kernel refuses it")]).await;
    assert_eq!(stored(&store).await, (vec![before.clone()], vec![]));
    assert_eq!(store.carried_out(&request).await.unwrap(), None, "so that it can be asked for again");
    // Settled, if the disk has not said whether it has that.
    store.begin(&mut [&mut update]).await.unwrap();
    store.settle(&[&update]).await.unwrap();
    assert_eq!(stored(&store).await, (vec![wanted.clone()], vec![]));
    let Edit { before: was, after, request: asked, .. } = update;
    store
        .database
        .pay_or_owe(vec![Owed::Reopened { uid: before.uid, before: was, after, request: asked }])
        .await;
    assert_eq!((stored(&store).await.0, stored(&store).await.1.len()), (vec![before], 1));
    assert_eq!(store.carried_out(&request).await.unwrap(), None);
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

/// The page that is rewritten before does not count as stored.
#[tokio::test]
async fn what_is_owed_and_cannot_be_paid_is_no_success() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let record = create(&store, new_probe("a")).await.unwrap();
    let (wal, aside) = (directory.path().join("kprobed.db-wal"), directory.path().join("aside"));
    std::fs::rename(&wal, &aside).unwrap();
    create(&store, new_probe("b")).await.unwrap_err();
    std::fs::rename(&aside, &wal).unwrap();
    let changes = store.audit_changes();
    // Its name is taken.
    let uid = ProbeUid(record.uid.0 + 1);
    let same_name = Box::new(Record { uid, ..record });
    store.database.pay_or_owe(vec![Owed::Row { uid, record: Some(same_name), request: None }]).await;
    assert_eq!(store.database.owed().await, 1);
    assert!(store.health().failing && !changes.has_changed().unwrap());
}

#[tokio::test]
async fn uids_are_never_given_out_twice() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let first = create(&store, new_probe("a")).await.unwrap();
    disarm(&store, edit(Some(&first), None, None)).await.unwrap();
    let second = create(&store, new_probe("a")).await.unwrap();
    assert!(second.uid > first.uid);
    // Also those of probes that were never made.
    let third = begin(&store, &new_probe("b")).await.unwrap();
    store.revert([third.uid()], Vec::new()).await;
    assert!(create(&store, new_probe("c")).await.unwrap().uid > third.uid());
}

#[tokio::test]
async fn a_deletion_that_is_taken_back_can_be_asked_for_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let record = create(&store, new_probe("a")).await.unwrap();
    let request = key("r", "delete kprobes/a");
    let mut deletion = edit(Some(&record), None, Some(request.clone()));
    store.begin(&mut [&mut deletion]).await.unwrap();
    let interrupted = Interrupted { uid: record.uid, name: record.name.clone(), after: None };
    assert_eq!(stored(&store).await, (vec![record.clone()], vec![interrupted]));
    store.revert([record.uid], Vec::new()).await;
    assert_eq!(stored(&store).await, (vec![record], vec![]));
    assert_eq!(store.carried_out(&request).await.unwrap(), None);
}

/// What the daemon finds out about a probe is a part of its row: of a trip, of the end of a lease, of its meaning.
#[tokio::test]
async fn what_is_found_out_is_kept_with_the_probe() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let made = create(&store, new_probe("a")).await.unwrap();
    let meaning = r#"{"version":2,"kernel":{"name":"6.1","id":"aa"},"module":null,"complete":true,"location":"vfs_read+0x0",
        "function":"vfs_read","by_address":false,"prototype":null,"parts":[],"code":null}"#;
    let meaning: Option<Arc<kprobed_verdict::meaning::Meaning>> = serde_json::from_str(meaning).unwrap();
    let trip = Some(Trip { code: "OVER_PROBE_BUDGET".to_owned(), message: "disarmed".to_owned() });
    let found = Record { meaning, trip, lease_ended: Some(from_ns(7)), ..made.clone() };
    let gone = Record { uid: ProbeUid(99), ..new_probe("gone") };
    store.note(&[&found, &gone]).await.unwrap();
    assert_eq!(stored(&store).await, (vec![found.clone()], vec![]));
    // A meaning of another format is not known, and costs nothing else.
    let other = async |transaction: &mut SqliteConnection| {
        let update =
            sqlx::query("UPDATE probe SET record = replace(record, '\"version\":2', '\"version\":1')");
        Ok(update.execute(transaction).await?.rows_affected())
    };
    assert_eq!(store.database.write(other).await.unwrap(), 1);
    assert_eq!(stored(&store).await.0, [Record { meaning: None, ..found.clone() }]);
    assert!(store.bad_values().is_empty());
    // What is written of a change is all of it: a client has armed the probe again.
    let armed = Record { trip: None, ..settings(&found, true, "", "a=b", 2) };
    update(&store, &found, &armed, None).await.unwrap();
    assert_eq!(stored(&store).await.0, [armed]);
}

#[test]
fn what_only_disarms_goes_on_without_room() {
    let on = Record { uid: ProbeUid(1), ..new_probe("a") };
    let with = |change: &dyn Fn(&mut Record)| {
        let mut after = Record { revision: 2, ..on.clone() };
        change(&mut after);
        Edit::new(Some(&on), Some(&after)).disarms()
    };
    let trip = || Some(Trip { code: String::new(), message: String::new() });
    assert!(Edit::new(Some(&on), None).disarms() && !Edit::new(None, Some(&on)).disarms());
    assert!(with(&|after| after.spec.enabled = false));
    assert!(with(&|after| after.trip = trip()));
    assert!(with(&|after| after.lease_ended = Some(from_ns(1))));
    assert!(!with(&|_| {}), "it is on");
    for change in [
        (|after: &mut Record| after.spec.filter = "x".to_owned()) as fn(&mut Record),
        |after| after.spec.labels = labels("a=b"),
        |after| after.spec.metadata = Metadata::default(),
    ] {
        assert!(!with(&|after| (after.spec.enabled = false, change(after)).1));
    }
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

/// A probe that is changed, and one that is replaced, atomically: two that are stored, and the changes.
async fn begin_together(store: &Store) -> ([Record; 2], [Edit; 3]) {
    let mut there = Vec::new();
    for event in ["changed", "replaced"] {
        there.push(create(store, new_probe(event)).await.unwrap());
    }
    let [changed, replaced] = there.try_into().unwrap();
    let mut edits = [
        edit(
            Some(&changed),
            Some(&settings(&changed, false, "x == 1", "tier=2", 2)),
            Some(key("u", "update changed")),
        ),
        creation(&new_probe("replaced")),
        edit(Some(&replaced), None, None),
    ];
    let [one, two, three] = &mut edits;
    store.begin(&mut [one, two, three]).await.unwrap();
    ([changed, replaced], edits)
}

#[tokio::test]
async fn what_is_made_together_is_taken_back_together() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let (there, edits) = begin_together(&store).await;
    store.close().await;
    // The daemon ended in between. What is read is right before anything is written.
    let store = open(directory.path()).await;
    let (rows, journal) = stored(&store).await;
    assert_eq!(rows, there);
    let made = |index: usize| Some(StoredProbe { record: *edits[index].after.clone()?, unreadable: None });
    let found: Vec<_> = journal.into_iter().map(|one| (one.uid, one.after)).collect();
    assert_eq!(found, [(there[0].uid, made(0)), (there[1].uid, None), (edits[1].uid(), made(1))]);
    store.revert(found.into_iter().map(|(uid, _)| uid), Vec::new()).await;
    assert_eq!(stored(&store).await, (there.to_vec(), vec![]));
    assert_eq!(store.carried_out(&key("u", "update changed")).await.unwrap(), None);
    // The old one has its name.
    assert!(begin(&store, &new_probe("replaced")).await.is_err());
}

#[tokio::test]
async fn what_is_made_together_is_good_together() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let (_, edits) = begin_together(&store).await;
    store.settle(&edits.each_ref()).await.unwrap();
    let good: Vec<_> = edits[..2].iter().map(|edit| *edit.after.clone().unwrap()).collect();
    assert_eq!(stored(&store).await, (good, vec![]));
    assert_eq!(store.carried_out(&key("u", "update changed")).await.unwrap(), Some(edits[0].uid()));
    // Also if the disk has not said whether it has all of that: the new one, and then those that were there.
    let reopened = |edit: &Edit| Owed::Reopened {
        uid: edit.uid(),
        before: edit.before.clone(),
        after: edit.after.clone(),
        request: edit.request.clone(),
    };
    store.database.pay_or_owe([1, 0, 2].map(|index: usize| reopened(&edits[index])).to_vec()).await;
    let before: Vec<_> = [0, 2].iter().map(|index: &usize| *edits[*index].before.clone().unwrap()).collect();
    assert_eq!((stored(&store).await.0, stored(&store).await.1.len()), (before, 3));
    assert_eq!(store.owed().await.0, 0);
}

#[tokio::test]
async fn the_history_of_states_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let probe = create(&store, new_probe("a")).await.unwrap();
    let uid = probe.uid;
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
    // Each probe has its own bound, also where one statement is for several.
    let other = create(&store, new_probe("b")).await.unwrap().uid;
    let of_other = |number| kprobed_lang::model::StateRecord { uid: other, ..record(number) };
    for (last, of_others) in [(kept + 3, 0..2), (kept + 4, 2..kept + 1)] {
        let both: Vec<_> = of_others.map(of_other).chain([record(last)]).collect();
        store.add_states(&both).await.unwrap();
        let found = store.states_of(uid).await.unwrap();
        assert_eq!(found, (last + 1 - kept..=last).rev().map(record).collect::<Vec<_>>());
    }
    let found = store.states_of(other).await.unwrap();
    assert_eq!(found, (1..=kept).rev().map(of_other).collect::<Vec<_>>());
    // They are deleted with their probe, and none is written for one that has gone.
    disarm(&store, edit(Some(&probe), None, None)).await.unwrap();
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
    let [mut one, mut two] = ["b", "b"].map(|name| creation(&new_probe(name)));
    assert!(store.begin(&mut [&mut one, &mut two]).await.is_err(), "the name is taken");
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
    let creations =
        |names: &[String]| names.iter().map(|name| creation(&new_probe(name))).collect::<Vec<_>>();
    let names = |prefix: &str| (0..count).map(|number| format!("{prefix}{number}")).collect::<Vec<_>>();
    let (events, requests) = (names("n"), names("r"));
    let mut edits = creations(&events);
    store.begin(&mut edits.iter_mut().collect::<Vec<_>>()).await.unwrap();
    assert_eq!(stored(&store).await.1.len(), count);
    let uids: Vec<_> = edits.iter().map(Edit::uid).collect();
    for (edit, request) in edits.iter_mut().zip(&requests) {
        edit.request = Some(key(request, "create"));
    }
    store.settle(&edits.iter().collect::<Vec<_>>()).await.unwrap();
    for (request, uid) in requests.iter().zip(&uids) {
        assert_eq!(store.carried_out(&key(request, "create")).await.unwrap(), Some(*uid));
    }
    let of_another = RequestKey { principal: "uid:2".to_owned(), ..key(&requests[0], "create") };
    for unknown in [key("other", "create"), of_another] {
        assert_eq!(store.carried_out(&unknown).await.unwrap(), None);
    }
    // The last one of these is there already.
    let mut others = names("m");
    others.push("n0".to_owned());
    let mut others = creations(&others);
    assert!(store.begin(&mut others.iter_mut().collect::<Vec<_>>()).await.is_err());
    assert_eq!((stored(&store).await.0.len(), stored(&store).await.1), (count, vec![]));
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
