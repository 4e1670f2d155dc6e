//! Places: how many things each of many may have at a time, where more wait for their turn.
//!
//! Owns the count of each. Whoever has nothing takes no memory. Never decides how many are right.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// So many places for each.
#[derive(Clone, Debug)]
pub struct Places<K> {
    most: usize,
    places: Arc<Mutex<HashMap<K, Weak<Semaphore>>>>,
}

impl<K: Clone + Eq + Hash> Places<K> {
    /// At most so many places for each.
    pub fn new(most: usize) -> Self {
        Self { most, places: Arc::default() }
    }

    /// A place of `whose`, when one is free: in the order in which they were asked for.
    pub async fn take(&self, whose: &K) -> Option<OwnedSemaphorePermit> {
        // Never closed, and so never absent.
        self.of(whose).acquire_owned().await.ok()
    }

    /// A place of `whose`, if one is free now.
    pub fn try_take(&self, whose: &K) -> Option<OwnedSemaphorePermit> {
        self.of(whose).try_acquire_owned().ok()
    }

    fn of(&self, whose: &K) -> Arc<Semaphore> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = places.get(whose).and_then(Weak::upgrade) {
            return known;
        }
        places.retain(|_, semaphore| semaphore.strong_count() > 0);
        let semaphore = Arc::new(Semaphore::new(self.most));
        places.insert(whose.clone(), Arc::downgrade(&semaphore));
        semaphore
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_places_and_leaves_nothing() {
        let places = Places::new(2);
        let (first, second) = (places.try_take(&1), places.try_take(&1));
        assert!(first.is_some() && second.is_some() && places.try_take(&1).is_none());
        let other = places.try_take(&2);
        drop(first);
        let again = places.try_take(&1);
        assert!(other.is_some() && again.is_some());
        drop((second, other, again));
        drop(places.try_take(&3));
        drop(places.try_take(&4));
        assert_eq!(places.places.lock().unwrap().len(), 1);
    }
}
