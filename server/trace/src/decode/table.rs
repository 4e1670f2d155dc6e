//! Table of compiled formats by event id.
//!
//! Owns the look-up by the id at the beginning of a record. Never decodes a record.

/// One entry for each event id: the plan, or what a reader keeps with it.
#[derive(Clone, Debug)]
pub struct FormatTable<T> {
    entries: Vec<Option<T>>,
}

impl<T> Default for FormatTable<T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<T> FormatTable<T> {
    /// Sets the entry of an event and returns the one that was there. The kernel uses ids again
    /// after an event was deleted.
    pub fn insert(&mut self, id: u16, entry: T) -> Option<T> {
        let index = usize::from(id);
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        self.entries.get_mut(index)?.replace(entry)
    }

    /// Removes the entries that are not to stay.
    pub fn retain(&mut self, stays: impl Fn(&T) -> bool) {
        for entry in &mut self.entries {
            *entry = entry.take().filter(&stays);
        }
    }

    /// The entry for a record, by the `common_type` at its beginning
    /// (include/linux/trace_events.h:struct trace_entry).
    #[inline]
    pub fn lookup(&self, record: &[u8]) -> Option<&T> {
        self.entries.get(index(record)?)?.as_ref()
    }

    /// As [`lookup`](Self::lookup), mutable.
    #[inline]
    pub fn lookup_mut(&mut self, record: &[u8]) -> Option<&mut T> {
        self.entries.get_mut(index(record)?)?.as_mut()
    }

    /// All entries with their ids, in the order of the ids.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut T)> {
        (0..=u16::MAX).zip(&mut self.entries).filter_map(|(id, entry)| Some((id, entry.as_mut()?)))
    }
}

#[inline]
fn index(record: &[u8]) -> Option<usize> {
    record.first_chunk().map(|id| usize::from(u16::from_le_bytes(*id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_the_first_two_bytes() {
        let mut table = FormatTable::default();
        assert_eq!(table.insert(0x0570, "a"), None);
        assert_eq!(table.insert(u16::MAX, "b"), None);
        assert_eq!(table.lookup(&[0x70, 0x05, 9]), Some(&"a"));
        assert_eq!(table.lookup(&[0xff, 0xff]), Some(&"b"));
        assert_eq!(table.lookup(&[0x71, 0x05]), None);
        assert_eq!(table.lookup(&[0x70]), None);
        assert_eq!(table.insert(0x0570, "c"), Some("a"));
        assert_eq!(table.lookup_mut(&[0x70, 0x05]), Some(&mut "c"));
        assert_eq!(table.iter_mut().collect::<Vec<_>>(), [(0x0570, &mut "c"), (u16::MAX, &mut "b")]);
        table.retain(|entry| *entry != "c");
        assert_eq!(table.lookup(&[0x70, 0x05]), None);
        assert_eq!(table.lookup(&[0xff, 0xff]), Some(&"b"));
    }
}
