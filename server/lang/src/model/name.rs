//! Probe names, and globs over them.
//!
//! Owns which names are valid. Never knows which names are in use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// `GROUP/EVENT`: the name of a probe event, and of its directory below `events/` in tracefs.
///
/// The order is that of the text, which is what listings are sorted by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ProbeName {
    group: String,
    event: String,
}

/// Why a text is not a probe name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// There is no slash in it.
    #[error("`{0}` is not of the form GROUP/EVENT")]
    NoGroup(String),
    /// One of the two parts cannot be the name of a directory below `events/`.
    #[error("`{0}` is not a name: letters, digits and underscores only, and no digit first")]
    BadPart(String),
}

impl ProbeName {
    /// Puts a name together from parts that the definition parser has accepted.
    ///
    /// # Errors
    /// [`NameError::BadPart`] when a part could leave its directory or cannot be a kernel event
    /// name.
    pub fn new(group: &str, event: &str) -> Result<Self, NameError> {
        if !is_part(group, true) {
            return Err(NameError::BadPart(group.to_owned()));
        }
        if !is_part(event, false) {
            return Err(NameError::BadPart(event.to_owned()));
        }
        Ok(Self { group: group.to_owned(), event: event.to_owned() })
    }

    /// The name, by its number, of what has lost its own in a damaged database.
    pub fn unreadable(kind: &'static str, number: u64) -> Self {
        Self { group: "unreadable".to_owned(), event: format!("{kind}_{number}") }
    }

    /// The event group: kernel/trace calls it the system.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The event.
    pub fn event(&self) -> &str {
        &self.event
    }

    /// Group and event.
    pub fn parts(&self) -> (&str, &str) {
        (&self.group, &self.event)
    }
}

/// What `is_good_name` and, for groups since 5.17, `is_good_system_name` in
/// kernel/trace/trace_probe.h accept.
fn is_part(part: &str, hyphen: bool) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || (hyphen && c == '-');
    part.len() < 64 && part.starts_with(|c: char| good(c) && !c.is_ascii_digit()) && part.chars().all(good)
}

impl fmt::Display for ProbeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.event)
    }
}

impl From<ProbeName> for String {
    fn from(name: ProbeName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for ProbeName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl FromStr for ProbeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (group, event) = text.split_once('/').ok_or_else(|| NameError::NoGroup(text.to_owned()))?;
        Self::new(group, event)
    }
}

/// A pattern over names: `*` stands for any run of characters, `?` for any one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// Takes the pattern as it is: every text is a valid glob.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self(pattern.into())
    }

    /// Whether the whole of `text` matches.
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (self.0.as_bytes(), text.as_bytes());
        let (mut p, mut t) = (0, 0);
        // The position to resume from at a mismatch: after the last star, which then matches one
        // more character.
        let mut retry: Option<(usize, usize)> = None;
        while t < text.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    retry = Some((p + 1, t));
                    p += 1;
                }
                Some(b'?') => {
                    let is_rest = |byte: &&u8| **byte & 0xc0 == 0x80;
                    let rest = text.iter().skip(t + 1).take_while(is_rest).count();
                    (p, t) = (p + 1, t + 1 + rest);
                }
                Some(c) if Some(c) == text.get(t) => (p, t) = (p + 1, t + 1),
                _ => match retry {
                    Some((after_star, swallowed)) => {
                        retry = Some((after_star, swallowed + 1));
                        (p, t) = (after_star, swallowed + 1);
                    }
                    None => return false,
                },
            }
        }
        pattern.get(p..).is_some_and(|rest| rest.iter().all(|c| *c == b'*'))
    }

    /// Whether `name` matches: its `GROUP/EVENT` form, or its event alone when the pattern has no
    /// slash.
    pub fn matches_name(&self, name: &ProbeName) -> bool {
        if self.0.contains('/') { self.matches(&name.to_string()) } else { self.matches(name.event()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_two_identifiers() {
        let name: ProbeName = "kprobes/doforkprobe".parse().unwrap();
        assert_eq!((name.group(), name.event()), ("kprobes", "doforkprobe"));
        assert_eq!(name.to_string(), "kprobes/doforkprobe");
        for bad in ["kprobes", "/x", "x/", "a/b/c", "a/..", "../a", "a/1b", "a/b-c", "a b/c"] {
            assert!(bad.parse::<ProbeName>().is_err(), "{bad}");
        }
        assert!("my-group/event".parse::<ProbeName>().is_ok(), "groups may hold hyphens");
    }

    #[test]
    fn globs_match_whole_texts() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("kprobes/*", "kprobes/a", true),
            ("kprobes/*", "kprobesx/a", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a?c", "aéc", true),
            ("*?c", "aéc", true),
            ("a??c", "aéc", false),
            ("*ab*ab", "abab", true),
            ("*ab*ab", "ab", false),
            ("a*b*c", "aXbYbZc", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), expected, "{pattern} on {text}");
        }
        let name = ProbeName::new("kprobes", "open").unwrap();
        assert!(Glob::new("open").matches_name(&name));
        assert!(Glob::new("kprobes/o*").matches_name(&name));
        assert!(!Glob::new("kprobes").matches_name(&name));
    }

    fn naive(glob: &[u8], text: &[u8]) -> bool {
        match (glob, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|skip| naive(rest, &text[skip..])),
            ([b'?', rest @ ..], [_, tail @ ..]) => naive(rest, tail),
            ([byte, rest @ ..], [first, tail @ ..]) => byte == first && naive(rest, tail),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn a_glob_agrees_with_its_definition(glob in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(Glob::new(glob.clone()).matches(&text), naive(glob.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn a_text_matches_itself_and_every_star(text in "[a-z/]{0,20}", cut in 0usize..20) {
            prop_assert!(Glob::new(text.clone()).matches(&text));
            let cut = cut.min(text.len());
            let starred = format!("{}*", &text[..cut]);
            prop_assert!(Glob::new(starred).matches(&text));
        }

        #[test]
        fn any_text_is_a_glob(pattern in ".*", text in ".*") {
            let _ = Glob::new(pattern).matches(&text);
        }
    }
}
