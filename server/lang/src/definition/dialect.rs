//! Which language a definition is written in, and one way into all of them.
//!
//! Whatever the dialect, the answer is the syntax tree of the kernel's language, with spans into the text of
//! the user.
//!
//! The rule by which a dialect is recognised, in this order:
//!
//! 1. A text with a `(` is a function prototype if only a name stands before it, or if it does not start with
//!    `p`, `r` or `-`. No line of `kprobe_events` looks like that.
//! 2. A bare `aN`, `sN`, `sa`, `rv` or `ra` in a line is a word of 2009 unless it can be the name of a parameter: the function has a
//!    parameter of that name ([`Parameters`]), and names can be used at the place, which is never so at an address, and in return probes only
//!    where the kernel keeps arguments. Where the parameters of the function are not known, a word is what the kernel makes of it: a
//!    name where the kernel knows names. The meaning of a definition that the kernel takes is never changed by this.
//! 3. Elsewhere the word is the name of a parameter, with a warning (`OLD_DIALECT`).
//!
//! A comment `# dialect: 2009` (or `kernel`, or `prototype`) asks for one explicitly, and [`Reading::pinned`]
//! writes it into a text that another kernel would recognise differently. [`parse_as`] is for callers who
//! know.

use super::Span;
use super::ast::Definition;
use super::code::Code;
use super::diagnostic::Diagnostic;
use super::features::Features;
use super::legacy::{self, BareWords, Parameters, UnknownParameters};
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

    /// The dialect of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == name)
    }

    /// The text with a comment that asks for this dialect.
    pub fn asked_for_in(self, text: &str) -> String {
        format!("{} # {DIRECTIVE} {}", text.trim_end(), self.name())
    }

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

impl Reading {
    /// The text, from which this was read, so that every kernel reads it in the same dialect: with a comment
    /// that names it where bare words could be something else elsewhere.
    pub fn pinned(&self, text: &str) -> String {
        let ambiguous = match &self.result {
            Ok(Definition::Probe(probe)) => {
                self.dialect == Dialect::Legacy
                    || probe.warnings.iter().any(|warning| warning.code == Code::OldDialect)
            }
            _ => false,
        };
        if !ambiguous || matches!(asked(text), Ok(Some(_))) {
            return text.to_owned();
        }
        self.dialect.asked_for_in(text)
    }
}

/// What follows the `#` of a comment that asks for a dialect.
const DIRECTIVE: &str = "dialect:";

/// Reads the only definition in `text`, whatever its dialect, without knowing any function.
pub fn parse_any(text: &str, features: &Features) -> Reading {
    parse_any_knowing(text, features, &UnknownParameters)
}

/// The same with what is known of the functions of the running kernel.
pub fn parse_any_knowing(text: &str, features: &Features, parameters: &dyn Parameters) -> Reading {
    match asked(text) {
        Ok(Some(dialect)) => return parse_as_knowing(dialect, text, features, parameters),
        Ok(None) => {}
        Err(problem) => return Reading { dialect: Dialect::Kernel, result: Err(vec![problem]) },
    }
    if is_prototype(text) {
        return parse_as(Dialect::Prototype, text, features);
    }
    match old(text, features, BareWords::OldWhereFree, parameters) {
        Ok((definition, true)) => Reading { dialect: Dialect::Legacy, result: Ok(definition) },
        Ok((definition, false)) => Reading { dialect: Dialect::Kernel, result: Ok(definition) },
        Err(problems) => Reading { dialect: Dialect::Kernel, result: Err(problems) },
    }
}

/// Reads the only definition in `text` in this dialect.
pub fn parse_as(dialect: Dialect, text: &str, features: &Features) -> Reading {
    parse_as_knowing(dialect, text, features, &UnknownParameters)
}

fn parse_as_knowing(
    dialect: Dialect,
    text: &str,
    features: &Features,
    parameters: &dyn Parameters,
) -> Reading {
    let result = match dialect {
        Dialect::Kernel => parse::parse_with(text, features, BareWords::Kernel, parameters),
        Dialect::Legacy => {
            old(text, features, BareWords::Old, &UnknownParameters).map(|(definition, _)| definition)
        }
        Dialect::Prototype => prototype::definition(text, features).map(Definition::Probe),
    };
    Reading { dialect, result }
}

/// The dialect that a comment asks for.
fn asked(text: &str) -> Result<Option<Dialect>, Diagnostic> {
    let mut line_start = 0;
    for line in text.split('\n') {
        let mut start = line_start;
        line_start += line.len() + 1;
        for (index, part) in line.split('#').enumerate() {
            let here = start;
            start += part.len() + 1;
            let Some(name) = part.trim_start().strip_prefix(DIRECTIVE).filter(|_| index > 0) else {
                continue;
            };
            let name = name.trim();
            return Dialect::named(name).map(Some).ok_or_else(|| {
                let span = Span::new(here, here + part.trim_end().len());
                Diagnostic::error(Code::UnsupportedFeature, span, format!("there is no dialect `{name}`"))
                    .with_hint("dialects are kernel, 2009 and prototype")
                    .by_kprobed()
            });
        }
    }
    Ok(None)
}

/// A line that may have words of 2009, and whether it has.
fn old(
    text: &str,
    features: &Features,
    bare: BareWords,
    parameters: &dyn Parameters,
) -> Result<(Definition, bool), Vec<Diagnostic>> {
    let mut definition = parse::parse_with(text, features, bare, parameters)?;
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
