//! Whether this process may use the network at all.
//!
//! Owns the question and the remedy. The unit file of systemd closes the network
//! (`RestrictAddressFamilies=`), since most hosts need none.

use std::io;
use std::net::UdpSocket;

/// What opens the network.
pub const NETWORK_HINT: &str = "the service manager keeps the daemon from the network: `systemctl edit kprobed`, with the lines \
     `[Service]` and `RestrictAddressFamilies=AF_INET AF_INET6`, then restart the daemon";

/// Whether a socket could not be made for that reason.
pub fn is_of_closed_network(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// Whether no socket for the network can be made, neither of IPv4 nor of IPv6. Makes one to find out: no file says it.
pub fn network_is_closed() -> bool {
    let is_refused = |made: io::Result<UdpSocket>| made.is_err_and(|error| is_of_closed_network(&error));
    is_refused(UdpSocket::bind("127.0.0.1:0")) && is_refused(UdpSocket::bind("[::1]:0"))
}
