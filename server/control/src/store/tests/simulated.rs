//! Databases on simulated disks, for tests of what uses them.

use super::disk::Disk;
pub(crate) use super::faults::Opened;
use super::faults::open_and_migrate;
use super::reserve;
pub(crate) use super::reserve::FILE as RESERVE;
use super::vfs::DATABASE;
use super::*;

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
