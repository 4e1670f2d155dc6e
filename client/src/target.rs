//! Addresses of a daemon.
//!
//! Owns the notation of targets. It never touches the network or the file system.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// The socket that the daemon listens on unless it is configured otherwise.
pub const DEFAULT_SOCKET: &str = "/run/kprobed/kprobed.sock";

/// An address of the daemon.
///
/// Written `unix:PATH` or as an absolute path, `tcp://HOST:PORT`, or `https://HOST:PORT`.
/// `HOST:PORT` alone is plain TCP for a loopback address, and TLS for all others; a client with
/// certificates reads it with [`Target::with_certificates`]. [`fmt::Display`] prints the scheme
/// always; [`FromStr`] reads that back.
///
/// ```
/// use kprobed_client::Target;
///
/// let loopback: Target = "localhost:7777".parse()?;
/// assert_eq!(loopback.to_string(), "tcp://localhost:7777");
/// let other: Target = "db1.example.org:7777".parse()?;
/// assert_eq!(other.to_string(), "https://db1.example.org:7777");
/// assert_eq!(Target::default().to_string(), "unix:/run/kprobed/kprobed.sock");
/// # Ok::<(), kprobed_client::TargetError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// A unix socket.
    Unix(PathBuf),
    /// Plain TCP, for loopback and tunnels.
    Tcp(Authority),
    /// TCP with mutual TLS.
    Tls(Authority),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authority {
    /// Name or address; IPv6 addresses without brackets.
    host: String,
    /// Port, never 0.
    port: u16,
}

/// Why a text is not a target.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TargetError {
    /// Neither a known scheme nor an absolute path.
    #[error(
        "`{0}` is not an address of a daemon: write `HOST:PORT`, `unix:/PATH`, `/PATH`, `tcp://HOST:PORT` or `https://HOST:PORT`"
    )]
    UnknownForm(String),
    /// The path of a unix socket is relative.
    #[error("`{0}` is not an absolute path")]
    RelativePath(String),
    /// No port, or none between 1 and 65535.
    #[error("`{0}` has no port between 1 and 65535: write `HOST:PORT`")]
    BadPort(String),
    /// The host is empty, or not something that can be a host.
    #[error("`{0}` has no host: write `HOST:PORT`, with an IPv6 address in brackets")]
    BadHost(String),
}

impl Target {
    /// Reads an address for a client that has certificates: `HOST:PORT` is TLS for loopback
    /// addresses too, where a tunnel may begin.
    ///
    /// # Errors
    /// See [`TargetError`].
    pub fn with_certificates(text: &str) -> Result<Self, TargetError> {
        let target = text.parse()?;
        Ok(match target {
            Self::Tcp(authority) if !text.contains("://") => Self::Tls(authority),
            other => other,
        })
    }

    /// The URI of this target, for the transport.
    pub(crate) fn uri(&self) -> String {
        match self {
            Self::Unix(path) => format!("unix:{}", path.display()),
            Self::Tcp(authority) => format!("http://{authority}"),
            Self::Tls(authority) => format!("https://{authority}"),
        }
    }
}

impl Default for Target {
    fn default() -> Self {
        Self::Unix(PathBuf::from(DEFAULT_SOCKET))
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if let Some(rest) = text.strip_prefix("unix:") {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            return unix(path);
        }
        if text.starts_with('/') {
            return unix(text);
        }
        if let Some(rest) = text.strip_prefix("tcp://") {
            return authority(rest).map(Self::Tcp);
        }
        if let Some(rest) = text.strip_prefix("https://") {
            return authority(rest).map(Self::Tls);
        }
        if text.contains("://") || !text.contains(':') {
            return Err(TargetError::UnknownForm(text.to_owned()));
        }
        authority(text).map(
            |authority| {
                if authority.is_loopback() { Self::Tcp(authority) } else { Self::Tls(authority) }
            },
        )
    }
}

