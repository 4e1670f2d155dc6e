//! Attached events in the database: events of the host that clients want recorded.
//!
//! Owns their table, and the intents to attach and detach. Never knows what the kernel records.

use std::time::SystemTime;

use kprobed_audit::Entry;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::bad::{BadValue, CheckedRow, Since1970};
use super::connection::Transaction;
use super::owed::{Owed, settle_attachment};
use super::{Store, StoreError, audit, from_ns, to_ns};
use kprobed_lang::model::{ProbeName, ProbeUid};

/// How far the change of an attached event has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Written before the kernel was changed; no client has an answer.
    Pending,
    /// Acknowledged.
    Settled,
    /// Its removal has begun.
    Removing,
}

impl Phase {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pending" => Self::Pending,
            "settled" => Self::Settled,
            "removing" => Self::Removing,
            _ => return None,
        })
    }
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAttachment {
    /// Its uid, which is not a probe's.
    pub uid: ProbeUid,
    /// The event.
    pub name: ProbeName,
    /// Kernel filter; empty for none.
    pub filter: String,
    /// How far attaching or detaching it has got.
    pub phase: Phase,
    /// When it was attached.
    pub create_time: SystemTime,
    /// Why the row cannot be relied on: the event must not be recorded.
    pub unreadable: Option<String>,
}

/// What a bad value of an attached event costs.
const NOT_RECORDED: &str = "the event is not recorded, until a client detaches it and attaches it again";

impl StoredAttachment {
    fn from_row(stored: &SqliteRow, found: &mut Vec<BadValue>) -> Self {
        let before = found.len();
        let mut row = CheckedRow::new(stored, "attachment", "id", found);
        let id: i64 = row.get("id", NOT_RECORDED);
        if id <= 0 {
            row.note("id", &"no uid of an event", NOT_RECORDED);
        }
        let group: Option<String> = row.need("event_group", NOT_RECORDED);
        let event: Option<String> = row.need("event", NOT_RECORDED);
        let name = group.zip(event).and_then(|(group, event)| match ProbeName::new(&group, &event) {
            Ok(name) => Some(name),
            Err(error) => {
                row.note("event", &error, NOT_RECORDED);
                None
            }
        });
        let filter = row.get("filter", NOT_RECORDED);
        let phase = row.need::<String>("phase", NOT_RECORDED).map(|phase| Phase::parse(&phase));
        if phase == Some(None) {
            row.note("phase", &"no phase", NOT_RECORDED);
        }
        let is_whole = found.len() == before;
        let why = found
            .get(before..)
            .unwrap_or_default()
            .iter()
            .map(|bad| format!("`{}` is {}", bad.column, bad.value));
        let unreadable = (!is_whole).then(|| why.collect::<Vec<_>>().join(", "));
        let mut row = CheckedRow::new(stored, "attachment", "id", found);
        let create_time: Since1970 = row.get("create_time_ns", "it is not known when the event was attached");
        Self {
            uid: ProbeUid::of_attachment(id),
            name: name.unwrap_or_else(|| ProbeName::unreadable("event", id.unsigned_abs())),
            filter,
            phase: phase.flatten().filter(|_| is_whole).unwrap_or(Phase::Settled),
            create_time: from_ns(create_time.0),
            unreadable,
        }
    }
}

impl Store {
    /// All attached events, by name.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn attachments(&self) -> Result<Vec<StoredAttachment>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let rows = sqlx::query("SELECT * FROM attachment ORDER BY event_group, event")
                .fetch_all(connection)
                .await?;
            let mut found = Vec::new();
            let attached = rows.iter().map(|row| StoredAttachment::from_row(row, &mut found)).collect();
            self.database.found("attachment", found);
            Ok(attached)
        };
        self.database.read(read).await
    }

    /// Stores the intent to attach an event, before the kernel is changed. An unfinished row of
    /// that name is deleted. An intent that only tries something out has no audit entry.
    ///
    /// # Errors
    /// [`StoreError::Database`], also if it is attached already.
    pub(crate) async fn begin_attach(
        &self,
        name: &ProbeName,
        filter: &str,
        time: SystemTime,
        entry: Option<&Entry>,
    ) -> Result<ProbeUid, StoreError> {
        let write = async |transaction: &mut Transaction<'_>| {
            sqlx::query("DELETE FROM attachment WHERE event_group = ? AND event = ? AND phase != 'settled'")
                .bind(name.group())
                .bind(name.event())
                .execute(transaction.connection())
                .await?;
            let inserted = sqlx::query(
                "INSERT INTO attachment (event_group, event, filter, phase, create_time_ns) \
                 VALUES (?, ?, ?, 'pending', ?)",
            )
            .bind(name.group())
            .bind(name.event())
            .bind(filter)
            .bind(to_ns(time))
            .execute(transaction.connection())
            .await?;
            audit::append(transaction, entry.as_slice()).await?;
            Ok(ProbeUid::of_attachment(inserted.last_insert_rowid()))
        };
        self.database.write_or_undo(Vec::new, write).await
    }

    /// The kernel records the event with this filter: from here on the attachment is durable.
    /// `before` is its previous filter and the audit entry of the change, if it was attached.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub(crate) async fn settle_attach(
        &self,
        uid: ProbeUid,
        filter: &str,
        before: Option<(&str, &Entry)>,
    ) -> Result<(), StoreError> {
        let undo = match before {
            Some((before, _)) => Owed::Detachment(uid, before.to_owned()),
            None => Owed::Attachment(uid),
        };
        let write = async |transaction: &mut Transaction<'_>| {
            audit::append(transaction, before.map(|(_, entry)| entry).as_slice()).await?;
            settle_attachment(transaction.connection(), uid, filter).await
        };
        self.database.write_or_undo(|| vec![undo], write).await
    }

    /// Stores the intent to detach an event with this filter. From here on the detachment is
    /// finished even after a crash.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub(crate) async fn begin_detach(
        &self,
        uid: ProbeUid,
        filter: &str,
        entry: &Entry,
    ) -> Result<(), StoreError> {
        let undo = Owed::Detachment(uid, filter.to_owned());
        let write = async |transaction: &mut Transaction<'_>| {
            sqlx::query("UPDATE attachment SET phase = 'removing' WHERE id = ?")
                .bind(uid.attachment())
                .execute(transaction.connection())
                .await?;
            audit::append(transaction, &[entry]).await
        };
        self.database.write_or_undo(|| vec![undo], write).await
    }
}
