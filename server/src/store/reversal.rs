//! Reversals: what is stored to take back an interrupted atomic group of changes after a crash.
//!
//! Owns the format. A row means: this probe is what the row says, whatever its own row says. Never
//! decides when to take a change back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;

use super::bad::{BadValue, CheckedRow};
use super::probes::NOT_ARMED;
use super::{ProbeSpec, Record, StoreError, from_ns, to_ns};
use kprobed_lang::model::{KernelChange, Labels, Lease, Metadata, Moment, ProbeUid, nanoseconds};

/// What clients can change of a probe, as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    enabled: bool,
    filter: String,
    labels: BTreeMap<String, String>,
    description: String,
    owner: String,
    declared_by: Option<String>,
    lease: Option<KeptLease>,
    arm_anyway: bool,
    revision: i64,
    time_ns: i64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KeptLease {
    Until { duration_ns: u64, expire_ns: i64, boot_id: String, end_boot_ns: u64 },
    Held { holder: String },
}

impl From<&Record> for Kept {
    fn from(record: &Record) -> Self {
        let ProbeSpec { enabled, filter, labels, metadata, definition: _ } = &record.spec;
        let Metadata { description, owner, declared_by, lease, on_kernel_change } = metadata;
        let labels = labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let lease = lease.as_ref().map(|lease| match lease {
            Lease::Until { duration, end } => KeptLease::Until {
                duration_ns: nanoseconds(*duration),
                expire_ns: to_ns(end.wall),
                boot_id: end.boot_id.to_string(),
                end_boot_ns: end.boot_ns,
            },
            Lease::Held { holder } => KeptLease::Held { holder: holder.clone() },
        });
        Self {
            enabled: *enabled,
            filter: filter.clone(),
            labels,
            description: description.clone(),
            owner: owner.clone(),
            declared_by: declared_by.clone(),
            lease,
            arm_anyway: *on_kernel_change == KernelChange::ArmAnyway,
            revision: record.revision,
            time_ns: to_ns(record.update_time),
        }
    }
}

impl Kept {
    /// Restores the record of a probe.
    pub(super) fn restore(self, record: &mut Record) -> Result<(), StoreError> {
        let labels = Labels::new(self.labels)
            .map_err(|error| StoreError::Corrupt { what: "label", value: error.to_string() })?;
        let lease = self.lease.map(|lease| match lease {
            KeptLease::Until { duration_ns, expire_ns, boot_id, end_boot_ns } => Lease::Until {
                duration: Duration::from_nanos(duration_ns),
                end: Moment { wall: from_ns(expire_ns), boot_id: boot_id.into(), boot_ns: end_boot_ns },
            },
            KeptLease::Held { holder } => Lease::Held { holder },
        });
        let on_kernel_change = if self.arm_anyway { KernelChange::ArmAnyway } else { KernelChange::Hold };
        let metadata = Metadata {
            description: self.description,
            owner: self.owner,
            declared_by: self.declared_by,
            lease,
            on_kernel_change,
        };
        let definition = Arc::clone(&record.spec.definition);
        record.spec = ProbeSpec { definition, enabled: self.enabled, filter: self.filter, labels, metadata };
        record.revision = self.revision;
        record.update_time = from_ns(self.time_ns);
        Ok(())
    }
}

/// Stores a probe as it is before its change.
pub(super) async fn keep(transaction: &mut SqliteConnection, before: &Record) -> Result<(), StoreError> {
    let text = serde_json::to_string(&Kept::from(before))
        .map_err(|error| StoreError::Corrupt { what: "reversal", value: error.to_string() })?;
    sqlx::query("INSERT OR REPLACE INTO reversal (probe_uid, settings) VALUES (?, ?)")
        .bind(before.uid.0)
        .bind(text)
        .execute(transaction)
        .await?;
    Ok(())
}

/// Deletes the stored probe: the change is settled, or taken back.
pub(super) async fn drop(transaction: &mut SqliteConnection, uid: ProbeUid) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM reversal WHERE probe_uid = ?").bind(uid.0).execute(transaction).await?;
    Ok(())
}

/// The stored probes of changes that are neither settled nor taken back; of one that cannot be read, why.
pub(super) async fn read(
    connection: &mut SqliteConnection,
    found: &mut Vec<BadValue>,
) -> Result<HashMap<ProbeUid, Result<Kept, String>>, StoreError> {
    let rows = sqlx::query("SELECT probe_uid, settings FROM reversal").fetch_all(connection).await?;
    let mut reversals = HashMap::new();
    for row in &rows {
        let mut row = CheckedRow::new(row, "reversal", "probe_uid", found);
        let uid: i64 = row.get("probe_uid", NOT_ARMED);
        let kept = match row.need::<String>("settings", NOT_ARMED) {
            Some(text) => serde_json::from_str::<Kept>(&text).map_err(|error| {
                row.note("settings", &error, NOT_ARMED);
                error.to_string()
            }),
            None => Err("it is not a text".to_owned()),
        };
        reversals.insert(ProbeUid(uid), kept);
    }
    Ok(reversals)
}