impl Authority {
    /// Whether the text names this machine: names other than `localhost` are not resolved.
    fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

fn unix(path: &str) -> Result<Target, TargetError> {
    if path.starts_with('/') {
        Ok(Target::Unix(PathBuf::from(path)))
    } else {
        Err(TargetError::RelativePath(path.to_owned()))
    }
}

fn authority(text: &str) -> Result<Authority, TargetError> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let (host, port) = text.rsplit_once(':').ok_or_else(|| TargetError::BadPort(text.to_owned()))?;
    let port: u16 =
        port.parse().ok().filter(|port| *port != 0).ok_or_else(|| TargetError::BadPort(text.to_owned()))?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let good = match bracketed {
        Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)),
    };
    if !good {
        return Err(TargetError::BadHost(text.to_owned()));
    }
    Ok(Authority { host: bracketed.unwrap_or(host).to_owned(), port })
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(authority) => write!(f, "tcp://{authority}"),
            Self::Tls(authority) => write!(f, "https://{authority}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_parses_and_prints() {
        for (text, printed) in [
            ("unix:/run/kprobed/kprobed.sock", "unix:/run/kprobed/kprobed.sock"),
            ("unix:///tmp/x.sock", "unix:/tmp/x.sock"),
            ("/tmp/x.sock", "unix:/tmp/x.sock"),
            ("tcp://127.0.0.1:7777", "tcp://127.0.0.1:7777"),
            ("tcp://[::1]:7777", "tcp://[::1]:7777"),
            ("https://host-1.example:443/", "https://host-1.example:443"),
            ("localhost:7777", "tcp://localhost:7777"),
            ("127.3.2.1:7777", "tcp://127.3.2.1:7777"),
            ("[::1]:7777", "tcp://[::1]:7777"),
            ("10.0.0.1:7777", "https://10.0.0.1:7777"),
            ("[fe80::1]:7777", "https://[fe80::1]:7777"),
            ("localhost.example.org:7777", "https://localhost.example.org:7777"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.to_string(), printed);
            assert_eq!(printed.parse::<Target>().unwrap(), target, "parse and print are inverse");
        }
        assert_eq!(Target::default().to_string(), format!("unix:{DEFAULT_SOCKET}"));
    }

    #[test]
    fn certificates_are_used_where_no_scheme_says_otherwise() {
        for (text, printed) in [
            ("localhost:7777", "https://localhost:7777"),
            ("[::1]:7777", "https://[::1]:7777"),
            ("10.0.0.1:7777", "https://10.0.0.1:7777"),
            ("tcp://localhost:7777", "tcp://localhost:7777"),
            ("/tmp/x.sock", "unix:/tmp/x.sock"),
        ] {
            assert_eq!(Target::with_certificates(text).unwrap().to_string(), printed);
        }
        assert!(matches!(Target::with_certificates("localhost:"), Err(TargetError::BadPort(_))));
    }

    #[test]
    fn what_is_no_target_says_why() {
        let error = |text: &str| text.parse::<Target>().unwrap_err();
        assert!(matches!(error("localhost"), TargetError::UnknownForm(_)));
        assert!(matches!(error("http://localhost:7777"), TargetError::UnknownForm(_)));
        assert!(matches!(error("localhost:"), TargetError::BadPort(_)));
        assert!(matches!(error("::1"), TargetError::BadHost(_)));
        assert!(matches!(error(""), TargetError::UnknownForm(_)));
        assert!(matches!(error("unix:run/x"), TargetError::RelativePath(_)));
        assert!(matches!(error("tcp://host"), TargetError::BadPort(_)));
        assert!(matches!(error("tcp://host:0"), TargetError::BadPort(_)));
        assert!(matches!(error("tcp://:1"), TargetError::BadHost(_)));
        assert!(matches!(error("tcp://::1:80"), TargetError::BadHost(_)));
        assert!(matches!(error("https://a b:1"), TargetError::BadHost(_)));
    }
}
