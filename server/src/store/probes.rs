//! Probe definitions.

use std::collections::HashMap;
use std::time::SystemTime;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::undo::{Undo, write_settings};
use super::{RequestKey, Store, StoreError, from_ns, labels, requests, to_ns};
use crate::model::{Labels, ProbeName, ProbeUid};

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
    /// Counts changes, from 1.
    pub revision: i64,
    /// When a client last changed it.
    pub time: SystemTime,
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
            phase: Phase::parse(&phase).ok_or(StoreError::Corrupt { what: "phase", value: phase })?,
            revision: row.try_get("revision")?,
            create_time: from_ns(row.try_get("create_time_ns")?),
            update_time: from_ns(row.try_get("update_time_ns")?),
        })
    }
}

impl Store {
    /// All probes, by name.
    ///
    /// # Errors
    /// [`StoreError::Database`], [`StoreError::Corrupt`].
    pub async fn probes(&self) -> Result<Vec<StoredProbe>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let rows = sqlx::query("SELECT * FROM probe ORDER BY event_group, event")
                .fetch_all(&mut *connection)
                .await?;
            let mut labels = labels::read(connection).await?;
            rows.iter().map(|row| StoredProbe::from_row(row, &mut labels)).collect()
        };
        self.database.read(read).await
    }

    /// Writes down the intent to make a probe, before the kernel is touched. A row of that name that was left unfinished goes: the kernel
    /// has nothing of it, or the name would not be free.
    ///
    /// # Errors
    /// [`StoreError::Database`], also when there is a probe of that name.
    pub async fn begin_create(&self, probe: &NewProbe) -> Result<ProbeUid, StoreError> {
        let time = to_ns(probe.time);
        let write = async |transaction: &mut SqliteConnection| {
            sqlx::query("DELETE FROM probe WHERE event_group = ? AND event = ? AND phase != 'settled'")
                .bind(probe.name.group())
                .bind(probe.name.event())
                .execute(&mut *transaction)
                .await?;
            let inserted = sqlx::query(
                "INSERT INTO probe (event_group, event, definition, kernel_definition, enabled, filter, phase, revision, \
                 kernel_listing, create_time_ns, update_time_ns) VALUES (?, ?, ?, ?, ?, ?, 'pending', 1, '', ?, ?)",
            )
            .bind(probe.name.group())
            .bind(probe.name.event())
            .bind(&probe.definition)
            .bind(&probe.kernel_definition)
            .bind(probe.enabled)
            .bind(&probe.filter)
            .bind(time)
            .bind(time)
            .execute(&mut *transaction)
            .await?;
            let uid = ProbeUid(inserted.last_insert_rowid());
            labels::write(transaction, uid, &probe.labels).await?;
            Ok(uid)
        };
        self.database.write(write).await
    }

    /// The kernel has the probe: from here on it survives everything. Its request is remembered in the same transaction.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn settle_create(
        &self,
        uid: ProbeUid,
        kernel_listing: &str,
        request: Option<&RequestKey>,
    ) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            sqlx::query("UPDATE probe SET phase = 'settled', kernel_listing = ? WHERE uid = ?")
                .bind(kernel_listing)
                .bind(uid.0)
                .execute(&mut *transaction)
                .await?;
            requests::remember(transaction, request, uid).await
        };
        let undo = Undo::Creation(uid, request.map(|request| request.id.clone()));
        self.database.write_or_undo(Some(undo), write).await
    }

    /// The kernel was given the probe anew, after a boot.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn redefined(
        &self,
        uid: ProbeUid,
        kernel_definition: &str,
        kernel_listing: &str,
    ) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            sqlx::query("UPDATE probe SET kernel_definition = ?, kernel_listing = ? WHERE uid = ?")
                .bind(kernel_definition)
                .bind(kernel_listing)
                .bind(uid.0)
                .execute(transaction)
                .await?;
            Ok(())
        };
        self.database.write(write).await
    }

    /// Writes down what a probe should be from now on.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn update(
        &self,
        uid: ProbeUid,
        before: &Settings,
        wanted: &Settings,
        request: Option<&RequestKey>,
    ) -> Result<(), StoreError> {
        let undo =
            Undo::Update { uid, before: before.clone(), request: request.map(|request| request.id.clone()) };
        let write = async |transaction: &mut SqliteConnection| {
            write_settings(transaction, uid, wanted).await?;
            requests::remember(transaction, request, uid).await
        };
        self.database.write_or_undo(Some(undo), write).await
    }

    /// Writes down that a probe is going. From here on its deletion is finished even after a crash.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn begin_remove(&self, uid: ProbeUid, request: Option<&RequestKey>) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            sqlx::query("UPDATE probe SET phase = 'removing' WHERE uid = ?")
                .bind(uid.0)
                .execute(&mut *transaction)
                .await?;
            requests::remember(transaction, request, uid).await
        };
        self.database.write_or_undo(Some(Undo::Deletion(uid)), write).await
    }
}
