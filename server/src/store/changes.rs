//! Changes of probes in the database, one or many in a transaction: the intent before the kernel is
//! changed, and the outcome after that.
//!
//! Owns these transactions. One for all changes costs the disk one sync, however many they are.
//! Never carries a change out.

use std::sync::Arc;

use kprobed_audit::Entry;
use sqlx::{QueryBuilder, Row as _, SqliteConnection};

use super::connection::{TooMuchOwed, Transaction};
use super::undo::{Undo, remove, rewrite};
use super::{
    ProbeSpec, ROWS, Record, RequestKey, Store, StoreError, audit, labels, meanings, metadata, requests,
    reversal, to_ns, trips,
};
use kprobed_lang::model::ProbeUid;

/// An intended change of a probe.
#[derive(Clone, Debug)]
pub enum Intent {
    /// To make it. Its row is `pending` until that is settled. An unfinished row of that name is
    /// deleted: the kernel has no event of it, or the name would not be free.
    Create {
        /// The probe.
        record: Box<Record>,
        /// What its definition means: see [`Store::meanings`].
        meaning: Option<String>,
    },
    /// To adopt an event that the kernel has. Its row is settled at once, since a start removes
    /// from the kernel the events of rows that are not: from here on the event is the daemon's, and
    /// the next start does what is left to do.
    Adopt {
        /// The probe.
        record: Box<Record>,
        /// What its definition means: see [`Store::meanings`].
        meaning: Option<String>,
        /// How the kernel lists it.
        listing: String,
    },
    /// To change it.
    Update {
        /// What it was.
        before: Box<Record>,
        /// What it is to be.
        wanted: Box<Record>,
        /// What its definition is accepted to mean from now on. Absent to leave that as it is: only
        /// an acceptance changes it, which is never one of a group.
        meaning: Option<Accepted>,
    },
    /// To delete it. From here on that is finished even after a crash.
    Remove(ProbeUid),
}

/// The meaning of a definition, before and after its acceptance.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The stored meaning; absent for none.
    pub before: Option<String>,
    /// The meaning to store; absent to leave it as it is.
    pub now: Option<String>,
}

/// An intended change, and the request that asks for it.
#[derive(Clone, Debug)]
pub struct Intended {
    /// The change.
    pub intent: Intent,
    /// The request that asks for it.
    pub request: Option<RequestKey>,
    /// The probe as it is now, if a crash must take the change back: until [`Settled::Whole`] is
    /// written for it.
    pub reversal: Option<Box<Record>>,
    /// What the audit log says of it. Absent if another intent of the same change has the entry.
    pub entry: Option<Arc<Entry>>,
    /// Whether a client has switched a probe that was disarmed for its cost: that ends its trip. If the
    /// change fails after that, the daemon stores the trip again.
    pub ends_trip: bool,
}

/// The outcome of a change in the kernel.
#[derive(Clone, Debug)]
pub enum Settled {
    /// It was made: from here on it is durable.
    Created {
        /// The probe.
        uid: ProbeUid,
        /// How the kernel lists it.
        listing: String,
    },
    /// It was defined in the kernel anew.
    Redefined {
        /// The probe.
        uid: ProbeUid,
        /// The kernel's line.
        kernel_definition: String,
        /// How the kernel lists it.
        listing: String,
    },
    /// It was changed or deleted with others, all of which are settled in the same transaction: no
    /// crash takes that back any more.
    Whole {
        /// The probe.
        uid: ProbeUid,
        /// What takes the change back, if it is not known whether the disk has the transaction.
        undo: Undo,
    },
}

/// Intents that were stored.
#[derive(Debug)]
pub struct Begun {
    /// The uid of each probe, in their order.
    pub uids: Vec<ProbeUid>,
    /// Why a crash would forget the intents. Absent if it would not.
    pub not_durable: Option<StoreError>,
}

impl Begun {
    /// The uids of intents that a crash does not forget.
    ///
    /// # Errors
    /// Why it would.
    pub fn durable(self) -> Result<Vec<ProbeUid>, StoreError> {
        self.not_durable.map_or(Ok(self.uids), Err)
    }
}

