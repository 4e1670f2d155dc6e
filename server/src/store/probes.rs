//! Probe definitions.

use std::collections::HashMap;
use std::time::SystemTime;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::{Store, StoreError, Undo, from_ns, labels, metadata, reversal};
use kprobed_lang::model::{Labels, Metadata, ProbeName, ProbeUid};

/// How far the row of a probe or an attached event has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Written before the kernel was touched; no client was told.
    Pending,
    /// Acknowledged.
    Settled,
    /// Taking it out has begun.
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

/// A probe that is about to be made.
#[derive(Clone, Debug)]
pub struct NewProbe {
    /// Its event.
    pub name: ProbeName,
    /// The client's text.
    pub definition: String,
    /// The kernel's line.
    pub kernel_definition: String,
    /// Whether it should record.
    pub enabled: bool,
    /// Kernel filter; empty for none.
    pub filter: String,
    /// What it is found by.
    pub labels: Labels,
    /// What is kept with it beside that.
    pub metadata: Metadata,
    /// What its definition means: see [`Store::meanings`].
    pub meaning: Option<String>,
    /// Now.
    pub time: SystemTime,
}

/// All that clients can change of a probe, and what counts the changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether it should record.
    pub enabled: bool,
    /// Kernel filter; empty for none.
    pub filter: String,
    /// What it is found by.
    pub labels: Labels,
    /// What is kept with it beside that.
    pub metadata: Metadata,
    /// Counts changes, from 1.
    pub revision: i64,
    /// When a client last changed it.
    pub time: SystemTime,
    /// What its definition means, as it is stored. Absent to leave that as it is: only an acceptance changes it, which is never one of a group.
    pub meaning: Option<String>,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredProbe {
    /// Its incarnation.
    pub uid: ProbeUid,
    /// Its event.
    pub name: ProbeName,
    /// The client's text.
    pub definition: String,
    /// The kernel's line.
    pub kernel_definition: String,
    /// What the kernel lists for it; empty before it is settled.
    pub kernel_listing: String,
    /// Whether it should record.
    pub enabled: bool,
    /// Kernel filter; empty for none.
    pub filter: String,
    /// What it is found by.
    pub labels: Labels,
    /// What is kept with it beside that.
    pub metadata: Metadata,
    /// How far it has come.
    pub phase: Phase,
    /// Counts changes, from 1.
    pub revision: i64,
    /// When it was made.
    pub create_time: SystemTime,
    /// When a client last changed it.
    pub update_time: SystemTime,
}

impl StoredProbe {
    fn from_row(row: &SqliteRow, labels: &mut HashMap<ProbeUid, Labels>) -> Result<Self, StoreError> {
        let (group, event): (String, String) = (row.try_get("event_group")?, row.try_get("event")?);
        let name = ProbeName::new(&group, &event)
            .map_err(|error| StoreError::Corrupt { what: "probe name", value: error.to_string() })?;
        let phase: String = row.try_get("phase")?;
        let uid = ProbeUid(row.try_get("uid")?);
        Ok(Self {
            uid,
            name,
            definition: row.try_get("definition")?,
            kernel_definition: row.try_get("kernel_definition")?,
            kernel_listing: row.try_get("kernel_listing")?,
            enabled: row.try_get("enabled")?,
            filter: row.try_get("filter")?,
            labels: labels.remove(&uid).unwrap_or_default(),
            metadata: metadata::read(row)?,
            phase: Phase::parse(&phase).ok_or(StoreError::Corrupt { what: "phase", value: phase })?,
            revision: row.try_get("revision")?,
            create_time: from_ns(row.try_get("create_time_ns")?),
            update_time: from_ns(row.try_get("update_time_ns")?),
        })
    }
}

impl StoredProbe {
    /// As it was before a change that is taken back.
    fn reversed(self, before: Settings) -> Self {
        let Settings { enabled, filter, labels, metadata, revision, time, meaning: _ } = before;
        let phase = Phase::Settled;
        Self { enabled, filter, labels, metadata, revision, update_time: time, phase, ..self }
    }
}

impl Store {
    /// All probes, by name. Changes that are made all or not at all, and were interrupted by a crash, are not in what is answered.
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
                Ok(match reversals.remove(&probe.uid) {
                    Some(before) => probe.reversed(before),
                    None => probe,
                })
            };
            rows.iter().map(row).collect()
        };
        self.database.read(read).await
    }

    /// What is still to be written of that changes are taken back which a crash has interrupted. [`Store::probes`] has it already.
    ///
    /// # Errors
    /// [`StoreError::Database`], [`StoreError::Corrupt`].
    pub async fn reversals(&self) -> Result<Vec<Undo>, StoreError> {
        let read = async |connection: &mut SqliteConnection| reversal::read(connection).await;
        let reversals = self.database.read(read).await?;
        Ok(reversals.into_iter().map(|(uid, before)| Undo::Reversal { uid, before }).collect())
    }
}
