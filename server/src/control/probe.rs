//! A probe as the daemon knows it.

use std::sync::Arc;
use std::time::SystemTime;

use crate::decode::Schema;
use crate::definition::{Diagnostic, ProbeKind};
use crate::model::{Labels, ProbeName, ProbeUid};

/// Where a probe stands between what was asked and what the kernel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeState {
    /// Durable, not yet in the kernel.
    Pending,
    /// In the kernel and recording.
    Armed,
    /// In the kernel and switched off.
    Disabled,
    /// In the kernel; its module is not loaded. The kernel registers it when the module arrives.
    Waiting,
    /// Kept, but the kernel does not have it, for this reason.
    Failed(String),
}

/// A probe: what was asked, and what the kernel has of it.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Its incarnation.
    pub uid: ProbeUid,
    /// Its event.
    pub name: ProbeName,
    /// The text that the client wrote, with its dialect where another kernel could read another one.
    pub definition: String,
    /// The line that the kernel was given, guards included.
    pub kernel_definition: String,
    /// Entry or return.
    pub kind: ProbeKind,
    /// Whether it should record.
    pub enabled: bool,
    /// Kernel filter; empty for none.
    pub filter: String,
    /// What it is found by.
    pub labels: Labels,
    /// What the kernel has.
    pub state: ProbeState,
    /// Counts the changes that clients made, from 1.
    pub revision: i64,
    /// When it was created.
    pub create_time: SystemTime,
    /// When a client last changed it.
    pub update_time: SystemTime,
    /// The fields of its events, once the kernel has it.
    pub schema: Option<Arc<Schema>>,
    /// What its writer should know.
    pub warnings: Vec<Diagnostic>,
    /// `FUNCTION+0xOFFSET`, once it is resolved.
    pub location: String,
}

impl Probe {
    /// Changes with every change that a client makes.
    pub fn etag(&self) -> String {
        format!("{}-{}", self.uid, self.revision)
    }
}