impl Store {
    /// Stores intents, each with the request that asks for it. The outcome of a creation is
    /// remembered for its request when it is settled; that of all others now.
    ///
    /// Intents that only disarm probes are taken on even if the database has no room for them: the reserve has them
    /// then, or, if that fails too, the memory alone.
    ///
    /// # Errors
    /// [`StoreError::Database`], also when there is a probe of the name of a new one. Then nothing
    /// is written.
    pub async fn begin(&self, intents: &[Intended]) -> Result<Begun, StoreError> {
        let error = match self.store_intents(intents).await {
            Ok(uids) => return Ok(Begun { uids, not_durable: None }),
            Err(error) => error,
        };
        let disarming: Option<Vec<_>> = intents.iter().map(disarming).collect();
        let Some(disarming) = disarming.filter(|_| error.is_of_the_disk()) else { return Err(error) };
        let (uids, undo): (Vec<_>, Vec<_>) = disarming.into_iter().unzip();
        match self.database.owe(undo.into_iter().flatten().collect()).await {
            Ok(Ok(())) => Ok(Begun { uids, not_durable: None }),
            Ok(Err(reserve)) => {
                tracing::error!(%error, %reserve, "disarms probes, and can write that down nowhere");
                Ok(Begun { uids, not_durable: Some(error) })
            }
            Err(TooMuchOwed) => Err(error),
        }
    }

    async fn store_intents(&self, intents: &[Intended]) -> Result<Vec<ProbeUid>, StoreError> {
        let write = async |transaction: &mut Transaction<'_>| {
            let entries: Vec<_> = intents.iter().filter_map(|intended| intended.entry.as_deref()).collect();
            audit::append(transaction, &entries).await?;
            let transaction = transaction.connection();
            let mut uids = Vec::with_capacity(intents.len());
            let (mut carried_out, mut meanings, mut listings) = (Vec::new(), Vec::new(), Vec::new());
            let mut creations = Creations::new(transaction).await?;
            for Intended { intent, request, reversal, ends_trip, entry: _ } in intents {
                if matches!(intent, Intent::Update { .. } | Intent::Remove(_)) {
                    creations.write(transaction).await?;
                }
                if let (Some(before), Intent::Update { .. } | Intent::Remove(_)) = (reversal, intent) {
                    reversal::keep(transaction, before).await?;
                }
                let uid = match intent {
                    Intent::Create { record, meaning } => {
                        let uid = creations.add(record);
                        meanings.extend(meaning.as_deref().map(|meaning| (uid, meaning)));
                        uid
                    }
                    Intent::Adopt { record, meaning, listing } => {
                        let uid = creations.add(record);
                        meanings.extend(meaning.as_deref().map(|meaning| (uid, meaning)));
                        listings.push((uid, listing.as_str()));
                        uid
                    }
                    Intent::Update { before, wanted, meaning } => {
                        rewrite(transaction, Some(before), wanted).await?;
                        if *ends_trip {
                            trips::clear(transaction, wanted.uid).await?;
                        }
                        let now = meaning.as_ref().and_then(|accepted| accepted.now.as_deref());
                        meanings.extend(now.map(|meaning| (wanted.uid, meaning)));
                        wanted.uid
                    }
                    Intent::Remove(uid) => {
                        remove(transaction, *uid).await?;
                        *uid
                    }
                };
                if !matches!(intent, Intent::Create { .. }) {
                    carried_out.extend(request.as_ref().map(|request| (request, uid)));
                }
                uids.push(uid);
            }
            creations.write(transaction).await?;
            meanings::write(transaction, &meanings).await?;
            settle(transaction, &listings).await?;
            requests::remember(transaction, &carried_out).await?;
            Ok(uids)
        };
        self.database.write_or_undo(|| in_doubt(intents), write).await
    }

    /// Stores what the kernel has now, each with the request that is carried out by that.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub async fn settle(&self, settled: &[(Settled, Option<RequestKey>)]) -> Result<(), StoreError> {
        let undo = || {
            let undo = settled.iter().filter_map(|(settled, request)| match settled {
                Settled::Created { uid, .. } => Some(Undo::Creation(*uid, request.clone())),
                Settled::Redefined { .. } => None,
                Settled::Whole { undo, .. } => Some(undo.clone()),
            });
            undo.collect()
        };
        let write = async |transaction: &mut Transaction<'_>| {
            let transaction = transaction.connection();
            let (mut carried_out, mut listings) = (Vec::new(), Vec::new());
            for (settled, request) in settled {
                let uid = match settled {
                    Settled::Created { uid, listing } => {
                        listings.push((*uid, listing.as_str()));
                        *uid
                    }
                    Settled::Redefined { uid, kernel_definition, listing } => {
                        redefine(transaction, *uid, kernel_definition, listing).await?;
                        *uid
                    }
                    Settled::Whole { uid, .. } => {
                        reversal::drop(transaction, *uid).await?;
                        *uid
                    }
                };
                carried_out.extend(request.as_ref().map(|request| (request, uid)));
            }
            settle(transaction, &listings).await?;
            requests::remember(transaction, &carried_out).await
        };
        self.database.write_or_undo(undo, write).await
    }
}

