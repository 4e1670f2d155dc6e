//! Test of the places of answers: who is slow keeps none.

use kprobed::config::Listen;
use kprobed_proto::v1::GetCallerRequest;
use kprobed_proto::v1::access_service_client::AccessServiceClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::attacks::http2;
use crate::server::{PATIENCE, Server};

/// The kind of a frame that its receiver sends back (RFC 9113, 6.7).
const PING: u8 = 6;

/// Reads frames until the answer to a ping.
async fn pong(socket: &mut UnixStream) {
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let [high, middle, low, kind, flags, ..] = head;
        let length = u32::from_be_bytes([0, high, middle, low]);
        socket.read_exact(&mut vec![0; length as usize]).await.unwrap();
        if (kind, flags) == (PING, 1) {
            return;
        }
    }
}

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
    // The daemon has read what stands before it when it answers.
    socket.write_all(&http2::frame(PING, 0, 0, b"answer!!")).await.unwrap();
    tokio::time::timeout(PATIENCE, pong(&mut socket)).await.expect("the daemon reads the calls");
    let mut client = AccessServiceClient::new(server.local().await.unwrap());
    let answer = tokio::time::timeout(PATIENCE, client.get_caller(GetCallerRequest {})).await;
    assert!(!answer.expect("the call waits for a place").unwrap().into_inner().principal.is_empty());
}
