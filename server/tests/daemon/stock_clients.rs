//! Test of what gRPC clients of other libraries send on the unix socket.

use kprobed::config::Listen;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::attacks::http2;
use crate::server::{PATIENCE, Server};

const CALL: &str = "/kprobed.v1.AccessService/GetCaller";

/// What the server says first to a call that names this authority: the kind of the frame, and its payload.
async fn answer(server: &Server, authority: &str) -> (u8, Vec<u8>) {
    let mut socket = UnixStream::connect(server.socket()).await.unwrap();
    let call = [http2::hello(), http2::call_to(1, CALL, authority), http2::message(1, &[])].concat();
    socket.write_all(&call).await.unwrap();
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let [a, b, c, kind, _flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        socket.read_exact(&mut payload).await.unwrap();
        if stream == [0, 0, 0, 1] {
            return (kind, payload);
        }
    }
}

/// A client that makes the `:authority` of a call of the path of the socket sends one that is none, and HTTP/2
/// refuses the call before the daemon sees it. The page says which option helps; clients in Go and Rust send
/// `localhost` by themselves.
#[tokio::test(flavor = "multi_thread")]
async fn the_path_of_a_socket_is_no_authority() {
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];
    let server = Server::open(Listen::default(), "").await;
    let ask =
        async |authority: &str| tokio::time::timeout(PATIENCE, answer(&server, authority)).await.unwrap();
    let refused = ask("run%2Fkprobed%2Fkprobed.sock").await;
    assert_eq!(refused, (RST_STREAM, PROTOCOL_ERROR.to_vec()));
    assert_eq!(ask("localhost").await.0, HEADERS);
    let page = include_str!("../../../proto/README.md");
    for option in ["grpc.default_authority", "GRPC_ARG_DEFAULT_AUTHORITY", "PROTOCOL_ERROR"] {
        assert!(page.contains(option), "proto/README.md does not say `{option}`");
    }
}
