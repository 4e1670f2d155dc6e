//! Hosts from DNS: `srv:NAME` stands for the targets of SRV records.
//!
//! Owns the look-up: which servers are asked, how often, and what an answer means. Priorities and
//! weights are ignored, since all targets are meant. The system resolves their addresses later.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use domain::base::iana::{Rcode, Rtype};
use domain::base::name::{Name, ToName as _};
use domain::rdata::Srv;
use domain::resolv::stub::conf::{ResolvConf, ServerConf, Transport};
use domain::resolv::stub::{Answer, StubResolver};
use thiserror::Error;

/// Port of DNS servers.
const DNS_PORT: u16 = 53;

/// A name to look up, and the server to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SrvName {
    name: Name<Vec<u8>>,
    /// None: the servers of the system.
    server: Option<SocketAddr>,
}

/// Why SRV records name no hosts.
#[derive(Debug, Error)]
pub(crate) enum SrvError {
    #[error("`srv:{text}` names no SRV record: {problem}")]
    Name { text: String, problem: String },
    #[error("`{0}` is not the address of a DNS server")]
    Server(String),
    #[error("there is no name `{name}` in DNS, says {server}")]
    NoName { name: String, server: SocketAddr },
    #[error("`{name}` has no SRV records, says {server}")]
    NoRecords { name: String, server: SocketAddr },
    #[error("the SRV record of `{name}` has the target `.`, says {server}: the service is not offered there")]
    NotOffered { name: String, server: SocketAddr },
    #[error("the SRV record of `{name}` gives `{target}` the port 0, says {server}")]
    NoPort { name: String, target: String, server: SocketAddr },
    #[error("the SRV records of `{name}` are not known: no answer from {servers} within {limit:?}")]
    Timeout { name: String, servers: String, limit: Duration },
    #[error("the SRV records of `{name}` are not known: {server} answered {rcode}")]
    Refused { name: String, server: SocketAddr, rcode: String },
    #[error("the SRV records of `{name}` are not known: asking {server}: {source}")]
    NotAsked { name: String, server: SocketAddr, source: io::Error },
    #[error("the SRV records of `{name}` are not known: the answer of {server} is malformed")]
    Malformed { name: String, server: SocketAddr },
}

impl SrvError {
    /// What to do about it.
    pub(super) fn hint(&self) -> &'static str {
        match self {
            Self::Name { .. } => "write the whole name, as in `srv:_kprobed._tcp.example.org`",
            Self::Server(_) => "write it behind the name, as in `srv:NAME@10.0.0.1`, or with a port",
            Self::NoName { .. } => {
                "check the name; it must be the whole one, since the search list of the system is not used"
            }
            Self::NoRecords { .. } => {
                "check the name: that of an SRV record mostly begins with `_SERVICE._tcp`"
            }
            Self::NotOffered { .. } | Self::NoPort { .. } => {
                "add the hosts to the record, or name them in another way"
            }
            Self::Timeout { .. } | Self::Refused { .. } | Self::NotAsked { .. } | Self::Malformed { .. } => {
                "check the servers of /etc/resolv.conf, or ask another one: `srv:NAME@SERVER`"
            }
        }
    }
}

impl FromStr for SrvName {
    type Err = SrvError;

    /// Reads `NAME` or `NAME@SERVER`; the server is an address, with a port or without.
    fn from_str(text: &str) -> Result<Self, SrvError> {
        let wrong = |problem: String| SrvError::Name { text: text.to_owned(), problem };
        let (name, server) = match text.split_once('@') {
            Some((name, server)) => (name, Some(server)),
            None => (text, None),
        };
        if matches!(name, "" | ".") {
            return Err(wrong("a name is missing".to_owned()));
        }
        let parsed =
            name.parse().map_err(|error| wrong(format!("`{name}` is not a name of DNS ({error})")))?;
        let server = server.map(|text| address(text).ok_or_else(|| SrvError::Server(text.to_owned())));
        Ok(Self { name: parsed, server: server.transpose()? })
    }
}

