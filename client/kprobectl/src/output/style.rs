//! Colours of text on a terminal.
//!
//! A colour never says anything that the text does not say.
//!
//! Kept, and not `anstyle` with `anstream`: six codes, which are static text for the hot path of
//! `observe`, and no pass over the output to strip them again.

/// Whether to use colours, and which.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    enabled: bool,
}

/// Meaning of a text, which selects its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Bad,
    Doubtful,
    Faint,
    Strong,
    /// The name of a task.
    Task,
}

impl Style {
    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled }
    }

    pub(super) fn paint(self, tone: Tone, text: &str) -> String {
        if !self.enabled {
            return text.to_owned();
        }
        match code(tone) {
            "" => text.to_owned(),
            code => format!("{code}{text}\x1b[0m"),
        }
    }

    /// The escape sequences before and after a text in this tone.
    pub(super) fn brackets(self, tone: Tone) -> (&'static str, &'static str) {
        if self.enabled && tone != Tone::Plain { (code(tone), "\x1b[0m") } else { ("", "") }
    }

    pub(super) fn error(self, text: &str) -> String {
        self.paint(Tone::Bad, text)
    }

    pub(super) fn warning(self, text: &str) -> String {
        self.paint(Tone::Doubtful, text)
    }

    pub(super) fn hint(self, text: &str) -> String {
        self.paint(Tone::Good, text)
    }

    pub(super) fn note(self, text: &str) -> String {
        self.paint(Tone::Strong, text)
    }
}

fn code(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "",
        Tone::Good => "\x1b[32m",
        Tone::Bad => "\x1b[1;31m",
        Tone::Doubtful => "\x1b[33m",
        Tone::Faint => "\x1b[2m",
        Tone::Strong => "\x1b[1m",
        Tone::Task => "\x1b[36m",
    }
}
