//! Who calls: the principal at the other end of a connection, and what a call says of itself.
//!
//! Owns finding out the principal of a connection. Whether the roles of this host allow a call is decided in
//! [`kprobed_control::auth`].

mod hosts;
mod identity;
mod live_tls;
mod peer_groups;
mod who;

pub use hosts::hosts_of_command;
pub use identity::{Identity, Peer, of_certificate};
pub use live_tls::{LiveTls, TlsSettings};
pub(crate) use peer_groups::peer_groups;
pub use who::Who;
