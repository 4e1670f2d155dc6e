//! Audit log of the fake: four entries.

use kprobed_client::api::audit_service_server::AuditService;
use kprobed_client::api::*;
use tonic::{Request, Response};

use super::answers;
use super::services::{Answer, BoxedStream, Services};

fn entries() -> [AuditEntry; 4] {
    let entry =
        |sequence: u32, action: AuditAction, principal: &str, method: &str, reason: &str| AuditEntry {
            sequence: sequence.into(),
            time: Some(answers::time(sequence.into())),
            action: action.into(),
            principal: principal.to_owned(),
            method: method.to_owned(),
            probe: "kprobes/open".to_owned(),
            reason: reason.to_owned(),
            ..Default::default()
        };
    let refused = entry(2, AuditAction::Refused, "uid:1000", "DeleteProbe", "it has no role");
    [
        entry(1, AuditAction::Changed, "user:alice", "CreateProbe", ""),
        AuditEntry { probe: "kprobes/open\x1b[2J".to_owned(), times: 41, ..refused },
        entry(3, AuditAction::Read, "user:bob", "StreamEvents", "events"),
        entry(4, AuditAction::Failed, "user:alice", "CreateProbe", "the kernel answered EINVAL"),
    ]
}

#[tonic::async_trait]
impl AuditService for Services {
    type ReadAuditStream = BoxedStream<ReadAuditResponse>;

    async fn read_audit(&self, request: Request<ReadAuditRequest>) -> Answer<Self::ReadAuditStream> {
        let after = request.into_inner().after;
        let entries = entries().into_iter().filter(|entry| entry.sequence > after).collect();
        let after = Some(AuditHead { sequence: 0, digest: vec![0; 32] });
        let messages =
            [ReadAuditResponse { after, entries: Vec::new() }, ReadAuditResponse { after: None, entries }];
        Ok(Response::new(Box::pin(tokio_stream::iter(messages.map(Ok)))))
    }
}
