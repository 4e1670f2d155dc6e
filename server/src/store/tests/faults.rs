//! Tests of every step of the store, on a disk that fails at its n-th call, for every n.
//!
//! An acknowledged change exists after the daemon was killed and after a power cut; a refused one
//! does not; the next change works.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::disk::{Cut, Disk, Plan, Trouble};
use super::vfs::{DATABASE, Mounted, NAME};
use super::*;
use kprobed_lang::model::StateRecord;

/// One step of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    BeginCreate,
    SettleCreate,
    Redefine,
    Update,
    BeginRemove,
    BeginMany,
    BeginTogether,
    SettleTogether,
    AddStates,
    AddTick,
    RollUp,
    ForgetOld,
    Check,
    /// These are not refused: they are owed.
    UndoCreate,
    UndoRemove,
    UndoUpdate,
    UndoReversal,
}

const STEPS: [Step; 17] = [
    Step::BeginCreate,
    Step::SettleCreate,
    Step::Redefine,
    Step::Update,
    Step::BeginRemove,
    Step::BeginMany,
    Step::BeginTogether,
    Step::SettleTogether,
    Step::AddStates,
    Step::AddTick,
    Step::RollUp,
    Step::ForgetOld,
    Step::Check,
    Step::UndoCreate,
    Step::UndoRemove,
    Step::UndoUpdate,
    Step::UndoReversal,
];

impl Step {
    fn is_owed(self) -> bool {
        use Step::{UndoCreate, UndoRemove, UndoReversal, UndoUpdate};
        matches!(self, UndoCreate | UndoRemove | UndoReversal | UndoUpdate)
    }
}

/// The disk at the beginning: a probe and an event in each state.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) settled: ProbeUid,
    pending: ProbeUid,
}

pub(crate) struct Opened {
    pub(crate) store: Store,
    _mounted: Mounted,
}

/// Checkpoints after every few pages, so that the log is restarted as well.
fn options_on(path: &Path) -> SqliteConnectOptions {
    options(path).vfs(NAME).pragma("wal_autocheckpoint", "8").busy_timeout(Duration::ZERO)
}

pub(super) async fn open_and_migrate(disk: &Arc<Disk>) -> Result<Opened, StoreError> {
    let mounted = Mounted::new(disk);
    let path = PathBuf::from(mounted.path());
    let store = Store::open_file(path.clone(), options_on(&path), &MIGRATIONS, from_ns(1)).await?;
    Ok(Opened { store, _mounted: mounted })
}

/// Opens a database that is up to date.
pub(super) async fn open(disk: &Arc<Disk>) -> Result<Opened, StoreError> {
    let mounted = Mounted::new(disk);
    let path = PathBuf::from(mounted.path());
    let options = durable(options_on(&path));
    let connection = options.connect().await?;
    let store = Store { database: Arc::new(Database::new(path, options, connection)) };
    Ok(Opened { store, _mounted: mounted })
}

pub(super) async fn baseline() -> (Arc<Disk>, Known) {
    let disk = Disk::with_file(DATABASE);
    let Opened { store, .. } = &open_and_migrate(&disk).await.unwrap();
    let settled = create(store, new_probe_at("settled", 1)).await.unwrap();
    settle(store, settled, "p:kprobes/settled vfs_read", Some(key("made", "create"))).await.unwrap();
    let pending = create(store, new_probe_at("pending", 2)).await.unwrap();
    add(store, &[5]).await.unwrap();
    store.close().await;
    (disk, Known { settled, pending })
}

/// Reads a counter at these seconds. Its value is their number.
async fn add(store: &Store, seconds: &[u64]) -> Result<(), StoreError> {
    let mut counters = store.counters("boot", "6.1", |_| true).await?;
    for second in seconds {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(*second);
        let counted = Counted {
            uid: ProbeUid(1),
            name: ProbeName::new("kprobes", "settled").unwrap(),
            hits: Hits { hits: *second, nmissed: 0 },
            created: SystemTime::UNIX_EPOCH,
        };
        let since = counters.watched_until().unwrap_or(time);
        let tick = Tick { since, time, counts: vec![counted], of: TickOf::All };
        store.add_tick(&mut counters, &tick, true).await?;
    }
    Ok(())
}

/// Rolls up all minutes.
const AT_ONCE: HitRetention = HitRetention { minutes: Duration::ZERO, hours: Duration::from_hours(48) };

