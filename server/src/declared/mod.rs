//! Declared probes: probes that files in a directory declare, such as `/etc/kprobed/probes.d`.
//!
//! Owns the way from the directory to requests to the control thread, which changes probes as it
//! does for clients. A file that cannot be read keeps the probes that it declared before; the
//! database knows them, so this holds over a restart too. Never takes a probe from the client that
//! made it, and never writes to the kernel, to the database or to the directory.

mod files;
mod keeper;
mod plan;
mod watch;

pub use keeper::Keeper;
