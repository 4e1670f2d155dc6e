//! Tests of the client library against a fake daemon.

use kprobed_client::api::{DeleteProbeRequest, DeletedProbe, ListHitsRequest};
use std::time::{Duration, SystemTime};

use kprobed_client::event::{Backoff, LossCause, ResumingItem, ResumingStream, StreamItem, StreamRequest};
use kprobed_client::{Client, ConnectOptions, Error, Target};

use super::fake::{Ending, Fake, History, client};

#[tokio::test]
async fn pages_are_put_together() {
    let fake = Fake::start(Ending::Open);
    let client = client(fake.socket()).await;
    let names: Vec<_> = client.list_probes("").await.unwrap().into_iter().map(|probe| probe.name).collect();
    assert_eq!(names, ["kprobes/open", "kprobes/waiting"]);
    let since = ListHitsRequest { start_time: Some(SystemTime::UNIX_EPOCH.into()), ..Default::default() };
    assert_eq!(client.hits_over_time(since).await.unwrap().series.len(), 2);
}

#[tokio::test]
async fn events_are_selected_by_labels() {
    let fake = Fake::start(Ending::Ended);
    let client = client(fake.socket()).await;
    let selector = "team in (storage,net),!reviewed";
    let request = StreamRequest::new().label_selector("team").label_selector(selector);
    client.stream_events(request).await.unwrap();
    assert_eq!(fake.asked().selection.unwrap().label_selector, selector);
}

#[tokio::test]
async fn several_deletions_have_an_outcome_each() {
    let fake = Fake::start(Ending::Open);
    let named = |name: &str| DeleteProbeRequest { name: name.to_owned(), ..Default::default() };
    let names = ["open", "gone", "kprobes/waiting"];
    let outcomes = client(fake.socket()).await.delete_probes(names.map(named).to_vec()).await.unwrap();
    let [Ok(open), Err(gone), Ok(waiting)] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    let hits = |probe: &DeletedProbe| probe.profile.as_ref().map(|profile| profile.hits);
    assert_eq!((open.name.as_str(), hits(open)), ("kprobes/open", Some(7)));
    assert_eq!((waiting.name.as_str(), hits(waiting)), ("kprobes/waiting", None));
    assert_eq!(gone.rpc().unwrap().code, tonic::Code::NotFound);
    assert_eq!(fake.changed_at_once(), [3]);
    let alone = client(fake.socket()).await.delete_probe(named("open")).await.unwrap();
    assert_eq!(alone, open.profile);
}

#[tokio::test]
async fn verdicts_come_one_by_one() {
    let fake = Fake::start(Ending::Open);
    // Pieces may end anywhere.
    let pieces = ["p:open do_sys_", "openat2\n# no\n-:x", "\np:open do_sys_openat2+3"];
    let text = tokio_stream::iter(pieces.map(|piece| piece.as_bytes().to_vec()));
    let mut checks = client(fake.socket()).await.check_probes(text, false).await.unwrap();
    let mut seen = Vec::new();
    while let Some(checked) = checks.next().await.unwrap() {
        seen.push((checked.line, checked.definition, checked.check.unwrap().errno, checks.ready()));
    }
    let line = |text: &str| text.to_owned();
    assert_eq!(
        seen,
        [
            (1, line("p:open do_sys_openat2"), 0, 1),
            (3, line("-:x"), 0, 0),
            (4, line("p:open do_sys_openat2+3"), 84, 0)
        ]
    );
}