async fn take(step: Step, store: &Store, known: Known) -> Result<(), StoreError> {
    let before = settings(known.settled, true, "", "team=storage", 1);
    let request = key("asked", "delete it");
    match step {
        Step::BeginCreate => create(store, new_probe_at("new", 9)).await.map(drop),
        Step::SettleCreate => settle(store, known.pending, "p:kprobes/pending x", Some(request)).await,
        Step::Redefine => {
            let (kernel_definition, listing) = ("p:kprobes/settled y".to_owned(), "listed".to_owned());
            let settled = Settled::Redefined { uid: known.settled, kernel_definition, listing };
            store.settle(&[(settled, None)]).await
        }
        Step::Update => {
            let wanted = settings(known.settled, false, "x == 1", "tier=2,other=", 2);
            update(store, before, wanted, Some(request)).await
        }
        Step::BeginRemove => {
            store.begin(&[(Intent::Remove(known.settled), Some(request)).into()]).await?.durable().map(drop)
        }
        Step::BeginMany => {
            let wanted = settings(known.settled, false, "x == 1", "tier=2,other=", 2);
            let intents = [
                (creation(new_probe_at("new", 9)), None),
                (updating(before, wanted), Some(request)),
                (creation(new_probe_at("newer", 9)), None),
            ];
            store.begin(&intents.map(Intended::from)).await?.durable().map(drop)
        }
        Step::BeginTogether => together(store, known, Some(request)).await.map(drop),
        // The pending probe replaces the other one.
        Step::SettleTogether => {
            let uid = known.settled;
            let listing = "p:kprobes/pending x".to_owned();
            let created = Settled::Created { uid: known.pending, listing };
            let whole = Settled::Whole { uid, undo: Undo::Deletion(uid) };
            store.settle(&[(created, Some(request)), (whole, None)]).await
        }
        Step::AddStates => {
            let record = |uid, state: &str| StateRecord {
                uid,
                time: from_ns(9),
                state: state.to_owned(),
                reason: String::new(),
                message: String::new(),
                hint: String::new(),
            };
            store.add_states(&[record(known.settled, "ARMED"), record(known.settled, "DRIFTED")]).await
        }
        Step::AddTick => add(store, &[6]).await,
        Step::RollUp => store.roll_up(from_ns(60_000_000_000), &AT_ONCE).await.map(drop),
        Step::ForgetOld => store.forget_old(from_ns(i64::MAX), &AT_ONCE).await,
        Step::Check => store.check().await,
        Step::UndoCreate => undo(store, Undo::Probe(known.pending)).await,
        Step::UndoRemove => undo(store, Undo::Deletion(known.pending)).await,
        Step::UndoUpdate => {
            let before = settings(known.settled, false, "before", "", 7);
            let request = Some(key("made", "create"));
            undo(store, undo_update(before, request)).await
        }
        Step::UndoReversal => {
            let before = settings(known.settled, false, "before", "", 7);
            undo(store, Undo::Reversal { before: Box::new(before) }).await
        }
    }
}

/// One probe begins to replace another, atomically.
async fn together(
    store: &Store,
    known: Known,
    request: Option<RequestKey>,
) -> Result<Vec<ProbeUid>, StoreError> {
    let reversal = Some(Box::new(settings(known.settled, true, "", "team=storage", 1)));
    let remove = Intended {
        intent: Intent::Remove(known.settled),
        request,
        reversal,
        entry: Some(Arc::new(entry())),
        ends_trip: false,
    };
    let create = creation(new_probe_at("settled", 9));
    store.begin(&[remove, (create, None).into()]).await?.durable()
}

async fn undo(store: &Store, undo: Undo) -> Result<(), StoreError> {
    store.undo(undo).await;
    Ok(())
}

/// All that the store knows.
pub(super) async fn picture(store: &Store) -> String {
    let mut text = String::new();
    for probe in store.probes().await.unwrap() {
        writeln!(text, "{probe:?}").unwrap();
    }
    for state in store.states_of(ProbeUid(1)).await.unwrap() {
        writeln!(text, "{state:?}").unwrap();
    }
    let rates = RateQuery {
        start: SystemTime::UNIX_EPOCH,
        end: SystemTime::UNIX_EPOCH + Duration::from_hours(1),
        step_s: 60,
        names: None,
        uids: None,
        after: 0,
    };
    writeln!(text, "{:?}", store.rates(&rates).await.unwrap()).unwrap();
    writeln!(text, "{:?}", store.counters("boot", "6.1", |_| true).await.unwrap()).unwrap();
    for (id, what) in [("made", "create"), ("asked", "delete it")] {
        writeln!(text, "{id} {:?}", store.carried_out(&key(id, what)).await.unwrap()).unwrap();
    }
    text
}

/// How many changes the audit log has. Its chain is whole, and what was undone says so.
pub(super) async fn audited(store: &Store) -> usize {
    let page = store.audit_page(0, 1000).await.unwrap();
    let mut chain = Chain::after(page.after, None).unwrap();
    let mut changes = 0_usize;
    for one in page.entries {
        match chain.verify(one.sequence, &one.record, one.digest).unwrap().entry.action {
            Action::Changed => changes += 1,
            // One of a change that may not have been stored has nothing before it.
            _ => changes = changes.saturating_sub(1),
        }
    }
    changes
}

