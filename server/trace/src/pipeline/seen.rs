//! Distinct values of a long column, cheaply.

use std::collections::BTreeSet;

const SLOTS: usize = 256;

/// Collects distinct values. Most values of a column are the same as a recent one: those never get to the set.
#[derive(Debug)]
pub(super) struct Distinct<T> {
    recent: [Option<T>; SLOTS],
    values: BTreeSet<T>,
}

impl<T: Ord + Copy> Distinct<T> {
    pub(super) const fn new() -> Self {
        Self { recent: [None; SLOTS], values: BTreeSet::new() }
    }

    /// Takes a value; `slot` is some function of it.
    pub(super) fn add(&mut self, value: T, slot: usize) {
        if let Some(recent) = self.recent.get_mut(slot % SLOTS)
            && *recent != Some(value)
        {
            *recent = Some(value);
            self.values.insert(value);
        }
    }

    /// All values, ascending, none twice.
    pub(super) fn into_values(self) -> BTreeSet<T> {
        self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_share_a_slot_are_both_kept() {
        let mut distinct = Distinct::new();
        for value in [1_u32, 257, 1, 257, 2, 2] {
            distinct.add(value, value as usize);
        }
        assert_eq!(distinct.into_values().into_iter().collect::<Vec<_>>(), [1, 2, 257]);
    }
}
