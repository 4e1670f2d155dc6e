//! Uids: identities of probes and attached events.
//!
//! Owns the rule that keeps them apart. Never assigns one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies one incarnation of a probe: it is the row id in the database, which SQLite never uses
/// again. An attached event of the host has a uid too: the negative id of its row in a table of its
/// own, so that it is never that of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProbeUid(pub i64);

impl ProbeUid {
    /// The uid of the attached event with this row id, which is positive.
    pub const fn of_attachment(row_id: i64) -> Self {
        Self(row_id.wrapping_neg())
    }

    /// The row id of the attached event with this uid.
    pub const fn attachment(self) -> i64 {
        self.0.wrapping_neg()
    }
}

impl fmt::Display for ProbeUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
