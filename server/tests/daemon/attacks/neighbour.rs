//! A client that asks for cheap answers, one after the other, and how long it waits.

use std::fs;
use std::io::{Read as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use kprobed_proto::v1;
use kprobed_proto::v1::probe_service_client::ProbeServiceClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tonic::transport::Channel;

use crate::server::{PATIENCE, Server};

/// How long calls took, and what else was seen meanwhile.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Of a hundred calls, one took longer.
    pub(crate) p99: Duration,
    /// The same of a byte to another thread and back, which no server delays: what the machine adds.
    pub(crate) echo_p99: Duration,
    /// The most memory of this process, in bytes.
    pub(crate) resident: u64,
}

/// The neighbour, on a connection of its own.
pub(crate) struct Neighbour {
    client: ProbeServiceClient<Channel>,
    echo: UnixStream,
}

impl Neighbour {
    pub(crate) async fn new(server: &Server) -> Self {
        let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        // It ends with the other end.
        thread::spawn(move || {
            let mut byte = [0];
            while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
        });
        let client = ProbeServiceClient::new(server.remote().await);
        Self { client, echo: UnixStream::from_std(near).unwrap() }
    }

    /// Asks for so many checks, one after the other, and for as many more as the time is long.
    pub(crate) async fn measure(&mut self, calls: usize, time: Duration) -> Measured {
        let (mut took, mut echoed, mut resident) = (Vec::new(), Vec::new(), 0);
        let first = Instant::now();
        while took.len() < calls || first.elapsed() < time {
            let begun = Instant::now();
            let request =
                v1::CheckProbeRequest { definition: "p:x vfs_read a=%di".to_owned(), ..Default::default() };
            let answer = tokio::time::timeout(PATIENCE, self.client.check_probe(request)).await;
            assert_eq!(answer.unwrap().unwrap().into_inner().verdict(), v1::Verdict::Accepted);
            took.push(begun.elapsed());
            let begun = Instant::now();
            self.echo.write_all(b"x").await.unwrap();
            self.echo.read_exact(&mut [0]).await.unwrap();
            echoed.push(begun.elapsed());
            resident = resident.max(resident_bytes());
        }
        Measured { p99: p99(took), echo_p99: p99(echoed), resident }
    }
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() - 1 - times.len() / 100]
}

/// Memory of this process now (proc(5), `statm`).
pub(crate) fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * u64::try_from(nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).unwrap().unwrap()).unwrap()
}
