//! Probe definitions.

use std::collections::HashMap;
use std::time::SystemTime;

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

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

/// All that clients can change of a probe.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Whether it should record.
    pub enabled: bool,
    /// Kernel filter; empty for none.
    pub filter: &'a str,
    /// What it is found by.
    pub labels: &'a Labels,
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
    /// [`StoreError::Sql`], [`StoreError::Corrupt`].
    pub async fn probes(&self) -> Result<Vec<StoredProbe>, StoreError> {
        let rows =
            sqlx::query("SELECT * FROM probe ORDER BY event_group, event").fetch_all(&self.pool).await?;
        let mut labels = self.labels().await?;
        rows.iter().map(|row| StoredProbe::from_row(row, &mut labels)).collect()
    }

    /// Writes down the intent to make a probe, before the kernel is touched.
    ///
    /// # Errors
    /// [`StoreError::Sql`], also when there is a probe of that name.
    pub async fn begin_create(&self, probe: &NewProbe) -> Result<ProbeUid, StoreError> {
        let time = to_ns(probe.time);
        let mut transaction = self.pool.begin().await?;
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
        labels::write(&mut transaction, uid, &probe.labels).await?;
        transaction.commit().await?;
        Ok(uid)
    }

    /// The kernel has the probe: from here on it survives everything. Its request is remembered in the same transaction.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn settle_create(
        &self,
        uid: ProbeUid,
        kernel_listing: &str,
        request: Option<&RequestKey>,
    ) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query("UPDATE probe SET phase = 'settled', kernel_listing = ? WHERE uid = ?")
            .bind(kernel_listing)
            .bind(uid.0)
            .execute(&mut *transaction)
            .await?;
        requests::remember(&mut transaction, request, uid).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// The kernel was given the probe anew, after a boot.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn redefined(
        &self,
        uid: ProbeUid,
        kernel_definition: &str,
        kernel_listing: &str,
    ) -> Result<(), StoreError> {
        sqlx::query("UPDATE probe SET kernel_definition = ?, kernel_listing = ? WHERE uid = ?")
            .bind(kernel_definition)
            .bind(kernel_listing)
            .bind(uid.0)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Forgets a probe: it could not be made, or its deletion is complete.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn forget(&self, uid: ProbeUid) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM probe WHERE uid = ?").bind(uid.0).execute(&self.pool).await?;
        Ok(())
    }

    /// Writes down what a probe should be from now on.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn update(
        &self,
        uid: ProbeUid,
        wanted: Wanted<'_>,
        time: SystemTime,
        request: Option<&RequestKey>,
    ) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query("UPDATE probe SET enabled = ?, filter = ?, revision = revision + 1, update_time_ns = ? WHERE uid = ?")
            .bind(wanted.enabled)
            .bind(wanted.filter)
            .bind(to_ns(time))
            .bind(uid.0)
            .execute(&mut *transaction)
            .await?;
        labels::write(&mut transaction, uid, wanted.labels).await?;
        requests::remember(&mut transaction, request, uid).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Writes down that a probe is going. From here on its deletion is finished even after a crash.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn begin_remove(&self, uid: ProbeUid, request: Option<&RequestKey>) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query("UPDATE probe SET phase = 'removing' WHERE uid = ?")
            .bind(uid.0)
            .execute(&mut *transaction)
            .await?;
        requests::remember(&mut transaction, request, uid).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// The deletion that could not be carried out is taken back.
    ///
    /// # Errors
    /// [`StoreError::Sql`].
    pub async fn abort_remove(&self, uid: ProbeUid) -> Result<(), StoreError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query("UPDATE probe SET phase = 'settled' WHERE uid = ?")
            .bind(uid.0)
            .execute(&mut *transaction)
            .await?;
        requests::forget_about(&mut transaction, uid).await?;
        transaction.commit().await?;
        Ok(())
    }
}
