//! Authorisation: who calls, and whether the roles of this host allow it.
//!
//! Owns the caller of a request, the roles in force, what each principal holds, and finding out the
//! principal of a connection.
//! The decision itself is that of [`kprobed_rights`]. Never carries a request out.

mod audit_queue;
mod caller;
mod holdings;
mod hosts;
mod identity;
mod live_tls;
mod operation;
mod pace;
mod peer_groups;
mod rights;
mod test_layer;
mod who;

pub use audit_queue::{AuditInbox, AuditQueue};
pub use caller::Caller;
pub use holdings::{Asked, Holdings, Share};
pub use hosts::hosts_of_command;
pub use identity::{Identity, Peer, of_certificate};
pub use live_tls::{LiveTls, TlsSettings};
pub use operation::{OPERATION_HEADER, Operation};
pub use pace::Pace;
pub(crate) use peer_groups::peer_groups;
pub use rights::Rights;
pub use test_layer::as_daemon;
pub use who::Who;