fn address(text: &str) -> Option<SocketAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let without_port = bare.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, DNS_PORT));
    without_port.or_else(|_not_an_ip| text.parse()).ok()
}

/// These servers, with the usual limits.
fn at(servers: &[SocketAddr]) -> ResolvConf {
    let servers = servers.iter().map(|server| ServerConf::new(*server, Transport::UdpTcp)).collect();
    ResolvConf { servers, ..ResolvConf::new() }
}

impl SrvName {
    /// The hosts of the records with their ports: each once, sorted, in lower case and without a
    /// dot at the end. It takes no longer than `limit`.
    ///
    /// # Errors
    /// When there are none, or that is not known.
    pub(super) async fn look_up(&self, limit: Duration) -> Result<Vec<(String, u16)>, SrvError> {
        let conf = match self.server {
            Some(server) => at(&[server]),
            // That of the system.
            None => ResolvConf::default(),
        };
        self.look_up_by(conf, limit).await
    }

    async fn look_up_by(
        &self,
        mut conf: ResolvConf,
        limit: Duration,
    ) -> Result<Vec<(String, u16)>, SrvError> {
        conf.options.attempts = conf.options.attempts.max(1);
        let tries = conf.options.attempts.saturating_mul(conf.servers.len());
        let longest = conf.options.timeout.saturating_mul(u32::try_from(tries).unwrap_or(u32::MAX));
        let limit = limit.min(longest);
        let asked = tokio::time::timeout(limit, self.ask(&conf)).await;
        asked.ok().flatten().unwrap_or_else(|| {
            let servers: Vec<_> = conf.servers.iter().map(|server| server.addr.to_string()).collect();
            Err(SrvError::Timeout { name: self.name.to_string(), servers: servers.join(", "), limit })
        })
    }

    /// Asks one server after the other until one knows. None: none of them answered.
    async fn ask(&self, conf: &ResolvConf) -> Option<Result<Vec<(String, u16)>, SrvError>> {
        let name = || self.name.to_string();
        let mut problem = None;
        for _ in 0..conf.options.attempts {
            for server in &conf.servers {
                let one = ResolvConf { servers: vec![server.clone()], options: conf.options.clone() };
                let server = server.addr;
                match StubResolver::from_conf(one).query((&self.name, Rtype::SRV)).await {
                    Ok(answer) => match answer.header().rcode() {
                        Rcode::NOERROR => return Some(self.hosts(&answer, server)),
                        Rcode::NXDOMAIN => return Some(Err(SrvError::NoName { name: name(), server })),
                        rcode => {
                            let rcode = rcode.to_string();
                            problem = Some(SrvError::Refused { name: name(), server, rcode });
                        }
                    },
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                    Err(source) => problem = Some(SrvError::NotAsked { name: name(), server, source }),
                }
            }
        }
        problem.map(Err)
    }

