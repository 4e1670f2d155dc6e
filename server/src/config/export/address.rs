//! Destinations of exporters: `HOST:PORT`, URLs of servers, and files, pipes and sockets for JSON Lines.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkAddress {
    /// Name or address; IPv6 addresses without brackets.
    pub host: String,
    /// Port, never 0.
    pub port: u16,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonLinesTarget {
    /// A file, or a pipe that exists.
    File(PathBuf),
    /// A unix socket, of a stream or of datagrams.
    Unix(PathBuf),
    /// Standard output.
    Stdout,
}

/// A server: `SCHEME://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    scheme: &'static str,
    /// Whether it speaks TLS.
    pub is_tls: bool,
    /// Where it listens.
    pub address: NetworkAddress,
}

/// The scheme of servers of a kind without TLS, and that with TLS.
pub type Schemes = [&'static str; 2];

/// A receiver of OTLP over gRPC.
pub const OTLP: Schemes = ["http", "https"];

/// A server of NATS.
pub const NATS: Schemes = ["nats", "tls"];

const NO_PORT: &str = "it has no port from 1 to 65535";

impl FromStr for NetworkAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = text.rsplit_once(':').ok_or(NO_PORT)?;
        let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| is_port && *port != 0).ok_or(NO_PORT)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let good = match bracketed {
            Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)),
        };
        if !good {
            return Err("it has no host".to_owned());
        }
        Ok(Self { host: bracketed.unwrap_or(host).to_owned(), port })
    }
}

impl fmt::Display for NetworkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl ServerUrl {
    /// Reads one with one of these schemes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str, schemes: Schemes) -> Result<Self, String> {
        let [plain, tls] = schemes;
        let unknown = || format!("it is neither `{plain}://HOST:PORT` nor `{tls}://HOST:PORT`");
        let (scheme, rest) = text.split_once("://").ok_or_else(unknown)?;
        let scheme = [plain, tls].into_iter().find(|known| *known == scheme).ok_or_else(unknown)?;
        let address = rest.strip_suffix('/').unwrap_or(rest).parse()?;
        Ok(Self { scheme, is_tls: scheme == tls, address })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.address)
    }
}

impl FromStr for JsonLinesTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = |path: &str| {
            let good = path.starts_with('/') && !path.contains('\0');
            if good { Ok(PathBuf::from(path)) } else { Err("its path is not absolute".to_owned()) }
        };
        if let Some(rest) = text.strip_prefix("unix:") {
            return path(rest).map(Self::Unix);
        }
        if text == "-" {
            return Ok(Self::Stdout);
        }
        if text.starts_with('/') {
            return path(text).map(Self::File);
        }
        Err("it is neither an absolute path, nor `-`, nor `unix:PATH`".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNKNOWN_FORM: &str = "it is neither an absolute path, nor `-`, nor `unix:PATH`";
    const RELATIVE_PATH: &str = "its path is not absolute";
    const NO_HOST: &str = "it has no host";

    impl fmt::Display for JsonLinesTarget {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Self::File(path) => write!(f, "{}", path.display()),
                Self::Unix(path) => write!(f, "unix:{}", path.display()),
                Self::Stdout => f.write_str("-"),
            }
        }
    }

    #[test]
    fn every_form_is_read_as_it_is_written() {
        for text in ["/var/log/events.jsonl", "unix:/run/x.sock", "-"] {
            let target: JsonLinesTarget = text.parse().unwrap();
            assert_eq!(target.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_destination_says_why() {
        let why = |text: &str| text.parse::<JsonLinesTarget>().unwrap_err();
        for (text, expected) in [
            ("", UNKNOWN_FORM),
            ("events.jsonl", UNKNOWN_FORM),
            ("udp://host:1", UNKNOWN_FORM),
            ("tcp://host:1", UNKNOWN_FORM),
            ("unix:x.sock", RELATIVE_PATH),
            ("/var/\0", RELATIVE_PATH),
        ] {
            assert_eq!(why(text), expected, "{text}");
        }
    }

    #[test]
    fn endpoints_are_read_as_they_are_written() {
        let parse = |text: &str| ServerUrl::parse(text, OTLP);
        for text in ["http://127.0.0.1:4317", "https://otel.example:4317", "https://[::1]:1"] {
            let endpoint = parse(text).unwrap();
            assert_eq!((endpoint.to_string(), endpoint.is_tls), (text.to_owned(), text.starts_with("https")));
        }
        assert_eq!(parse("http://localhost:4317/").unwrap().to_string(), "http://localhost:4317");
        for (text, expected) in [
            ("localhost:4317", "it is neither `http://HOST:PORT` nor `https://HOST:PORT`"),
            ("grpc://localhost:4317", "it is neither `http://HOST:PORT` nor `https://HOST:PORT`"),
            ("http://localhost", NO_PORT),
            ("http://localhost:0", NO_PORT),
            ("http://localhost:+1", NO_PORT),
            ("http://localhost:65536", NO_PORT),
            ("http://localhost:4317/v1/logs", NO_PORT),
            ("http://:4317", NO_HOST),
            ("http://a b:4317", NO_HOST),
            ("http://::1:80", NO_HOST),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected, "{text}");
        }
    }

    #[test]
    fn servers_are_read_as_they_are_written() {
        let parse = |text: &str| ServerUrl::parse(text, NATS);
        for text in ["nats://127.0.0.1:4222", "tls://nats.example:4222", "nats://[::1]:4222"] {
            let server = parse(text).unwrap();
            assert_eq!((server.to_string(), server.is_tls), (text.to_owned(), text.starts_with("tls")));
        }
        for (text, expected) in [
            ("localhost:4222", "it is neither `nats://HOST:PORT` nor `tls://HOST:PORT`"),
            ("http://localhost:4222", "it is neither `nats://HOST:PORT` nor `tls://HOST:PORT`"),
            ("nats://localhost", NO_PORT),
            ("nats://user:word@host:4222", NO_HOST),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
        #[test]
        fn no_text_can_panic(
            text in ".{0,40}",
            nats in "[natsl:/@\\[\\]0-9a-z.]{0,40}",
            host in "[a-z.-]{1,12}",
            port in 1..=u16::MAX,
        ) {
            if let Ok(target) = text.parse::<JsonLinesTarget>() {
                prop_assert_eq!(target.to_string().parse(), Ok(target));
            }
            if let Ok(endpoint) = ServerUrl::parse(&text, OTLP) {
                prop_assert_eq!(ServerUrl::parse(&endpoint.to_string(), OTLP), Ok(endpoint));
            }
            if let Ok(server) = ServerUrl::parse(&nats, NATS) {
                prop_assert_eq!(ServerUrl::parse(&server.to_string(), NATS), Ok(server));
            }
            let address = NetworkAddress { host, port };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}
