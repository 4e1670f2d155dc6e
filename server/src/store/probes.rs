//! Rows of probes in the database.
//!
//! Owns what is wanted of a probe ([`ProbeSpec`]) and what is stored of it ([`Record`]): the one
//! form that requests are turned into, that the control thread works with, and that is stored.
//! Never changes a row: that is [`super::changes`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

#[cfg(doc)]
use super::Undo;
use super::reversal::{self, Kept};
use super::{Store, StoreError, from_ns, labels, metadata};
use kprobed_lang::model::{Labels, Metadata, ProbeName, ProbeUid};
use kprobed_verdict::checker::DefinitionText;

/// How far the change of a probe or an attached event has got.
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
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pending" => Self::Pending,
            "settled" => Self::Settled,
            "removing" => Self::Removing,
            _ => return None,
        })
    }
}

/// The specification of a probe: everything that clients say about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeSpec {
    /// The client's text, with its dialect if another kernel could read it in another one, and with
    /// its syntax tree.
    pub definition: Arc<DefinitionText>,
    /// Whether it should record.
    pub enabled: bool,
    /// Kernel filter; empty for none.
    pub filter: String,
    /// Its labels.
    pub labels: Labels,
    /// Its other metadata.
    pub metadata: Metadata,
}

/// What the database stores of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its uid; 0 before it has a row.
    pub uid: ProbeUid,
    /// Its event.
    pub name: ProbeName,
    /// What is wanted.
    pub spec: ProbeSpec,
    /// The kernel's line, guards included.
    pub kernel_definition: String,
    /// Counts the changes that clients made, from 1.
    pub revision: i64,
    /// When it was created.
    pub create_time: SystemTime,
    /// When a client last changed it.
    pub update_time: SystemTime,
    /// The account of the principal that made it ([`kprobed_rights::Principal::account`]); empty for
    /// the daemon, and for one that was made before that was kept.
    pub creator: String,
}

/// A row of the table, as a start finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredProbe {
    /// The probe.
    pub record: Record,
    /// Its line in the kernel's list; empty before it is settled.
    pub kernel_listing: String,
    /// How far its change has got.
    pub phase: Phase,
    /// The end, by [`Moment::wall`](kprobed_lang::model::Moment), of the lease of it that has ended.
    pub lease_ended: Option<SystemTime>,
    /// A crash interrupted a change of it that was to be made with others or not at all: the record
    /// is the one before the change, and [`Undo::Reversal`] must still be written.
    pub is_reversed: bool,
}

impl Record {
    /// A probe that is about to be made: it has no uid yet.
    pub fn new(name: ProbeName, spec: ProbeSpec, kernel_definition: String, now: SystemTime) -> Self {
        Self {
            uid: ProbeUid(0),
            name,
            spec,
            kernel_definition,
            revision: 1,
            create_time: now,
            update_time: now,
            creator: String::new(),
        }
    }

    /// The same, made by this account.
    #[must_use]
    pub fn by(self, creator: String) -> Self {
        Self { creator, ..self }
    }
}

impl StoredProbe {
    fn from_row(row: &SqliteRow, labels: &mut HashMap<ProbeUid, Labels>) -> Result<Self, StoreError> {
        let (group, event): (String, String) = (row.try_get("event_group")?, row.try_get("event")?);
        let name = ProbeName::new(&group, &event)
            .map_err(|error| StoreError::Corrupt { what: "probe name", value: error.to_string() })?;
        let phase: String = row.try_get("phase")?;
        let uid = ProbeUid(row.try_get("uid")?);
        let spec = ProbeSpec {
            definition: Arc::new(DefinitionText::new(row.try_get::<String, _>("definition")?)),
            enabled: row.try_get("enabled")?,
            filter: row.try_get("filter")?,
            labels: labels.remove(&uid).unwrap_or_default(),
            metadata: metadata::read(row)?,
        };
        let record = Record {
            uid,
            name,
            spec,
            kernel_definition: row.try_get("kernel_definition")?,
            revision: row.try_get("revision")?,
            create_time: from_ns(row.try_get("create_time_ns")?),
            update_time: from_ns(row.try_get("update_time_ns")?),
            creator: row.try_get("creator")?,
        };
        Ok(Self {
            record,
            kernel_listing: row.try_get("kernel_listing")?,
            phase: Phase::parse(&phase).ok_or(StoreError::Corrupt { what: "phase", value: phase })?,
            lease_ended: row.try_get::<Option<i64>, _>("lease_ended_ns")?.map(from_ns),
            is_reversed: false,
        })
    }

    /// As it was before a change that is taken back.
    fn reversed(mut self, before: Kept) -> Result<Self, StoreError> {
        before.restore(&mut self.record)?;
        Ok(Self { phase: Phase::Settled, is_reversed: true, ..self })
    }
}

impl Store {
    /// All probes, by name. Changes of atomic groups that a crash has interrupted are not in the
    /// result.
    ///
    /// # Errors
    /// [`StoreError::Database`], [`StoreError::Corrupt`].
    pub async fn probes(&self) -> Result<Vec<StoredProbe>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let rows = sqlx::query("SELECT * FROM probe ORDER BY event_group, event")
                .fetch_all(&mut *connection)
                .await?;
            let mut labels = labels::read(connection).await?;
            let mut reversals = reversal::read(connection).await?;
            let row = |row| {
                let probe = StoredProbe::from_row(row, &mut labels)?;
                match reversals.remove(&probe.record.uid) {
                    Some(before) => probe.reversed(before),
                    None => Ok(probe),
                }
            };
            rows.iter().map(row).collect()
        };
        self.database.read(read).await
    }
}
