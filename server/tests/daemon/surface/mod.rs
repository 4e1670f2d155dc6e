//! Fuzz test of the whole API: every method of every service, over a real connection to a real server.
//!
//! Requests are made of the descriptors of the API, so that a new method is a part of it at once, and
//! mutated, the same ones in each run with the same `KPROBED_SEED`. Nothing panics; what is refused has a
//! documented reason; what is answered is a message of the method; and the server goes on.
//! `KPROBED_FUZZ_MUTATIONS` is the number of requests for each method.

mod documented;
mod limits;
pub(crate) mod raw;
mod requests;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use kprobed::config::Listen;
use kprobed_proto::v1;
use kprobed_proto::v1::access_service_client::AccessServiceClient;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};

use self::documented::Documented;
use self::raw::Raw;
use self::requests::Requests;
use crate::server::{PATIENCE, Server};

/// Requests for each method.
const REQUESTS: usize = 400;

/// Calls under way at a time: a stream without an answer takes its time.
const AT_ONCE: usize = 64;

/// How long a stream may have nothing to say.
const QUIET: Duration = Duration::from_millis(50);

fn requests() -> usize {
    std::env::var("KPROBED_FUZZ_MUTATIONS").map_or(REQUESTS, |number| number.parse().unwrap())
}

/// Sends messages, and returns the first answer. Absent: the stream ends without one, or waits.
async fn call(
    channel: &Channel,
    method: &MethodDescriptor,
    messages: Vec<Bytes>,
) -> Result<Option<Bytes>, Status> {
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let request = Request::new(tokio_stream::iter(messages));
    let mut answers =
        client.streaming(request, PathAndQuery::try_from(path).unwrap(), Raw).await?.into_inner();
    if !method.is_server_streaming() {
        return answers.message().await;
    }
    tokio::time::timeout(QUIET, answers.message()).await.unwrap_or(Ok(None))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_answers_any_request() {
    let panics = Arc::new(AtomicUsize::new(0));
    let (counted, usual) = (Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        // The thread of a history outlives the runtime of another test that ends meanwhile.
        let of_another = panic.payload_as_str().is_some_and(|text| text.ends_with("it is being shutdown."));
        if !of_another {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        usual(panic);
    }));
    let server = Server::open(Listen::default(), "").await;
    let channel = server.local().await.unwrap();
    let documented = Documented::read();
    let pool = DescriptorPool::decode(kprobed_proto::FILE_DESCRIPTOR_SET).unwrap();
    let methods: Vec<_> = pool.services().flat_map(|service| service.methods().collect::<Vec<_>>()).collect();
    assert!(methods.len() > 27, "{}", methods.len());
    let (mut answered, mut reasons) = (BTreeSet::new(), BTreeMap::<String, usize>::new());
    for method in &methods {
        let name = method.name();
        let mut made = Requests::new(name);
        let messages = |number| {
            let many = if method.is_client_streaming() { 1 + number % 3 } else { 1 };
            let next = |_| Bytes::from(made.next(&method.input(), number % 2 > 0));
            (0..many).map(next).collect::<Vec<_>>()
        };
        let asked: Vec<_> = (0..requests()).map(messages).collect();
        let calls = stream::iter(asked).map(async |messages| {
            let outcome = tokio::time::timeout(PATIENCE, call(&channel, method, messages.clone())).await;
            (outcome.unwrap_or_else(|_| panic!("{name}: no answer to {messages:?}")), messages)
        });
        let mut outcomes = pin!(calls.buffer_unordered(AT_ONCE));
        while let Some((outcome, messages)) = outcomes.next().await {
            match outcome {
                Ok(answer) => {
                    let read = DynamicMessage::decode(method.output(), answer.unwrap_or_default());
                    assert!(read.is_ok(), "{name}: {read:?} to {messages:?}");
                    answered.insert(name.to_owned());
                }
                Err(status) => {
                    let reason = documented.reason(&status);
                    let reason = reason.unwrap_or_else(|why| panic!("{name}: {why}, to {messages:?}"));
                    *reasons.entry(reason).or_default() += 1;
                }
            }
        }
        // The server goes on, on the same connection.
        let caller = AccessServiceClient::new(channel.clone()).get_caller(v1::GetCallerRequest {}).await;
        assert!(caller.is_ok(), "after {name}: {caller:?}");
        assert_eq!(panics.load(Ordering::Relaxed), 0, "{name}");
    }
    eprintln!("{} methods, {} of them with an answer; {reasons:?}", methods.len(), answered.len());
    // It is the services that are tested, and not the reader of messages.
    assert!(answered.len() > methods.len() / 3, "{answered:?}");
    assert!(reasons.len() > 12, "{reasons:?}");
}
