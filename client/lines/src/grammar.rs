//! The words of a definition by source lines and variables: the grammar of `perf probe`.
//!
//! `[[GROUP:]EVENT=]FUNC[@SRC][:LINE|+OFFSET|%return|;PATTERN] [ARG ...]`, `[[GROUP:]EVENT=]SRC:LINE [ARG
//! ...]` and `[[GROUP:]EVENT=]SRC;PATTERN [ARG ...]`. A backslash takes the meaning from `=`, `@`, `+`, `:`,
//! `;` and `%`. Before a place, `MODULE:` names the module that has it.

use std::fmt;

use kprobed_lang::definition::is_identifier;
use kprobed_lang::model::Glob;

use crate::error::{LinesError, Result};

/// A definition as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// The group of the event.
    pub group: Option<String>,
    /// The name of the event.
    pub event: Option<String>,
    /// The module that has the place, if it is given.
    pub module: Option<String>,
    /// The place.
    pub target: Target,
    /// What to record, in order.
    pub arguments: Vec<Wanted>,
}

/// A place as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `FUNC[@SRC]` and what follows.
    Function {
        /// Its name.
        name: String,
        /// The last components of the path of the source that declares it.
        file: Option<String>,
        /// Where in it.
        within: Within,
    },
    /// `SRC:LINE`.
    Line {
        /// The last components of the path.
        file: String,
        /// The line, from 1.
        line: u32,
    },
    /// `SRC;PATTERN`: all lines whose text matches.
    Pattern {
        /// The last components of the path.
        file: String,
        /// `*` and `?` stand for any text and any character; blanks do not count.
        pattern: String,
    },
}

/// A place in a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Within {
    /// Its entry.
    Entry,
    /// A line, from the one that declares the function.
    Line(u32),
    /// Bytes from its entry.
    Offset(u64),
    /// Where it returns.
    Return,
    /// Its lines whose text matches.
    Pattern(String),
}

/// An argument as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// In the kernel's own language, such as `$retval` or `%di`.
    Kernel(String),
    /// `$vars`: all variables in scope.
    Variables,
    /// `$params`: the parameters of the function.
    Parameters,
    /// A variable.
    Variable(Expression),
}

/// A variable, or what it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    /// The name of the argument, if it is given.
    pub name: Option<String>,
    /// The variable.
    pub variable: String,
    /// Members and elements, in order.
    pub steps: Vec<Step>,
    /// The type of the argument, if it is given.
    pub ty: Option<String>,
    /// The last pointer leads to memory of a program.
    pub user: bool,
}

/// A step from a value to one that it has or leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// `.NAME`
    Member(String),
    /// `->NAME`
    Pointee(String),
    /// `[N]`
    Element(u64),
}

/// The longest definition, in bytes.
const TEXT_MAX: usize = 16 << 10;

/// Steps of an argument, at most.
const STEPS_MAX: usize = 64;

/// The place of the first of these characters that no backslash precedes.
pub(crate) fn first_of(text: &str, characters: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices()
        .find(|(_, c)| {
            let found = !is_escaped && characters.contains(*c);
            is_escaped = !is_escaped && *c == '\\';
            found
        })
        .map(|(at, _)| at)
}

/// The text before and after the first of these characters, without it.
fn cut<'t>(text: &'t str, characters: &str) -> Option<(&'t str, &'t str)> {
    let at = first_of(text, characters)?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

fn without_escapes(text: &str) -> String {
    let mut is_escaped = false;
    text.chars()
        .filter(|c| {
            let is_escape = !is_escaped && *c == '\\';
            is_escaped = is_escape;
            !is_escape
        })
        .collect()
}

/// A number, decimal or with `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) if digits.starts_with(|c: char| c.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None => text.parse().ok().filter(|_| !text.starts_with('+')),
    }
}

fn name(text: &str, what: &str) -> Result<String> {
    let text = without_escapes(text);
    if is_identifier(&text) {
        Ok(text)
    } else {
        Err(LinesError::new(format!("`{text}` is not a name of {what}")))
    }
}

