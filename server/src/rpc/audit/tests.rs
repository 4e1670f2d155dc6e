//! Tests of reading the log: which entries come, that they are verified, and that a call follows.

use futures_util::{FutureExt as _, StreamExt as _};
use kprobed_audit::{Chain, Digest, Entry};

use super::*;

async fn server(directory: &tempfile::TempDir) -> AuditServer {
    AuditServer { store: Store::open(directory.path(), SystemTime::now()).await.unwrap() }
}

async fn add(server: &AuditServer, action: Action, principal: &str, probe: &str) {
    let entry = Entry { probe: probe.to_owned(), ..Entry::new(action, principal) };
    server.store.add_audit(&[entry]).await.unwrap();
}

async fn read(
    server: &AuditServer,
    request: v1::ReadAuditRequest,
) -> Result<(v1::AuditHead, Vec<v1::AuditEntry>), Status> {
    let mut stream = server.read_audit(Request::new(request)).await?.into_inner();
    let after = stream.next().await.unwrap()?.after.unwrap();
    let mut entries = Vec::new();
    while let Some(message) = stream.next().await {
        entries.extend(message?.entries);
    }
    Ok((after, entries))
}

fn verify(after: &v1::AuditHead, entries: &[v1::AuditEntry]) -> Head {
    let digest = Digest::try_from(after.digest.as_slice()).unwrap();
    let mut chain = Chain::after(Head { sequence: after.sequence, digest }, None).unwrap();
    for entry in entries {
        let digest = Digest::try_from(entry.digest.as_slice()).unwrap();
        chain.verify(entry.sequence, &entry.record, digest).unwrap();
    }
    chain.head()
}

#[tokio::test]
async fn a_client_can_verify_what_it_reads() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory).await;
    for turn in 0..600 {
        add(&server, Action::Changed, "uid:0", &format!("a/p{turn}")).await;
    }
    let all = v1::ReadAuditRequest::default();
    let (after, entries) = read(&server, all.clone()).await.unwrap();
    assert_eq!((after.sequence, entries.len()), (0, 600));
    assert_eq!(verify(&after, &entries), server.store.audit_head().await.unwrap());
    // From the middle on, and after a rotation.
    let (after, entries) = read(&server, v1::ReadAuditRequest { after: 599, ..all.clone() }).await.unwrap();
    assert_eq!((after.sequence, entries.len()), (599, 1));
    verify(&after, &entries);
    server.store.rotate_audit(100).await.unwrap();
    let (after, entries) = read(&server, v1::ReadAuditRequest { after: 3, ..all }).await.unwrap();
    assert!(after.sequence > 500 && entries[0].sequence == after.sequence + 1);
    assert_eq!(verify(&after, &entries), server.store.audit_head().await.unwrap());
}

#[tokio::test]
async fn filters_select() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory).await;
    add(&server, Action::Changed, "uid:0", "a/p1").await;
    add(&server, Action::Refused, "uid:1", "a/p2").await;
    add(&server, Action::Read, "uid:1", "a/p1,b/p3").await;
    let read = async |filter: v1::AuditFilter| {
        let request = v1::ReadAuditRequest { filter: Some(filter), ..Default::default() };
        let entries = read(&server, request).await.unwrap().1;
        entries.into_iter().map(|entry| entry.sequence).collect::<Vec<_>>()
    };
    let none = v1::AuditFilter::default;
    assert_eq!(read(none()).await, [1, 2, 3]);
    assert_eq!(read(v1::AuditFilter { principals: vec!["uid:1".to_owned()], ..none() }).await, [2, 3]);
    let actions = vec![v1::AuditAction::Refused.into(), v1::AuditAction::Changed.into()];
    assert_eq!(read(v1::AuditFilter { actions, ..none() }).await, [1, 2]);
    assert_eq!(read(v1::AuditFilter { probe_glob: "b/*".to_owned(), ..none() }).await, [3]);
    let later = prost_types::Timestamp { seconds: 1 << 36, nanos: 0 };
    assert_eq!(read(v1::AuditFilter { since: Some(later), ..none() }).await, [0_u64; 0]);
    let unknown = v1::ReadAuditRequest {
        filter: Some(v1::AuditFilter { actions: vec![99], ..none() }),
        ..Default::default()
    };
    assert_eq!(
        server.read_audit(Request::new(unknown)).await.err().unwrap().code(),
        tonic::Code::InvalidArgument
    );
}

#[tokio::test]
async fn a_call_follows_until_the_daemon_stops() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory).await;
    let request = v1::ReadAuditRequest { follow: true, ..Default::default() };
    let mut stream = server.read_audit(Request::new(request)).await.unwrap().into_inner();
    assert!(stream.next().await.unwrap().unwrap().after.is_some());
    for turn in 1..=3 {
        add(&server, Action::Changed, "uid:0", "a/b").await;
        assert_eq!(stream.next().await.unwrap().unwrap().entries[0].sequence, turn);
        // A client that stops reading here holds nothing that others need.
        assert!(stream.next().now_or_never().is_none());
    }
    server.store.close().await;
    assert!(stream.next().await.unwrap().is_err());
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn long_entries_come_in_messages_that_clients_accept() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory).await;
    for turn in 0..PAGE {
        let long = || turn.to_string().repeat(4096);
        let entry = Entry {
            probe: long(),
            definition: long(),
            reason: long(),
            ..Entry::new(Action::Refused, "uid:1")
        };
        server.store.add_audit(&[entry]).await.unwrap();
    }
    let mut stream =
        server.read_audit(Request::new(v1::ReadAuditRequest::default())).await.unwrap().into_inner();
    let (mut entries, mut longest) = (0, 0);
    while let Some(message) = stream.next().await {
        let message = message.unwrap();
        entries += message.entries.len();
        longest = longest.max(message.encoded_len());
    }
    assert_eq!(entries, PAGE as usize);
    assert!(longest <= 2 * MESSAGE_BYTES, "{longest}");
}
