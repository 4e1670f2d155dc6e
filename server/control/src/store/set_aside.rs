//! Damaged databases that were set aside.
//!
//! Owns moving one out of the way: it is renamed, with its log and shared memory, and never
//! overwritten or deleted. The daemon shows an operator that it exists, until it is removed or
//! moved elsewhere.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sqlx::SqliteConnection;

use super::changes::{last_uid, set_last_uid};
use super::{Store, StoreError, files, to_ns};
use kprobed_lang::model::ProbeUid;

/// A damaged database that was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// Its path now. Its `-wal` and `-shm` have the same name with that suffix.
    pub path: PathBuf,
    /// The damage, in SQLite's words.
    pub damage: String,
}

/// Renames a database. The log goes first: SQLite would read a log that stayed into the next
/// database.
pub(super) fn set_aside(
    directory: &Path,
    path: &Path,
    damage: &str,
    now: SystemTime,
) -> Result<SetAside, StoreError> {
    let aside = files::unused(directory, files::SET_ASIDE, now);
    for (from, to) in files::of_database(path).into_iter().zip(files::of_database(&aside)).rev() {
        match fs::rename(&from, &to) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::Directory { action: "set aside", path: from, source });
            }
            _ => {}
        }
    }
    files::sync(directory)?;
    tracing::error!(
        database = %path.display(),
        set_aside = %aside.display(),
        damage,
        "the database is damaged: it was set aside, and the daemon begins with an empty one, without any probe"
    );
    Ok(SetAside { path: aside, damage: damage.to_owned() })
}

/// The damaged databases that are still in a directory, the oldest first.
///
/// # Errors
/// When the directory cannot be read.
pub fn set_aside_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    files::named(directory, files::SET_ASIDE)
}

impl Store {
    /// Makes new probes get uids that those of a lost database did not have:
    /// the history of events identifies them by the uid. One uid for each second since 1970 is more
    /// than were ever used.
    pub(super) async fn never_repeat_uids(&self, now: SystemTime) -> Result<(), StoreError> {
        let seconds = to_ns(now) / 1_000_000_000;
        self.database
            .write(async |transaction: &mut SqliteConnection| set_last_uid(transaction, seconds).await)
            .await
    }

    /// Makes new probes get uids above that of every probe that the history knows. Returns how many uids
    /// up to there this database has not given out: another one has, which is lost, or of which this is an
    /// older copy.
    ///
    /// # Errors
    /// The fault of the database. Writes nothing if it has given out all of them.
    pub async fn continue_uids_after(&self, known: ProbeUid) -> Result<u64, StoreError> {
        let last =
            self.database.read(async |connection: &mut SqliteConnection| last_uid(connection).await).await?;
        let unknown = known.0.saturating_sub(last.unwrap_or_default());
        if unknown <= 0 {
            return Ok(0);
        }
        let write = async |transaction: &mut SqliteConnection| set_last_uid(transaction, known.0).await;
        self.database.write(write).await?;
        Ok(u64::try_from(unknown).unwrap_or_default())
    }
}