/// The probe of an intent that only disarms it, with what is owed for that. Absent for other intents, and for those of
/// a group, which must be settled together.
fn disarming(intended: &Intended) -> Option<(ProbeUid, Vec<Undo>)> {
    let Intended { intent, request, reversal: None, entry, ends_trip } = intended else { return None };
    let (ends_trip, request) = (*ends_trip, request.clone());
    let (uid, undo) = match intent {
        Intent::Remove(uid) => (*uid, Undo::Removal { uid: *uid, request }),
        Intent::Update { before, wanted, meaning: None } => {
            let off = ProbeSpec { enabled: false, ..before.spec.clone() };
            if wanted.spec != off {
                return None;
            }
            let Record { uid, revision, update_time: time, .. } = **wanted;
            (uid, Undo::Disabling { uid, revision, time, ends_trip, request })
        }
        _ => return None,
    };
    let note = entry.as_ref().map(|entry| Undo::Note(Box::new(Entry::clone(entry))));
    Some((uid, std::iter::once(undo).chain(note).collect()))
}

/// What takes intents back, if the disk does not say whether it has them.
fn in_doubt(intents: &[Intended]) -> Vec<Undo> {
    let undo = intents.iter().filter_map(|Intended { intent, request, .. }| match intent {
        // The code that finds a row that is not settled repairs it.
        Intent::Create { .. } => None,
        Intent::Adopt { record, .. } => Some(Undo::Adoption(record.name.clone(), request.clone())),
        Intent::Update { before, meaning, .. } => {
            let meaning = meaning.as_ref().and_then(|accepted| accepted.before.clone());
            Some(Undo::Update { before: before.clone(), meaning, request: request.clone() })
        }
        Intent::Remove(uid) => Some(Undo::Deletion(*uid)),
    });
    let notes = intents.iter().filter_map(|Intended { entry, .. }| {
        let reason = "the disk did not say whether it was stored";
        Some(Undo::Note(Box::new(entry.as_ref()?.failed(reason))))
    });
    undo.chain(notes).collect()
}

/// Rows of new probes, which are written together. Those before another change are written before it.
struct Creations<'a> {
    /// The last uid that was given out.
    last: i64,
    /// Whether there are rows that are not settled.
    unfinished: bool,
    waiting: Vec<(ProbeUid, &'a Record)>,
}

impl<'a> Creations<'a> {
    async fn new(transaction: &mut SqliteConnection) -> Result<Self, StoreError> {
        let query = sqlx::query(
            "SELECT EXISTS (SELECT 1 FROM probe WHERE phase != 'settled'), \
             coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'probe'), 0)",
        );
        let row = query.fetch_one(transaction).await?;
        Ok(Self { unfinished: row.try_get::<i64, _>(0)? != 0, last: row.try_get(1)?, waiting: Vec::new() })
    }

    /// The uid that the probe gets when it is written.
    fn add(&mut self, record: &'a Record) -> ProbeUid {
        self.last += 1;
        let uid = ProbeUid(self.last);
        self.waiting.push((uid, record));
        uid
    }

