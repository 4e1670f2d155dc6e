//! Call for output: an entry with its return, or one of them alone.

use crate::{Incomplete, Row, Value};

/// A call. Its line and its object have the time, the CPU and the task of its last end.
#[derive(Clone, Copy, Debug)]
pub enum Call<'a> {
    /// Both ends.
    Whole {
        /// The event of the entry.
        entry: Row<'a>,
        /// The event of the return.
        exit: Row<'a>,
    },
    /// The entry alone, and why.
    Entry(Row<'a>, Incomplete),
    /// The return alone, and why.
    Exit(Row<'a>, Incomplete),
}

impl<'a> Call<'a> {
    /// The entry.
    pub fn entry(&self) -> Option<Row<'a>> {
        match self {
            Self::Whole { entry, .. } | Self::Entry(entry, _) => Some(*entry),
            Self::Exit(..) => None,
        }
    }

    /// The return.
    pub fn exit(&self) -> Option<Row<'a>> {
        match self {
            Self::Whole { exit, .. } | Self::Exit(exit, _) => Some(*exit),
            Self::Entry(..) => None,
        }
    }

    /// The last of its ends that there is.
    pub fn last(&self) -> Row<'a> {
        match self {
            Self::Whole { exit: row, .. } | Self::Entry(row, _) | Self::Exit(row, _) => *row,
        }
    }

    /// Why it lacks an end.
    pub fn incomplete(&self) -> Option<Incomplete> {
        match self {
            Self::Whole { .. } => None,
            Self::Entry(_, why) | Self::Exit(_, why) => Some(*why),
        }
    }

    /// How long it took, in nanoseconds.
    pub fn duration_ns(&self) -> Option<u64> {
        match self {
            Self::Whole { entry, exit } => Some(exit.timestamp_ns().saturating_sub(entry.timestamp_ns())),
            Self::Entry(..) | Self::Exit(..) => None,
        }
    }

    /// The fields of the entry, and then those of the return.
    pub fn fields(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        [self.entry(), self.exit()].into_iter().flatten().flat_map(|row| row.fields())
    }
}
