//! Uids: identities of probes.
//!
//! Never assigns one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies one incarnation of a probe: it is the row id in the database, which SQLite never uses
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProbeUid(pub i64);

impl fmt::Display for ProbeUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
