//! Changes of probes in the database, one or many in a transaction: into the journal before the kernel is
//! changed, and into the rows of the probes after that.
//!
//! Owns these transactions, and which uids new probes get. One transaction for all changes of a request costs the disk
//! one sync, however many they are. A change that is in the journal was not acknowledged: whatever it is, the next
//! start takes it back. Never carries a change out.

use std::cell::OnceCell;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use kprobed_audit::Entry;
use sqlx::{QueryBuilder, SqliteConnection};

use super::connection::{TooMuchOwed, Transaction};
use super::reserve::Owed;
use super::{ProbeSpec, ROWS, Record, RequestKey, Store, StoreError, audit, requests, to_ns};
use kprobed_lang::model::ProbeUid;

/// A change of a probe: what is stored of it, and what is to be.
#[derive(Clone, Debug)]
pub struct Edit {
    /// The probe as it is stored. Absent for one that is to be made.
    pub before: Option<Box<Record>>,
    /// The probe as it is to be; one that is to be made gets its uid when the change is begun. Absent for one that is
    /// to be deleted.
    pub after: Option<Box<Record>>,
    /// The request that asks for it, remembered when the change is settled.
    pub request: Option<RequestKey>,
    /// What the audit log says of it.
    pub entry: Option<Arc<Entry>>,
    /// Whether it goes on although the disk fails: it and all changes that are made together with it only
    /// [disarm](Self::disarms) probes.
    pub goes_on: bool,
    /// Whether the journal has it.
    pub is_begun: bool,
}

impl Edit {
    /// A change that was not begun.
    pub fn new(before: Option<&Record>, after: Option<&Record>) -> Self {
        let boxed = |record: &Record| Box::new(record.clone());
        let (before, after) = (before.map(boxed), after.map(boxed));
        Self { before, after, request: None, entry: None, goes_on: false, is_begun: false }
    }

    /// The uid of the probe; 0 for one that is to be made, before that was begun.
    pub fn uid(&self) -> ProbeUid {
        self.record().map_or(ProbeUid(0), |record| record.uid)
    }

    fn record(&self) -> Option<&Record> {
        self.before.as_deref().or(self.after.as_deref())
    }

    /// Whether it only makes a probe record nothing any more.
    pub fn disarms(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(_), None) => true,
            (Some(before), Some(after)) => {
                let ends = after.lease_ended.is_some() && after.lease_ended != before.lease_ended;
                let is_off = !after.spec.enabled || after.trip.is_some() || ends;
                is_off && after.spec == ProbeSpec { enabled: after.spec.enabled, ..before.spec.clone() }
            }
            _ => false,
        }
    }
}

