//! Approved definitions in the database.
//!
//! Owns their table. Never decides what an approval allows: [`kprobed_rights`] does.

use std::time::SystemTime;

use kprobed_audit::Entry;
use kprobed_rights::DefinitionDigest;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::{Store, StoreError, audit, from_ns, to_ns};

/// The most bytes that all approvals may take together, so that the list fits into a message.
pub const APPROVAL_BYTES_MAX: usize = 2 << 20;

/// Bytes that an approval takes besides its texts.
const ROW_BYTES: usize = 128;

/// An approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredApproval {
    /// The digest of the definition.
    pub digest: DefinitionDigest,
    /// The definition as a canonical line without names.
    pub definition: String,
    /// Who has approved it.
    pub principal: String,
    /// The classes of data that it reads, by name.
    pub reads: Vec<String>,
    /// Why.
    pub note: String,
    /// When.
    pub time: SystemTime,
}

impl StoredApproval {
    fn bytes(&self) -> usize {
        let reads: usize = self.reads.iter().map(|read| read.len() + 1).sum();
        ROW_BYTES + self.definition.len() + self.principal.len() + self.note.len() + reads
    }
}

/// What a change of approvals has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalChange {
    /// It was made, and these are all approvals now.
    Made(Vec<StoredApproval>),
    /// It was not: the approvals would take so many bytes.
    TooMany(usize),
}

impl Store {
    /// All approvals, the oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn approvals(&self) -> Result<Vec<StoredApproval>, StoreError> {
        self.database.read(async |connection: &mut SqliteConnection| all(connection).await).await
    }

    /// Adds approvals, in place of older ones of the same definitions by the same principals, with
    /// their audit entries.
    ///
    /// # Errors
    /// [`StoreError`]. Then nothing is written.
    pub async fn add_approvals(
        &self,
        added: &[StoredApproval],
        entries: &[Entry],
    ) -> Result<ApprovalChange, StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            let mut after = all(&mut *transaction).await?;
            after.retain(|one| {
                !added.iter().any(|new| new.digest == one.digest && new.principal == one.principal)
            });
            after.extend_from_slice(added);
            let bytes = after.iter().map(StoredApproval::bytes).sum();
            if bytes > APPROVAL_BYTES_MAX {
                return Ok(ApprovalChange::TooMany(bytes));
            }
            for approval in added {
                let StoredApproval { digest, definition, principal, reads, note, time } = approval;
                sqlx::query(
                    "INSERT OR REPLACE INTO approval (digest, principal, definition, reads, note, time_ns) \
                     VALUES (?, ?, ?, ?, ?, ?)",
                )
                .bind(&digest.as_bytes()[..])
                .bind(principal)
                .bind(definition)
                .bind(reads.join(","))
                .bind(note)
                .bind(to_ns(*time))
                .execute(&mut *transaction)
                .await?;
            }
            audit::append(transaction, entries).await?;
            Ok(ApprovalChange::Made(after))
        };
        self.database.write(write).await
    }

    /// Removes all approvals of some definitions, with an audit entry for each. Returns those that
    /// were removed, and those that are left.
    ///
    /// # Errors
    /// [`StoreError`]. Then nothing is written.
    pub async fn remove_approvals(
        &self,
        digests: &[DefinitionDigest],
        entry: impl Fn(&StoredApproval) -> Entry,
    ) -> Result<(Vec<StoredApproval>, Vec<StoredApproval>), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            let (removed, left): (Vec<_>, Vec<_>) =
                all(&mut *transaction).await?.into_iter().partition(|one| digests.contains(&one.digest));
            for digest in digests {
                sqlx::query("DELETE FROM approval WHERE digest = ?")
                    .bind(&digest.as_bytes()[..])
                    .execute(&mut *transaction)
                    .await?;
            }
            let entries: Vec<_> = removed.iter().map(&entry).collect();
            audit::append(transaction, &entries).await?;
            Ok((removed, left))
        };
        self.database.write(write).await
    }
}

async fn all(connection: &mut SqliteConnection) -> Result<Vec<StoredApproval>, StoreError> {
    let rows = sqlx::query("SELECT * FROM approval ORDER BY time_ns, digest, principal")
        .fetch_all(connection)
        .await?;
    rows.iter().map(stored).collect()
}

fn stored(row: &SqliteRow) -> Result<StoredApproval, StoreError> {
    let digest: Vec<u8> = row.try_get("digest")?;
    let bytes: [u8; 32] = digest.as_slice().try_into().map_err(|_other_length| StoreError::Corrupt {
        what: "digest of an approval",
        value: format!("{} bytes", digest.len()),
    })?;
    let reads: String = row.try_get("reads")?;
    Ok(StoredApproval {
        digest: bytes.into(),
        definition: row.try_get("definition")?,
        principal: row.try_get("principal")?,
        reads: reads.split(',').filter(|read| !read.is_empty()).map(str::to_owned).collect(),
        note: row.try_get("note")?,
        time: from_ns(row.try_get("time_ns")?),
    })
}