    async fn write(&mut self, transaction: &mut SqliteConnection) -> Result<(), StoreError> {
        for creations in self.waiting.chunks(ROWS) {
            if self.unfinished {
                delete_unfinished(transaction, creations).await?;
            }
            insert(transaction, creations).await?;
        }
        let labels: Vec<_> = self.waiting.iter().map(|(uid, record)| (*uid, &record.spec.labels)).collect();
        self.waiting.clear();
        labels::add(transaction, &labels).await
    }
}

/// Deletes what a crash has left under the names of new probes.
async fn delete_unfinished(
    transaction: &mut SqliteConnection,
    creations: &[(ProbeUid, &Record)],
) -> Result<(), StoreError> {
    for (_, record) in creations {
        sqlx::query(
            "DELETE FROM probe WHERE event_group = ? AND event = ? AND phase != 'settled' \
             AND uid NOT IN (SELECT probe_uid FROM reversal)",
        )
        .bind(record.name.group())
        .bind(record.name.event())
        .execute(&mut *transaction)
        .await?;
    }
    Ok(())
}

async fn insert(
    transaction: &mut SqliteConnection,
    creations: &[(ProbeUid, &Record)],
) -> Result<(), StoreError> {
    let mut insert = QueryBuilder::new(
        "INSERT INTO probe (uid, event_group, event, definition, kernel_definition, enabled, filter, phase, revision, \
         kernel_listing, create_time_ns, update_time_ns, description, owner, declared_by, on_kernel_change, \
         lease_duration_ns, lease_expire_ns, lease_boot_id, lease_end_boot_ns, lease_holder, creator, \
         creator_names) ",
    );
    insert.push_values(creations, |mut row, (uid, record)| {
        let ProbeSpec { definition, enabled, filter, labels: _, metadata } = &record.spec;
        let lease = metadata::columns(metadata.lease.as_ref());
        row.push_bind(uid.0)
            .push_bind(record.name.group())
            .push_bind(record.name.event())
            .push_bind(definition.as_str())
            .push_bind(&record.kernel_definition)
            .push_bind(*enabled)
            .push_bind(filter)
            .push("'pending', 1, ''")
            .push_bind(to_ns(record.create_time))
            .push_bind(to_ns(record.update_time))
            .push_bind(&metadata.description)
            .push_bind(&metadata.owner)
            .push_bind(&metadata.declared_by)
            .push_bind(metadata::policy(metadata.on_kernel_change))
            .push_bind(lease.duration_ns)
            .push_bind(lease.expire_ns)
            .push_bind(lease.boot_id)
            .push_bind(lease.end_boot_ns)
            .push_bind(lease.holder)
            .push_bind(&record.creator)
            .push_bind(serde_json::json!(record.creator_names).to_string());
    });
    insert.build().persistent(creations.len() == 1).execute(transaction).await?;
    Ok(())
}

/// The kernel lists these probes so: from here on they are durable.
async fn settle(transaction: &mut SqliteConnection, listings: &[(ProbeUid, &str)]) -> Result<(), StoreError> {
    for listings in listings.chunks(ROWS) {
        let mut update =
            QueryBuilder::new("UPDATE probe SET phase = 'settled', kernel_listing = now.column2 FROM (");
        update.push_values(listings, |mut row, (uid, listing)| {
            row.push_bind(uid.0).push_bind(*listing);
        });
        update.push(") AS now WHERE probe.uid = now.column1");
        update.build().persistent(listings.len() == 1).execute(&mut *transaction).await?;
    }
    Ok(())
}

async fn redefine(
    transaction: &mut SqliteConnection,
    uid: ProbeUid,
    kernel_definition: &str,
    listing: &str,
) -> Result<(), StoreError> {
    sqlx::query("UPDATE probe SET kernel_definition = ?, kernel_listing = ? WHERE uid = ?")
        .bind(kernel_definition)
        .bind(listing)
        .bind(uid.0)
        .execute(transaction)
        .await?;
    Ok(())
}