    /// What an answer means.
    fn hosts(&self, answer: &Answer, server: SocketAddr) -> Result<Vec<(String, u16)>, SrvError> {
        let name = || self.name.to_string();
        let malformed = || SrvError::Malformed { name: name(), server };
        let owner = answer.canonical_name().ok_or_else(malformed)?;
        let records = answer.answer().map_err(|_cut_off| malformed())?;
        let (mut hosts, mut is_offered) = (BTreeSet::new(), true);
        for record in records.limit_to_in::<Srv<_>>() {
            let record = record.map_err(|_cut_off| malformed())?;
            if !record.owner().name_eq(&owner) {
                continue;
            }
            let target = record.data().target();
            if target.is_root() {
                is_offered = false;
                continue;
            }
            let target = target.to_string().to_ascii_lowercase();
            let target = target.strip_suffix('.').unwrap_or(&target).to_owned();
            let port = record.data().port();
            if port == 0 {
                return Err(SrvError::NoPort { name: name(), target, server });
            }
            hosts.insert((target, port));
        }
        match (hosts.is_empty(), is_offered) {
            (false, _) => Ok(hosts.into_iter().collect()),
            (true, true) => Err(SrvError::NoRecords { name: name(), server }),
            (true, false) => Err(SrvError::NotOffered { name: name(), server }),
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::base::{Message, MessageBuilder};
    use tokio::net::UdpSocket;
    use tokio::task::JoinSet;

    use super::*;

    /// A server in a task that gives every name one target, or this error.
    async fn server(tasks: &mut JoinSet<()>, rcode: Rcode) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tasks.spawn(async move {
            let mut query = [0; 512];
            loop {
                let (length, from) = socket.recv_from(&mut query).await.unwrap();
                let query = Message::from_octets(&query[..length]).unwrap();
                let name = query.sole_question().unwrap().into_qname();
                let mut answer = MessageBuilder::new_vec().start_answer(&query, rcode).unwrap();
                let target: Name<Vec<u8>> = "web1.test".parse().unwrap();
                if rcode == Rcode::NOERROR {
                    answer.push((name, 60, Srv::new(0, 0, 7443, target))).unwrap();
                }
                socket.send_to(&answer.finish(), from).await.unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn the_next_server_is_asked_when_one_does_not_know() {
        let mut tasks = JoinSet::new();
        let failing = server(&mut tasks, Rcode::SERVFAIL).await;
        let knowing = server(&mut tasks, Rcode::NOERROR).await;
        // Its port is bound, and never read.
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let name: SrvName = "_kprobed._tcp.test".parse().unwrap();
        let limit = Duration::from_secs(20);
        let ask = |servers: &[SocketAddr]| {
            let mut conf = at(servers);
            conf.options.timeout = Duration::from_millis(200);
            name.look_up_by(conf, limit)
        };
        let silent = silent.local_addr().unwrap();
        for first in [failing, silent, gone] {
            assert_eq!(ask(&[first, knowing]).await.unwrap(), [("web1.test".to_owned(), 7443)]);
        }
        assert!(matches!(ask(&[failing, silent]).await, Err(SrvError::Refused { .. })));
        for server in [silent, gone] {
            let Err(SrvError::Timeout { limit, .. }) = ask(&[server]).await else { panic!() };
            assert_eq!(limit, Duration::from_millis(400), "two tries");
        }
    }

    #[test]
    fn names_and_servers() {
        let read = |text: &str| {
            let SrvName { name, server } = text.parse().unwrap();
            (name.to_string(), server.map(|server| server.to_string()))
        };
        let of = |name: &str, server: Option<&str>| (name.to_owned(), server.map(ToOwned::to_owned));
        assert_eq!(read("_kprobed._tcp.example.org"), of("_kprobed._tcp.example.org", None));
        assert_eq!(read("kprobed.service.consul."), of("kprobed.service.consul", None));
        assert_eq!(read("a.b@10.0.0.1"), of("a.b", Some("10.0.0.1:53")));
        assert_eq!(read("a.b@127.0.0.1:8600"), of("a.b", Some("127.0.0.1:8600")));
        for server in ["::1", "[::1]"] {
            assert_eq!(read(&format!("a.b@{server}")), of("a.b", Some("[::1]:53")));
        }
        assert_eq!(read("a.b@[::1]:8600"), of("a.b", Some("[::1]:8600")));
        for wrong in ["", ".", "@10.0.0.1", "a..b", &"a".repeat(64), &"abcdefg.".repeat(40)] {
            assert!(matches!(wrong.parse::<SrvName>(), Err(SrvError::Name { .. })), "{wrong}");
        }
        for wrong in ["a.b@", "a.b@dns.example.org", "a.b@10.0.0.1:", "a.b@10.0.0.1:x"] {
            assert!(matches!(wrong.parse::<SrvName>(), Err(SrvError::Server(_))), "{wrong}");
        }
    }
}