impl Store {
    /// Writes changes to the journal, and gives uids to new probes.
    ///
    /// # Errors
    /// [`StoreError::Database`], also when there is a probe of the name of a new one. Then nothing
    /// is written.
    pub async fn begin(&self, edits: &mut [&mut Edit]) -> Result<(), StoreError> {
        if edits.is_empty() {
            return Ok(());
        }
        let uids = {
            let asked: Vec<&Edit> = edits.iter().map(|edit| &**edit).collect();
            let given = OnceCell::new();
            let undo = || {
                let reverted = given.get().into_iter().flatten().copied().map(Owed::Reverted);
                let entries = asked.iter().filter_map(|edit| Some(edit.entry.as_ref()?.failed(IN_DOUBT)));
                reverted.chain(notes(entries)).collect()
            };
            let write = async |transaction: &mut Transaction<'_>| {
                let entries: Vec<_> = asked.iter().filter_map(|edit| edit.entry.as_deref()).collect();
                audit::append(transaction, &entries).await?;
                let uids = write_journal(transaction.connection(), &asked).await?;
                Ok(given.get_or_init(|| uids).clone())
            };
            self.database.write_or_undo(undo, write).await?
        };
        for (edit, uid) in edits.iter_mut().zip(uids) {
            edit.is_begun = true;
            if let Some(after) = &mut edit.after {
                after.uid = uid;
            }
        }
        Ok(())
    }

    /// Stores what changes have made of their probes, each with the request that is carried out by that.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written: the changes are taken back, or, if they go on,
    /// [kept](Self::keep).
    pub async fn settle(&self, edits: &[&Edit]) -> Result<(), StoreError> {
        if edits.is_empty() {
            return Ok(());
        }
        let undo = || {
            // A new probe has no row any more before the one whose name it has gets its own back.
            let new = edits.iter().filter(|edit| edit.before.is_none());
            let all = new.chain(edits.iter().filter(|edit| edit.before.is_some()));
            let reopened = |edit: &&Edit| {
                let uid = edit.uid();
                let (before, after) = (edit.before.clone(), edit.after.clone());
                let reopened = Owed::Reopened { uid, before, after, request: edit.request.clone() };
                let mut owed = vec![reopened];
                if !edit.is_begun {
                    // It leaves nothing to take back.
                    owed.push(Owed::Reverted(uid));
                    owed.extend(notes(edit.entry.as_ref().map(|entry| entry.failed(IN_DOUBT))));
                }
                owed
            };
            all.filter(|edit| !edit.goes_on).flat_map(reopened).collect()
        };
        let write = async |transaction: &mut Transaction<'_>| {
            let late = edits.iter().filter(|edit| !edit.is_begun).filter_map(|edit| edit.entry.as_deref());
            audit::append(transaction, &late.collect::<Vec<_>>()).await?;
            write_rows(transaction.connection(), edits).await
        };
        self.database.write_or_undo(undo, write).await
    }

    /// Keeps changes that [go on](Edit::goes_on) and that cannot be settled, since the disk fails: in the reserve, and
    /// in the memory until the database has them. Returns whether a crash keeps them.
    ///
    /// # Errors
    /// When so much waits to be written that no more is taken on.
    pub async fn keep(&self, edits: &[&Edit]) -> Result<io::Result<()>, TooMuchOwed> {
        let mut owed = Vec::with_capacity(edits.len());
        for edit in edits {
            let (uid, record, request) = (edit.uid(), edit.after.clone(), edit.request.clone());
            owed.push(Owed::Row { uid, record, request });
            let entry = edit.entry.as_ref().filter(|_| !edit.is_begun);
            owed.extend(entry.map(|entry| Owed::Note(Box::new(Entry::clone(entry)))));
        }
        self.database.owe(owed).await
    }

    /// The changes of these probes were not made after all, as these entries say.
    pub async fn revert(&self, uids: impl IntoIterator<Item = ProbeUid>, entries: Vec<Entry>) {
        let owed: Vec<_> = uids.into_iter().map(Owed::Reverted).chain(notes(entries)).collect();
        if !owed.is_empty() {
            self.database.pay_or_owe(owed).await;
        }
    }

    /// Writes entries of the audit log: now, or with the next change that can be stored.
    pub async fn tell(&self, entries: Vec<Entry>) {
        self.revert([], entries).await;
    }

    /// Stores what the daemon has found out about probes, of which no change is under way. Skips probes that have gone.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub async fn note(&self, records: &[&Record]) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        let write = async |transaction: &mut SqliteConnection| {
            for record in records {
                sqlx::query("UPDATE probe SET record = ? WHERE uid = ?")
                    .bind(record.to_json()?)
                    .bind(record.uid.0)
                    .execute(&mut *transaction)
                    .await?;
            }
            Ok(())
        };
        self.database.write(write).await
    }

    /// Makes new probes get uids that those of a lost database did not have:
    /// the history of events identifies them by the uid. One uid for each second since 1970 is more
    /// than were ever used.
    pub(super) async fn never_repeat_uids(&self, now: SystemTime) -> Result<(), StoreError> {
        let seconds = to_ns(now) / 1_000_000_000;
        let write = async |transaction: &mut SqliteConnection| set_last_uid(transaction, seconds).await;
        self.database.write(write).await
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

/// Why a change failed, for the audit log.
const IN_DOUBT: &str = "the disk did not say whether it was stored";

fn notes(entries: impl IntoIterator<Item = Entry>) -> impl Iterator<Item = Owed> {
    entries.into_iter().map(|entry| Owed::Note(Box::new(entry)))
}

/// Writes changes to the journal: the deletions first, whose names others may get. Returns the uid of each probe.
async fn write_journal(
    transaction: &mut SqliteConnection,
    edits: &[&Edit],
) -> Result<Vec<ProbeUid>, StoreError> {
    let is_new = |edit: &&&Edit| edit.before.is_none();
    forget_left_behind(transaction, edits.iter().filter(is_new).filter_map(|edit| edit.record())).await?;
    let new = i64::try_from(edits.iter().filter(is_new).count()).unwrap_or(i64::MAX);
    let mut last = last_uid(transaction).await?.unwrap_or_default();
    if new > 0 {
        set_last_uid(transaction, last.saturating_add(new)).await?;
    }
    let mut rows = Vec::with_capacity(edits.len());
    for edit in edits {
        let mut uid = edit.uid();
        if edit.before.is_none() {
            last += 1;
            uid = ProbeUid(last);
        }
        let name = edit.record().map(|record| record.name.to_string());
        let after = edit.after.as_deref().map(|after| Record { uid, ..after.clone() }.to_json());
        rows.push((uid, name, after.transpose()?));
    }
    let uids = rows.iter().map(|(uid, ..)| *uid).collect();
    rows.sort_by_key(|(_, _, after)| after.is_some());
    put_into_journal(transaction, &rows).await?;
    Ok(uids)
}

/// Puts changes into the journal: of each probe its name, and the record that it is to have as text.
async fn put_into_journal(
    transaction: &mut SqliteConnection,
    changes: &[(ProbeUid, Option<String>, Option<String>)],
) -> Result<(), StoreError> {
    for rows in changes.chunks(ROWS) {
        let mut insert = QueryBuilder::new("INSERT INTO journal (uid, name, record) ");
        insert.push_values(rows, |mut row, (uid, name, after)| {
            row.push_bind(uid.0).push_bind(name).push_bind(after);
        });
        insert.push(" ON CONFLICT (uid) DO UPDATE SET name = excluded.name, record = excluded.record");
        // Statements for other numbers of rows are not worth a place in the cache.
        insert.build().persistent(rows.len() == 1).execute(&mut *transaction).await?;
    }
    Ok(())
}

/// Deletes from the journal what could not be taken back under the names of new probes: the kernel has no event of it
/// any more, or the names would not be free.
async fn forget_left_behind(
    transaction: &mut SqliteConnection,
    new: impl Iterator<Item = &Record>,
) -> Result<(), StoreError> {
    let left: i64 =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM journal)").fetch_one(&mut *transaction).await?;
    for record in new.filter(|_| left != 0) {
        sqlx::query("DELETE FROM journal WHERE name = ? AND uid NOT IN (SELECT uid FROM probe)")
            .bind(record.name.to_string())
            .execute(&mut *transaction)
            .await?;
    }
    Ok(())
}

