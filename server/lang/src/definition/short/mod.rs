//! Short forms: what people type, as lines of the kernel's language.
//!
//! Owns the one ordered table by which a text that is not such a line becomes one, or several. The first row that
//! fits decides; [`KernelNames`] knows what the kernel has.
//!
//! | text | becomes |
//! |---|---|
//! | `F /PREDICATE/ { ACTION }` | nothing: a program of bpftrace, refused with the command that does it (`bpftrace`) |
//! | `p...`, `r...`, `-:...` | nothing: it is a line of the kernel |
//! | `FUNC(...)` | nothing: it is a prototype |
//! | `A,B` | both, each by this table |
//! | `kprobe:F`, `k:F`, `kretprobe:F`, `kr:F` | `p F`, `r F` |
//! | `tracepoint:G:E`, `t:G:E` | the event `G/E` |
//! | `syscall:NAME` | `p __x64_sys_NAME`, with its arguments by name |
//! | `GROUP/EVENT`, `GROUP:EVENT` | the event |
//! | `MODULE:FUNC` | `p MODULE:FUNC`; refused if there is such an event too |
//! | `FUNC`, `FUNC+OFFSET`, `FUNC%return` | `p FUNC`, `p FUNC+OFFSET`, `r FUNC` |
//! | `[GROUP:]EVENT=FUNC` | `p:[GROUP/]EVENT FUNC` |
//! | `EVENT` | the event, if one group has it |
//! | `openat`, `sys_openat` | the system call |
//! | a name with `*` or `?` | each function or event that matches |
//!
//! Without arguments, a function records what its prototype has (`$arg*`), a return what it returns, and a system call
//! its arguments. `arguments` reads those that are written.

mod arguments;
mod bpftrace;
mod expression;
mod place;
#[cfg(test)]
mod tests;

pub use place::is_of_other_tools;

use super::code::Code;
use super::diagnostic::{Diagnostic, listed};
use super::line::{self, Word};
use super::names::{is_identifier, is_of_name};
use super::rewrite::Rewritten;

/// What a kernel has that a text can name. Nothing of it is known, unless an implementation says so.
pub trait KernelNames {
    /// Whether that function has a parameter of that name; `None` if that is not known. A function
    /// that is known to have no types has no parameter.
    fn has_parameter(&self, _module: Option<&str>, _function: &str, _name: &str) -> Option<bool> {
        None
    }

    /// Whether the kernel finds parameters of that function by itself, and so reads a plain `$argN`
    /// as the name of one; `None` if that is not known.
    fn finds_parameters(&self, _module: Option<&str>, _function: &str) -> Option<bool> {
        None
    }

    /// Whether a module, or the kernel with all of its modules, has a function of that name. Absent if that is not
    /// known.
    fn has_function(&self, _module: Option<&str>, _name: &str) -> Option<bool> {
        None
    }

    /// The functions that a probe can be in and whose names match a glob, in the order of their names.
    fn functions(&self, _module: Option<&str>, _glob: &str) -> MatchingFunctions {
        MatchingFunctions::default()
    }

    /// Whether a module is loaded.
    fn has_module(&self, _name: &str) -> bool {
        false
    }

    /// All events of the host, as `GROUP/EVENT`, that can be recorded. Absent if they are not known.
    fn events(&self) -> Option<Vec<String>> {
        None
    }

    /// The types of a function. Absent if they are not known.
    fn function(&self, _module: Option<&str>, _name: &str) -> Option<KnownFunction> {
        None
    }

    /// The system call that a name means: `openat`, `sys_openat`, `__x64_sys_openat`.
    fn system_call(&self, _name: &str) -> Option<SystemCall> {
        None
    }
}

/// A kernel of which nothing is known.
pub(super) struct UnknownKernel;

impl KernelNames for UnknownKernel {}

/// The functions that match a glob.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MatchingFunctions {
    /// Those that a probe can be in: the module, if the function needs it, and the name.
    pub places: Vec<(Option<String>, String)>,
    /// How many others match: a probe cannot be in them, or several functions have the name.
    pub left_out: usize,
}

/// A function whose types are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownFunction {
    /// Its parameters, in order.
    pub parameters: Vec<KnownParameter>,
    /// Whether `$arg*` records all of them.
    pub all_recordable: bool,
    /// Whether it returns a value.
    pub returns: bool,
}

/// A parameter of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownParameter {
    /// Its name; empty for `...`.
    pub name: String,
    /// Whether it points to memory of a program (`__user`). Absent if its type does not say so.
    pub is_of_program: Option<bool>,
}

/// A system call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemCall {
    /// Its name, such as `openat`.
    pub name: String,
    /// The function that the entry code calls.
    pub function: String,
    /// Its arguments, in order. Empty if they are not known.
    pub arguments: Vec<CallArgument>,
}

/// An argument of a system call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallArgument {
    /// Its name.
    pub name: String,
    /// The expression that reads it, such as `regs->si`.
    pub value: String,
    /// How it is read if nothing is said: a type such as `s32`, or `ustring` for the text that it points to.
    pub ty: String,
}

/// Most lines that one text can stand for: as many as one request can define.
pub const EXPANSION_MAX_LINES: usize = 1000;

