//! Dialects: the languages in which a definition can be written, and the one parser for all of
//! them.
//!
//! Owns the choice of the dialect, and the hint for a text that a shell has emptied. In every dialect, the result is
//! the syntax tree of the kernel's language, with spans into the user's text. Never judges a place.
//!
//! The rule by which a dialect is recognised, in this order:
//!
//! -  A short form (`short`), such as `vfs_read count`, becomes a line of the kernel, or several.
//! -  `GROUP/EVENT` and `GROUP:EVENT` are events of the host (`event`): no line and no prototype looks like that.
//! 1. A text with a `(` is a function prototype if only a name precedes it, or if it does not start
//!    with `p`, `r` or `-`. No line of `kprobe_events` looks like that.
//! 2. A bare `aN`, `sN`, `sa`, `rv` or `ra` in a line is a word of 2009 unless it can be the name
//!    of a parameter: the function has a parameter of that name ([`KernelNames`]), and names can be
//!    used at the place, which is never so at an address, and in return probes only if the kernel
//!    keeps arguments. If the parameters of the function are not known, the word is what the kernel
//!    reads it as: a name if the kernel resolves names. This never changes the meaning of a
//!    definition that the kernel accepts.
//! 3. Otherwise the word is the name of a parameter, with a warning (`OLD_DIALECT`).
//!
//! A comment `# dialect: 2009` (or `kernel`, or `prototype`) asks for one explicitly, and
//! [`Reading::pinned`] writes it into a text that another kernel would recognise differently.
//! [`parse_as`] is for callers that know the dialect.

use super::Span;
use super::ast::{Definition, ProbeDefinition};
use super::code::Code;
use super::diagnostic::{Diagnostic, Step};
use super::event;
use super::features::Features;
use super::legacy::{self, BareWords, OldLine};
use super::line::{self, Word};
use super::names::is_of_name;
use super::parse::{self, Parsed};
use super::prototype;
use super::short::{self, Expansion, KernelNames, Short, UnknownKernel};

/// A language for definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The language of `kprobe_events` of the running kernel.
    Kernel,
    /// That language with the words of its first version (2009).
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
    fn asked_for_in(self, text: &str) -> String {
        format!("{} # {DIRECTIVE} {}", text.trim_end(), self.name())
    }

    /// The name with which users ask for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Legacy => "2009",
            Self::Prototype => "prototype",
        }
    }
}

/// The result of parsing a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The dialect in which it was parsed. A line that is refused counts as one of the kernel's,
    /// unless the writer asked for 2009.
    pub dialect: Dialect,
    /// The definition, or all of its problems, in the order of the kernel's steps.
    pub result: Result<Definition, Vec<Diagnostic>>,
    /// The parsed part of a probe with mistakes after its place. Neutral placeholders replace the
    /// rest. Use it only to find the problems that the kernel finds before the mistakes.
    pub draft: Option<ProbeDefinition>,
    /// The lines for which a short form stands. Absent for every other text.
    pub expansion: Option<Expansion>,
}

impl Reading {
    fn of(dialect: Dialect, parsed: Parsed) -> Self {
        match (parsed.tree, parsed.findings) {
            (Some(definition), findings) if findings.is_empty() => {
                Self { dialect, result: Ok(definition), draft: None, expansion: None }
            }
            (tree, findings) => {
                let draft = tree.and_then(|tree| match tree {
                    Definition::Probe(draft) => Some(draft),
                    Definition::Delete(_) => None,
                });
                Self { dialect, result: Err(findings), draft, expansion: None }
            }
        }
    }

    /// The probe that the text defines, or what could be read of one with mistakes.
    pub fn written(&self) -> Option<&ProbeDefinition> {
        match &self.result {
            Ok(Definition::Probe(written)) => Some(written),
            Ok(Definition::Delete(_)) => None,
            Err(_) => self.draft.as_ref(),
        }
    }

