//! Listening sockets that the service manager has opened (sd_listen_fds(3)): taking them over, and checking that they
//! are those of the configuration.
//!
//! Owns their names. They stay open over restarts of the daemon, so that clients wait
//! instead of being refused. Never changes their owner or mode, which are those of the socket unit, and never listens.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::sys::socket::{SockType, getsockopt, sockopt};

use crate::config::Listen;
use crate::start_error::StartError;

/// `FileDescriptorName=` of the socket of `listen.unix`.
const UNIX: &str = "unix";

/// `FileDescriptorName=` of the socket of `listen.tcp`.
const TCP: &str = "tcp";

/// Why a socket of the service manager is not taken.
fn refused(name: &str, why: impl fmt::Display, hint: impl Into<String>) -> StartError {
    StartError::new(format!("cannot take over the socket `{name}` of the service manager: {why}")).fix(hint)
}

/// The system refused.
fn failed(name: &str, error: &io::Error) -> StartError {
    refused(name, error, "start the daemon by its units (`systemctl start kprobed`)")
}

/// It is something else than a socket of this kind that listens.
fn not_listening(name: &str, kind: &str) -> StartError {
    let why = format!("it is not a {kind} socket that listens");
    refused(name, why, "use `ListenStream=` and `Accept=no` in the socket unit")
}

/// It is at another place than the setting of its name says.
fn elsewhere(name: &str, found: impl fmt::Display, wanted: impl fmt::Display) -> StartError {
    let why = format!("it listens on `{found}`, and `listen.{name}` is {wanted}");
    let hint = format!("give `ListenStream=` in the socket unit and `listen.{name}` the same place");
    refused(name, why, hint)
}

/// The sockets of the service manager; those that it has not opened are absent.
#[derive(Debug, Default)]
pub struct Inherited {
    pub(super) unix: Option<UnixListener>,
    pub(super) tcp: Option<TcpListener>,
}

impl Inherited {
    /// Takes over what the environment of this process names (`LISTEN_FDS`, `LISTEN_FDNAMES`), which can be done once.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn take(listen: &Listen) -> Result<Self, StartError> {
        let named = sd_notify::listen_fds_with_names().map_err(|error| failed("LISTEN_FDS", &error))?;
        let mut sockets = Vec::new();
        for (number, name) in named {
            #[expect(unsafe_code, reason = "the numbers of inherited descriptors are all there is of them")]
            // SAFETY: the service manager has opened it for this process, which takes it over here and nowhere else;
            // sd_notify has just found it open.
            let socket = unsafe { OwnedFd::from_raw_fd(number) };
            sockets.push((name, socket));
        }
        Self::of(sockets, listen)
    }

    /// Each of these sockets at its place.
    fn of(sockets: Vec<(String, OwnedFd)>, listen: &Listen) -> Result<Self, StartError> {
        let mut inherited = Self::default();
        for (name, socket) in sockets {
            let is_second = match name.as_str() {
                UNIX => inherited.unix.replace(unix(socket, &listen.unix)?).is_some(),
                TCP => inherited.tcp.replace(tcp(socket, listen)?).is_some(),
                _ => {
                    let hint = format!("set `FileDescriptorName=` in the socket unit to `{UNIX}` or `{TCP}`");
                    return Err(refused(&name, "the daemon has no socket of that name", hint));
                }
            };
            if is_second {
                let hint = "give each socket unit one `ListenStream=`";
                return Err(refused(&name, "there are two of that name", hint));
            }
        }
        Ok(inherited)
    }
}

fn unix(socket: OwnedFd, wanted: &Path) -> Result<UnixListener, StartError> {
    let no_socket = || not_listening(UNIX, "unix");
    if !is_listening(&socket) {
        return Err(no_socket());
    }
    let socket = UnixListener::from(socket);
    let address = socket.local_addr().map_err(|_other_family| no_socket())?;
    if address.as_pathname() != Some(wanted) {
        let found = address
            .as_pathname()
            .map_or("a socket without a path".to_owned(), |path| path.display().to_string());
        return Err(elsewhere(UNIX, found, format_args!("`{}`", wanted.display())));
    }
    socket.set_nonblocking(true).map_err(|error| failed(UNIX, &error))?;
    Ok(socket)
}