/// The last uid that was given out. Absent before the first.
pub(super) async fn last_uid(connection: &mut SqliteConnection) -> Result<Option<i64>, StoreError> {
    let last = sqlx::query_scalar("SELECT seq FROM sqlite_sequence WHERE name = 'probe'");
    Ok(last.fetch_optional(connection).await?)
}

/// New probes get uids after this one.
pub(super) async fn set_last_uid(transaction: &mut SqliteConnection, last: i64) -> Result<(), StoreError> {
    let update = sqlx::query("UPDATE sqlite_sequence SET seq = ? WHERE name = 'probe'").bind(last);
    if update.execute(&mut *transaction).await?.rows_affected() == 0 {
        let insert = sqlx::query("INSERT INTO sqlite_sequence (name, seq) VALUES ('probe', ?)").bind(last);
        insert.execute(transaction).await?;
    }
    Ok(())
}

/// Makes the rows of probes what changes have made of them, and ends the changes. The deletions come first, whose names
/// others may get.
async fn write_rows(transaction: &mut SqliteConnection, edits: &[&Edit]) -> Result<(), StoreError> {
    end(transaction, &edits.iter().map(|edit| edit.uid()).collect::<Vec<_>>()).await?;
    let gone: Vec<_> = edits.iter().filter(|edit| edit.after.is_none()).map(|edit| edit.uid()).collect();
    delete(transaction, DELETE_ROWS, &gone).await?;
    put_rows(transaction, &edits.iter().filter_map(|edit| edit.after.as_deref()).collect::<Vec<_>>()).await?;
    let carried_out = edits.iter().filter_map(|edit| Some((edit.request.as_ref()?, edit.uid())));
    requests::remember(transaction, &carried_out.collect::<Vec<_>>()).await
}

/// No change of these probes is under way.
pub(super) async fn end(transaction: &mut SqliteConnection, uids: &[ProbeUid]) -> Result<(), StoreError> {
    delete(transaction, "DELETE FROM journal WHERE uid IN (", uids).await
}

/// Makes the rows of probes these.
async fn put_rows(transaction: &mut SqliteConnection, records: &[&Record]) -> Result<(), StoreError> {
    for rows in records.chunks(ROWS) {
        let texts = rows.iter().map(|record| record.to_json()).collect::<Result<Vec<_>, _>>()?;
        let mut insert = QueryBuilder::new("INSERT INTO probe (uid, name, record) ");
        insert.push_values(rows.iter().zip(texts), |mut row, (record, text)| {
            row.push_bind(record.uid.0).push_bind(record.name.to_string()).push_bind(text);
        });
        insert.push(" ON CONFLICT (uid) DO UPDATE SET record = excluded.record");
        insert.build().persistent(rows.len() == 1).execute(&mut *transaction).await?;
    }
    Ok(())
}

/// The beginning of what [`delete`] carries out.
const DELETE_ROWS: &str = "DELETE FROM probe WHERE uid IN (";

async fn delete(
    transaction: &mut SqliteConnection,
    statement: &'static str,
    uids: &[ProbeUid],
) -> Result<(), StoreError> {
    for uids in uids.chunks(ROWS) {
        let mut delete = QueryBuilder::new(statement);
        let mut list = delete.separated(", ");
        for uid in uids {
            list.push_bind(uid.0);
        }
        delete.push(")");
        delete.build().persistent(uids.len() == 1).execute(&mut *transaction).await?;
    }
    Ok(())
}

/// Makes the row of one probe this, or deletes it.
pub(super) async fn write_row(
    transaction: &mut SqliteConnection,
    uid: ProbeUid,
    record: Option<&Record>,
) -> Result<(), StoreError> {
    match record {
        Some(record) => put_rows(transaction, &[record]).await,
        None => delete(transaction, DELETE_ROWS, &[uid]).await,
    }
}

/// Writes a change to the journal that was settled, if the disk has that.
pub(super) async fn reopen(
    transaction: &mut SqliteConnection,
    uid: ProbeUid,
    (before, after): (Option<&Record>, Option<&Record>),
) -> Result<(), StoreError> {
    write_row(transaction, uid, before).await?;
    let name = before.or(after).map(|record| record.name.to_string());
    let text = after.map(Record::to_json).transpose()?;
    put_into_journal(transaction, &[(uid, name, text)]).await
}
