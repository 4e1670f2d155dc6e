//! Statuses of database errors.
//!
//! Owns their codes, reasons and hints. Never reads the database.

use tonic::Code;

use super::Parts;
use crate::store::{DatabaseError, Fault, StoreError};

/// Maps every way in which the database can fail.
pub(super) fn parts_of(error: &StoreError) -> Parts {
    match error {
        StoreError::RequestReused(_) => {
            Parts::new(Code::InvalidArgument, "REQUEST_ID_REUSED").field("request_id")
        }
        StoreError::Database(error) => database(error),
        StoreError::Corrupt { .. } => Parts::new(Code::DataLoss, "DATABASE_CORRUPT"),
        StoreError::TooManyPoints { step_s, .. } => {
            let fix = format!("ask for a step of at least {step_s} seconds, or for a shorter range");
            Parts::new(Code::InvalidArgument, "TOO_MANY_POINTS").field("step_seconds").with("fix", &fix)
        }
        StoreError::OtherVersion { .. }
        | StoreError::Damaged { .. }
        | StoreError::Backup { .. }
        | StoreError::Migrate { .. }
        | StoreError::Directory { .. }
        | StoreError::Sql(_) => Parts::new(Code::Internal, "DATABASE"),
    }
}

fn database(error: &DatabaseError) -> Parts {
    let (code, reason) = match error.fault {
        Fault::Full => (Code::ResourceExhausted, "DATABASE_FULL"),
        // Not UNAVAILABLE: clients take that for a daemon that does not answer, and try again at
        // once.
        Fault::Io => (Code::FailedPrecondition, "DATABASE_IO"),
        Fault::ReadOnly => (Code::FailedPrecondition, "DATABASE_READ_ONLY"),
        Fault::Busy => (Code::FailedPrecondition, "DATABASE_BUSY"),
        Fault::Moved => (Code::FailedPrecondition, "DATABASE_MOVED"),
        Fault::Corrupt => (Code::DataLoss, "DATABASE_CORRUPT"),
        Fault::Constraint | Fault::Other => (Code::Internal, "DATABASE"),
    };
    let parts = Parts::new(code, reason).with("path", &error.path.display());
    match error.fault.fix() {
        "" => parts,
        fix => parts.with("fix", fix),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn what_an_operator_can_mend_is_no_internal_error() {
        let of = |fault| {
            let path = PathBuf::from("/var/lib/kprobed/kprobed.db");
            let source = sqlx::Error::WorkerCrashed;
            let error = DatabaseError { action: "write", path, fault, in_doubt: false, source };
            let message = error.to_string();
            (parts_of(&StoreError::Database(Box::new(error))), message)
        };
        let (parts, message) = of(Fault::Full);
        assert_eq!((parts.code, parts.reason), (Code::ResourceExhausted, "DATABASE_FULL"));
        assert_eq!(message, "cannot write the database `/var/lib/kprobed/kprobed.db`: its disk is full");
        for fault in [Fault::Full, Fault::Io, Fault::ReadOnly, Fault::Busy, Fault::Moved, Fault::Corrupt] {
            let (parts, _) = of(fault);
            assert_ne!(parts.code, Code::Internal);
            assert!(parts.metadata.iter().any(|(key, fix)| *key == "fix" && !fix.is_empty()), "{fault:?}");
        }
    }
}
