//! Tests of every step of the store, on a disk that fails at its n-th call, for every n.
//!
//! An acknowledged change exists after the daemon was killed and after a power cut; a refused one
//! does not; the next change works.

use std::collections::{BTreeSet, HashMap};
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
    Note,
    BeginUpdate,
    SettleUpdate,
    /// What changes in the row alone is settled at once.
    Update,
    Disarm,
    BeginMany,
    BeginTogether,
    SettleTogether,
    AddStates,
    AddTick,
    RollUp,
    ForgetOld,
    Check,
    /// These are not refused: they are owed.
    Revert,
    Reopen,
}

const STEPS: [Step; 17] = [
    Step::BeginCreate,
    Step::SettleCreate,
    Step::Note,
    Step::BeginUpdate,
    Step::SettleUpdate,
    Step::Update,
    Step::Disarm,
    Step::BeginMany,
    Step::BeginTogether,
    Step::SettleTogether,
    Step::AddStates,
    Step::AddTick,
    Step::RollUp,
    Step::ForgetOld,
    Step::Check,
    Step::Revert,
    Step::Reopen,
];

impl Step {
    fn is_owed(self) -> bool {
        matches!(self, Self::Revert | Self::Reopen)
    }
}

/// The disk at the beginning: a probe and an event in each state.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) settled: Record,
    /// One that is made, and changes of two others that are under way together.
    pending: Edit,
    changing: [Edit; 2],
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
    let begun = begin(store, &new_probe_at("settled", 1)).await.unwrap();
    let settled = settle(store, begun, Some(key("made", "create"))).await.unwrap();
    let pending = begin(store, &new_probe_at("pending", 2)).await.unwrap();
    let changed = create(store, new_probe_at("changed", 2)).await.unwrap();
    let goes = create(store, new_probe_at("goes", 2)).await.unwrap();
    let mut changing = [
        Edit::new(Some(&changed), Some(&settings(&changed, true, "x == 7", "tier=7", 2))),
        Edit::new(Some(&goes), None),
    ];
    let [one, two] = &mut changing;
    store.begin(&mut [one, two]).await.unwrap();
    add(store, &[5]).await.unwrap();
    store.close().await;
    (disk, Known { settled, pending, changing })
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

async fn take(step: Step, store: &Store, known: &Known) -> Result<(), StoreError> {
    let Known { settled, pending, changing } = known;
    let request = || Some(key("asked", "delete it"));
    let wanted = settings(settled, true, "x == 1", "tier=2,other=", 2);
    let update = || edit(Some(settled), Some(&wanted), request());
    match step {
        Step::BeginCreate => begin(store, &new_probe_at("new", 9)).await.map(drop),
        Step::SettleCreate => store.settle(&[&Edit { request: request(), ..pending.clone() }]).await,
        Step::Note => store.note(&[&Record { kernel_listing: "listed".to_owned(), ..settled.clone() }]).await,
        Step::BeginUpdate => store.begin(&mut [&mut update()]).await,
        Step::SettleUpdate => store.settle(&[&Edit { request: request(), ..changing[0].clone() }]).await,
        Step::Update => store.settle(&[&update()]).await,
        Step::Disarm => disarm(store, edit(Some(settled), None, request())).await,
        Step::BeginMany => {
            let [mut new, mut newer] = ["new", "newer"].map(|name| creation(&new_probe_at(name, 9)));
            store.begin(&mut [&mut new, &mut update(), &mut newer]).await
        }
        // One probe begins to replace another, atomically.
        Step::BeginTogether => {
            let (mut old, mut new) = (edit(Some(settled), None, None), creation(&new_probe_at("settled", 9)));
            store.begin(&mut [&mut new, &mut old]).await
        }
        Step::SettleTogether => {
            let [one, two] = changing;
            store.settle(&[pending, one, &Edit { request: request(), ..two.clone() }]).await
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
            store.add_states(&[record(settled.uid, "ARMED"), record(settled.uid, "DRIFTED")]).await
        }
        Step::AddTick => add(store, &[6]).await,
        Step::RollUp => store.roll_up(from_ns(60_000_000_000), &AT_ONCE).await.map(drop),
        Step::ForgetOld => store.forget_old(from_ns(i64::MAX), &AT_ONCE).await,
        Step::Check => store.check().await,
        Step::Revert => {
            store.revert([pending.uid(), changing[0].uid(), changing[1].uid()], Vec::new()).await;
            Ok(())
        }
        Step::Reopen => {
            let (uid, request) = (settled.uid, Some(key("made", "create")));
            let before = Some(Box::new(settings(settled, false, "before", "", 7)));
            store.database.pay_or_owe(vec![Owed::Reopened { uid, before, after: None, request }]).await;
            Ok(())
        }
    }
}

