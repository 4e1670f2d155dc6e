//! Tests of the library's calls for aggregations.

use std::time::Duration;

use kprobed_client::api::aggregation_spec::Aggregation as Kind;
use kprobed_client::api::stream_aggregation_request::Source;
use kprobed_client::api::{AggregationSpec, HistogramSpec};

use super::{Ending, Fake, client, counted};

// Dropping a stream tells the daemon while this thread waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_library_counts() {
    let fake = Fake::start(Ending::Open);
    let client = client(fake.socket()).await;
    let spec = || {
        let spec = HistogramSpec { probe: "open".to_owned(), ..Default::default() };
        AggregationSpec { aggregation: Some(Kind::Histogram(spec)) }
    };
    let made = client.create_aggregation("mine", spec(), Some(Duration::from_mins(1))).await.unwrap();
    assert_eq!((made.name.as_str(), made.bound_to_stream), ("mine", false));
    let error = client.create_aggregation("opens", spec(), None).await.unwrap_err();
    assert_eq!(error.rpc().unwrap().code, tonic::Code::AlreadyExists);
    let names: Vec<_> = client.list_aggregations().await.unwrap().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["opens", "reads"]);
    let (reads, snapshot) = client.read_aggregation("reads").await.unwrap();
    assert_eq!((reads.keys.len(), snapshot.hits), (2, 8));
    assert_eq!(client.delete_aggregation("opens").await.unwrap().unwrap().hits, 32);
    let interval = Duration::from_millis(100);
    let mut stream = client.stream_aggregation(Source::Spec(spec()), interval, true).await.unwrap();
    assert!(stream.aggregation().bound_to_stream);
    assert!(!stream.next().await.unwrap().unwrap().delta);
    assert!(stream.next().await.unwrap().unwrap().delta);
    drop(stream);
    assert_eq!(counted(&fake, "the stream ended").last().unwrap(), "the stream ended");
}
