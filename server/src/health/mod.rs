//! Health checks of the host that do not depend on probes: findings, and what to do about them.
//!
//! Owns the checks of the database and the disks, of the
//! file with the labels of the host, of the certificate, and of the daemon's sandbox. Never changes anything.

mod certificate;
mod declarations;
mod labels_file;
mod network;
mod sandbox;
mod storage;

pub use certificate::certificate_check;
pub use declarations::{DeclarationProblem, DeclarationState, Declarations};
pub use labels_file::{LabelsFile, read as read_labels};
pub use network::{NETWORK_HINT, is_of_closed_network, network_is_closed};
pub use sandbox::{files_check, sandbox_check};
pub use storage::Storage;

pub use kprobed_proto::v1::{CheckStatus, HostCheck};

pub(crate) fn check(
    id: &str,
    status: CheckStatus,
    finding: impl Into<String>,
    fix: impl Into<String>,
) -> HostCheck {
    HostCheck { id: id.to_owned(), status: status.into(), finding: finding.into(), fix: fix.into() }
}

pub(crate) fn ok(id: &str, finding: impl Into<String>) -> HostCheck {
    check(id, CheckStatus::Ok, finding, "")
}

pub(crate) fn warning(id: &str, finding: impl Into<String>, fix: impl Into<String>) -> HostCheck {
    check(id, CheckStatus::Warning, finding, fix)
}

pub(crate) fn failed(id: &str, finding: impl Into<String>, fix: impl Into<String>) -> HostCheck {
    check(id, CheckStatus::Failed, finding, fix)
}