/// What a start of the daemon finds on a disk, and how many changes the audit log has.
async fn found_and_audited(disk: &Disk, cut: Cut) -> (String, usize) {
    let disk = disk.after(cut);
    let opened = open(&disk).await.unwrap();
    let found = (picture(&opened.store).await, audited(&opened.store).await);
    opened.store.close().await;
    found
}

async fn found(disk: &Disk, cut: Cut) -> String {
    found_and_audited(disk, cut).await.0
}

/// The change that follows: it is independent of any step.
async fn next(store: &Store) -> Result<(), StoreError> {
    let request = key("made", "create");
    assert!(store.carried_out(&request).await.is_ok());
    add(store, &[90]).await
}

#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    refused: u64,
    /// The troubles that left a change in doubt.
    in_doubt: BTreeSet<String>,
}

/// Runs one step with the trouble at its first call, its second, and so on, until it meets none.
async fn meet(step: Step, trouble: Trouble, calls: u64, tally: &mut Tally) {
    let (disk, known) = baseline().await;
    let (before, audited_before) = found_and_audited(&disk, Cut::Nothing).await;
    let (mut after, mut both, mut audited_after) = (String::new(), String::new(), 0);
    {
        let disk = disk.after(Cut::Nothing);
        let opened = open(&disk).await.unwrap();
        take(step, &opened.store, known).await.unwrap();
        after.push_str(&picture(&opened.store).await);
        audited_after += audited(&opened.store).await;
        next(&opened.store).await.unwrap();
        both.push_str(&picture(&opened.store).await);
    }
    let undone = {
        let disk = disk.after(Cut::Nothing);
        let opened = open(&disk).await.unwrap();
        match step {
            Step::SettleCreate => opened.store.undo(Undo::Probe(known.pending)).await,
            // Rows of new probes stay, and are removed by the next start.
            Step::BeginMany => {
                take(step, &opened.store, known).await.unwrap();
                let before = settings(known.settled, true, "", "team=storage", 1);
                opened.store.undo(undo_update(before, Some(key("asked", "delete it")))).await;
            }
            Step::BeginTogether => {
                take(step, &opened.store, known).await.unwrap();
                opened.store.undo(Undo::Deletion(known.settled)).await;
            }
            Step::SettleTogether => {
                let undo = vec![
                    Undo::Creation(known.pending, Some(key("asked", "delete it"))),
                    Undo::Deletion(known.settled),
                ];
                opened.store.undo_all(undo).await;
            }
            _ => {}
        }
        next(&opened.store).await.unwrap();
        picture(&opened.store).await
    };
    let unchanged = {
        let disk = disk.after(Cut::Nothing);
        let opened = open(&disk).await.unwrap();
        next(&opened.store).await.unwrap();
        picture(&opened.store).await
    };
    for first in 0.. {
        let what = format!("{step:?}, {trouble:?} at call {first}, {calls} calls");
        let disk = disk.after(Cut::Nothing);
        let opened = open(&disk).await.unwrap();
        let store = &opened.store;
        disk.fail(Some(Plan { trouble, first, calls }));
        let outcome = take(step, store, known).await;
        let failed = disk.failed();
        tally.runs += 1;
        let in_doubt = matches!(&outcome, Err(StoreError::Database(error)) if error.in_doubt)
            || step.is_owed() && failed > 0;
        tally.refused += u64::from(outcome.is_err());
        if in_doubt && !step.is_owed() {
            tally.in_doubt.insert(format!("{trouble:?}"));
        }
        let expected = if outcome.is_ok() { &after } else { &before };
        for cut in [Cut::Nothing, Cut::Everything, Cut::Some(0x9e37_79b9_7f4a_7c15 ^ (first << 7))] {
            let (found, entries) = found_and_audited(&disk, cut).await;
            // A change is in the log exactly if it is in the database.
            let audited = if outcome.is_ok() { audited_after } else { audited_before };
            assert!(
                entries == audited || in_doubt,
                "{what}: {outcome:?}, and after {cut:?} {entries} entries"
            );
            // After a failed sync it is not known whether the disk has the change: the error says
            // so.
            let fits = found == *expected || (in_doubt && (found == before || found == after));
            assert!(fits, "{what}: {outcome:?}, and after {cut:?}:\n{found}\nexpected:\n{expected}");
        }
        // There is room again. What is owed is written with the next change.
        disk.fail(None);
        next(store).await.unwrap_or_else(|error| panic!("{what}: the next change fails: {error}"));
        // To disarm a probe is taken on in any case: the refusal says that a crash forgets it.
        let is_taken_on =
            step == Step::BeginRemove && outcome.as_ref().is_err_and(StoreError::is_of_the_disk);
        let expected = if outcome.is_ok() || is_taken_on { &both } else { &unchanged };
        let now = picture(store).await;
        for (when, found) in [
            ("then", now),
            ("cut", found(&disk, Cut::Everything).await),
            ("killed", found(&disk, Cut::Nothing).await),
        ] {
            // A change in doubt is undone; if the kernel does not depend on it, it may stay.
            let may_stay = matches!(
                step,
                Step::BeginCreate
                    | Step::Redefine
                    | Step::AddTick
                    | Step::AddStates
                    | Step::RollUp
                    | Step::ForgetOld
            );
            let fits = found == *expected || (in_doubt && (found == undone || (may_stay && found == both)));
            assert!(fits, "{what}, {when}: {outcome:?}\n{found}\nexpected:\n{expected}");
        }
        store.close().await;
        if failed == 0 {
            assert!(outcome.is_ok(), "{what}");
            break;
        }
    }
}

