//! Test of the places of answers: who is slow keeps none.

use kprobed::config::Listen;
use kprobed_proto::v1::GetCallerRequest;
use kprobed_proto::v1::access_service_client::AccessServiceClient;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use crate::attacks::http2;
use crate::server::{PATIENCE, Server};

/// More calls than there are places, of the same peer, whose requests never come.
#[tokio::test(flavor = "multi_thread")]
async fn calls_without_a_request_keep_no_place() {
    let server = Server::open(Listen { request_timeout_s: 600, ..Listen::default() }, "").await;
    let mut socket = UnixStream::connect(server.socket()).await.unwrap();
    socket.write_all(&http2::hello()).await.unwrap();
    for call in 0..30 {
        let path = "/kprobed.v1.AccessService/GetCaller";
        socket.write_all(&http2::call(1 + 2 * call, path)).await.unwrap();
    }
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let mut client = AccessServiceClient::new(server.local().await.unwrap());
    let answer = tokio::time::timeout(PATIENCE, client.get_caller(GetCallerRequest {})).await;
    assert!(!answer.expect("the call waits for a place").unwrap().into_inner().principal.is_empty());
}
