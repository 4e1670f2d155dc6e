//! The attacks: each goes on until its token is cancelled.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use kprobed_proto::v1;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio_util::sync::CancellationToken;

use super::events;
use super::http2;
use crate::server::Server;

const GET_CALLER: &str = "/kprobed.v1.AccessService/GetCaller";

/// Connections that work at an attack at the same time.
const WORKERS: usize = 8;

/// What ends an attack.
pub(crate) type Stop = CancellationToken;

/// Opens connections and says nothing on any of them.
pub(crate) async fn silence(server: Arc<Server>, stop: Stop) -> String {
    let wanted = super::CONNECTIONS.min(super::descriptors() / 2);
    let mut held = Vec::new();
    while held.len() < wanted && !stop.is_cancelled() {
        match UnixStream::connect(server.socket()).await {
            Ok(socket) => held.push(socket),
            // The backlog of the socket is full.
            Err(_) => tokio::task::yield_now().await,
        }
    }
    stop.cancelled().await;
    format!("{} connections", held.len())
}

/// Repeats something on some connections, each of which is made anew when the daemon closes it.
async fn repeated(
    server: &Arc<Server>,
    stop: &Stop,
    once: impl AsyncFn(&mut UnixStream, usize) -> u64 + Copy,
) -> u64 {
    let worker = async |worker: usize| {
        let mut done = 0;
        while !stop.is_cancelled() {
            let Ok(mut socket) = UnixStream::connect(server.socket()).await else {
                tokio::task::yield_now().await;
                continue;
            };
            if let Some(more) = stop.run_until_cancelled(once(&mut socket, worker)).await {
                done += more;
            }
        }
        done
    };
    futures_util::future::join_all((0..WORKERS).map(worker)).await.into_iter().sum()
}

/// Sends bytes, and reads until the daemon closes the connection, which it may do at any byte.
async fn say(socket: &mut UnixStream, bytes: &[u8]) {
    let (mut from, mut to) = socket.split();
    let mut answer = Vec::new();
    let _closed = tokio::join!(to.write_all(bytes), from.read_to_end(&mut answer));
}

/// Sends frames that are none.
pub(crate) async fn garbage(server: Arc<Server>, stop: Stop) -> String {
    let once = async |socket: &mut UnixStream, worker: usize| {
        let byte = |at: usize| u8::try_from((at * 31 + worker * 7) % 251).unwrap();
        let noise: Vec<u8> = (0..16 << 10).map(byte).collect();
        say(socket, &[http2::hello(), noise].concat()).await;
        1
    };
    format!("{} connections", repeated(&server, &stop, once).await)
}

/// Sends headers without end.
pub(crate) async fn headers(server: Arc<Server>, stop: Stop) -> String {
    let once = async |socket: &mut UnixStream, _worker: usize| {
        say(socket, &[http2::hello(), http2::huge_call(1, GET_CALLER, 256)].concat()).await;
        1
    };
    format!(
        "{} connections, each with a call that has 2 MiB of headers",
        repeated(&server, &stop, once).await
    )
}

/// Begins calls and takes each back at once.
pub(crate) async fn resets(server: Arc<Server>, stop: Stop) -> String {
    let once = async |socket: &mut UnixStream, _worker: usize| {
        let (mut from, mut to) = socket.split();
        let send = async {
            let mut sent = 0;
            let _closed = to.write_all(&http2::hello()).await;
            // The daemon closes the connection at some time.
            for stream in (1..200_000).step_by(2) {
                let both = [http2::call(stream, GET_CALLER), http2::reset(stream)].concat();
                if to.write_all(&both).await.is_err() {
                    break;
                }
                sent += 1;
            }
            sent
        };
        let read = async {
            let mut unread = vec![0; 64 << 10];
            while let Ok(1..) = from.read(&mut unread).await {}
        };
        let (sent, ()) = tokio::join!(send, read);
        sent
    };
    format!("{} resets", repeated(&server, &stop, once).await)
}

/// Asks for long answers, and for events, and reads nothing.
pub(crate) async fn deafness(server: Arc<Server>, stop: Stop) -> String {
    let functions = v1::ListFunctionsRequest { page_size: 1000, ..Default::default() }.encode_to_vec();
    let mut held = Vec::new();
    for connection in 0..WORKERS * 4 {
        let Ok(mut socket) = UnixStream::connect(server.socket()).await else { continue };
        let (path, message) = if connection % 2 == 0 {
            ("/kprobed.v1.KernelService/ListFunctions", functions.as_slice())
        } else {
            ("/kprobed.v1.EventService/StreamEvents", &[][..])
        };
        let calls = if connection % 2 == 0 { server.listen.max_calls_per_connection } else { 1 };
        let mut all = http2::hello_without_window();
        for call in 0..calls {
            let stream = 2 * call + 1;
            all.extend(http2::call(stream, path));
            all.extend(http2::message(stream, message));
        }
        if socket.write_all(&all).await.is_ok() {
            held.push(socket);
        }
    }
    let published = events::publish(&server.hub, &stop).await;
    stop.cancelled().await;
    format!("{} connections, {} MiB of events", held.len(), published >> 20)
}

/// Begins handshakes of TLS, and goes on with one byte at a time.
pub(crate) async fn handshakes(server: Arc<Server>, stop: Stop) -> String {
    let mut held: Vec<TcpStream> = Vec::new();
    // Another address than the neighbour's.
    for _ in 0..super::CONNECTIONS / 10 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.3:0".parse().unwrap()).unwrap();
        if let Some(Ok(stream)) = stop.run_until_cancelled(socket.connect(server.tcp)).await {
            held.push(stream);
        }
    }
    // A record of a handshake that has 16 KiB (RFC 8446, section 5.1).
    let record = [[0x16, 3, 1, 0x40, 0].as_slice(), &[1; 16 << 10]].concat();
    let (begun, mut sent) = (held.len(), 0_usize);
    while !stop.is_cancelled() {
        let byte = &record[sent % record.len()..][..1];
        // Until the daemon closes it.
        held.retain(|stream| match stream.try_write(byte) {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        });
        sent += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    format!("{begun} handshakes of {sent} bytes, {} of them closed by the daemon", begun - held.len())
}
