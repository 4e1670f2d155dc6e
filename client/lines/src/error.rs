//! What failed, and what to do instead.

use std::fmt;

/// Why a file, a place or a variable gives no answer, and what to do instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct LinesError {
    message: String,
    hint: Option<String>,
}

/// The outcome of everything that can be refused.
pub type Result<T> = std::result::Result<T, LinesError>;

impl LinesError {
    /// A fault: what, where and why.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    /// The same with what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with what to do, if that is known.
    #[must_use]
    pub(crate) fn hint_if_known(self, hint: Option<String>) -> Self {
        Self { hint: hint.or(self.hint), ..self }
    }

    /// The fault: what, where and why.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to write or to fetch instead, if that is known.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for LinesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.iter().try_for_each(|hint| write!(f, " ({hint})"))
    }
}

impl From<gimli::Error> for LinesError {
    fn from(error: gimli::Error) -> Self {
        Self::new(format!("the debug information is damaged: {error}"))
    }
}

impl From<object::read::Error> for LinesError {
    fn from(error: object::read::Error) -> Self {
        Self::new(format!("the ELF file is damaged: {error}"))
    }
}
