//! Attached events in the database: events of the host that clients want recorded.
//!
//! Owns their table, and the intents to attach and detach. Never knows what the kernel records.

use std::time::SystemTime;

use kprobed_audit::Entry;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::connection::Transaction;
use super::undo::{Undo, settle_attachment};
use super::{Phase, Store, StoreError, audit, from_ns, to_ns};
use kprobed_lang::model::{ProbeName, ProbeUid};

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
}

impl StoredAttachment {
    fn from_row(row: &SqliteRow) -> Result<Self, StoreError> {
        let (group, event): (String, String) = (row.try_get("event_group")?, row.try_get("event")?);
        let name = ProbeName::new(&group, &event)
            .map_err(|error| StoreError::Corrupt { what: "event name", value: error.to_string() })?;
        let phase: String = row.try_get("phase")?;
        Ok(Self {
            uid: ProbeUid::of_attachment(row.try_get("id")?),
            name,
            filter: row.try_get("filter")?,
            phase: Phase::parse(&phase).ok_or(StoreError::Corrupt { what: "phase", value: phase })?,
            create_time: from_ns(row.try_get("create_time_ns")?),
        })
    }
}

impl Store {
    /// All attached events, by name.
    ///
    /// # Errors
    /// [`StoreError::Database`], [`StoreError::Corrupt`].
    pub async fn attachments(&self) -> Result<Vec<StoredAttachment>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let rows = sqlx::query("SELECT * FROM attachment ORDER BY event_group, event")
                .fetch_all(connection)
                .await?;
            rows.iter().map(StoredAttachment::from_row).collect()
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
            Some((before, _)) => Undo::Detachment(uid, before.to_owned()),
            None => Undo::Attachment(uid),
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
        let undo = Undo::Detachment(uid, filter.to_owned());
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
