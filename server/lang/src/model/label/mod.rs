//! Labels of probes, and selectors over them, as in kubectl.
//!
//! Owns which labels are valid, how a set of them is changed, and the language of selectors. Never
//! knows which probe has which labels.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod selector;
mod word;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

pub use selector::LabelSelector;
pub use word::LabelError;
use word::{Part, check};

/// Most labels of a probe.
pub const MAX_LABELS: usize = 32;

/// The labels of a probe: keys of 1 to 63 characters out of letters, digits, `.`, `_`, `/` and `-`,
/// and values of at most 63 of the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Checks labels of any origin. Of several with the same key, the last one counts.
    ///
    /// # Errors
    /// [`LabelError`] for the first key or value, in the order of keys, that cannot be one, and
    /// when there are more than [`MAX_LABELS`].
    pub fn new(labels: impl IntoIterator<Item = (String, String)>) -> Result<Self, LabelError> {
        let labels: BTreeMap<_, _> = labels.into_iter().collect();
        if labels.len() > MAX_LABELS {
            let count = labels.len();
            let message = format!("the probe would have {count} labels; at most {MAX_LABELS} are allowed");
            return Err(LabelError::whole(message));
        }
        for (key, value) in &labels {
            for (part, word) in [(Part::Key, key), (Part::Value, value)] {
                check(part, word).map_err(|found| LabelError::in_label(key, value, part, found))?;
            }
        }
        Ok(Self(labels))
    }

    /// The value of a label, if the probe has it.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Keys and values, in the order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The labels after a change. Removing a label that does not exist changes nothing.
    ///
    /// # Errors
    /// [`LabelError`] if there are more than [`MAX_LABELS`].
    pub fn changed(&self, change: &LabelChange) -> Result<Self, LabelError> {
        let mut labels = self.0.clone();
        labels.retain(|key, _| !change.remove.contains(key));
        labels.extend(change.set.iter().map(|(key, value)| (key.to_owned(), value.to_owned())));
        Self::new(labels)
    }
}

impl TryFrom<BTreeMap<String, String>> for Labels {
    type Error = LabelError;

    fn try_from(labels: BTreeMap<String, String>) -> Result<Self, LabelError> {
        Self::new(labels)
    }
}

/// `KEY=VALUE`, with commas between.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

/// A change of a probe's labels. Labels that it does not name stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelChange {
    set: Labels,
    remove: BTreeSet<String>,
}

impl LabelChange {
    /// Sets some and removes others.
    ///
    /// # Errors
    /// [`LabelError`] for a key that cannot be one, or that is to be both set and removed.
    pub fn new(set: Labels, remove: impl IntoIterator<Item = String>) -> Result<Self, LabelError> {
        let remove: BTreeSet<_> = remove.into_iter().collect();
        for key in &remove {
            check(Part::Key, key).map_err(|(problem, range)| LabelError::at(key, range, problem))?;
            if set.get(key).is_some() {
                let problem = ("the same label cannot be set and removed".to_owned(), "");
                return Err(LabelError::at(key, 0..key.len(), problem));
            }
        }
        Ok(Self { set, remove })
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }
}

#[cfg(test)]
mod tests;
