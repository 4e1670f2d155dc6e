//! Metadata of probes in the database: description, owner, file, lease and policy, in columns of
//! the probe's row.
//!
//! Owns these columns. Never checks their values against each other.

use std::time::Duration;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::{StoreError, from_ns, to_i64, to_ns};
use kprobed_lang::model::{KernelChange, Lease, Metadata, ProbeUid};

/// A lease as columns.
#[derive(Debug, Default)]
pub(super) struct LeaseColumns<'a> {
    pub(super) duration_ns: Option<i64>,
    pub(super) expire_ns: Option<i64>,
    pub(super) holder: Option<&'a str>,
}

pub(super) fn columns(lease: Option<&Lease>) -> LeaseColumns<'_> {
    match lease {
        None => LeaseColumns::default(),
        Some(Lease::Until { duration, expire_time }) => LeaseColumns {
            duration_ns: Some(to_i64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))),
            expire_ns: Some(to_ns(*expire_time)),
            holder: None,
        },
        Some(Lease::Held { holder }) => LeaseColumns { holder: Some(holder), ..LeaseColumns::default() },
    }
}

pub(super) const fn policy(policy: KernelChange) -> &'static str {
    match policy {
        KernelChange::Hold => "hold",
        KernelChange::ArmAnyway => "arm-anyway",
    }
}

/// Writes it into the row of a probe.
pub(super) async fn write(
    transaction: &mut SqliteConnection,
    uid: ProbeUid,
    metadata: &Metadata,
) -> Result<(), StoreError> {
    let lease = columns(metadata.lease.as_ref());
    sqlx::query(
        "UPDATE probe SET description = ?, owner = ?, declared_by = ?, on_kernel_change = ?, \
         lease_duration_ns = ?, lease_expire_ns = ?, lease_holder = ? WHERE uid = ?",
    )
    .bind(&metadata.description)
    .bind(&metadata.owner)
    .bind(&metadata.declared_by)
    .bind(policy(metadata.on_kernel_change))
    .bind(lease.duration_ns)
    .bind(lease.expire_ns)
    .bind(lease.holder)
    .bind(uid.0)
    .execute(transaction)
    .await?;
    Ok(())
}

/// Reads it out of the row of a probe.
pub(super) fn read(row: &SqliteRow) -> Result<Metadata, StoreError> {
    let policy: String = row.try_get("on_kernel_change")?;
    let on_kernel_change = match policy.as_str() {
        "hold" => KernelChange::Hold,
        "arm-anyway" => KernelChange::ArmAnyway,
        _ => return Err(StoreError::Corrupt { what: "policy", value: policy }),
    };
    let duration: Option<i64> = row.try_get("lease_duration_ns")?;
    let expiry: Option<i64> = row.try_get("lease_expire_ns")?;
    let holder: Option<String> = row.try_get("lease_holder")?;
    let lease = match (duration, expiry, holder) {
        (None, None, None) => None,
        (Some(duration), Some(expiry), None) => Some(Lease::Until {
            duration: Duration::from_nanos(u64::try_from(duration).unwrap_or_default()),
            expire_time: from_ns(expiry),
        }),
        (None, None, Some(holder)) => Some(Lease::Held { holder }),
        other => return Err(StoreError::Corrupt { what: "lease", value: format!("{other:?}") }),
    };
    Ok(Metadata {
        description: row.try_get("description")?,
        owner: row.try_get("owner")?,
        declared_by: row.try_get("declared_by")?,
        lease,
        on_kernel_change,
    })
}
