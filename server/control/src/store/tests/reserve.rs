//! Tests of the reserve: on a full disk, and on one that fails, at every call.

use super::super::reserve::{Reserve, Room, SIZE};
use super::disk::{Cut, Disk, Plan, Trouble};
use super::faults::{Known, Opened, audited, baseline, open, picture};
use super::*;
use std::fmt::Write as _;

pub(crate) const FILE: &str = "kprobed.reserve";

/// The file on a simulated disk.
#[derive(Debug)]
struct OnDisk(Arc<Disk>);

impl Room for OnDisk {
    fn write(&self, bytes: &[u8], at: usize) -> io::Result<()> {
        self.0.write(FILE, at, bytes).map_err(|code| io::Error::other(format!("SQLite {code}")))
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync(FILE).map_err(|code| io::Error::other(format!("SQLite {code}")))
    }
}

/// Starts the daemon's store on this disk, which has a reserve.
async fn start(disk: &Arc<Disk>) -> Opened {
    let opened = open(disk).await.unwrap();
    keep(&opened.store, disk).await.unwrap();
    opened
}

pub(super) async fn keep(store: &Store, disk: &Arc<Disk>) -> Result<(), StoreError> {
    let open = |paid| Ok(Reserve::of(Box::new(OnDisk(Arc::clone(disk))), &disk.bytes(FILE), paid));
    store.keep_reserve(open).await
}

/// A disk with the probes that [`baseline`] makes, and room that is kept.
async fn with_room() -> (Arc<Disk>, Known) {
    let (disk, known) = baseline().await;
    keep_room(&disk);
    (disk, known)
}

/// Makes the file.
pub(super) fn keep_room(disk: &Disk) {
    disk.open(FILE, true).unwrap();
    disk.write(FILE, 0, &vec![0; SIZE]).unwrap();
    disk.sync(FILE).unwrap();
}

/// What must succeed on a full disk.
#[derive(Clone, Copy, Debug)]
enum Step {
    Delete,
    Disable,
    DisableAndDelete,
    /// A temporary probe goes, with its entry.
    End,
    /// The kernel has refused a change that was stored when there was room.
    Refused,
}

const STEPS: [Step; 5] = [Step::Delete, Step::Disable, Step::DisableAndDelete, Step::End, Step::Refused];

fn deletion(record: &Record) -> Edit {
    edit(Some(record), None, Some(key("deleted", "delete it")))
}

fn disabled(record: &Record) -> Record {
    let spec = ProbeSpec { enabled: false, ..record.spec.clone() };
    Record { spec, revision: 2, update_time: from_ns(77), ..record.clone() }
}

fn disabling(record: &Record) -> Edit {
    edit(Some(record), Some(&disabled(record)), Some(key("disabled", "disable it")))
}

/// What was stored before the disk has filled up.
async fn prepare(step: Step, store: &Store, known: &Known) {
    if matches!(step, Step::Refused) {
        let wanted = settings(&known.settled, false, "x == 1", "tier=2", 2);
        let mut update = edit(Some(&known.settled), Some(&wanted), None);
        store.begin(&mut [&mut update]).await.unwrap();
    }
}

/// Whether a crash keeps it.
async fn take(step: Step, store: &Store, known: &Known) -> Result<(), StoreError> {
    let settled = &known.settled;
    match step {
        Step::Delete => disarm(store, deletion(settled)).await?,
        Step::Disable => disarm(store, disabling(settled)).await?,
        Step::DisableAndDelete => {
            disarm(store, disabling(settled)).await?;
            disarm(store, deletion(&disabled(settled))).await?;
        }
        Step::End => {
            let ended = Some(Arc::new(Entry::new(Action::Ended, OWN_NAME)));
            disarm(store, Edit { entry: ended, ..Edit::new(Some(settled), None) }).await?;
        }
        Step::Refused => store.revert([settled.uid], vec![entry().failed("it is in use")]).await,
    }
    Ok(())
}

/// What the store knows, with what became of the requests, and how long the audit log is.
async fn found(store: &Store) -> (String, u64) {
    let mut text = picture(store).await;
    for (id, what) in [("deleted", "delete it"), ("disabled", "disable it")] {
        writeln!(text, "{id} {:?}", store.carried_out(&key(id, what)).await.unwrap()).unwrap();
    }
    audited(store).await;
    (text, store.audit_head().await.unwrap().sequence)
}

const CUTS: [Cut; 3] = [Cut::Nothing, Cut::Everything, Cut::Some(0x9e37_79b9_7f4a_7c15)];