/// All that the store knows.
pub(super) async fn picture(store: &Store) -> String {
    let mut text = String::new();
    for probe in store.probes().await.unwrap() {
        writeln!(text, "{probe:?}").unwrap();
    }
    for interrupted in store.journal().await.unwrap() {
        writeln!(text, "{interrupted:?}").unwrap();
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
type Finding = (String, usize);

/// What was found on disks, by what is on them: many troubles leave the same.
#[derive(Debug, Default)]
struct Findings(HashMap<u64, Finding>);

impl Findings {
    async fn after(&mut self, disk: &Disk, cut: Cut) -> Finding {
        let disk = disk.after(cut);
        let digest = disk.digest();
        if let Some(finding) = self.0.get(&digest) {
            return finding.clone();
        }
        let opened = open(&disk).await.unwrap();
        let finding = (picture(&opened.store).await, audited(&opened.store).await);
        opened.store.close().await;
        self.0.insert(digest, finding.clone());
        finding
    }
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

/// What is found without a trouble: before a step, after it, and after the change that follows.
struct Scene<'a> {
    step: Step,
    disk: &'a Arc<Disk>,
    known: &'a Known,
    before: Finding,
    after: Finding,
    /// What disarms a probe and is begun goes on, or is taken back by a start.
    begun: Finding,
    /// After the change that follows, with the step and without it.
    both: String,
    unchanged: String,
}

impl<'a> Scene<'a> {
    async fn new(step: Step, disk: &'a Arc<Disk>, known: &'a Known, findings: &mut Findings) -> Self {
        let before = findings.after(disk, Cut::Nothing).await;
        let opened = open(&disk.after(Cut::Nothing)).await.unwrap();
        take(step, &opened.store, known).await.unwrap();
        let after = (picture(&opened.store).await, audited(&opened.store).await);
        next(&opened.store).await.unwrap();
        let both = picture(&opened.store).await;
        let opened = open(&disk.after(Cut::Nothing)).await.unwrap();
        opened.store.begin(&mut [&mut edit(Some(&known.settled), None, None)]).await.unwrap();
        let begun = (picture(&opened.store).await, audited(&opened.store).await);
        let opened = open(&disk.after(Cut::Nothing)).await.unwrap();
        next(&opened.store).await.unwrap();
        let unchanged = picture(&opened.store).await;
        Self { step, disk, known, before, after, begun, both, unchanged }
    }
}

/// Runs each step with each trouble.
async fn meet_all(calls: u64) -> Tally {
    let (mut tally, mut findings) = (Tally::default(), Findings::default());
    let (disk, known) = baseline().await;
    for step in STEPS {
        let scene = Scene::new(step, &disk, &known, &mut findings).await;
        for trouble in Trouble::ALL {
            meet(&scene, trouble, calls, &mut findings, &mut tally).await;
        }
    }
    tally
}

/// Runs one step with the trouble at its first call, its second, and so on, until it meets none.
async fn meet(scene: &Scene<'_>, trouble: Trouble, calls: u64, findings: &mut Findings, tally: &mut Tally) {
    let Scene { step, disk, known, before, after, begun, both, unchanged } = scene;
    let step = *step;
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
        // A change is in the log exactly if it is in the database.
        let (expected, audited) = if outcome.is_ok() { after } else { before };
        for cut in [Cut::Nothing, Cut::Everything, Cut::Some(0x9e37_79b9_7f4a_7c15 ^ (first << 7))] {
            let finding = findings.after(&disk, cut).await;
            if step == Step::Disarm && outcome.is_err() && finding == *begun {
                continue;
            }
            let (found, entries) = finding;
            assert!(
                entries == *audited || in_doubt,
                "{what}: {outcome:?}, and after {cut:?} {entries} entries"
            );
            // After a failed sync it is not known whether the disk has the change: the error says
            // so.
            let fits = found == *expected || (in_doubt && (found == before.0 || found == after.0));
            assert!(fits, "{what}: {outcome:?}, and after {cut:?}:\n{found}\nexpected:\n{expected}");
        }
        // There is room again. What is owed is written with the next change.
        disk.fail(None);
        next(store).await.unwrap_or_else(|error| panic!("{what}: the next change fails: {error}"));
        // To disarm a probe is taken on in any case: the refusal says that a crash forgets it.
        let is_taken_on = step == Step::Disarm && outcome.as_ref().is_err_and(StoreError::is_of_the_disk);
        let expected = if outcome.is_ok() || is_taken_on { both } else { unchanged };
        let now = picture(store).await;
        for (when, found) in [
            ("then", now),
            ("cut", findings.after(&disk, Cut::Everything).await.0),
            ("killed", findings.after(&disk, Cut::Nothing).await.0),
        ] {
            // A change in doubt is undone; if the kernel does not depend on it, it may stay.
            let may_stay = matches!(
                step,
                Step::BeginCreate
                    | Step::BeginMany
                    | Step::BeginTogether
                    | Step::Note
                    | Step::AddTick
                    | Step::AddStates
                    | Step::RollUp
                    | Step::ForgetOld
            );
            let fits = found == *expected
                || (in_doubt && (found == *unchanged || ((may_stay || step.is_owed()) && found == *both)));
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
    simulated::stay_on_one_cpu();
    let tally = meet_all(1).await;
    // A disk that fails once can tell afterwards what it has.
    assert!(tally.in_doubt.is_empty(), "{tally:?}");
    assert!(tally.runs > 500 && tally.refused > 100, "{tally:?}");
}

#[tokio::test]
async fn a_disk_that_goes_on_failing_loses_nothing_and_says_what_is_in_doubt() {
    simulated::stay_on_one_cpu();
    let tally = meet_all(u64::MAX).await;
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
    simulated::stay_on_one_cpu();
    let ((disk, _), mut findings) = (baseline().await, Findings::default());
    let whole = findings.after(&disk, Cut::Nothing).await.0;
    // With a log that must still be read, as after a crash.
    let crashed = {
        let disk = disk.after(Cut::Nothing);
        let opened = open(&disk).await.unwrap();
        next(&opened.store).await.unwrap();
        disk.after(Cut::Nothing)
    };
    let replayed = findings.after(&crashed, Cut::Nothing).await.0;
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
                    let (found, _) = findings.after(&disk, cut).await;
                    assert_eq!(found, *expected, "{trouble:?} at {first}, {cut:?}");
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
        let refused = take(Step::Update, &opened.store, &known).await.unwrap_err();
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
