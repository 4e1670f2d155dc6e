//! Probes that files declare: a directory such as `/etc/kprobed/probes.d`, in which what is there is so, and what goes is gone.
//!
//! Owns the way from the directory to requests to the control thread, by which probes are changed as clients change them. A file that cannot be
//! read keeps what it declared before, which the database knows, so that this holds over a restart too. A probe that a client made is never
//! taken from it. Nothing here writes to the kernel, to the database or to the directory.

mod files;
mod keeper;
mod wanted;
mod watch;

pub(crate) use files::counts as is_document;
pub use keeper::Keeper;