/// A change that the disk may have was refused and taken on again, which the audit log says.
fn assert_found(found: &(String, u64), expected: &(String, u64), trouble: Trouble, what: &str) {
    let is_logged = match trouble {
        Trouble::Sync | Trouble::Io => found.1 >= expected.1,
        _ => found.1 == expected.1,
    };
    assert!(found.0 == expected.0 && is_logged, "{what}:\n{found:?}\nexpected:\n{expected:?}");
}

#[tokio::test]
async fn on_a_full_disk_what_disarms_is_done_and_survives() {
    simulated::stay_on_one_cpu();
    let mut kept = 0;
    for step in STEPS {
        let (disk, known) = with_room().await;
        let prepared = start(&disk).await;
        prepare(step, &prepared.store, &known).await;
        prepared.store.close().await;
        let expected = {
            let opened = start(&disk.after(Cut::Nothing)).await;
            take(step, &opened.store, &known).await.unwrap();
            found(&opened.store).await
        };
        for trouble in [Trouble::Full, Trouble::Io, Trouble::Sync, Trouble::ReadOnly] {
            for first in 0.. {
                let what = format!("{step:?}, {trouble:?} from call {first} on");
                let disk = disk.after(Cut::Nothing);
                let opened = start(&disk).await;
                disk.spare(Some(FILE));
                disk.fail(Some(Plan { trouble, first, calls: u64::MAX }));
                take(step, &opened.store, &known).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                let failed = disk.failed();
                kept += failed;
                // The daemon is killed, or the power is cut. It starts on a disk that has room, or has not.
                for cut in CUTS {
                    let disk = disk.after(cut);
                    let opened = start(&disk).await;
                    assert_found(
                        &found(&opened.store).await,
                        &expected,
                        trouble,
                        &format!("{what}, after {cut:?}"),
                    );
                    opened.store.close().await;
                    // It is paid once.
                    let again = start(&disk.after(Cut::Nothing)).await;
                    let what = format!("{what}, a second start after {cut:?}");
                    assert_found(&found(&again.store).await, &expected, trouble, &what);
                }
                if trouble == Trouble::Full {
                    let disk = disk.after(Cut::Nothing);
                    disk.spare(Some(FILE));
                    disk.fail(Some(Plan { trouble, first: 0, calls: u64::MAX }));
                    let opened = start(&disk).await;
                    let probes = format!("{:?}", stored(&opened.store).await);
                    disk.fail(None);
                    opened.store.check().await.unwrap();
                    assert_found(&found(&opened.store).await, &expected, trouble, &what);
                    let now = format!("{:?}", stored(&opened.store).await);
                    assert_eq!(probes, now, "{what}: a start on a full disk sees it too");
                }
                // There is room again while it runs.
                disk.fail(None);
                opened.store.check().await.unwrap();
                assert_found(&found(&opened.store).await, &expected, trouble, &format!("{what}, with room"));
                if failed == 0 {
                    break;
                }
            }
        }
    }
    assert!(kept > 100, "{kept}");
}

#[tokio::test]
async fn a_crash_while_it_is_paid_pays_it_once() {
    simulated::stay_on_one_cpu();
    let mut runs = 0;
    for step in STEPS {
        let (disk, known) = with_room().await;
        let opened = start(&disk).await;
        prepare(step, &opened.store, &known).await;
        disk.spare(Some(FILE));
        disk.fail(Some(Plan { trouble: Trouble::Full, first: 0, calls: u64::MAX }));
        take(step, &opened.store, &known).await.unwrap();
        let full = disk.after(Cut::Nothing);
        disk.fail(None);
        opened.store.check().await.unwrap();
        let expected = found(&opened.store).await;
        for trouble in Trouble::ALL {
            for first in 0.. {
                let disk = full.after(Cut::Nothing);
                let opened = open(&disk).await.unwrap();
                disk.fail(Some(Plan { trouble, first, calls: u64::MAX }));
                let paid = keep(&opened.store, &disk).await;
                let failed = disk.failed();
                assert!(paid.is_ok() || failed > 0);
                runs += 1;
                for cut in CUTS {
                    let again = start(&disk.after(cut)).await;
                    let what = format!("{step:?}, {trouble:?} from call {first} on, after {cut:?}");
                    assert_eq!(found(&again.store).await, expected, "{what}");
                }
                if failed == 0 {
                    break;
                }
            }
        }
    }
    assert!(runs > 60, "{runs}");
}