    /// The text from which this was parsed, changed so that every kernel reads it in the same
    /// dialect: a comment names the dialect if bare words could mean something else on another
    /// kernel. Of a short form it is the line, since another kernel has other names.
    pub fn pinned(&self, text: &str) -> String {
        let text = self.line().unwrap_or(text);
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

    /// The only line for which a short form stands.
    pub fn line(&self) -> Option<&str> {
        match self.expansion.as_ref()?.lines.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }
}

/// What follows the `#` of a comment that asks for a dialect.
const DIRECTIVE: &str = "dialect:";

/// Parses the only definition in `text` like the kernel that `features` describes.
///
/// A text that the kernel's parser refuses is refused with its code and its position; the first
/// problem is the one that the kernel reports, others follow. Does not check whether the place
/// exists and can be probed: see [`ProbeDefinition::entry_requirement`] for what the parser must
/// know about it.
pub fn parse(text: &str, features: &Features) -> Result<Definition, Vec<Diagnostic>> {
    parse_as(Dialect::Kernel, text, features).result
}

/// Parses the only definition in `text`, in any dialect, without knowing any function.
pub fn parse_any(text: &str, features: &Features) -> Reading {
    parse_any_knowing(text, features, &UnknownKernel)
}

/// Like [`parse_any`], with what is known of the running kernel.
pub fn parse_any_knowing(text: &str, features: &Features, names: &dyn KernelNames) -> Reading {
    let mut reading = read(text, features, names);
    if let Err(findings) = &mut reading.result {
        explain_emptied(text, findings);
    }
    reading
}

fn read(text: &str, features: &Features, names: &dyn KernelNames) -> Reading {
    match asked(text) {
        Ok(Some(dialect)) => return parse_as_knowing(dialect, text, features, names),
        Ok(None) => {}
        Err(problem) => {
            // To the kernel it is a comment: problems that the kernel finds come first.
            let Parsed { tree, .. } = parse::read(text, features, names);
            let findings = vec![problem.at(Step::Name)];
            return Reading::of(Dialect::Kernel, Parsed { tree, findings });
        }
    }
    if let Some(short) = short::read(text, names) {
        return match short {
            Ok(Short::One(rewritten, expansion)) => {
                let (dialect, parsed) = line_or_event(rewritten.line(), features, names);
                let reading = Reading::of(dialect, rewritten.moved_to_text(parsed));
                Reading { expansion: Some(expansion), ..reading }
            }
            Ok(Short::Several(expansion)) => {
                let reading = Reading::of(Dialect::Kernel, short::several(text, &expansion).into());
                Reading { expansion: Some(expansion), ..reading }
            }
            Err(problem) => Reading::of(Dialect::Kernel, problem.into()),
        };
    }
    if event::read(text).is_none() && is_prototype(text) {
        return parse_as(Dialect::Prototype, text, features);
    }
    let (dialect, parsed) = line_or_event(text, features, names);
    Reading::of(dialect, parsed)
}

/// Reads a line of the kernel, which may have words of 2009, or an event of the host.
fn line_or_event(text: &str, features: &Features, names: &dyn KernelNames) -> (Dialect, Parsed) {
    if let Some(parsed) = event::read(text) {
        return (Dialect::Kernel, parsed);
    }
    let (parsed, has_old_words) = old(text, features, BareWords::OldWhereFree, names);
    let is_good = parsed.findings.is_empty();
    (if has_old_words && is_good { Dialect::Legacy } else { Dialect::Kernel }, parsed)
}

/// Parses the only definition in `text` in this dialect.
pub fn parse_as(dialect: Dialect, text: &str, features: &Features) -> Reading {
    parse_as_knowing(dialect, text, features, &UnknownKernel)
}

fn parse_as_knowing(dialect: Dialect, text: &str, features: &Features, names: &dyn KernelNames) -> Reading {
    let parsed = match dialect {
        Dialect::Kernel => kernel(text, parse::read(text, features, names)),
        Dialect::Legacy => old(text, features, BareWords::Old, &UnknownKernel).0,
        Dialect::Prototype => prototype::read(text, features),
    };
    Reading::of(dialect, parsed)
}

/// Adds hints about words of 2009 that the kernel's language reads as something else, or refuses.
fn kernel(text: &str, mut parsed: Parsed) -> Parsed {
    legacy::explain_old_words(text, &mut parsed.findings);
    if let Some(Definition::Probe(probe)) = &mut parsed.tree {
        probe.warnings.extend(probe.args.iter().filter_map(legacy::read_as_parameter));
        probe.warnings.sort_by_key(|warning| warning.span);
    }
    parsed
}

/// The dialect that a comment asks for.
fn asked(text: &str) -> Result<Option<Dialect>, Diagnostic> {
    let mut comments = Word { start: 0, text }.split('\n').flat_map(|line| line.split('#').skip(1));
    let asked = comments.find_map(|comment| {
        let name = comment.text.trim_start().strip_prefix(DIRECTIVE)?;
        Some((comment, name.trim()))
    });
    let Some((comment, name)) = asked else { return Ok(None) };
    Dialect::named(name).map(Some).ok_or_else(|| {
        comment
            .head(comment.text.trim_end().len())
            .error(Code::UnsupportedFeature, format!("there is no dialect `{name}`"))
            .with_hint("dialects are kernel, 2009 and prototype")
            .by_kprobed()
    })
}

/// Parses a line that may have words of 2009. Returns whether it has any.
fn old(text: &str, features: &Features, bare: BareWords, names: &dyn KernelNames) -> (Parsed, bool) {
    let words = match line::single(text) {
        Ok(words) => words,
        Err(finding) => return (finding.into(), false),
    };
    let Some(OldLine { rewritten, warnings, findings }) = legacy::rewritten(&words, features, bare, names)
    else {
        let parsed = parse::read_words(text, &words, features, names);
        return (kernel(text, parsed), false);
    };
    let parsed = rewritten.moved_to_text(parse::read(rewritten.line(), features, names));
    let mut parsed = kernel(text, parsed);
    // A word has one problem: the first that the kernel finds.
    parsed.findings.extend(findings);
    parsed.findings.sort_by_key(|finding| finding.step);
    parsed.findings.dedup_by(|later, first| match (later.step, first.step) {
        (Step::Argument(later, _), Step::Argument(first, _)) => later == first,
        _ => false,
    });
    if let Some(Definition::Probe(probe)) = &mut parsed.tree {
        probe.warnings.extend(warnings);
        probe.warnings.sort_by_key(|warning| warning.span);
    }
    (parsed, true)
}

/// Whether the first line with a word in it is a function prototype.
fn is_prototype(text: &str) -> bool {
    let Some(first) = line::words(text).next() else { return false };
    let rest = text[first.start..].split(['\n', '#']).next().unwrap_or_default();
    let Some((before, _)) = rest.split_once('(') else { return false };
    let name = before.trim_end();
    let identifier = !name.is_empty() && name.chars().all(is_of_name);
    let could_be_line = name.starts_with(['p', 'r', '-']);
    identifier || !could_be_line || (name.split_whitespace().count() == 1 && !name.contains(':'))
}

/// What to do if a shell has changed a definition: in double quotes it replaces `$arg2` by nothing.
const IN_DOUBLE_QUOTES: &str =
    "the shell has replaced a word that begins with `$` by nothing: put the definition in single quotes";

/// Gives the first problem in a word that lacks its expression the hint about quotes.
fn explain_emptied(text: &str, findings: &mut [Diagnostic]) {
    let emptied = line::words(text).skip(1).filter(|word| lacks_expression(word.text));
    let is_in = |span: Span, word: &Word<'_>| word.start <= span.start && span.start <= word.end();
    for word in emptied {
        if let Some(finding) = findings.iter_mut().find(|finding| is_in(finding.span, &word)) {
            finding.hint = Some(IN_DOUBLE_QUOTES.to_owned());
            return;
        }
    }
}

/// Whether a word is an argument that reads nothing: `+0()`, `NAME=`, `NAME=:TYPE`, `:TYPE`.
fn lacks_expression(word: &str) -> bool {
    let value = word.split_once('=').map_or(word, |(_, value)| value);
    let is_dereference = value.starts_with(['+', '-']) && value.contains("()");
    is_dereference || value.is_empty() || value.starts_with(':')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples::{v6_1, v6_12};

    #[test]
    fn what_a_shell_has_emptied_is_recognised() {
        for text in [
            "p:e6 do_sys_openat2 f=+0():ustring",
            "p do_sys_openat2 +0():ustring",
            "p do_sys_openat2 :u32",
            "r:o do_sys_openat2 fd=:s32",
            "p vfs_read a=%di b=",
            "p vfs_read x=-8(+16())",
        ] {
            for features in [v6_1(), v6_12()] {
                let found = parse_any(text, &features).result.unwrap_err();
                assert!(
                    found.iter().any(|found| found.hint.as_deref() == Some(IN_DOUBLE_QUOTES)),
                    "{text}: {found:?}"
                );
            }
        }
        for text in
            ["p vfs_read +0(", "p vfs_read $arg", "p vfs_read x=+a(%di)", "p:e", "p vfs_read a=+0(%zz)"]
        {
            let found = parse_any(text, &v6_12()).result.unwrap_err();
            assert!(
                found.iter().all(|found| found.hint.as_deref() != Some(IN_DOUBLE_QUOTES)),
                "{text}: {found:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in r"\PC{0,30}") {
            let mut findings = parse_any(&text, &v6_12()).result.err().unwrap_or_default();
            explain_emptied(&text, &mut findings);
        }
    }
}
