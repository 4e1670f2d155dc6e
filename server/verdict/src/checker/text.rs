//! The text of a definition, with the syntax tree that was read from it.
//!
//! Owns the rule for when a kept tree is still valid. The parser asks for the parameters of a
//! function in three cases only: for `$argN` on kernels that name such arguments after parameters,
//! for the words of 2009, and for short forms. A tree for which it asked is valid as long as the facts of the kernel
//! stay the same; every other tree stays valid. Never parses: [`super::Checker`] does, and counts
//! it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use kprobed_host::kernel::KernelFacts;
use kprobed_lang::definition::Reading;
use serde::{Deserialize, Serialize};

/// The text of a definition, in any dialect. It is parsed when its tree is first needed, and
/// not again. It is stored as its text: the tree is made anew.
#[derive(Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DefinitionText {
    text: String,
    #[serde(skip)]
    read: Mutex<Option<Read>>,
}

/// A tree and what it depends on.
#[derive(Clone)]
pub(super) struct Read {
    pub(super) reading: Arc<Reading>,
    /// The facts that the parser asked about functions, if it did; dangling for facts that could not be read.
    pub(super) asked: Option<Weak<KernelFacts>>,
}

/// Whether the parser would learn the same from these facts as from those that it asked.
fn holds_for(asked: Option<&Weak<KernelFacts>>, facts: impl FnOnce() -> Option<Arc<KernelFacts>>) -> bool {
    asked.is_none_or(|asked| match (asked.upgrade(), facts()) {
        (Some(asked), Some(now)) => Arc::ptr_eq(&asked, &now),
        (None, None) => asked.ptr_eq(&Weak::new()),
        _ => false,
    })
}

impl DefinitionText {
    /// A text that was not parsed yet.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), read: Mutex::new(None) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same text in words that every kernel reads in the same dialect, with the same tree.
    pub(super) fn pinned(self: &Arc<Self>, reading: &Reading) -> Arc<Self> {
        let pinned = reading.pinned(&self.text);
        if pinned == self.text {
            return Arc::clone(self);
        }
        // The places in the tree of a short form are those of another text.
        if reading.expansion.is_some() {
            return Arc::new(Self::new(pinned));
        }
        // Only a comment was added, which asks for the dialect that was parsed.
        Arc::new(Self { text: pinned, read: Mutex::new(self.last()) })
    }

    /// The last result.
    pub(super) fn last(&self) -> Option<Read> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The kept result, if the parser would return the same with these facts.
    pub(super) fn read_with(&self, facts: impl FnOnce() -> Option<Arc<KernelFacts>>) -> Option<Arc<Reading>> {
        self.last().filter(|read| holds_for(read.asked.as_ref(), facts)).map(|read| read.reading)
    }

    /// Keeps a result.
    pub(super) fn keep(&self, read: Read) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
    }
}

impl fmt::Debug for DefinitionText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl fmt::Display for DefinitionText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Equal texts are equal, whatever their trees.
impl PartialEq for DefinitionText {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for DefinitionText {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_valid_as_long_as_the_answers_that_it_depends_on() {
        let not_readable = || None;
        assert!(holds_for(None, || panic!("it depends on no facts")));
        assert!(holds_for(Some(&Weak::new()), not_readable));
    }

    #[test]
    fn equal_texts_are_equal_whatever_was_read_of_them() {
        let text = |text: &str| DefinitionText::new(text);
        assert_eq!((text("p f").to_string(), format!("{:?}", text("p f"))), ("p f".into(), "\"p f\"".into()));
        assert!(text("p f") == text("p f") && text("p f") != text("p g"));
    }

    #[test]
    fn a_text_is_stored_as_its_text() {
        let stored = r#""p f\n\"a\"""#;
        let text: DefinitionText = serde_json::from_str(stored).unwrap();
        assert_eq!(text.as_str(), "p f\n\"a\"");
        assert_eq!(serde_json::to_string(&text).unwrap(), stored);
        assert_eq!(serde_json::to_string(&DefinitionText::default()).unwrap(), r#""""#);
    }
}
