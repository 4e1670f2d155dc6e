//! Limits of a role over a real connection: what a client holds ends with it, and a refusal says what is
//! held, by which line, and is in the audit log.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use bytes::Bytes;
use kprobed::config::Listen;
use kprobed_client::Error;
use kprobed_client::event::StreamRequest;
use kprobed_proto::v1;
use kprobed_proto::v1::access_service_client::AccessServiceClient;
use kprobed_proto::v1::audit_service_client::AuditServiceClient;
use kprobed_proto::v1::event_service_client::EventServiceClient;
use kprobed_proto::v1::lease_service_client::LeaseServiceClient;
use kprobed_proto::v1::probe_service_client::ProbeServiceClient;
use tokio::runtime::Builder;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use super::raw::Raw;
use crate::server::{PATIENCE, Server, local};

/// What the caller holds of each limit.
async fn held(channel: &Channel) -> BTreeMap<String, u64> {
    let caller = AccessServiceClient::new(channel.clone()).get_caller(v1::GetCallerRequest {}).await.unwrap();
    caller.into_inner().limits.into_iter().map(|limit| (limit.name, limit.held)).collect()
}

/// The metadata of a refusal by a limit.
fn by_limit(status: &Status) -> BTreeMap<String, String> {
    let info = status.get_error_details().error_info().unwrap().clone();
    assert_eq!((status.code(), info.reason.as_str()), (Code::ResourceExhausted, "ROLE_LIMIT"), "{status:?}");
    info.metadata.into_iter().collect()
}