/// A place without the module before it. What follows a function or a source is a number, and what follows a module
/// is none.
pub(crate) fn of_module(place: &str) -> (Option<String>, &str) {
    match first_of(place, ":;@+%").map(|at| (&place[..at], &place[at..])) {
        Some((module, rest)) if is_identifier(module) && rest.starts_with(':') => {
            let rest = &rest[1..];
            let is_place =
                rest.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '/' | '.'));
            if is_place { (Some(module.to_owned()), rest) } else { (None, place) }
        }
        _ => (None, place),
    }
}

impl Definition {
    /// Reads a definition.
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > TEXT_MAX {
            return Err(LinesError::new("the definition is longer than 16 KiB"));
        }
        let mut words = text.split_ascii_whitespace();
        let first = words.next().ok_or_else(|| LinesError::new("the definition is empty"))?;
        // Behind another of these, an equals sign belongs to a pattern.
        let (event, place) = match first_of(first, ";=@+%") {
            Some(at) if first[at..].starts_with('=') => (Some(&first[..at]), &first[at + 1..]),
            _ => (None, first),
        };
        let (group, event) = match event.map(|event| (event, cut(event, ":"))) {
            None => (None, None),
            Some((_, Some((group, event)))) => {
                (Some(name(group, "a group")?), Some(name(event, "an event")?))
            }
            Some((event, None)) => (None, Some(name(event, "an event")?)),
        };
        let (module, place) = of_module(place);
        let arguments = words.map(Wanted::parse).collect::<Result<_>>()?;
        Ok(Self { group, event, module, target: Target::parse(place)?, arguments })
    }
}

impl Target {
    /// Reads a place.
    pub fn parse(text: &str) -> Result<Self> {
        let refused = |why: &str| Err(LinesError::new(format!("the place `{text}` {why}")));
        let line = |digits: &str| {
            let line = number(digits).and_then(|line| u32::try_from(line).ok());
            line.ok_or_else(|| LinesError::new(format!("`{digits}` in `{text}` is not the number of a line")))
        };
        if first_of(text, "+@%").is_none()
            && let Some(at) = first_of(text, ":;")
            && text[..at].contains('.')
        {
            let (file, rest) = (without_escapes(&text[..at]), &text[at + 1..]);
            if text[at..].starts_with(';') {
                return if rest.is_empty() {
                    refused("has an empty pattern")
                } else {
                    Ok(Self::Pattern { file, pattern: rest.to_owned() })
                };
            }
            return match line(rest)? {
                0 => refused("has no line 0: lines of a source count from 1"),
                line => Ok(Self::Line { file, line }),
            };
        }
        let end = first_of(text, ";:+@%").unwrap_or(text.len());
        let name = without_escapes(&text[..end]);
        if name.is_empty() {
            return refused("names no function and no source");
        }
        if name.contains(['*', '?']) {
            return refused("names a function by a pattern; a line needs one function");
        }
        let (mut file, mut within, mut rest) = (None, None, &text[end..]);
        while let Some(mark) = rest.chars().next() {
            let body = &rest[1..];
            let stop = if mark == ';' { body.len() } else { first_of(body, ";:+@%").unwrap_or(body.len()) };
            let part = &body[..stop];
            let found = match mark {
                '@' if file.is_some() => return refused("names two sources"),
                '@' if part.is_empty() => return refused("has an empty source"),
                '@' => {
                    file = Some(without_escapes(part));
                    None
                }
                ':' => {
                    Some(line(part).map(|line| if line == 0 { Within::Entry } else { Within::Line(line) })?)
                }
                '+' => Some(
                    number(part)
                        .map(Within::Offset)
                        .ok_or_else(|| LinesError::new(format!("`{part}` in `{text}` is not an offset")))?,
                ),
                '%' if part == "return" => Some(Within::Return),
                '%' => return refused("has a word other than `return` after `%`"),
                _ if part.is_empty() => return refused("has an empty pattern"),
                _ => Some(Within::Pattern(part.to_owned())),
            };
            if found.is_some() && within.is_some() {
                return refused("has two of a line, an offset, a pattern and `%return`");
            }
            within = found.or(within);
            rest = &body[stop..];
        }
        Ok(Self::Function { name, file, within: within.unwrap_or(Within::Entry) })
    }
}

