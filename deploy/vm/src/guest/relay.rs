//! `kprobed-guest relay FROM TO`: forwards TCP connections from the guest's network address to a
//! port of its loopback.
//!
//! The daemon listens only on loopback, as it should; QEMU forwards only to the network address.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

/// Relays until that is no longer possible, and returns why.
pub(crate) fn serve(from: &str, to: &str) -> String {
    let listener = match TcpListener::bind(from) {
        Ok(listener) => listener,
        Err(error) => return format!("cannot listen on {from}: {error}"),
    };
    loop {
        match listener.accept() {
            Ok((outside, _)) => {
                let to = to.to_owned();
                thread::spawn(move || connection(&outside, &to));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return format!("cannot accept: {error}"),
        }
    }
}

fn connection(outside: &TcpStream, to: &str) {
    // No program listens there (yet): closing the connection reports that to the peer.
    let Ok(inside) = TcpStream::connect(to) else { return };
    for stream in [outside, &inside] {
        drop(stream.set_nodelay(true));
    }
    thread::scope(|scope| {
        scope.spawn(|| carry(outside, &inside));
        carry(&inside, outside);
    });
}

/// One direction, to its end. An error is an end too: the sides notice by themselves.
fn carry(mut from: &TcpStream, mut to: &TcpStream) {
    drop(io::copy(&mut from, &mut to));
    drop(to.shutdown(Shutdown::Write));
}
