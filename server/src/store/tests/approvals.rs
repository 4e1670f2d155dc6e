//! Tests of stored approvals.

use super::*;
use crate::store::approvals::{APPROVAL_BYTES_MAX, ApprovalChange, StoredApproval};
use kprobed_rights::{Approver, DefinitionDigest};

/// An approval of `p FUNCTION`.
pub(super) fn approval(function: &str, principal: &str, ns: i64) -> StoredApproval {
    let definition = format!("p {function} a=%di");
    StoredApproval {
        digest: DefinitionDigest::of(&definition),
        definition,
        by: Approver { account: principal.to_owned(), name: format!("name of {principal}") },
        reads: vec!["registers".to_owned()],
        note: "why".to_owned(),
        time: from_ns(ns),
    }
}

#[tokio::test]
async fn approvals_are_of_a_definition_and_a_principal() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let (a, b, again) = (
        approval("f", "user:a", 1),
        approval("f", "user:b", 2),
        StoredApproval { note: String::new(), ..approval("f", "user:a", 3) },
    );
    let other = approval("g", "user:a", 4);
    let made = store.add_approvals(&[a.clone(), b.clone()], &[entry(), entry()]).await.unwrap();
    assert_eq!(made, ApprovalChange::Made(vec![a.clone(), b.clone()]));
    store.add_approvals(&[again.clone(), other.clone()], &[entry(), entry()]).await.unwrap();
    assert_eq!(store.approvals().await.unwrap(), [b.clone(), again.clone(), other.clone()]);
    let unknown = DefinitionDigest::of("p h");
    let (removed, left) = store.remove_approvals(&[a.digest, unknown], |_| entry()).await.unwrap();
    assert_eq!((removed, left), (vec![b, again], vec![other.clone()]));
    assert_eq!(store.approvals().await.unwrap(), [other]);
    assert_eq!(store.audit_head().await.unwrap().sequence, 6);
}

#[tokio::test]
async fn there_is_room_for_so_many() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let long = |function: &str| StoredApproval {
        note: "n".repeat(APPROVAL_BYTES_MAX / 2),
        ..approval(function, "user:a", 1)
    };
    assert!(matches!(store.add_approvals(&[long("f")], &[entry()]).await.unwrap(), ApprovalChange::Made(_)));
    let bytes = store.add_approvals(&[long("g")], &[entry()]).await.unwrap();
    assert!(matches!(bytes, ApprovalChange::TooMany(bytes) if bytes > APPROVAL_BYTES_MAX), "{bytes:?}");
    assert_eq!((store.approvals().await.unwrap().len(), store.audit_head().await.unwrap().sequence), (1, 1));
    // The same one again takes no further room.
    assert!(matches!(store.add_approvals(&[long("f")], &[]).await.unwrap(), ApprovalChange::Made(_)));
}
