//! Owned row: an event that is kept without its batch.

use crate::batch::Batch;
use crate::group::Group;
use crate::row::Row;

/// An event that was copied out of its batch ([`Row::to_owned`]).
#[derive(Clone, Debug)]
pub struct OwnedRow {
    /// What the event refers to.
    batch: Batch,
    /// The event alone.
    group: Group,
}

impl OwnedRow {
    pub(crate) fn new(batch: Batch, group: Group) -> Self {
        Self { batch, group }
    }

    /// The event.
    pub fn row(&self) -> Row<'_> {
        Row::of_owned(&self.batch, &self.group)
    }

    /// Bytes of memory, about.
    pub fn bytes(&self) -> usize {
        self.batch.bytes() + self.group.bytes()
    }
}
