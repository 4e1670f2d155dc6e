//! Calls: the entry of a function joined with its return.
//!
//! Owns which return belongs to which entry. The ends of calls and the gaps of one host go in, in the order of time;
//! each end comes out once, in a call or named as [`Incomplete`]. Never guesses over a gap, and never reads an event:
//! the caller says which function an end belongs to, and keeps what it needs of an entry ([`Calls::enter`]).
//!
//! - Calls nest, and recurse: a return belongs to the last open entry of its function in its thread, since functions
//!   return in the reverse order of their entries.
//! - A return that was missed (the kernel had no room for it) is [`Incomplete::NoReturn`] as soon as a call around it
//!   returns. Until then the call counts as open. If the function is recursive, the return of the outer call is taken
//!   for that of the inner one: only NMISSED of the return probe tells.
//! - An entry that was missed, or was before the first event, is [`Incomplete::NoEntry`] at its return.
//! - Where events are lost, calls that were open when the gap began, and ends within it, are [`Incomplete::Gap`]. An
//!   event that comes too late for the order is a gap of its thread.
//! - If a thread ends in a call, and its id is used again, the call is [`Incomplete::NoReturn`] at the first end in
//!   another process. Within one process it stays open, below all calls of the new thread, and no return of these
//!   finds it.
//! - A function that never returns is [`Incomplete::Limit`] when too many calls are open: the oldest goes.
//!
//! A thread is known by its id. All idle tasks have the id 0: their CPU tells them apart. A thread that changes its id
//! within a call, which `execve` does to all but the first of a process, has both ends without the other.

mod gaps;
mod open;
#[cfg(test)]
mod tests;

pub use open::{CallEnd, Calls, Thread};

use std::fmt;

/// Why a call lacks one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Incomplete {
    /// The entry was not seen: it was before the first event, or the kernel skipped it.
    NoEntry,
    /// The return was not seen, and a later one shows that it was.
    NoReturn,
    /// The call had not returned at the end.
    Running,
    /// Events are missing between its ends, or around the one that was seen.
    Gap,
    /// Too many calls were open, and this was the oldest.
    Limit,
}

impl Incomplete {
    /// Name for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoEntry => "no_entry",
            Self::NoReturn => "no_return",
            Self::Running => "running",
            Self::Gap => "gap",
            Self::Limit => "limit",
        }
    }
}

/// For people, as what is said of calls: `3 without an entry`.
impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoEntry => {
                "without an entry: begun before the first event, or skipped by the kernel (NMISSED)"
            }
            Self::NoReturn => "without a return: missed by the kernel (NMISSED), or the thread ended",
            Self::Running => "not returned at the end",
            Self::Gap => "beside lost events",
            Self::Limit => "given up: too many calls were open",
        })
    }
}
