//! Undos: corrections of the database after the kernel refused a change, or a disk failed.
//!
//! Owns what each of them writes, and its form in the reserve. Never decides when one is needed.

use std::time::SystemTime;

use kprobed_audit::Entry;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sqlx::SqliteConnection;

use super::connection::Transaction;
use super::probes::{ProbeSpec, Record};
use super::reversal::Kept;
use super::{
    Fault, RequestKey, StoreError, audit, labels, meanings, metadata, requests, reversal, to_ns, trips,
};
use kprobed_lang::model::{ProbeName, ProbeUid};

/// A correction of the database, or a change that disarms a probe and found no room in it. It is owed until it is
/// written: every transaction is preceded by those that are owed. If the daemon ends before, the reserve has it for the
/// next start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Undo {
    /// A probe was not made after all, or its deletion is complete.
    Probe(#[serde(with = "number")] ProbeUid),
    /// A probe was not made after all, and this request was not carried out.
    Creation(#[serde(with = "number")] ProbeUid, Option<RequestKey>),
    /// An event was not adopted after all, and this request was not carried out.
    Adoption(#[serde(with = "name")] ProbeName, Option<RequestKey>),
    /// A probe is not deleted after all.
    Deletion(#[serde(with = "number")] ProbeUid),
    /// A probe is to be deleted: from here on that is finished even after a crash.
    Removal {
        /// The probe.
        #[serde(with = "number")]
        uid: ProbeUid,
        /// The request that asks for it.
        request: Option<RequestKey>,
    },
    /// A probe is to be off.
    Disabling {
        /// The probe.
        #[serde(with = "number")]
        uid: ProbeUid,
        /// Its revision from now on.
        revision: i64,
        /// When a client asked for it.
        time: SystemTime,
        /// Whether that ends its trip.
        ends_trip: bool,
        /// The request that asks for it.
        request: Option<RequestKey>,
    },
    /// A probe stays as it was, and the request that was to change it was not carried out.
    Update {
        /// The probe before the change.
        #[serde(with = "settings")]
        before: Box<Record>,
        /// What its definition meant, if the change was to store another meaning.
        meaning: Option<String>,
        /// The request.
        request: Option<RequestKey>,
    },
    /// A crash interrupted a change or deletion of a probe with others: it is what it was before.
    /// The requests about it count as not carried out.
    Reversal {
        /// The probe before the change.
        #[serde(with = "settings")]
        before: Box<Record>,
    },
    /// The audit log says why.
    Note(Box<Entry>),
}

impl Undo {
    pub(super) async fn apply(&self, transaction: &mut Transaction<'_>) -> Result<(), StoreError> {
        match self {
            Self::Probe(uid) => delete_probe(transaction.connection(), *uid).await?,
            Self::Creation(uid, request) => {
                delete_probe(transaction.connection(), *uid).await?;
                requests::forget(transaction.connection(), request.as_ref()).await?;
            }
            Self::Adoption(name, request) => {
                sqlx::query("DELETE FROM probe WHERE event_group = ? AND event = ? AND phase = 'settled'")
                    .bind(name.group())
                    .bind(name.event())
                    .execute(transaction.connection())
                    .await?;
                requests::forget(transaction.connection(), request.as_ref()).await?;
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
            Self::Removal { uid, request } => {
                remove(transaction.connection(), *uid).await?;
                remember(transaction.connection(), *uid, request.as_ref()).await?;
            }
            Self::Disabling { uid, revision, time, ends_trip, request } => {
                sqlx::query("UPDATE probe SET enabled = 0, revision = ?, update_time_ns = ? WHERE uid = ?")
                    .bind(revision)
                    .bind(to_ns(*time))
                    .bind(uid.0)
                    .execute(transaction.connection())
                    .await?;
                if *ends_trip {
                    trips::clear(transaction.connection(), *uid).await?;
                }
                remember(transaction.connection(), *uid, request.as_ref()).await?;
            }
            Self::Update { before, meaning, request } => {
                if rewrite(transaction.connection(), None, before).await? {
                    write_meaning(transaction.connection(), before.uid, meaning.as_deref()).await?;
                }
                reversal::drop(transaction.connection(), before.uid).await?;
                requests::forget(transaction.connection(), request.as_ref()).await?;
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
            Self::Note(entry) => audit::append(transaction, &[&**entry]).await?,
        }
        Ok(())
    }
}

async fn remember(
    transaction: &mut SqliteConnection,
    uid: ProbeUid,
    request: Option<&RequestKey>,
) -> Result<(), StoreError> {
    match request {
        Some(request) => requests::remember(transaction, &[(request, uid)]).await,
        None => Ok(()),
    }
}

/// The deletion of a probe has begun.
pub(super) async fn remove(transaction: &mut SqliteConnection, uid: ProbeUid) -> Result<(), StoreError> {
    let query = sqlx::query("UPDATE probe SET phase = 'removing' WHERE uid = ?").bind(uid.0);
    match query.execute(&mut *transaction).await {
        Ok(_) => Ok(()),
        // SQLite writes no row that has a value of a wrong type: such a row goes at once.
        Err(error) if matches!(Fault::of(&error), Fault::Constraint | Fault::BadRow) => {
            delete_probe(transaction, uid).await
        }
        Err(error) => Err(error.into()),
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
    reversal::drop(transaction, uid).await?;
    sqlx::query("DELETE FROM probe WHERE uid = ?").bind(uid.0).execute(transaction).await?;
    Ok(())
}

/// Writes what clients can change of a probe. Skips its labels and metadata if they are known to be
/// unchanged. Returns whether there is such a probe.
pub(super) async fn rewrite(
    transaction: &mut SqliteConnection,
    before: Option<&Record>,
    record: &Record,
) -> Result<bool, StoreError> {
    let Record { uid, spec, revision, update_time, .. } = record;
    let ProbeSpec { enabled, filter, labels, metadata, definition: _ } = spec;
    let query = "UPDATE probe SET enabled = ?, filter = ?, revision = ?, update_time_ns = ? WHERE uid = ?";
    let written = sqlx::query(query)
        .bind(enabled)
        .bind(filter)
        .bind(revision)
        .bind(to_ns(*update_time))
        .bind(uid.0)
        .execute(&mut *transaction)
        .await?;
    if written.rows_affected() == 0 {
        return Ok(false);
    }
    if before.is_none_or(|before| before.spec.metadata != *metadata) {
        metadata::write(transaction, *uid, metadata).await?;
    }
    if before.is_some_and(|before| before.spec.labels == *labels) {
        return Ok(true);
    }
    labels::write(transaction, *uid, labels).await?;
    Ok(true)
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

/// A uid, as its number.
mod number {
    use super::{Deserialize as _, Deserializer, ProbeUid, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
    pub(super) fn serialize<S: Serializer>(uid: &ProbeUid, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(uid.0)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<ProbeUid, D::Error> {
        i64::deserialize(from).map(ProbeUid)
    }
}

/// A name, as its text.
mod name {
    use serde::de::Error as _;

    use super::{Deserialize as _, Deserializer, ProbeName, Serializer};

    pub(super) fn serialize<S: Serializer>(name: &ProbeName, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(name)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<ProbeName, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// What clients can change of a probe: the rest of its record is not written by an undo.
mod settings {
    use serde::de::Error as _;

    use super::{
        Deserialize, Deserializer, Kept, ProbeName, ProbeSpec, ProbeUid, Record, Serialize, Serializer,
        SystemTime, name, number,
    };

    #[derive(Serialize, Deserialize)]
    struct Settings {
        #[serde(with = "number")]
        uid: ProbeUid,
        #[serde(with = "name")]
        name: ProbeName,
        kept: Kept,
    }

    pub(super) fn serialize<S: Serializer>(record: &Record, to: S) -> Result<S::Ok, S::Error> {
        Settings { uid: record.uid, name: record.name.clone(), kept: Kept::from(record) }.serialize(to)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Box<Record>, D::Error> {
        let Settings { uid, name, kept } = Settings::deserialize(from)?;
        let record = Record::new(name, ProbeSpec::default(), String::new(), SystemTime::UNIX_EPOCH);
        let mut record = Record { uid, ..record };
        kept.restore(&mut record).map_err(D::Error::custom)?;
        Ok(Box::new(record))
    }
}