#[tokio::test]
async fn one_failing_call_loses_nothing_and_keeps_nothing() {
    let mut tally = Tally::default();
    for step in STEPS {
        for trouble in Trouble::ALL {
            meet(step, trouble, 1, &mut tally).await;
        }
    }
    // A disk that fails once can tell afterwards what it has.
    assert!(tally.in_doubt.is_empty(), "{tally:?}");
    assert!(tally.runs > 500 && tally.refused > 100, "{tally:?}");
}

#[tokio::test]
async fn a_disk_that_goes_on_failing_loses_nothing_and_says_what_is_in_doubt() {
    let mut tally = Tally::default();
    for step in STEPS {
        for trouble in Trouble::ALL {
            meet(step, trouble, u64::MAX, &mut tally).await;
        }
    }
    assert!(tally.runs > 300 && tally.refused > 100, "{tally:?}");
    // Only if the disk reports the error after all was written, and then fails to overwrite it.
    assert!(tally.in_doubt.contains("Sync"), "{tally:?}");
    assert!(
        tally.in_doubt.iter().all(|trouble| ["Sync", "Io", "Corrupt"].contains(&trouble.as_str())),
        "{tally:?}"
    );
}

#[tokio::test]
async fn opening_on_a_failing_disk_loses_nothing() {
    let (disk, _) = baseline().await;
    let whole = found(&disk, Cut::Nothing).await;
    // With a log that must still be read, as after a crash.
    let crashed = {
        let disk = disk.after(Cut::Nothing);
        let opened = open(&disk).await.unwrap();
        next(&opened.store).await.unwrap();
        disk.after(Cut::Nothing)
    };
    let replayed = found(&crashed, Cut::Nothing).await;
    let mut refused = 0;
    for (disk, expected) in [(&disk, &whole), (&crashed, &replayed)] {
        for trouble in Trouble::ALL {
            for first in 0.. {
                let disk = disk.after(Cut::Nothing);
                disk.fail(Some(Plan { trouble, first, calls: 1 }));
                if let Ok(opened) = open_and_migrate(&disk).await {
                    opened.store.close().await;
                } else {
                    refused += 1;
                }
                let failed = disk.failed();
                disk.fail(None);
                for cut in [Cut::Nothing, Cut::Everything, Cut::Some(0x5555_5555_5555_5555 ^ first)] {
                    assert_eq!(found(&disk, cut).await, *expected, "{trouble:?} at {first}, {cut:?}");
                }
                if failed == 0 {
                    break;
                }
            }
        }
    }
    assert!(refused > 10, "{refused}");
}

#[tokio::test]
async fn each_trouble_has_its_name() {
    let (disk, known) = baseline().await;
    let expected = [
        (Trouble::Full, Fault::Full),
        (Trouble::Io, Fault::Io),
        (Trouble::Sync, Fault::Io),
        (Trouble::ReadOnly, Fault::ReadOnly),
        (Trouble::Busy, Fault::Busy),
    ];
    for (trouble, fault) in expected {
        let disk = disk.after(Cut::Nothing);
        let opened = open(&disk).await.unwrap();
        disk.fail(Some(Plan { trouble, first: 0, calls: u64::MAX }));
        let refused = take(Step::Update, &opened.store, known).await.unwrap_err();
        let StoreError::Database(error) = &refused else { panic!("{refused}") };
        assert_eq!(error.fault, fault, "{refused}");
        let health = opened.store.health();
        assert!(health.failing, "{trouble:?}");
        assert_eq!(health.last_failure.unwrap().message, refused.to_string());
        disk.fail(None);
        opened.store.check().await.unwrap();
        assert!(!opened.store.health().failing);
    }
}

#[tokio::test]
async fn what_voids_a_commit_writes() {
    let (disk, _) = baseline().await;
    let opened = open(&disk).await.unwrap();
    let before = disk.writes();
    opened.store.check().await.unwrap();
    assert!(disk.writes() > before, "SQLite leaves a page out that has not changed");
}
