//! Undos: corrections of the database after the kernel refused a change, or a disk failed.
//!
//! Owns what each of them writes. Never decides when one is needed.

use kprobed_audit::Entry;
use sqlx::SqliteConnection;

use super::connection::Transaction;
use super::probes::{ProbeSpec, Record};
use super::{StoreError, audit, labels, meanings, metadata, requests, reversal};
use kprobed_lang::model::{ProbeName, ProbeUid};

/// A correction of the database. It is owed until it is written: every transaction begins with
/// those that are owed. If the daemon ends before, its next start finds a row that is not settled,
/// and corrects it.
#[derive(Clone, Debug)]
pub enum Undo {
    /// A probe was not made after all, or its deletion is complete.
    Probe(ProbeUid),
    /// A probe was not made after all, and the request with this id was not carried out.
    Creation(ProbeUid, Option<String>),
    /// An event was not adopted after all, and the request with this id was not carried out.
    Adoption(ProbeName, Option<String>),
    /// A probe is not deleted after all.
    Deletion(ProbeUid),
    /// A probe stays as it was, and the request that was to change it was not carried out.
    Update {
        /// The probe before the change.
        before: Box<Record>,
        /// What its definition meant, if the change was to store another meaning.
        meaning: Option<String>,
        /// The id of the request.
        request: Option<String>,
    },
    /// A crash interrupted a change or deletion of a probe with others: it is what it was before.
    /// The requests about it count as not carried out.
    Reversal {
        /// The probe before the change.
        before: Box<Record>,
    },
    /// An event was not attached after all, or detaching it is complete.
    Attachment(ProbeUid),
    /// An event stays attached, with this filter.
    Detachment(ProbeUid, String),
    /// The audit log says why.
    Note(Box<Entry>),
}

impl Undo {
    pub(super) async fn apply(&self, transaction: &mut Transaction<'_>) -> Result<(), StoreError> {
        match self {
            Self::Probe(uid) => delete_probe(transaction.connection(), *uid).await?,
            Self::Creation(uid, request) => {
                delete_probe(transaction.connection(), *uid).await?;
                requests::forget(transaction.connection(), request.as_deref()).await?;
            }
            Self::Adoption(name, request) => {
                sqlx::query("DELETE FROM probe WHERE event_group = ? AND event = ? AND phase = 'settled'")
                    .bind(name.group())
                    .bind(name.event())
                    .execute(transaction.connection())
                    .await?;
                requests::forget(transaction.connection(), request.as_deref()).await?;
            }
            Self::Deletion(uid) => {
                give_name_back(transaction.connection(), *uid).await?;
                sqlx::query("UPDATE probe SET phase = 'settled' WHERE uid = ?")
                    .bind(uid.0)
                    .execute(transaction.connection())
                    .await?;
                reversal::drop(transaction.connection(), *uid).await?;
                requests::forget_about(transaction.connection(), *uid).await?;
            }
            Self::Update { before, meaning, request } => {
                rewrite(transaction.connection(), None, before).await?;
                write_meaning(transaction.connection(), before.uid, meaning.as_deref()).await?;
                reversal::drop(transaction.connection(), before.uid).await?;
                requests::forget(transaction.connection(), request.as_deref()).await?;
            }
            Self::Reversal { before } => {
                let uid = &before.uid;
                give_name_back(transaction.connection(), *uid).await?;
                sqlx::query("UPDATE probe SET phase = 'settled' WHERE uid = ?")
                    .bind(uid.0)
                    .execute(transaction.connection())
                    .await?;
                rewrite(transaction.connection(), None, before).await?;
                reversal::drop(transaction.connection(), *uid).await?;
                sqlx::query("DELETE FROM request WHERE probe_uid = ?")
                    .bind(uid.0)
                    .execute(transaction.connection())
                    .await?;
            }
            Self::Attachment(uid) => {
                sqlx::query("DELETE FROM attachment WHERE id = ?")
                    .bind(uid.attachment())
                    .execute(transaction.connection())
                    .await?;
            }
            Self::Detachment(uid, filter) => {
                settle_attachment(transaction.connection(), *uid, filter).await?;
            }
            Self::Note(entry) => audit::append(transaction, &[&**entry]).await?,
        }
        Ok(())
    }
}

/// A probe that was to replace this one is deleted, and frees its name.
async fn give_name_back(transaction: &mut SqliteConnection, uid: ProbeUid) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE probe SET phase = 'removing' WHERE phase = 'pending' AND uid != ?1 AND (event_group, event) = \
         (SELECT event_group, event FROM probe WHERE uid = ?1)",
    )
    .bind(uid.0)
    .execute(transaction)
    .await?;
    Ok(())
}

async fn delete_probe(transaction: &mut SqliteConnection, uid: ProbeUid) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM probe WHERE uid = ?").bind(uid.0).execute(transaction).await?;
    Ok(())
}

/// Writes what clients can change of a probe. Skips its labels and metadata if they are known to be
/// unchanged.
pub(super) async fn rewrite(
    transaction: &mut SqliteConnection,
    before: Option<&Record>,
    record: &Record,
) -> Result<(), StoreError> {
    let Record { uid, spec, revision, update_time, .. } = record;
    let ProbeSpec { enabled, filter, labels, metadata, definition: _ } = spec;
    sqlx::query("UPDATE probe SET enabled = ?, filter = ?, revision = ?, update_time_ns = ? WHERE uid = ?")
        .bind(enabled)
        .bind(filter)
        .bind(revision)
        .bind(super::to_ns(*update_time))
        .bind(uid.0)
        .execute(&mut *transaction)
        .await?;
    if before.is_none_or(|before| before.spec.metadata != *metadata) {
        metadata::write(transaction, *uid, metadata).await?;
    }
    if before.is_some_and(|before| before.spec.labels == *labels) {
        return Ok(());
    }
    labels::write(transaction, *uid, labels).await
}

/// Stores what a definition means, if that is to be another meaning.
async fn write_meaning(
    transaction: &mut SqliteConnection,
    uid: ProbeUid,
    meaning: Option<&str>,
) -> Result<(), StoreError> {
    match meaning {
        Some(meaning) => meanings::write(transaction, &[(uid, meaning)]).await,
        None => Ok(()),
    }
}

/// An event is recorded with this filter from now on.
pub(super) async fn settle_attachment(
    transaction: &mut SqliteConnection,
    uid: ProbeUid,
    filter: &str,
) -> Result<(), StoreError> {
    sqlx::query("UPDATE attachment SET phase = 'settled', filter = ? WHERE id = ?")
        .bind(filter)
        .bind(uid.attachment())
        .execute(transaction)
        .await?;
    Ok(())
}
