//! Audit log in the database.
//!
//! Owns its tables, and that the chain of digests has no gap. Entries are appended in the transaction
//! of the change that they are about. Never decides what is worth an entry.

use std::borrow::Borrow;
use std::time::SystemTime;

use kprobed_audit::{Action, Digest, Entry, Head, Record};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row as _, SqliteConnection};
use tokio::sync::watch;

use super::bad::lossy;
use super::connection::Transaction;
use super::{ROWS, Store, StoreError, to_i64, to_ns};

/// A row of the log, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// Its number.
    pub sequence: u64,
    /// The record, as its digest is computed.
    pub record: String,
    /// Its digest.
    pub digest: Digest,
}

/// A part of the log.
#[derive(Clone, Debug, Default)]
pub struct AuditPage {
    /// The entry after which it begins; that before the oldest, if older ones were asked for.
    pub after: Head,
    /// The entries, the oldest first.
    pub entries: Vec<StoredEntry>,
}

impl Store {
    /// Appends entries that belong to no change.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub async fn add_audit(&self, entries: &[Entry]) -> Result<(), StoreError> {
        let write = async |transaction: &mut Transaction<'_>| append(transaction, entries).await;
        self.database.write_or_undo(Vec::new, write).await
    }

    /// The last entry.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn audit_head(&self) -> Result<Head, StoreError> {
        self.database.read_beside(async |connection: &mut SqliteConnection| head(connection).await).await
    }

    /// Changes when there may be further entries.
    pub fn audit_changes(&self) -> watch::Receiver<()> {
        self.database.written()
    }

    /// At most so many entries after a number.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn audit_page(&self, after: u64, most: u32) -> Result<AuditPage, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let anchor = anchor(&mut *connection).await?;
            let after = to_i64(after.max(anchor.sequence));
            let before = sqlx::query("SELECT sequence, digest FROM audit WHERE sequence = ?")
                .bind(after)
                .fetch_optional(&mut *connection)
                .await?;
            let begin = before.as_ref().map_or(anchor, head_of);
            let rows = sqlx::query(
                "SELECT * FROM audit WHERE sequence > ? AND sequence < 1 << 53 ORDER BY sequence LIMIT ?",
            )
            .bind(after)
            .bind(most)
            .fetch_all(connection)
            .await?;
            let entries = rows.iter().map(stored).collect();
            Ok(AuditPage { after: begin, entries })
        };
        self.database.read_beside(read).await
    }

    /// Deletes the oldest entries if there are more than `most`, a tenth of that at a time, and says so
    /// in an entry. Returns how many.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is deleted.
    pub async fn rotate_audit(&self, most: u64) -> Result<u64, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            Ok((anchor(&mut *connection).await?, head(connection).await?))
        };
        let (anchor, head) = self.database.read(read).await?;
        if head.sequence.saturating_sub(anchor.sequence) <= most {
            return Ok(0);
        }
        // The entry that says so is one more.
        let last = head.sequence.saturating_sub(most - most / 10) + 1;
        let write = async |transaction: &mut Transaction<'_>| {
            let row = sqlx::query("SELECT sequence, digest FROM audit WHERE sequence = ?")
                .bind(to_i64(last))
                .fetch_one(transaction.connection())
                .await?;
            let now = head_of(&row);
            let mut entry = Entry::new(Action::Rotated, OWN_NAME);
            entry.reason = format!("entries {} to {now} were deleted", anchor.sequence + 1);
            append(transaction, &[entry]).await?;
            sqlx::query("UPDATE audit_anchor SET sequence = ?, digest = ?")
                .bind(to_i64(now.sequence))
                .bind(&now.digest.0[..])
                .execute(transaction.connection())
                .await?;
            sqlx::query("DELETE FROM audit WHERE sequence <= ?")
                .bind(to_i64(last))
                .execute(transaction.connection())
                .await?;
            Ok(last - anchor.sequence)
        };
        self.database.write_or_undo(Vec::new, write).await
    }
}

/// The principal of entries about what the daemon does by itself.
pub const OWN_NAME: &str = "kprobed";

/// Appends entries, with the time of now.
pub(super) async fn append<E: Borrow<Entry> + Sync>(
    transaction: &mut Transaction<'_>,
    entries: &[E],
) -> Result<(), StoreError> {
    let time_unix_nano = u64::try_from(to_ns(SystemTime::now())).unwrap_or_default();
    for entries in entries.chunks(ROWS) {
        let mut head = transaction.audit_head().await?;
        let mut rows = Vec::with_capacity(entries.len());
        for entry in entries {
            let (sequence, entry) = (head.sequence + 1, entry.borrow().clone().bounded());
            let text = Record { sequence, time_unix_nano, entry }
                .to_text()
                .map_err(|error| StoreError::Corrupt { what: "audit entry", value: error.to_string() })?;
            head = head.then(&text);
            rows.push((head, text));
        }
        let mut insert = QueryBuilder::new("INSERT INTO audit (sequence, record, digest) ");
        insert.push_values(&rows, |mut row, (Head { sequence, digest }, text)| {
            row.push_bind(to_i64(*sequence)).push_bind(text).push_bind(&digest.0[..]);
        });
        // Statements for other numbers of rows are not worth a place in the cache.
        insert.build().persistent(entries.len() == 1).execute(transaction.connection()).await?;
        transaction.audited(rows);
    }
    Ok(())
}

/// The last entry in the database.
pub(super) async fn head(connection: &mut SqliteConnection) -> Result<Head, StoreError> {
    // Of numbers that no log reaches, the log goes on from the one before.
    let last = sqlx::query(
        "SELECT sequence, digest FROM audit WHERE sequence < 1 << 53 ORDER BY sequence DESC LIMIT 1",
    )
    .fetch_optional(&mut *connection)
    .await?;
    match last {
        Some(row) => Ok(head_of(&row)),
        None => anchor(connection).await,
    }
}

async fn anchor(connection: &mut SqliteConnection) -> Result<Head, StoreError> {
    let row = sqlx::query("SELECT sequence, digest FROM audit_anchor").fetch_one(connection).await?;
    Ok(head_of(&row))
}

/// A number that no log reaches is a bad one. A digest of another length is shown so that it fits no chain: whoever
/// verifies the log finds this row.
fn head_of(row: &SqliteRow) -> Head {
    let sequence: i64 = row.try_get("sequence").unwrap_or_default();
    let sequence = Some(sequence).filter(|sequence| (0..1 << 53).contains(sequence)).unwrap_or_default();
    let mut bytes: Vec<u8> = row.try_get_unchecked("digest").unwrap_or_default();
    bytes.resize(32, 0);
    let digest = Digest::try_from(&*bytes).unwrap_or(Digest([0; 32]));
    Head { sequence: sequence.unsigned_abs(), digest }
}

fn stored(row: &SqliteRow) -> StoredEntry {
    let Head { sequence, digest } = head_of(row);
    let record = row.try_get("record").unwrap_or_else(|_error| lossy(row, "record"));
    StoredEntry { sequence, record, digest }
}
