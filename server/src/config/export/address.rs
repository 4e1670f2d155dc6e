//! Destinations of exporters: `HOST:PORT`, URLs of servers, and files, pipes and sockets for JSON Lines.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

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

/// Error of parsing a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// It has none of the known prefixes.
    #[error("it is neither an absolute path, nor `-`, nor `unix:PATH`")]
    UnknownForm,
    /// It has neither of the two schemes.
    #[error("it is neither `{}://HOST:PORT` nor `{}://HOST:PORT`", .0[0], .0[1])]
    UnknownScheme(Schemes),
    /// A path that is relative or has a NUL.
    #[error("its path is not absolute")]
    RelativePath,
    /// No port from 1 to 65535.
    #[error("it has no port from 1 to 65535")]
    NoPort,
    /// No host, or something that cannot be one.
    #[error("it has no host")]
    NoHost,
}

impl FromStr for NetworkAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, port) = text.rsplit_once(':').ok_or(AddressError::NoPort)?;
        let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| is_port && *port != 0).ok_or(AddressError::NoPort)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let good = match bracketed {
            Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)),
        };
        if !good {
            return Err(AddressError::NoHost);
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
    /// See [`AddressError`].
    pub fn parse(text: &str, schemes: Schemes) -> Result<Self, AddressError> {
        let unknown = AddressError::UnknownScheme(schemes);
        let (scheme, rest) = text.split_once("://").ok_or(unknown)?;
        let [plain, tls] = schemes;
        let scheme = [plain, tls].into_iter().find(|known| *known == scheme).ok_or(unknown)?;
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
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let path = |path: &str| {
            let good = path.starts_with('/') && !path.contains('\0');
            if good { Ok(PathBuf::from(path)) } else { Err(AddressError::RelativePath) }
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
        Err(AddressError::UnknownForm)
    }
}

impl fmt::Display for JsonLinesTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Stdout => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            ("", AddressError::UnknownForm),
            ("events.jsonl", AddressError::UnknownForm),
            ("udp://host:1", AddressError::UnknownForm),
            ("tcp://host:1", AddressError::UnknownForm),
            ("unix:x.sock", AddressError::RelativePath),
            ("/var/\0", AddressError::RelativePath),
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
            ("localhost:4317", AddressError::UnknownScheme(OTLP)),
            ("grpc://localhost:4317", AddressError::UnknownScheme(OTLP)),
            ("http://localhost", AddressError::NoPort),
            ("http://localhost:0", AddressError::NoPort),
            ("http://localhost:+1", AddressError::NoPort),
            ("http://localhost:65536", AddressError::NoPort),
            ("http://localhost:4317/v1/logs", AddressError::NoPort),
            ("http://:4317", AddressError::NoHost),
            ("http://a b:4317", AddressError::NoHost),
            ("http://::1:80", AddressError::NoHost),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected, "{text}");
        }
        let why = parse("localhost:4317").unwrap_err().to_string();
        assert_eq!(why, "it is neither `http://HOST:PORT` nor `https://HOST:PORT`");
    }

    #[test]
    fn servers_are_read_as_they_are_written() {
        let parse = |text: &str| ServerUrl::parse(text, NATS);
        for text in ["nats://127.0.0.1:4222", "tls://nats.example:4222", "nats://[::1]:4222"] {
            let server = parse(text).unwrap();
            assert_eq!((server.to_string(), server.is_tls), (text.to_owned(), text.starts_with("tls")));
        }
        for (text, expected) in [
            ("localhost:4222", AddressError::UnknownScheme(NATS)),
            ("http://localhost:4222", AddressError::UnknownScheme(NATS)),
            ("nats://localhost", AddressError::NoPort),
            ("nats://user:word@host:4222", AddressError::NoHost),
        ] {
            assert_eq!(parse(text), Err(expected), "{text}");
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
