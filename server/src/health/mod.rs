//! Health checks of the host that do not depend on probes: findings, and what to do about them.
//!
//! Owns the form of a finding ([`HostCheck`]), and the checks of the database and the disks, of the
//! file with the labels of the host, of the certificate, and of the daemon's sandbox. Never changes anything.

mod certificate;
mod labels_file;
mod network;
mod sandbox;
mod storage;

pub use certificate::certificate_check;
pub use labels_file::{LabelsFile, read as read_labels};
pub use network::{NETWORK_HINT, is_of_closed_network, network_is_closed};
pub use sandbox::{files_check, sandbox_check};
pub use storage::Storage;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// Something works less well than it could.
    Warning,
    /// Something does not work.
    Failed,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCheck {
    /// Stable identifier in lower snake case.
    pub id: &'static str,
    /// How it ended.
    pub status: CheckStatus,
    /// What was found.
    pub finding: String,
    /// What to do; may be empty.
    pub fix: String,
}

pub(crate) fn ok(id: &'static str, finding: String) -> HostCheck {
    HostCheck { id, status: CheckStatus::Ok, finding, fix: String::new() }
}

pub(crate) fn warning(id: &'static str, finding: String, fix: impl Into<String>) -> HostCheck {
    HostCheck { id, status: CheckStatus::Warning, finding, fix: fix.into() }
}

pub(crate) fn failed(id: &'static str, finding: String, fix: impl Into<String>) -> HostCheck {
    HostCheck { id, status: CheckStatus::Failed, finding, fix: fix.into() }
}
