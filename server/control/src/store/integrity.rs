//! Integrity check of the database when the daemon starts.
//!
//! Owns the difference between damage, a disk that fails, and another version of kprobed: a page
//! that cannot be read now is not damaged, and a database that another version has changed is not
//! judged at all. Never repairs anything.
//!
//! Runs `PRAGMA quick_check`, which reads every page and checks whether they fit together.
//! `integrity_check` compares the indices with their tables too, and takes a quarter longer
//! (figures: [`super::hits`]); no index here decides what is in the kernel.

use std::io::{self, Read as _};
use std::path::Path;

use sqlx::SqliteConnection;
use sqlx::migrate::Migrator;

use super::error::opening;
use super::{Fault, StoreError, files};

/// The check, with its number of findings. One that is about pages suffices, but there may be some about values first.
const CHECK: &str = "PRAGMA quick_check(100)";

/// A value of a wrong type, or none where one must be: that costs its row, and not the database.
const OF_A_VALUE: &str = " value in ";

/// What SQLite reports if it cannot read a page (`checkTreePage` and `checkList` in btree.c), with
/// the result code after it or without.
const UNREAD_WITH_CODE: &str = "unable to get the page. error code=";
const UNREAD: &str = "failed to get page ";

/// Result code of a page that SQLite has read and does not understand.
const CORRUPT: i32 = 11;

/// Checks a database that was opened. `migrations` are those that this version knows.
///
/// # Errors
/// [`StoreError::OtherVersion`], [`StoreError::Damaged`], [`StoreError::Database`] for a disk that fails.
pub(super) async fn check(
    connection: &mut SqliteConnection,
    path: &Path,
    migrations: &Migrator,
) -> Result<(), StoreError> {
    let failed = |error| opening(path, error);
    let applied = applied(connection).await.map_err(failed)?;
    let is_unknown = |(version, checksum): &&(i64, Vec<u8>)| {
        let mut known = migrations.iter();
        !known.any(|known| known.version == *version && *known.checksum == **checksum)
    };
    if let Some((migration, _)) = applied.iter().filter(is_unknown).max() {
        return Err(StoreError::OtherVersion { path: path.to_owned(), migration: *migration });
    }
    // Values that are not allowed are met where their rows are read.
    sqlx::query("PRAGMA ignore_check_constraints = 1").execute(&mut *connection).await.map_err(failed)?;
    let findings = sqlx::query_scalar(CHECK).fetch_all(&mut *connection).await;
    let mut findings: Vec<String> = findings.map_err(failed)?;
    if findings.len() < 100 {
        findings.retain(|finding| finding != "ok" && !finding.contains(OF_A_VALUE));
    }
    if findings.is_empty() {
        return Ok(());
    }
    findings.truncate(5);
    let unread = findings.iter().any(|finding| is_unread(finding));
    match readable(path) {
        Ok(()) if !unread => Err(StoreError::Damaged { path: path.to_owned(), damage: findings.join("; ") }),
        outcome => {
            let source = outcome.err().unwrap_or_else(|| io::Error::other(findings.join("; ")));
            Err(StoreError::refused("read", path, Fault::Io, source.into()))
        }
    }
}

/// The versions and checksums of the migrations that a database has; none of a new one.
pub(super) async fn applied(connection: &mut SqliteConnection) -> Result<Vec<(i64, Vec<u8>)>, sqlx::Error> {
    let tables: i64 =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_master WHERE name = '_sqlx_migrations'")
            .fetch_one(&mut *connection)
            .await?;
    if tables == 0 {
        return Ok(Vec::new());
    }
    sqlx::query_as("SELECT version, checksum FROM _sqlx_migrations").fetch_all(connection).await
}

/// Whether SQLite could not read a page, which says nothing about its contents.
fn is_unread(finding: &str) -> bool {
    if let Some((_, code)) = finding.split_once(UNREAD_WITH_CODE) {
        let digits = code.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        return digits.parse::<i32>().is_ok_and(|code| code & 0xff != CORRUPT);
    }
    finding.contains(UNREAD)
}

/// Reads all of the files. A page that the disk cannot read is not a damaged one.
fn readable(path: &Path) -> io::Result<()> {
    for path in files::of_database(path) {
        let mut file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let mut buffer = vec![0; 1 << 16];
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_cannot_be_read_is_not_a_damaged_one() {
        let unread =
            ["Tree 4 page 4: unable to get the page. error code=266", "Freelist: failed to get page 7"];
        assert!(unread.iter().all(|finding| is_unread(finding)));
        let damaged = [
            "Tree 4 page 4: unable to get the page. error code=11",
            "Tree 4 page 4: btreeInitPage() returns error code 11",
            "Page 9: never used",
            "NULL value in hit_span.boot_id",
        ];
        assert!(!damaged.iter().any(|finding| is_unread(finding)));
    }
}
