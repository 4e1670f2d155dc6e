//! Approved definitions in the database.
//!
//! Owns their table. Never decides what an approval allows: [`kprobed_rights`] does.

use std::time::SystemTime;

use kprobed_audit::Entry;
use kprobed_rights::{Approvals, Approver, DefinitionDigest};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::connection::Transaction;
use super::{Store, StoreError, Undo, audit, from_ns, to_ns};

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
    pub by: Approver,
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
        let by = self.by.account.len() + self.by.name.len();
        ROW_BYTES + self.definition.len() + by + self.note.len() + reads
    }

    /// What rules are compared with, of all approvals.
    pub fn in_force(all: &[Self]) -> Approvals {
        all.iter().map(|one| (one.digest, one.by.clone())).collect()
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
        let digests: Vec<_> = added.iter().map(|one| one.digest).collect();
        let undo = self.undo_approvals(digests, entries).await?;
        let write = async |transaction: &mut Transaction<'_>| {
            let mut after = all(transaction.connection()).await?;
            let is_replaced = |one: &StoredApproval| {
                added.iter().any(|new| new.digest == one.digest && new.by.account == one.by.account)
            };
            after.retain(|one| !is_replaced(one));
            after.extend_from_slice(added);
            let bytes = after.iter().map(StoredApproval::bytes).sum();
            if bytes > APPROVAL_BYTES_MAX {
                return Ok(ApprovalChange::TooMany(bytes));
            }
            insert(transaction.connection(), added).await?;
            audit::append(transaction, entries).await?;
            Ok(ApprovalChange::Made(after))
        };
        self.database.write_or_undo(|| undo, write).await
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
        let present = self.approvals().await?;
        let (removed, left): (Vec<_>, Vec<_>) =
            present.into_iter().partition(|one| digests.contains(&one.digest));
        let entries: Vec<_> = removed.iter().map(&entry).collect();
        let undo = self.undo_approvals(digests.to_vec(), &entries).await?;
        let write = async |transaction: &mut Transaction<'_>| {
            delete(transaction.connection(), digests).await?;
            audit::append(transaction, &entries).await
        };
        self.database.write_or_undo(|| undo, write).await?;
        Ok((removed, left))
    }

    /// What puts the approvals of some definitions back to what they are now. Changes of approvals
    /// come one after the other: their caller sees to that.
    async fn undo_approvals(
        &self,
        digests: Vec<DefinitionDigest>,
        entries: &[Entry],
    ) -> Result<Vec<Undo>, StoreError> {
        let mut before = self.approvals().await?;
        before.retain(|one| digests.contains(&one.digest));
        let reason = "the disk did not say whether it was stored";
        let notes = entries.iter().map(|entry| Undo::Note(Box::new(entry.failed(reason))));
        Ok([Undo::Approvals { digests, before }].into_iter().chain(notes).collect())
    }
}

/// Writes approvals in place of older ones of the same definitions by the same accounts.
pub(super) async fn insert(
    transaction: &mut SqliteConnection,
    approvals: &[StoredApproval],
) -> Result<(), StoreError> {
    for StoredApproval { digest, definition, by, reads, note, time } in approvals {
        sqlx::query(
            "INSERT OR REPLACE INTO approval (digest, account, principal, definition, reads, note, time_ns) \
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(&digest.as_bytes()[..])
        .bind(&by.account)
        .bind(&by.name)
        .bind(definition)
        .bind(reads.join(","))
        .bind(note)
        .bind(to_ns(*time))
        .execute(&mut *transaction)
        .await?;
    }
    Ok(())
}

/// Removes all approvals of some definitions.
pub(super) async fn delete(
    transaction: &mut SqliteConnection,
    digests: &[DefinitionDigest],
) -> Result<(), StoreError> {
    for digest in digests {
        sqlx::query("DELETE FROM approval WHERE digest = ?")
            .bind(&digest.as_bytes()[..])
            .execute(&mut *transaction)
            .await?;
    }
    Ok(())
}

async fn all(connection: &mut SqliteConnection) -> Result<Vec<StoredApproval>, StoreError> {
    let rows =
        sqlx::query("SELECT * FROM approval ORDER BY time_ns, digest, account").fetch_all(connection).await?;
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
        by: Approver { account: row.try_get("account")?, name: row.try_get("principal")? },
        reads: reads.split(',').filter(|read| !read.is_empty()).map(str::to_owned).collect(),
        note: row.try_get("note")?,
        time: from_ns(row.try_get("time_ns")?),
    })
}
