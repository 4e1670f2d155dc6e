//! Fake DNS server with SRV records.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

/// What is said of a name. Others do not exist.
pub(crate) enum Says {
    /// Targets with their ports. More than a few come over TCP only.
    Targets(Vec<(String, u16)>),
    /// An error of the server: 2 is SERVFAIL, 5 is REFUSED.
    Code(u8),
    /// Nothing at all.
    Nothing,
    /// Half of an answer.
    Half,
}

/// So many targets fit into a datagram.
const TARGETS_IN_A_DATAGRAM: usize = 10;

const SRV: u16 = 33;
const NO_SUCH_NAME: u8 = 3;

/// A server in two threads, which live until the process ends.
pub(crate) struct Dns(SocketAddr);

impl Dns {
    pub(crate) fn start(zone: impl IntoIterator<Item = (&'static str, Says)>) -> Self {
        let zone: HashMap<String, Says> =
            zone.into_iter().map(|(name, says)| (name.to_owned(), says)).collect();
        let zone = Arc::new(zone);
        // The same port for both.
        let (listener, socket) = loop {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()) {
                break (listener, socket);
            }
        };
        let address = listener.local_addr().unwrap();
        let of_stream = Arc::clone(&zone);
        std::thread::spawn(move || {
            let mut query = [0; 512];
            loop {
                let (length, from) = socket.recv_from(&mut query).unwrap();
                if let Some(answer) = answer(&query[..length], &zone, true) {
                    socket.send_to(&answer, from).unwrap();
                }
            }
        });
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut length = [0; 2];
                while stream.read_exact(&mut length).is_ok() {
                    let mut query = vec![0; u16::from_be_bytes(length).into()];
                    stream.read_exact(&mut query).unwrap();
                    if let Some(answer) = answer(&query, &of_stream, false) {
                        let length = u16::try_from(answer.len()).unwrap();
                        stream.write_all(&[&length.to_be_bytes(), answer.as_slice()].concat()).unwrap();
                    }
                }
            }
        });
        Self(address)
    }

    /// The term of `--hosts` for a name of this server.
    pub(crate) fn term(&self, name: &str) -> String {
        format!("srv:{name}@{}", self.0)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0
    }
}

/// The question of a query, and the name in it.
fn question(query: &[u8]) -> (&[u8], String) {
    let (mut at, mut labels) = (12, Vec::new());
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8(query[at + 1..end].to_vec()).unwrap());
        at = end;
    }
    (&query[12..at + 5], labels.join("."))
}

fn answer(query: &[u8], zone: &HashMap<String, Says>, is_datagram: bool) -> Option<Vec<u8>> {
    let (question, name) = question(query);
    let no_targets = Vec::new();
    let (code, targets) = match zone.get(&name) {
        None => (NO_SUCH_NAME, &no_targets),
        Some(Says::Targets(targets)) => (0, targets),
        Some(Says::Code(code)) => (*code, &no_targets),
        Some(Says::Nothing) => return None,
        Some(Says::Half) => (0, &no_targets),
    };
    let is_cut = is_datagram && targets.len() > TARGETS_IN_A_DATAGRAM;
    let targets = if is_cut { &no_targets } else { targets };
    let count = match zone.get(&name) {
        Some(Says::Half) => 1,
        _ => u16::try_from(targets.len()).unwrap(),
    };
    // A response that is authoritative, with recursion wanted and there.
    let flags = [0x85 | u8::from(is_cut) << 1, 0x80 | code];
    let mut answer = [&query[..2], &flags, &1_u16.to_be_bytes(), &count.to_be_bytes(), &[0; 4]].concat();
    answer.extend_from_slice(question);
    for (target, port) in targets {
        let mut data = [[0, 1], [0, 10], port.to_be_bytes()].concat();
        for label in target.split('.').filter(|label| !label.is_empty()) {
            data.push(u8::try_from(label.len()).unwrap());
            data.extend_from_slice(label.as_bytes());
        }
        data.push(0);
        // The name of the question, the type, the class, a minute, and the data.
        answer.extend_from_slice(&[0xc0, 12]);
        answer.extend_from_slice(&SRV.to_be_bytes());
        answer.extend_from_slice(&[0, 1, 0, 0, 0, 60]);
        answer.extend_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
        answer.extend_from_slice(&data);
    }
    Some(answer)
}
