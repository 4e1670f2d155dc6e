//! Migrations: the steps from one version of the database to the next, and the copy that is made before them.
//!
//! Owns the list of the files in `migrations/`, which are a part of the program. Without the macro of sqlx, which would
//! have SQLite compiled a second time for the compiler's own use. Owns also that a complete copy of the database is on
//! the disk before a migration changes anything, and that only the last two are kept. Never runs a step: the store
//! does. Never reads a copy: an operator restores one.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::LazyLock;
use std::time::SystemTime;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{SqlStr, SqliteConnection};

use super::{StoreError, files, integrity};

/// The files, in the order of their numbers: the name of each without its suffix, and its text.
const FILES: &[(&str, &str)] = &[("0001_schema", include_str!("../../../../migrations/0001_schema.sql"))];

/// All steps.
pub(super) static MIGRATIONS: LazyLock<Migrator> =
    LazyLock::new(|| Migrator::with_migrations(FILES.iter().filter_map(migration).collect()));

/// A step. `None` for a name that is not `NNNN_name`.
fn migration((name, text): &(&'static str, &'static str)) -> Option<Migration> {
    let (number, description) = name.split_once('_')?;
    let version = number.parse().ok()?;
    let description = description.replace('_', " ").into();
    Some(Migration::new(version, description, MigrationType::Simple, SqlStr::from_static(text), false))
}

/// Copies that are kept.
const KEPT: usize = 2;

/// Copies a database that has contents and lacks one of `migrations`. Those that it has are known.
///
/// # Errors
/// [`StoreError::Backup`], [`StoreError::Directory`], [`StoreError::Database`]. Then nothing is to
/// be changed.
pub(super) async fn copy_before(
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
    files::sync(&begun)?;
    let copy = files::unused(directory, files::BACKUP, now);
    fs::rename(&begun, &copy).map_err(StoreError::directory("make", &copy))?;
    files::sync(directory)?;
    tracing::info!(copy = %copy.display(), "copied the database before it is brought up to date");
    let mut copies =
        files::named(directory, files::BACKUP).map_err(StoreError::directory("list", directory))?;
    // Their names sort by time.
    copies.truncate(copies.len().saturating_sub(KEPT));
    for old in copies {
        if let Err(error) = fs::remove_file(&old) {
            tracing::warn!(path = %old.display(), %error, "cannot remove an old copy of the database");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_a_step() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
        let mut files: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let listed: Vec<_> = FILES.iter().map(|(name, _)| format!("{name}.sql")).collect();
        assert_eq!(listed, files);
        let steps: Vec<_> = MIGRATIONS.iter().map(|step| (step.version, step.description.as_ref())).collect();
        assert_eq!((steps.len(), steps[0]), (FILES.len(), (1, "schema")));
        assert!(steps.is_sorted_by(|one, next| one.0 < next.0), "{steps:?}");
    }
}
