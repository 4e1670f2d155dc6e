//! How a stream of events begins, and its form as rows.

use kprobed::config::Listen;
use kprobed_proto::v1;
use kprobed_proto::v1::event_service_client::EventServiceClient;
use kprobed_proto::v1::stream_events_response::Message;
use tonic::Streaming;

use crate::attacks::events;
use crate::server::{PATIENCE, PROBE, Server};

/// Begins a stream of this form with a filter.
async fn stream(server: &Server, filter: &str, form: v1::EventForm) -> Streaming<v1::StreamEventsResponse> {
    let selection = v1::EventSelection { filter: filter.to_owned(), ..Default::default() };
    let request =
        v1::StreamEventsRequest { selection: Some(selection), form: form.into(), ..Default::default() };
    let mut events = EventServiceClient::new(server.local().await.unwrap());
    events.stream_events(request).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<v1::StreamEventsResponse>) -> Message {
    let message = tokio::time::timeout(PATIENCE, stream.message()).await.unwrap().unwrap();
    message.and_then(|message| message.message).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_begins_with_what_its_filter_means() {
    let server = Server::open(Listen::default(), "").await;
    let of_filter = async |filter: &str| {
        let mut stream = stream(&server, filter, v1::EventForm::Columns).await;
        let Message::Started(started) = next(&mut stream).await else { panic!("the first message") };
        started.filters
    };
    assert!(of_filter("").await.is_empty());
    // What the kernel can do, and what it can do in part.
    for (filter, kernel_filter, exact) in [
        ("pid == 5", "common_pid == 5", true),
        // A register, which is always read.
        ("large == 5 && host == \"here\"", "large == 5", true),
        ("large == 5 || tgid == 3", "", false),
        // The name at the hit, and not the one that is known later.
        ("comm ~ \"ssh*\" && tgid == 3", "COMM ~ \"ssh*\"", false),
    ] {
        let filters = of_filter(filter).await;
        let [found] = filters.as_slice() else { panic!("{filters:?}") };
        assert_eq!((found.probe.as_str(), found.exact), (PROBE, exact), "{filter}: {found:?}");
        assert_eq!(found.kernel_filter, kernel_filter, "{filter}");
        assert!(found.problem.is_none(), "{found:?}");
    }
}

/// More events than one message of rows has.
const EVENTS: u64 = 1300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_come_in_small_messages_and_the_last_one_of_a_batch_moves_the_cursor() {
    let server = Server::open(Listen::default(), "").await;
    let mut stream = stream(&server, "", v1::EventForm::Rows).await;
    assert!(matches!(next(&mut stream).await, Message::Started(_)));
    events::publish_batch(&server.hub, &events::source(), 0..EVENTS);
    let (mut times, mut messages) = (Vec::new(), Vec::new());
    while (times.len() as u64) < EVENTS {
        match next(&mut stream).await {
            Message::Rows(v1::EventRows { events, cursor }) => {
                messages.push((events.len(), cursor.map(|cursor| cursor.sequence)));
                assert!(events.iter().all(|row| row.probe == PROBE && row.fields[0].name == "large"));
                times.extend(events.iter().map(|row| row.timestamp_ns));
            }
            Message::Epoch(_) | Message::CaughtUp(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(times, (0..EVENTS).collect::<Vec<_>>());
    assert_eq!(messages, [(512, None), (512, None), (276, Some(EVENTS))]);
}