impl Wanted {
    /// Reads an argument.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "$vars" => return Ok(Self::Variables),
            "$params" => return Ok(Self::Parameters),
            _ => {}
        }
        let (given, body) = match cut(text, "=") {
            Some((given, body)) => (Some(name(given, "an argument")?), body),
            None => (None, text),
        };
        if body.starts_with(['$', '%', '@', '+', '-', '\\']) {
            return Ok(Self::Kernel(text.to_owned()));
        }
        let (body, user) = body.strip_suffix("@user").map_or((body, false), |body| (body, true));
        let (path, ty) = match body.split_once(':') {
            Some((path, ty)) => (path, Some(ty.to_owned()).filter(|ty| !ty.is_empty())),
            None => (body, None),
        };
        let refused = |why: &str| LinesError::new(format!("the argument `{text}` {why}"));
        if body.ends_with(':') {
            return Err(refused("has no type after the colon"));
        }
        let end = path.find(['.', '-', '[']).unwrap_or(path.len());
        let variable = name(&path[..end], "a variable")?;
        let mut steps = Vec::new();
        let mut rest = &path[end..];
        while !rest.is_empty() {
            let (step, after) = if let Some(index) = rest.strip_prefix('[') {
                let (index, after) = index.split_once(']').ok_or_else(|| refused("has an open bracket"))?;
                let index = number(index).ok_or_else(|| refused("has an index other than a number"))?;
                (Step::Element(index), after)
            } else {
                let (body, is_pointer) = match (rest.strip_prefix("->"), rest.strip_prefix('.')) {
                    (Some(body), _) => (body, true),
                    (None, Some(body)) => (body, false),
                    (None, None) => {
                        return Err(refused("has a word that is neither a member nor an element"));
                    }
                };
                let end = body.find(['.', '-', '[']).unwrap_or(body.len());
                let member = name(&body[..end], "a member")?;
                (if is_pointer { Step::Pointee(member) } else { Step::Member(member) }, &body[end..])
            };
            steps.push(step);
            rest = after;
            if steps.len() > STEPS_MAX {
                return Err(refused("has more than 64 steps"));
            }
        }
        Ok(Self::Variable(Expression { name: given, variable, steps, ty, user }))
    }
}

/// The argument, as it is read.
impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(text) => f.write_str(text),
            Self::Variables => f.write_str("$vars"),
            Self::Parameters => f.write_str("$params"),
            Self::Variable(expression) => {
                expression.name.iter().try_for_each(|name| write!(f, "{name}="))?;
                f.write_str(&expression.path())?;
                expression.ty.iter().try_for_each(|ty| write!(f, ":{ty}"))?;
                f.write_str(if expression.user { "@user" } else { "" })
            }
        }
    }
}

impl Expression {
    /// A variable as it is.
    pub(crate) fn of(variable: &str) -> Self {
        Self { name: None, variable: variable.to_owned(), steps: Vec::new(), ty: None, user: false }
    }

    /// The name of the argument: the given one, that of the last member, or that of the variable. An index
    /// does not count.
    pub(crate) fn argument_name(&self) -> String {
        let member = self.steps.iter().rev().find_map(|step| match step {
            Step::Member(name) | Step::Pointee(name) => Some(name.clone()),
            Step::Element(_) => None,
        });
        let is_plain = |ty: &&String| ty.chars().all(|c| c.is_ascii_alphanumeric());
        let with_type = || match self.ty.as_ref().filter(is_plain) {
            Some(ty) => format!("{}_{ty}", self.variable),
            None => self.variable.clone(),
        };
        self.name.clone().or(member).unwrap_or_else(with_type)
    }

    /// The expression as it is written, without name and type.
    pub(crate) fn path(&self) -> String {
        self.steps.iter().fold(self.variable.clone(), |text, step| match step {
            Step::Member(name) => format!("{text}.{name}"),
            Step::Pointee(name) => format!("{text}->{name}"),
            Step::Element(index) => format!("{text}[{index}]"),
        })
    }
}