/// Most lines that a refusal shows.
const SHOWN_LINES: usize = 3;

/// The lines of the kernel's language for which a short form stands, each of one probe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expansion {
    /// The lines.
    pub lines: Vec<String>,
    /// What was left out of them, and what else the text could mean.
    pub notes: Vec<String>,
}

/// A short form that was read.
pub(super) enum Short {
    /// One line, with the origin of its parts.
    One(Rewritten, Expansion),
    /// Several lines.
    Several(Expansion),
}

/// Reads a text that may be a short form. Absent for every other text, and for one that cannot be read at all.
pub(super) fn read(text: &str, names: &dyn KernelNames) -> Option<Result<Short, Diagnostic>> {
    if let Some(problem) = bpftrace::read(text, names) {
        return Some(Err(problem));
    }
    let words = line::single(text).ok()?;
    let (written, arguments) = words.split_first()?;
    let (event, first) = event_before(*written);
    if is_line(first) || is_prototype(&words) || !is_name(first.text) {
        return None;
    }
    let found = match place::read(first, !arguments.is_empty(), names)? {
        Ok(found) => found,
        Err(problem) => return Some(Err(problem)),
    };
    if let Some(event) = event
        && found.targets.iter().any(|target| found.targets.len() > 1 || target.is_event())
    {
        let message = format!("`{}` cannot have the name `{}`", first.text, event.text);
        let hint =
            "a name is for one probe of a function: leave it out, and each probe has a name of its own";
        return Some(Err(event.error(Code::SeveralLines, message).with_hint(hint)));
    }
    if found.targets.len() > EXPANSION_MAX_LINES {
        let message = format!("`{}` stands for {} probes", first.text, found.targets.len());
        let hint = format!("one request makes {EXPANSION_MAX_LINES}: write a longer name before the `*`");
        return Some(Err(first.error(Code::SeveralLines, message).with_hint(hint)));
    }
    let mut notes = found.notes;
    let mut rewritten = Vec::with_capacity(found.targets.len());
    let mut lines: Vec<String> = Vec::with_capacity(found.targets.len());
    for target in &found.targets {
        match arguments::line(event, target, arguments, names) {
            // A list can name one twice.
            Ok(line) if lines.iter().any(|known| known == line.line()) => {}
            Ok(line) => {
                lines.push(line.line().to_owned());
                rewritten.push(line);
            }
            Err(problem) => return Some(Err(problem)),
        }
    }
    if let Some(left_out) = left_out(first.text, found.left_out) {
        notes.push(left_out);
    }
    let expansion = Expansion { lines, notes };
    Some(Ok(match rewritten.pop() {
        Some(only) if rewritten.is_empty() => Short::One(only, expansion),
        _ => Short::Several(expansion),
    }))
}

/// Why a text that stands for several probes does not define one.
pub(super) fn several(text: &str, expansion: &Expansion) -> Diagnostic {
    let words: Vec<_> = line::words(text).collect();
    let (start, end) =
        (words.first().map_or(0, |word| word.start), words.last().map_or(0, |word| word.end()));
    let message = format!(
        "`{}` stands for {} probes, and one is wanted here: {}",
        text.get(start..end).unwrap_or_default(),
        expansion.lines.len(),
        listed(&expansion.lines, SHOWN_LINES)
    );
    Diagnostic::error(Code::SeveralLines, super::Span::new(start, end), message)
        .with_hint("write one of them; `kprobectl trace` and `kprobectl add` define all of them")
}

/// What the writer of a glob should know of functions that it leaves out.
fn left_out(text: &str, count: usize) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!(
            "`{text}` leaves out one function that a probe cannot be in, or that shares its name"
        )),
        _ => Some(format!(
            "`{text}` leaves out {count} functions that a probe cannot be in, or that share their name"
        )),
    }
}

/// `[GROUP:]EVENT=PLACE`, as `perf probe` has it: the name of the probe, and its place.
fn event_before(word: Word<'_>) -> (Option<Word<'_>>, Word<'_>) {
    let is_event =
        |event: &Word<'_>| event.text.split(':').all(is_identifier) && event.text.split(':').count() < 3;
    match word.split_once('=') {
        Some((event, place)) if is_event(&event) && !place.text.is_empty() => (Some(event), place),
        _ => (None, word),
    }
}

/// Whether the text begins like a line of `kprobe_events`: a letter and a number, and a colon or nothing behind them.
fn is_line(first: Word<'_>) -> bool {
    if first.text.starts_with('-') {
        return true;
    }
    first.text.strip_prefix(['p', 'r']).is_some_and(|rest| {
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.is_empty() || rest.starts_with(':')
    })
}

/// Whether a `(` stands where only a prototype, or a call, has one: after a name that is not an argument.
fn is_prototype(words: &[Word<'_>]) -> bool {
    let opened = words.iter().enumerate().find_map(|(at, word)| Some((at, word.text.split_once('(')?.0)));
    opened.is_some_and(|(at, before)| at == 0 || (before.chars().all(is_of_name) && before != "str"))
}

/// Whether a word can be a place by its name: a name or a glob, and what can follow it.
fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '*' | '?'))
        && word
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'$' | b'(' | b')' | b'=' | b'"'))
}