fn tcp(socket: OwnedFd, listen: &Listen) -> Result<TcpListener, StartError> {
    let no_socket = || not_listening(TCP, "TCP");
    if !is_listening(&socket) {
        return Err(no_socket());
    }
    let socket = TcpListener::from(socket);
    let found = socket.local_addr().map_err(|_other_family| no_socket())?;
    if listen.tcp != Some(found) {
        let wanted = listen.tcp.map_or("not set".to_owned(), |address| format!("`{address}`"));
        return Err(elsewhere(TCP, found, wanted));
    }
    socket.set_nonblocking(true).map_err(|error| failed(TCP, &error))?;
    Ok(socket)
}

/// Whether it is a stream socket that accepts connections (socket(7), `SO_TYPE` and `SO_ACCEPTCONN`).
fn is_listening(socket: &impl AsFd) -> bool {
    getsockopt(socket, sockopt::SockType) == Ok(SockType::Stream)
        && getsockopt(socket, sockopt::AcceptConn) == Ok(true)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn taken(sockets: Vec<(&str, OwnedFd)>, listen: &Listen) -> Result<Inherited, String> {
        let sockets = sockets.into_iter().map(|(name, socket)| (name.to_owned(), socket)).collect();
        Inherited::of(sockets, listen).map_err(|error| format!("{error}; {}", error.hint.as_deref().unwrap()))
    }

    #[test]
    fn sockets_are_found_by_their_names() {
        let directory = tempfile::tempdir().unwrap();
        let unix = directory.path().join("kprobed.sock");
        let (socket, tcp) = (UnixListener::bind(&unix).unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let listen = Listen { unix, tcp: tcp.local_addr().ok(), ..Listen::default() };
        let both = vec![("tcp", tcp.into()), ("unix", socket.into())];
        let inherited = taken(both, &listen).unwrap();
        assert!(inherited.unix.is_some() && inherited.tcp.is_some());
        // They do not block, as the runtime needs them.
        let would_block = inherited.tcp.unwrap().accept().unwrap_err();
        assert_eq!(would_block.kind(), io::ErrorKind::WouldBlock);
        assert!(taken(Vec::new(), &listen).unwrap().unix.is_none());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let listen = Listen { unix: "/run/kprobed/kprobed.sock".into(), ..Listen::default() };
        let wrong =
            |name: &str, socket: OwnedFd, listen: &Listen| taken(vec![(name, socket)], listen).unwrap_err();
        let elsewhere = UnixListener::bind(directory.path().join("other.sock")).unwrap();
        let place = directory.path().display();
        let found = wrong("unix", elsewhere.into(), &listen);
        assert!(
            found
                .contains(&format!("`{place}/other.sock`, and `listen.unix` is `/run/kprobed/kprobed.sock`")),
            "{found}"
        );
        let tcp = || TcpListener::bind("127.0.0.1:0").unwrap().into();
        assert!(wrong("tcp", tcp(), &listen).contains("and `listen.tcp` is not set"));
        let other = Listen { tcp: Some("127.0.0.1:1".parse().unwrap()), ..listen.clone() };
        assert!(wrong("tcp", tcp(), &other).contains("is `127.0.0.1:1`; give `ListenStream=`"));
        assert!(wrong("unix", tcp(), &listen).contains("it is not a unix socket that listens"));
        let (client, _server) = UnixStream::pair().unwrap();
        assert!(wrong("unix", client.into(), &listen).contains("it is not a unix socket that listens"));
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(wrong("tcp", datagrams.into(), &other).contains("it is not a TCP socket that listens"));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(wrong("tcp", file.into(), &other).contains("it is not a TCP socket that listens"));
        let unknown = wrong("kprobed.socket", tcp(), &listen);
        assert!(
            unknown.starts_with(
                "cannot take over the socket `kprobed.socket` of the service manager: the daemon has no"
            ) && unknown.ends_with("to `unix` or `tcp`"),
            "{unknown}"
        );
    }

    #[test]
    fn a_name_is_given_once() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = Listen { tcp: tcp.local_addr().ok(), ..Listen::default() };
        let again = tcp.try_clone().unwrap();
        let twice = taken(vec![("tcp", tcp.into()), ("tcp", again.into())], &listen).unwrap_err();
        assert!(twice.contains("there are two of that name"), "{twice}");
    }
}
