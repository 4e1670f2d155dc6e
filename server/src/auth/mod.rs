//! Who calls: the principal at the other end of a connection.
//!
//! Owns finding out the principal of a connection. Whether the roles of this host allow a call is decided in
//! [`kprobed_control::auth`].

mod live_tls;
mod peer_groups;
mod who;

pub use live_tls::{LiveTls, TlsSettings};
pub(crate) use peer_groups::peer_groups;
pub(crate) use who::certificate_end;
pub use who::{Peer, Who};
