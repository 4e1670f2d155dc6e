//! Audit log of the fake: four entries.

use kprobed_audit::{Action, Entry, Head, Record};
use kprobed_client::api::audit_service_server::AuditService;
use kprobed_client::api::*;
use prost_types::Timestamp;
use tonic::{Request, Response};

use super::services::{Answer, BoxedStream, Services};

fn records() -> Vec<(Entry, String)> {
    let made = Entry {
        method: "CreateProbe".to_owned(),
        rule: "role `ops`, line 12".to_owned(),
        request: "r-1".to_owned(),
        probe: "kprobes/open".to_owned(),
        definition: "p:kprobes/open do_sys_openat2".to_owned(),
        enabled: Some(true),
        ..Entry::new(Action::Changed, "user:alice")
    };
    let refused = Entry {
        method: "DeleteProbe".to_owned(),
        probe: "kprobes/open\x1b[2J".to_owned(),
        reason: "it has no role".to_owned(),
        times: 41,
        ..Entry::new(Action::Refused, "uid:1000")
    };
    let read = Entry {
        method: "StreamEvents".to_owned(),
        probe: "kprobes/open".to_owned(),
        reason: "events".to_owned(),
        ..Entry::new(Action::Read, "user:bob")
    };
    let failed = made.failed("the kernel answered EINVAL");
    let entries = [made, refused, read, failed].into_iter().zip(1..);
    let text = |(entry, sequence): (Entry, u64)| {
        let time_unix_nano = 1_769_860_800_000_000_000 + sequence * 1_000_000_000;
        let record = Record { sequence, time_unix_nano, entry: entry.clone() };
        (entry, record.to_text().unwrap())
    };
    entries.map(text).collect()
}

fn action(action: Action) -> AuditAction {
    AuditAction::from_str_name(&format!("AUDIT_ACTION_{}", action.name().to_uppercase())).unwrap()
}

#[tonic::async_trait]
impl AuditService for Services {
    type ReadAuditStream = BoxedStream<ReadAuditResponse>;

    async fn read_audit(&self, request: Request<ReadAuditRequest>) -> Answer<Self::ReadAuditStream> {
        let request = request.into_inner();
        let filter = request.filter.unwrap_or_default();
        let (mut head, mut entries) = (Head::default(), Vec::new());
        for (entry, record) in records() {
            head = head.then(&record);
            let action = action(entry.action);
            let is_selected = filter.actions.is_empty() || filter.actions.contains(&action.into());
            if is_selected && head.sequence > request.after {
                entries.push(AuditEntry {
                    sequence: head.sequence,
                    digest: head.digest.0.to_vec(),
                    record,
                    time: Some(Timestamp {
                        seconds: 1_769_860_800 + i64::try_from(head.sequence).unwrap(),
                        nanos: 0,
                    }),
                    action: action.into(),
                    principal: entry.principal,
                    method: entry.method,
                    change: entry.change,
                    rule: entry.rule,
                    request_id: entry.request,
                    operation: entry.operation,
                    probe: entry.probe,
                    definition: entry.definition,
                    enabled: entry.enabled,
                    filter: entry.filter,
                    reason: entry.reason,
                    times: entry.times,
                });
            }
        }
        let after = Some(AuditHead { sequence: 0, digest: vec![0; 32] });
        let messages =
            [ReadAuditResponse { after, entries: Vec::new() }, ReadAuditResponse { after: None, entries }];
        Ok(Response::new(Box::pin(tokio_stream::iter(messages.map(Ok)))))
    }
}
