//! Which language a definition is written in, and one way into all of them.
//!
//! Whatever the dialect, the answer is the syntax tree of the kernel's language, with spans into the text of
//! the user.
//!
//! The rule by which a dialect is recognised, in this order:
//!
//! 1. A text with a `(` is a function prototype if only a name stands before it, or if it does not start with
//!    `p`, `r` or `-`. No line of `kprobe_events` looks like that.
//! 2. A bare `aN`, `sN`, `sa`, `rv` or `ra` in a line is a word of 2009 where the running kernel makes
//!    nothing of a bare word: no kernel without BTF arguments does, none does at an address, and few do in
//!    return probes. The meaning of a definition that the kernel takes is never changed by this.
//! 3. Elsewhere the word is what it is for the running kernel, the name of a parameter, with a warning
//!    (`OLD_DIALECT`). [`parse_as`] asks for 2009 explicitly; so can a caller who knows that the function has
//!    no such parameter.

use super::ast::Definition;
use super::diagnostic::Diagnostic;
use super::features::Features;
use super::legacy::{self, BareWords};
use super::line;
use super::parse;
use super::prototype;
use super::translated;

/// A language for definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The language of the running kernel's `kprobe_events`.
    Kernel,
    /// The same with the words of its first version (2009).
    Legacy,
    /// Function prototypes (2018).
    Prototype,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Legacy, Self::Prototype];

    /// The name by which users ask for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Legacy => "2009",
            Self::Prototype => "prototype",
        }
    }
}

/// What became of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The dialect in which it was read. A line that is refused counts as one of the kernel's, unless 2009
    /// was asked for.
    pub dialect: Dialect,
    /// The definition, or every problem that it has.
    pub result: Result<Definition, Vec<Diagnostic>>,
}

/// Reads the only definition in `text`, whatever its dialect.
pub fn parse_any(text: &str, features: &Features) -> Reading {
    if is_prototype(text) {
        return parse_as(Dialect::Prototype, text, features);
    }
    match old(text, features, BareWords::OldWhereFree) {
        Ok((definition, true)) => Reading { dialect: Dialect::Legacy, result: Ok(definition) },
        Ok((definition, false)) => Reading { dialect: Dialect::Kernel, result: Ok(definition) },
        Err(problems) => Reading { dialect: Dialect::Kernel, result: Err(problems) },
    }
}

/// Reads the only definition in `text` in this dialect.
pub fn parse_as(dialect: Dialect, text: &str, features: &Features) -> Reading {
    let result = match dialect {
        Dialect::Kernel => parse(text, features),
        Dialect::Legacy => old(text, features, BareWords::Old).map(|(definition, _)| definition),
        Dialect::Prototype => prototype::definition(text, features).map(Definition::Probe),
    };
    Reading { dialect, result }
}

/// A line that may have words of 2009, and whether it has.
fn old(text: &str, features: &Features, bare: BareWords) -> Result<(Definition, bool), Vec<Diagnostic>> {
    let mut definition = parse::parse_with(text, features, bare)?;
    let Definition::Probe(probe) = &mut definition else { return Ok((definition, false)) };
    let found = legacy::old_words(text, probe);
    if found.any {
        let problems = translated::problems(probe, features);
        if !problems.is_empty() {
            return Err(problems);
        }
        probe.warnings.extend(found.warnings);
        probe.warnings.sort_by_key(|warning| warning.span);
    }
    Ok((definition, found.any))
}

/// Whether the first line with a word in it is meant as a function prototype.
fn is_prototype(text: &str) -> bool {
    let Some(first) = line::words(text).next() else { return false };
    let rest = text[first.start..].split(['\n', '#']).next().unwrap_or_default();
    let Some((before, _)) = rest.split_once('(') else { return false };
    let name = before.trim_end();
    let identifier = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let could_be_line = name.starts_with(['p', 'r', '-']);
    identifier || !could_be_line || (name.split_whitespace().count() == 1 && !name.contains(':'))
}