#[tokio::test]
async fn events_come_as_rows() {
    let fake = Fake::start(Ending::Ended);
    let client = client(fake.socket()).await;
    let mut stream = client.stream_events(StreamRequest::new()).await.unwrap();
    let mut seen = Vec::new();
    while let Some(item) = stream.next().await.unwrap() {
        match item {
            StreamItem::Started(started) => seen.push(format!("started {}", started.clock_name)),
            StreamItem::Epoch(epoch) => seen.push(format!("epoch at {}", epoch.cursor)),
            StreamItem::Schema(schema) => seen.push(format!("schema of {}", schema.probe())),
            StreamItem::Loss(loss) => seen.push(format!("lost {:?}", loss.count)),
            StreamItem::Batch(batch) => {
                seen.extend(batch.rows().map(|row| row.field("filename").unwrap().to_string()));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        seen,
        [
            "started mono",
            "epoch at b0:2:0",
            "schema of kprobes/open",
            "lost Some(12)",
            "\"/etc/passwd\"",
            "\"/tmp/\\xff\"",
            "(fault)"
        ]
    );
    assert_eq!(stream.cursor().unwrap().to_string(), "b0:2:3");
}

/// Reads a stream whose connection is cut at every message; the first event of each batch, and what
/// is missing.
async fn resumed(history: &History, request: StreamRequest) -> (Vec<u64>, Vec<u64>, u32) {
    let client = client(history.socket()).await;
    let backoff = Backoff { initial: Duration::from_millis(1), longest: Duration::from_millis(4) };
    let mut stream = ResumingStream::with_backoff(&client, request, backoff).await.unwrap();
    let (mut batches, mut missing, mut cuts) = (Vec::new(), Vec::new(), 0);
    loop {
        match stream.next().await.unwrap().unwrap() {
            ResumingItem::Interrupted(_) => cuts += 1,
            ResumingItem::Item(StreamItem::Batch(batch)) => batches.push(batch.sequence()),
            ResumingItem::Item(StreamItem::Loss(loss)) => {
                assert_eq!(loss.cause, LossCause::Expired);
                missing.push(loss.count.unwrap());
            }
            ResumingItem::Item(StreamItem::CaughtUp(cursor)) => {
                assert_eq!(stream.cursor(), Some(&cursor));
                return (batches, missing, cuts);
            }
            ResumingItem::Item(_) => {}
        }
    }
}

#[tokio::test]
async fn nothing_is_missed_and_nothing_comes_twice_when_connections_are_cut() {
    let (batches, missing, cuts) = resumed(&History::start(40, 0), StreamRequest::new().oldest()).await;
    assert_eq!(batches, (0..40).map(|entry| 3 * entry).collect::<Vec<_>>());
    assert!(missing.is_empty() && cuts >= 8, "{missing:?} {cuts}");
}

#[tokio::test]
async fn what_has_expired_is_told() {
    let cursor = "b0:2:6".parse().unwrap();
    let (batches, missing, _) = resumed(&History::start(10, 4), StreamRequest::new().after(cursor)).await;
    assert_eq!(batches, (4..10).map(|entry| 3 * entry).collect::<Vec<_>>());
    assert_eq!(missing, [6], "once, although the first connections end before it");
}

#[tokio::test]
async fn what_trying_again_does_not_mend_ends_a_stream() {
    let history = History::start(4, 0);
    let client = client(history.socket()).await;
    let error = ResumingStream::open(&client, StreamRequest::new()).await.unwrap_err();
    assert!(error.rpc().is_some(), "{error:?}");
    // A daemon that ends a stream in order is coming back, unless an end was requested.
    let fake = Fake::start(Ending::Ended);
    let client = self::client(fake.socket()).await;
    let mut stream =
        ResumingStream::open(&client, StreamRequest::new().last_events(3).until_now()).await.unwrap();
    let mut items = 0;
    while let Some(item) = stream.next().await.unwrap() {
        assert!(matches!(item, ResumingItem::Item(_)), "{item:?}");
        items += 1;
    }
    assert_eq!(items, 6);
    assert!(stream.next().await.unwrap().is_none());
}

#[tokio::test]
async fn filters_are_judged() {
    let fake = Fake::start(Ending::Open);
    let client = client(fake.socket()).await;
    let request = StreamRequest::new().probe("*/open").filter("dfd == 3");
    let stream = client.stream_events(request).await.unwrap();
    let filters = &stream.started().filters;
    assert_eq!(
        (filters.len(), filters[0].exact, filters[0].kernel_filter.as_str()),
        (1, true, "dfd == 3 && 1")
    );
}

#[tokio::test]
async fn a_missing_daemon_is_a_connect_error() {
    let target: Target = "/nonexistent/kprobed.sock".parse().unwrap();
    let error = Client::connect(target, ConnectOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }));
    assert!(error.hints()[0].contains("is the daemon running"));
}