#[tokio::test]
async fn what_is_kept_nowhere_is_not_called_durable() {
    for step in [Step::Delete, Step::Disable] {
        let (disk, known) = with_room().await;
        let before = found(&start(&disk.after(Cut::Nothing)).await.store).await;
        let expected = {
            let opened = start(&disk.after(Cut::Nothing)).await;
            take(step, &opened.store, &known).await.unwrap();
            found(&opened.store).await
        };
        for trouble in [Trouble::Full, Trouble::Io, Trouble::ReadOnly] {
            let disk = disk.after(Cut::Nothing);
            let opened = start(&disk).await;
            disk.fail(Some(Plan { trouble, first: 0, calls: u64::MAX }));
            let error = take(step, &opened.store, &known).await.unwrap_err();
            assert!(error.is_of_the_disk(), "{error}");
            // A crash forgets it; the daemon that goes on does not.
            let crashed = start(&disk.after(Cut::Everything)).await;
            assert_eq!(found(&crashed.store).await, before, "{step:?}, {trouble:?}");
            disk.fail(None);
            opened.store.check().await.unwrap();
            assert_eq!(found(&opened.store).await, expected, "{step:?}, {trouble:?}");
        }
    }
}

#[tokio::test]
async fn what_is_owed_is_bounded() {
    simulated::stay_on_one_cpu();
    let (disk, known) = with_room().await;
    let opened = start(&disk).await;
    let store = &opened.store;
    disk.spare(Some(FILE));
    // A disk that never says whether it has a change.
    disk.fail(Some(Plan { trouble: Trouble::Sync, first: 0, calls: u64::MAX }));
    for number in 0..40 {
        let wanted = settings(&known.settled, true, &format!("x == {number}"), "", 2);
        assert!(update(store, &known.settled, &wanted, None).await.is_err());
    }
    assert!(disk.bytes(FILE).len() == SIZE);
    let owed = store.database.owed().await;
    assert!(owed <= 2, "one change at most is in doubt: {owed} corrections");
    // A client that disables the same probe again and again fills the reserve, and gets an error then.
    disk.fail(Some(Plan { trouble: Trouble::Full, first: 0, calls: u64::MAX }));
    let (mut durable, mut refused) = (0, 0);
    for _ in 0..3000 {
        match store.keep(&[&disabling(&known.settled)]).await {
            Ok(kept) => durable += i32::from(kept.is_ok()),
            Err(TooMuchOwed) => refused += 1,
        }
    }
    assert!(durable > 300 && refused > 100, "{durable} {refused}");
    assert_eq!(disk.bytes(FILE).len(), SIZE, "it does not grow");
}

#[test]
fn a_torn_record_ends_the_reserve() {
    let directory = tempfile::tempdir().unwrap();
    let undo = |uid| Owed::Row { uid: ProbeUid(uid), record: None, request: Some(key("a", "delete it")) };
    let (mut reserve, owed) = Reserve::open(directory.path(), 0).unwrap();
    assert!(owed.is_empty());
    let path = directory.path().join(FILE);
    for uid in 1..=3 {
        reserve.append(&[undo(uid), undo(10 + uid)]).unwrap();
    }
    let uids = |paid| {
        let (reserve, owed) = Reserve::open(directory.path(), paid).unwrap();
        let uids = owed.iter().map(|one| match one {
            Owed::Row { uid, .. } => uid.0,
            other => panic!("{other:?}"),
        });
        (uids.collect::<Vec<_>>(), reserve.last())
    };
    assert_eq!(uids(0), (vec![1, 11, 2, 12, 3, 13], 3));
    assert_eq!(uids(2), (vec![3, 13], 3));
    assert_eq!(uids(3), (vec![], 3));
    assert_eq!(uids(7), (vec![], 7));
    let whole = std::fs::read(&path).unwrap();
    assert_eq!(whole.len(), SIZE);
    // Every record is whole or not there, wherever the write of the last one ended.
    let end = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    for cut in 0..end {
        let mut torn = whole.clone();
        torn[cut..].fill(0);
        std::fs::write(&path, &torn).unwrap();
        let (found, last) = uids(0);
        assert_eq!(found.len(), 2 * usize::try_from(last).unwrap());
        assert_eq!(found, [1, 11, 2, 12, 3, 13][..found.len()]);
        assert!(found.len() < 6);
    }
    // What is paid is overwritten, and what stays behind it does not come back.
    std::fs::write(&path, &whole).unwrap();
    let (mut reserve, _) = Reserve::open(directory.path(), 0).unwrap();
    reserve.empty();
    assert_eq!(uids(0).0, Vec::<i64>::new());
    reserve.append(&[undo(4)]).unwrap();
    assert_eq!(uids(3), (vec![4], 4));
}
