//! Errors of a check: why a text has no verdict.
//!
//! Owns their texts. Never reports a refused place, which is a verdict: see
//! [`super::CheckOutcome`].

use kprobed_host::kernel::FactsError;
use kprobed_lang::definition::Diagnostic;
use thiserror::Error;

/// Why a text has no verdict.
#[derive(Debug, Error)]
pub enum CheckError {
    /// The text is not a definition.
    #[error("{}", diagnostics.first().map_or("the definition cannot be read", |first| first.message.as_str()))]
    Definition {
        /// The text.
        text: String,
        /// What is wrong with it; never empty.
        diagnostics: Vec<Diagnostic>,
    },
    /// Facts of the kernel are not known.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The kernel was built without kprobe events.
    #[error(
        "this kernel has no kprobe events (CONFIG_KPROBE_EVENTS): only probes of its own events are possible, such as `sched/sched_switch`"
    )]
    NoKprobeEvents,
}

impl CheckError {
    /// Diagnostics of a text.
    pub(super) fn of(text: &str, diagnostics: Vec<Diagnostic>) -> Self {
        Self::Definition { text: text.to_owned(), diagnostics }
    }
}
