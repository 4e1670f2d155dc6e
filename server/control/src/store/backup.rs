//! Backup copies of the database, made before a migration.
//!
//! Owns that a complete copy is on the disk before a migration changes anything, and that only the
//! last two are kept. Never reads them: an operator restores one.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sqlx::SqliteConnection;
use sqlx::migrate::Migrator;

use super::{StoreError, files, integrity};

/// Copies that are kept.
const KEPT: usize = 2;

/// Copies a database that has contents and lacks one of `migrations`. Those that it has are known.
///
/// # Errors
/// [`StoreError::Backup`], [`StoreError::Directory`], [`StoreError::Database`]. Then nothing is to
/// be changed.
pub(super) async fn before_migration(
    connection: &mut SqliteConnection,
    path: &Path,
    migrations: &Migrator,
    now: SystemTime,
) -> Result<(), StoreError> {
    let applied = integrity::applied(connection).await.map_err(|error| super::error::opening(path, error))?;
    let is_missing = applied.len() < migrations.iter().count();
    let Some(directory) = path.parent().filter(|_| is_missing && !applied.is_empty()) else {
        return Ok(());
    };
    let begun = directory.join(format!("{}.new", files::BACKUP));
    // SQLite copies into an empty file, whose mode the daemon chooses.
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(files::FILE_MODE)
        .open(&begun)
        .map_err(StoreError::directory("make", &begun))?;
    let copied =
        sqlx::query("VACUUM INTO ?").bind(begun.to_string_lossy().into_owned()).execute(connection).await;
    if let Err(source) = copied {
        if let Err(error) = fs::remove_file(&begun) {
            tracing::debug!(%error, "cannot remove a copy of the database that was only begun");
        }
        return Err(StoreError::Backup { path: path.to_owned(), source });
    }
    let synced = File::open(&begun).and_then(|file| file.sync_all());
    synced.map_err(StoreError::directory("sync", &begun))?;
    let copy = files::unused(directory, files::BACKUP, now);
    fs::rename(&begun, &copy).map_err(StoreError::directory("make", &copy))?;
    files::sync(directory)?;
    tracing::info!(copy = %copy.display(), "copied the database before it is brought up to date");
    for old in older(directory).map_err(StoreError::directory("list", directory))? {
        if let Err(error) = fs::remove_file(&old) {
            tracing::warn!(path = %old.display(), %error, "cannot remove an old copy of the database");
        }
    }
    Ok(())
}

/// Copies beyond those that are kept. Their names sort by time.
fn older(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut copies = files::named(directory, files::BACKUP)?;
    copies.truncate(copies.len().saturating_sub(KEPT));
    Ok(copies)
}
