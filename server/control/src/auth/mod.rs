//! Authorisation: who asks for something, and whether the roles of this host allow it.
//!
//! Owns the caller of a request, the roles in force, and what each principal holds. The decision itself is that of
//! [`kprobed_rights`]. Never finds out who is at the other end of a connection.

mod caller;
mod holdings;
mod rights;

pub use caller::{Caller, Operation};
pub use holdings::{Asked, Holdings, Share};
pub use rights::{AuditInbox, AuditQueue, Rights};
