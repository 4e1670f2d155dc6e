//! Writes that are owed to the database: corrections after a disk has failed, and changes that disarm probes and found
//! no room.
//!
//! Owns what each of them writes, and its form in the reserve. Never decides when one is needed.

use kprobed_audit::Entry;
use serde::{Deserialize, Serialize};

use super::connection::Transaction;
use super::{Record, RequestKey, StoreError, audit, changes, requests};
use kprobed_lang::model::ProbeUid;

/// A write that is owed until the database has it: every transaction is preceded by those that are owed. If the
/// daemon ends before, the reserve has it for the next start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Owed {
    /// The row of a probe is this, or none, and no change of it is under way.
    Row {
        /// The probe.
        uid: ProbeUid,
        /// What is stored of it.
        record: Option<Box<Record>>,
        /// The request that is carried out by that.
        request: Option<RequestKey>,
    },
    /// A change is under way that the disk may have as settled.
    Reopened {
        /// The probe.
        uid: ProbeUid,
        /// The probe before the change.
        before: Option<Box<Record>>,
        /// The probe as it was to be.
        after: Option<Box<Record>>,
        /// The request that counts as not carried out.
        request: Option<RequestKey>,
    },
    /// The change of a probe was not made after all.
    Reverted(ProbeUid),
    /// The audit log says this.
    Note(Box<Entry>),
}

impl Owed {
    pub(super) async fn apply(&self, transaction: &mut Transaction<'_>) -> Result<(), StoreError> {
        match self {
            Self::Row { uid, record, request } => {
                let transaction = transaction.connection();
                changes::write_row(transaction, *uid, record.as_deref()).await?;
                changes::end(transaction, &[*uid]).await?;
                if let Some(request) = request {
                    requests::remember(transaction, &[(request, *uid)]).await?;
                }
            }
            Self::Reopened { uid, before, after, request } => {
                let transaction = transaction.connection();
                changes::reopen(transaction, *uid, (before.as_deref(), after.as_deref())).await?;
                requests::forget(transaction, request.as_ref()).await?;
            }
            Self::Reverted(uid) => changes::end(transaction.connection(), &[*uid]).await?,
            Self::Note(entry) => audit::append(transaction, &[&**entry]).await?,
        }
        Ok(())
    }
}
