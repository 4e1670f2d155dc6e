//! Destinations of exporters: `HOST:PORT`, URLs of OTLP, and files, pipes and sockets for JSON Lines.

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

/// Where a receiver of OTLP over gRPC is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint {
    /// Whether it speaks TLS.
    pub is_https: bool,
    /// Where it listens.
    pub address: NetworkAddress,
}

/// Error of parsing a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AddressError {
    /// It has none of the known prefixes.
    #[error("it is neither an absolute path, nor `-`, nor `unix:PATH`")]
    UnknownForm,
    /// It has neither of the two schemes of OTLP.
    #[error("it is neither `http://HOST:PORT` nor `https://HOST:PORT`")]
    UnknownScheme,
    /// It has neither of the two schemes of NATS.
    #[error("it is neither `nats://HOST:PORT` nor `tls://HOST:PORT`")]
    UnknownNatsScheme,
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

impl FromStr for OtlpEndpoint {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = text.split_once("://").ok_or(AddressError::UnknownScheme)?;
        let is_https = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(AddressError::UnknownScheme),
        };
        Ok(Self { is_https, address: rest.strip_suffix('/').unwrap_or(rest).parse()? })
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_https { "https" } else { "http" }, self.address)
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
        for text in ["http://127.0.0.1:4317", "https://otel.example:4317", "https://[::1]:1"] {
            let endpoint: OtlpEndpoint = text.parse().unwrap();
            assert_eq!(
                (endpoint.to_string(), endpoint.is_https),
                (text.to_owned(), text.starts_with("https"))
            );
        }
        assert_eq!(
            "http://localhost:4317/".parse::<OtlpEndpoint>().unwrap().to_string(),
            "http://localhost:4317"
        );
        for (text, expected) in [
            ("localhost:4317", AddressError::UnknownScheme),
            ("grpc://localhost:4317", AddressError::UnknownScheme),
            ("http://localhost", AddressError::NoPort),
            ("http://localhost:0", AddressError::NoPort),
            ("http://localhost:+1", AddressError::NoPort),
            ("http://localhost:65536", AddressError::NoPort),
            ("http://localhost:4317/v1/logs", AddressError::NoPort),
            ("http://:4317", AddressError::NoHost),
            ("http://a b:4317", AddressError::NoHost),
            ("http://::1:80", AddressError::NoHost),
        ] {
            assert_eq!(text.parse::<OtlpEndpoint>().unwrap_err(), expected, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
        #[test]
        fn no_text_can_panic(text in ".{0,40}", host in "[a-z.-]{1,12}", port in 1..=u16::MAX) {
            if let Ok(target) = text.parse::<JsonLinesTarget>() {
                prop_assert_eq!(target.to_string().parse(), Ok(target));
            }
            if let Ok(endpoint) = text.parse::<OtlpEndpoint>() {
                prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
            }
            let address = NetworkAddress { host, port };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}