/// One call of each kind that a client can hold.
async fn begin_streams(socket: PathBuf) -> Box<dyn Any + Send> {
    let channel = local(socket).await.unwrap();
    let delivery = || Some(v1::Delivery { queue_bytes: 1 << 20, ..Default::default() });
    let mut events = EventServiceClient::new(channel.clone());
    let mut probes = ProbeServiceClient::new(channel.clone());
    let columns = v1::StreamEventsRequest { delivery: delivery(), ..Default::default() };
    let rows = v1::StreamEventsRequest {
        delivery: delivery(),
        form: v1::EventForm::Rows.into(),
        ..Default::default()
    };
    let audit = v1::ReadAuditRequest { follow: true, ..Default::default() };
    Box::new((
        events.stream_events(columns).await.unwrap(),
        events.stream_events(rows).await.unwrap(),
        probes.watch_probes(v1::WatchProbesRequest::default()).await.unwrap(),
        probes.check_probes(tokio_stream::pending()).await.unwrap(),
        AuditServiceClient::new(channel.clone()).read_audit(audit).await.unwrap(),
        LeaseServiceClient::new(channel).hold_probes(v1::HoldProbesRequest::default()).await.unwrap(),
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_holds_ends_with_it() {
    let server =
        Server::open(Listen::default(), "streams = 6\nconnections = 2\nqueue_bytes = 8388608\n").await;
    let other = server.local().await.unwrap();
    // Threads of its own, which end as those of a killed process do.
    let client = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let streams = client.spawn(begin_streams(server.socket())).await.unwrap();
    let now = held(&other).await;
    assert_eq!((now["streams"], now["connections"], now["queue_bytes"]), (6, 2, 2 << 20));
    // One more of each is refused, with what is held.
    let more = EventServiceClient::new(other.clone()).stream_events(v1::StreamEventsRequest::default()).await;
    let refused = by_limit(&more.unwrap_err());
    assert_eq!(
        (refused["limit"].as_str(), refused["held"].as_str(), refused["most"].as_str()),
        ("streams", "6", "6")
    );
    let third = server.local().await.unwrap();
    let refused = AccessServiceClient::new(third).get_caller(v1::GetCallerRequest {}).await.unwrap_err();
    assert_eq!(by_limit(&refused)["limit"], "connections");
    client.shutdown_background();
    let begun = Instant::now();
    loop {
        let now = held(&other).await;
        if (now["streams"], now["connections"], now["queue_bytes"]) == (0, 1, 0) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{now:?}");
        tokio::task::yield_now().await;
    }
    drop(streams);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_by_a_limit_names_it_and_is_audited() {
    let server = Server::open(Listen::default(), "checks_per_second = 0\nqueue_bytes = 100\n").await;
    let channel = server.local().await.unwrap();
    let check = v1::CheckProbeRequest { definition: "p vfs_read".to_owned(), ..Default::default() };
    let refused = ProbeServiceClient::new(channel.clone()).check_probe(check).await.unwrap_err();
    let named = by_limit(&refused);
    assert_eq!((named["limit"].as_str(), named["role"].as_str()), ("checks_per_second", "one"));
    let line: usize = named["line"].parse().unwrap();
    assert!(refused.message().contains(&format!("role `one`, line {line} is 0")), "{refused:?}");
    assert!(!named["fix"].is_empty());
    let delivery = Some(v1::Delivery { queue_bytes: 101, ..Default::default() });
    let large = v1::StreamEventsRequest { delivery, ..Default::default() };
    let refused = EventServiceClient::new(channel).stream_events(large).await.unwrap_err();
    assert_eq!(by_limit(&refused)["limit"], "queue_bytes");
    let mut inbox = server.audit.lock().unwrap();
    for method in ["CheckProbe", "StreamEvents"] {
        let entry = inbox.entries.try_recv().unwrap();
        assert_eq!((entry.action, entry.method.as_str()), (kprobed_audit::Action::Refused, method));
        assert!(
            entry.rule.starts_with("role `one`, line ") && entry.reason.contains("the limit `"),
            "{entry:?}"
        );
    }
    assert!(inbox.entries.try_recv().is_err());
}

/// The code and the reason of a refusal.
fn reason(status: &Status) -> (Code, String) {
    (status.code(), status.get_error_details().error_info().unwrap().reason.clone())
}

/// What goes beyond the limits of calls is refused, with the limit and its setting, and the connection goes
/// on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_beyond_a_limit_is_refused() {
    let listen = Listen {
        max_message_kib: 64,
        max_header_kib: 4,
        max_streams: 1,
        request_timeout_s: 1,
        ..Listen::default()
    };
    let server = Server::open(listen, "").await;
    let channel = server.local().await.unwrap();
    let check = |bytes: usize| v1::CheckProbeRequest { definition: " ".repeat(bytes), ..Default::default() };
    let mut probes = ProbeServiceClient::new(channel.clone());
    let exhausted = |reason: &str| (Code::ResourceExhausted, reason.to_owned());

    let long = probes.check_probe(check(64 << 10)).await.unwrap_err();
    assert_eq!(reason(&long), exhausted("MESSAGE_TOO_LONG"));
    assert!(long.message().contains("`listen.max_message_kib`"), "{long:?}");
    assert_eq!(long.get_error_details().error_info().unwrap().metadata["most"], "65536");
    probes.check_probe(check(63 << 10)).await.unwrap();

    let mut wordy = Request::new(check(1));
    wordy.metadata_mut().insert("x-much", "v".repeat(5 << 10).parse().unwrap());
    let refused = probes.check_probe(wordy).await.unwrap_err();
    assert_eq!(reason(&refused), exhausted("HEADERS_TOO_LONG"));
    assert!(refused.message().contains("`listen.max_header_kib`"), "{refused:?}");

    let watch = probes.watch_probes(v1::WatchProbesRequest::default()).await.unwrap();
    let second = probes.watch_probes(v1::WatchProbesRequest::default()).await.unwrap_err();
    assert_eq!(reason(&second), exhausted("TOO_MANY_STREAMS"));
    assert!(second.message().contains("`listen.max_streams`"), "{second:?}");
    drop(watch);

    let path = PathAndQuery::from_static("/kprobed.v1.ProbeService/CheckProbe");
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let never = Request::new(tokio_stream::pending::<Bytes>());
    let slow = client.streaming(never, path, Raw).await.unwrap_err();
    assert_eq!(reason(&slow), (Code::DeadlineExceeded, "REQUEST_TOO_SLOW".to_owned()));
    assert!(slow.message().contains("`listen.request_timeout_s`"), "{slow:?}");
    probes.check_probe(check(1)).await.unwrap();
}

/// A definition of a change is judged as that of a check, and the answer tells the verdict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_of_a_change_counts_as_a_check() {
    let server = Server::open(Listen::default(), "checks_per_second = 1\n").await;
    let channel = server.local().await.unwrap();
    let mut probes = ProbeServiceClient::new(channel);
    let request = v1::CreateProbeRequest { definition: "p:a/b vfs_read".to_owned(), ..Default::default() };
    let update = v1::UpdateProbeRequest {
        name: "kprobes/open".to_owned(),
        definition: Some("p vfs_read".to_owned()),
        ..Default::default()
    };
    probes.create_probe(request.clone()).await.unwrap();
    for refused in [
        probes.create_probe(request).await.unwrap_err(),
        probes.update_probe(update.clone()).await.unwrap_err(),
    ] {
        assert_eq!(by_limit(&refused)["limit"], "checks_per_second");
    }
    // Without a definition nothing is judged.
    let other = v1::UpdateProbeRequest { definition: None, enabled: Some(true), ..update };
    probes.update_probe(other).await.unwrap();
}

/// What a refusal repeats of a request is cut: gRPC clients take a few kilobytes of trailers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_echoed_fits_into_trailers() {
    const MOST: usize = 4096;
    let server = Server::open(Listen::default(), "").await;
    let client = server.client().await;
    let create = |definition: String| {
        client.create_probe(v1::CreateProbeRequest { definition, enabled: true, ..Default::default() })
    };
    let rpc = |error: Error| error.rpc().cloned().unwrap();
    // Just below what gRPC takes as a message.
    let many = "a=%di ".repeat(500_000);
    let refused = rpc(create(format!("p:x vfs_read {many} b=%nosuch")).await.unwrap_err());
    assert!(!refused.reason.is_empty() && refused.diagnostics.unwrap().text.len() < MOST);
    create("p:x vfs_read a=%di".to_owned()).await.unwrap();
    let filter = format!("{}a == 1", "(".repeat(20_000));
    let update =
        v1::UpdateProbeRequest { name: "x".to_owned(), filter: Some(filter.clone()), ..Default::default() };
    let refused = rpc(client.update_probe(update).await.unwrap_err());
    assert_eq!(refused.reason, "BAD_FILTER");
    let shown = refused.diagnostics.unwrap().text;
    assert!(shown.contains(" bytes)") && shown.len() < MOST, "{shown}");
    let refused = rpc(client.get_probe(&"n".repeat(1 << 20)).await.unwrap_err());
    assert!(refused.message.len() < MOST && refused.message.contains("bytes) ..."), "{}", refused.message);
    let label = v1::CreateProbeRequest {
        definition: "p:y vfs_read".to_owned(),
        labels: [("k".to_owned(), "v".repeat(1 << 20))].into(),
        ..Default::default()
    };
    assert_eq!(rpc(client.create_probe(label).await.unwrap_err()).reason, "BAD_LABEL");
    let streamed = client.stream_events(StreamRequest::new().filter(&filter)).await.map(drop);
    assert!(rpc(streamed.unwrap_err()).message.len() < MOST);
}