/// Whether the text of a line matches a pattern: `*` and `?` are wild, and blanks of the text do not count.
pub(crate) fn matches(line: &str, pattern: &str) -> bool {
    let without_blanks = |text: &str| text.split_whitespace().collect::<String>();
    Glob::new(without_blanks(pattern)).matches(&without_blanks(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, file: Option<&str>, within: Within) -> Target {
        Target::Function { name: name.to_owned(), file: file.map(str::to_owned), within }
    }

    #[test]
    fn places_are_read_as_perf_reads_them() {
        let line = |file: &str, line| Target::Line { file: file.to_owned(), line };
        for (text, expected) in [
            ("vfs_read", function("vfs_read", None, Within::Entry)),
            ("vfs_read:0", function("vfs_read", None, Within::Entry)),
            ("vfs_read:11", function("vfs_read", None, Within::Line(11))),
            ("vfs_read+0x10", function("vfs_read", None, Within::Offset(16))),
            ("vfs_read%return", function("vfs_read", None, Within::Return)),
            ("vfs_read;ret=*", function("vfs_read", None, Within::Pattern("ret=*".to_owned()))),
            ("vfs_read@fs/read_write.c:11", function("vfs_read", Some("fs/read_write.c"), Within::Line(11))),
            ("vfs_read@read_write.c", function("vfs_read", Some("read_write.c"), Within::Entry)),
            ("vfs_read@a.c;x;y=1", function("vfs_read", Some("a.c"), Within::Pattern("x;y=1".to_owned()))),
            ("fs/read_write.c:468", line("fs/read_write.c", 468)),
            (r"odd\:name.c:7", line("odd:name.c", 7)),
            ("a.c;goto*", Target::Pattern { file: "a.c".to_owned(), pattern: "goto*".to_owned() }),
        ] {
            assert_eq!(Target::parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn places_that_say_two_things_are_refused() {
        for text in [
            "",
            "f:3+4",
            "f:3%return",
            "f+4;x",
            "f%exit",
            "f@",
            "f@a.c@b.c",
            "f;",
            "a.c:0",
            "a.c:x",
            "a.c;",
            "f:",
            "f:-1",
            "vfs_*:3",
            ":3",
        ] {
            assert!(Target::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_definition_has_an_event_a_place_and_arguments() {
        let read = Definition::parse("io:slow=vfs_read:11 count file->f_mode $vars new=%ax").unwrap();
        assert_eq!((read.group.as_deref(), read.event.as_deref()), (Some("io"), Some("slow")));
        assert_eq!(read.arguments.len(), 4);
        assert_eq!(read.arguments[2], Wanted::Variables);
        assert_eq!(read.arguments[3], Wanted::Kernel("new=%ax".to_owned()));
        let read = Definition::parse("vfs_read;ret=*").unwrap();
        assert_eq!(read.event, None);
    }

    #[test]
    fn arguments_are_paths_with_types() {
        let read = |text: &str| match Wanted::parse(text) {
            Ok(Wanted::Variable(read)) => read,
            other => panic!("{text}: {other:?}"),
        };
        let path = read("mode=file->f_inode.i_sb[0x2]->s_flags:x32@user");
        assert_eq!(path.variable, "file");
        let member = |name: &str| name.to_owned();
        let steps = [
            Step::Pointee(member("f_inode")),
            Step::Member(member("i_sb")),
            Step::Element(2),
            Step::Pointee(member("s_flags")),
        ];
        assert_eq!(path.steps, steps);
        assert_eq!(
            (path.ty.as_deref(), path.user, path.argument_name()),
            (Some("x32"), true, "mode".to_owned())
        );
        assert_eq!(path.path(), "file->f_inode.i_sb[2]->s_flags");
        for (text, name) in [
            ("count", "count"),
            ("how->flags", "flags"),
            ("a[3]", "a"),
            ("a.b[3]", "b"),
            ("name:string", "name_string"),
        ] {
            assert_eq!(read(text).argument_name(), name, "{text}");
        }
        for text in
            ["a-", "a->", "a.", "a[", "a[x]", "a[-1]", "a[1]b", "1a", "a:", "=a", "a b=c", "x=", "a..b"]
        {
            assert!(Wanted::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn patterns_leave_blanks_out() {
        assert!(matches("\tret = vfs_open(a, b);", "ret=*"));
        assert!(matches("\tret = 1;", "*=?;") && !matches("\tret = 12;", "ret=?;"));
        assert!(!matches("ret", "re") && matches("ret", "r*t*") && matches("", "*") && !matches("", "?"));
    }
}
