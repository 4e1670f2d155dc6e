//! Lease clocks in the database: the end of each lease, exact within a boot.
//!
//! Owns their table. The lease itself is in the row of its probe, with its end by the wall clock. A
//! clock makes that end exact within a boot; without it only the wall clock counts. Never decides
//! when a lease has ended.

use std::collections::HashMap;
use std::time::SystemTime;

use kprobed_audit::Entry;
use sqlx::{Row as _, SqliteConnection};

use super::connection::Transaction;
use super::{Store, StoreError, audit, from_ns, to_i64, to_ns};
use kprobed_lang::model::ProbeUid;

/// How the end of a lease was last computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseClock {
    /// The boot.
    pub boot_id: String,
    /// The end of the lease, in nanoseconds of CLOCK_BOOTTIME of that boot.
    pub end_boot_ns: u64,
    /// When it ended, by the wall clock. Absent before that was stored.
    pub ended: Option<SystemTime>,
}

/// What is stored of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedLease {
    /// The probe.
    pub uid: ProbeUid,
    /// How its end is computed.
    pub clock: LeaseClock,
    /// Its end by the wall clock as it is set now.
    pub expire_time: SystemTime,
}

impl Store {
    /// The stored clocks of leases. Leases for which none was stored are left out.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub(crate) async fn lease_clocks(&self) -> Result<HashMap<ProbeUid, LeaseClock>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let query = sqlx::query(
                "SELECT probe_uid, boot_id, end_boot_ns, ended_ns FROM lease_clock \
                 JOIN probe ON uid = probe_uid AND lease_expire_ns = expire_ns",
            );
            let mut clocks = HashMap::new();
            for row in query.fetch_all(connection).await? {
                let clock = LeaseClock {
                    boot_id: row.try_get("boot_id")?,
                    end_boot_ns: u64::try_from(row.try_get::<i64, _>("end_boot_ns")?).unwrap_or_default(),
                    ended: row.try_get::<Option<i64>, _>("ended_ns")?.map(from_ns),
                };
                clocks.insert(ProbeUid(row.try_get("probe_uid")?), clock);
            }
            Ok(clocks)
        };
        self.database.read(read).await
    }

    /// Stores how the ends of leases are computed now, and the audit entries of those that have ended: an end
    /// is stored exactly if its entry is. Skips probes that have gone.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then nothing is written.
    pub(crate) async fn count_leases(
        &self,
        leases: &[CountedLease],
        entries: &[Entry],
    ) -> Result<(), StoreError> {
        let write = async |transaction: &mut Transaction<'_>| {
            audit::append(transaction, entries).await?;
            for CountedLease { uid, clock, expire_time } in leases {
                sqlx::query(
                    "INSERT INTO lease_clock (probe_uid, expire_ns, boot_id, end_boot_ns, ended_ns) \
                     SELECT uid, ?, ?, ?, ? FROM probe WHERE uid = ? AND lease_duration_ns IS NOT NULL \
                     ON CONFLICT (probe_uid) DO UPDATE SET expire_ns = excluded.expire_ns, \
                     boot_id = excluded.boot_id, end_boot_ns = excluded.end_boot_ns, ended_ns = excluded.ended_ns",
                )
                .bind(to_ns(*expire_time))
                .bind(&clock.boot_id)
                .bind(to_i64(clock.end_boot_ns))
                .bind(clock.ended.map(to_ns))
                .bind(uid.0)
                .execute(transaction.connection())
                .await?;
                sqlx::query(
                    "UPDATE probe SET lease_expire_ns = ? WHERE uid = ? AND lease_duration_ns IS NOT NULL",
                )
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
