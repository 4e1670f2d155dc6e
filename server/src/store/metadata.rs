//! Metadata of probes in the database: description, owner, file, lease and policy, in columns of
//! the probe's row.
//!
//! Owns these columns. Never checks their values against each other, and never decides when a lease has
//! ended.

use std::time::{Duration, SystemTime};

use kprobed_audit::Entry;
use sqlx::SqliteConnection;

use super::bad::CheckedRow;
use super::connection::Transaction;
use super::probes::NOT_ARMED;
use super::{Store, StoreError, audit, from_ns, to_i64, to_ns};
use kprobed_lang::model::{KernelChange, Lease, Metadata, Moment, ProbeUid, nanoseconds};

/// A lease as columns.
#[derive(Debug, Default)]
pub(super) struct LeaseColumns<'a> {
    pub(super) duration_ns: Option<i64>,
    pub(super) expire_ns: Option<i64>,
    pub(super) boot_id: Option<&'a str>,
    pub(super) end_boot_ns: Option<i64>,
    pub(super) holder: Option<&'a str>,
}

pub(super) fn columns(lease: Option<&Lease>) -> LeaseColumns<'_> {
    match lease {
        None => LeaseColumns::default(),
        Some(Lease::Until { duration, end }) => LeaseColumns {
            duration_ns: Some(to_i64(nanoseconds(*duration))),
            expire_ns: Some(to_ns(end.wall)),
            boot_id: Some(&end.boot_id),
            end_boot_ns: Some(to_i64(end.boot_ns)),
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
         lease_duration_ns = ?, lease_expire_ns = ?, lease_boot_id = ?, lease_end_boot_ns = ?, lease_holder = ? \
         WHERE uid = ?",
    )
    .bind(&metadata.description)
    .bind(&metadata.owner)
    .bind(&metadata.declared_by)
    .bind(policy(metadata.on_kernel_change))
    .bind(lease.duration_ns)
    .bind(lease.expire_ns)
    .bind(lease.boot_id)
    .bind(lease.end_boot_ns)
    .bind(lease.holder)
    .bind(uid.0)
    .execute(transaction)
    .await?;
    Ok(())
}

/// Reads it out of the row of a probe. Absent if it is not known when the probe is to go: it must not stay without an
/// end.
pub(super) fn read(row: &mut CheckedRow<'_>) -> Option<Metadata> {
    let policy: String = row.get("on_kernel_change", "the probe is held back after a kernel change");
    let on_kernel_change = match policy.as_str() {
        "hold" | "" => KernelChange::Hold,
        "arm-anyway" => KernelChange::ArmAnyway,
        _ => {
            row.note("on_kernel_change", &"no policy", "the probe is held back after a kernel change");
            KernelChange::Hold
        }
    };
    let duration: Option<i64> = row.need("lease_duration_ns", NOT_ARMED)?;
    let expiry: Option<i64> = row.need("lease_expire_ns", NOT_ARMED)?;
    let boot_id: Option<String> = row.need("lease_boot_id", NOT_ARMED)?;
    let end_boot_ns: Option<i64> = row.need("lease_end_boot_ns", NOT_ARMED)?;
    let holder: Option<String> = row.need("lease_holder", NOT_ARMED)?;
    let lease = match (duration, expiry, boot_id, end_boot_ns, holder) {
        (None, None, None, None, None) => None,
        (Some(duration @ 1..), Some(expiry @ 0..), Some(boot_id), Some(end_boot_ns @ 0..), None) => {
            Some(Lease::Until {
                duration: Duration::from_nanos(u64::try_from(duration).unwrap_or_default()),
                end: Moment {
                    wall: from_ns(expiry),
                    boot_id: boot_id.into(),
                    boot_ns: u64::try_from(end_boot_ns).unwrap_or_default(),
                },
            })
        }
        (None, None, None, None, Some(holder)) => Some(Lease::Held { holder }),
        other => {
            row.note("lease_duration_ns", &format!("no lease: {other:?}"), NOT_ARMED);
            return None;
        }
    };
    Some(Metadata {
        description: row.text("description"),
        owner: row.text("owner"),
        declared_by: row.get("declared_by", "no file declares the probe"),
        lease,
        on_kernel_change,
    })
}

impl Store {
    /// Stores when leases end in this boot, which of them have ended (by [`Moment::wall`] of their ends), and
    /// the audit entries about those: an end is stored exactly if its entry is. Skips probes that have gone.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub(crate) async fn write_leases(
        &self,
        counted: &[(ProbeUid, Moment)],
        ended: &[(ProbeUid, SystemTime)],
        entries: &[Entry],
    ) -> Result<(), StoreError> {
        let write = async |transaction: &mut Transaction<'_>| {
            audit::append(transaction, entries).await?;
            for (uid, end) in counted {
                sqlx::query(
                    "UPDATE probe SET lease_boot_id = ?, lease_end_boot_ns = ? WHERE uid = ? AND lease_expire_ns = ?",
                )
                .bind(&*end.boot_id)
                .bind(to_i64(end.boot_ns))
                .bind(uid.0)
                .bind(to_ns(end.wall))
                .execute(transaction.connection())
                .await?;
            }
            for (uid, expire_time) in ended {
                sqlx::query("UPDATE probe SET lease_ended_ns = ? WHERE uid = ?")
                    .bind(to_ns(*expire_time))
                    .bind(uid.0)
                    .execute(transaction.connection())
                    .await?;
            }
            Ok(())
        };
        self.database.write_or_undo(Vec::new, write).await
    }
}
