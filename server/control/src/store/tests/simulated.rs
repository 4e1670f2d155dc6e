//! Databases on simulated disks, for tests of what uses them.

use super::disk::Disk;
pub(crate) use super::faults::Opened;
use super::faults::open_and_migrate;
use super::reserve;
pub(crate) use super::reserve::FILE as RESERVE;
use super::vfs::DATABASE;
use super::*;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::sync::atomic::{AtomicUsize, Ordering};

/// CPUs that this thread may use.
pub(crate) fn cpus() -> Vec<usize> {
    let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
    (0..CpuSet::count()).filter(|cpu| all.is_set(*cpu).unwrap()).collect()
}

/// Keeps this thread, and those that it starts, on one CPU; each thread that asks, on the next.
///
/// A statement is a chain of threads that wait for each other. On one CPU none of them waits to be woken on
/// another one, which takes longer than the statement.
pub(crate) fn stay_on_one_cpu() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let cpus = cpus();
    let mut own = CpuSet::new();
    own.set(cpus[ASKED.fetch_add(1, Ordering::Relaxed) % cpus.len()]).unwrap();
    sched_setaffinity(Pid::from_raw(0), &own).unwrap();
}

/// A disk with an empty database, and with room that is kept.
pub(crate) async fn empty() -> Arc<Disk> {
    let disk = Disk::with_file(DATABASE);
    open_and_migrate(&disk).await.unwrap().store.close().await;
    reserve::keep_room(&disk);
    disk
}

/// Opens the database of a daemon that starts.
pub(crate) async fn open(disk: &Arc<Disk>) -> Result<Opened, StoreError> {
    let opened = faults::open(disk).await?;
    reserve::keep(&opened.store, disk).await?;
    Ok(opened)
}

/// The audit log, if it has no gap.
pub(crate) async fn whole_log(store: &Store) -> Vec<kprobed_audit::Record> {
    let page = store.audit_page(0, u32::MAX).await.unwrap();
    let mut chain = Chain::after(page.after, None).unwrap();
    let verified = page.entries.iter().map(|entry| chain.verify(entry.sequence, &entry.record, entry.digest));
    verified.collect::<Result<_, _>>().unwrap()
}
