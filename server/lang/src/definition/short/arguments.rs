//! Arguments of short forms, and the line that a place makes with them.
//!
//! Owns the words that other tools have for arguments, and what is recorded if nothing is written.
//!
//! | word | becomes |
//! |---|---|
//! | a name of a parameter | itself, or the argument of the system call |
//! | `*` | all parameters: `$arg*`, or all arguments of the system call |
//! | `argN` | the parameter of that number, from 0 |
//! | `args.NAME`, `args->NAME` | the parameter of that name |
//! | `retval` | `retval=$retval` |
//! | `comm` | `comm=$comm` |
//! | `str(NAME)` | `NAME:ustring` or `NAME:string`, whichever memory it points to |
//!
//! A type can follow `argN`, `retval` and `comm` (`retval:s32`), and a path those of them that have members
//! (`retval->f_mode`).
//!
//! Every other word is one of the kernel's language. A parameter of one of these names is meant before the word.

use super::super::Span;
use super::super::code::Code;
use super::super::diagnostic::Diagnostic;
use super::super::line::Word;
use super::super::names::is_identifier;
use super::super::rewrite::Rewritten;
use super::place::{Target, What};
use super::{CallArgument, KernelNames, KnownFunction, KnownParameter, SystemCall};

/// The line of a place with its name and the arguments, if they are written, or with what it records by itself.
pub(super) fn line(
    event: Option<Word<'_>>,
    target: &Target,
    arguments: &[Word<'_>],
    names: &dyn KernelNames,
) -> Result<Rewritten, Diagnostic> {
    let mut line = Rewritten::default();
    let origin = target.span;
    let mut begin = |letter: &str, place: &str| {
        line.begin_word(Span::point(origin.start));
        line.put(letter, Span::point(origin.start));
        if let Some(event) = event {
            line.put(&format!(":{}", event.text.replacen(':', "/", 1)), event.span());
        }
        line.begin_word(origin);
        line.put(place, origin);
    };
    let scope = match &target.what {
        What::Event(name) => {
            line.begin_word(origin);
            line.put(name, origin);
            for argument in arguments {
                line.begin_word(argument.span());
                line.copy(*argument);
            }
            return Ok(line);
        }
        What::Function { module, name, offset, returns } => {
            let before = module.as_ref().map(|module| format!("{module}:")).unwrap_or_default();
            begin(letter(*returns), &format!("{before}{name}{offset}"));
            let function = names.function(module.as_deref(), name);
            Scope { function, call: None, at_entry: offset.is_empty() && !returns, returns: *returns }
        }
        What::Call { call, returns } => {
            begin(letter(*returns), &call.function);
            Scope { function: None, call: Some(call), at_entry: !returns, returns: *returns }
        }
    };
    if arguments.is_empty() {
        for word in scope.defaults() {
            line.begin_word(origin);
            line.put(&word, origin);
        }
        return Ok(line);
    }
    for argument in arguments {
        match scope.translated(*argument)? {
            None => {
                line.begin_word(argument.span());
                line.copy(*argument);
            }
            Some(words) => {
                for word in words {
                    line.begin_word(argument.span());
                    line.replace(*argument, &word);
                }
            }
        }
    }
    Ok(line)
}

const fn letter(returns: bool) -> &'static str {
    if returns { "r" } else { "p" }
}

/// What the names of arguments mean at a place.
struct Scope<'a> {
    /// The types of the function, if they are known.
    function: Option<KnownFunction>,
    /// The system call, if it is the function of one.
    call: Option<&'a SystemCall>,
    at_entry: bool,
    returns: bool,
}

impl Scope<'_> {
    /// What is recorded if no argument is written.
    fn defaults(&self) -> Vec<String> {
        if self.returns {
            let is_void = self.call.is_none() && !self.function.as_ref().is_some_and(|known| known.returns);
            return if is_void { Vec::new() } else { vec![RETVAL.to_owned()] };
        }
        match (self.call, &self.function) {
            (Some(call), _) => call.arguments.iter().map(whole).collect(),
            (None, Some(known)) if self.at_entry && known.all_recordable => vec!["$arg*".to_owned()],
            _ => Vec::new(),
        }
    }

    /// The words of the kernel's language for a word, unless it is one itself.
    fn translated(&self, word: Word<'_>) -> Result<Option<Vec<String>>, Diagnostic> {
        let (name, written) = match word.split_once('=') {
            Some((name, value)) if is_identifier(name.text) => (Some(name.text), value),
            _ => (None, word),
        };
        let prefix = ["args->", "args."].iter().find(|prefix| written.text.starts_with(**prefix));
        let Some(prefix) = prefix.filter(|_| self.parameter("args").is_none()) else {
            return self.translated_value(name, written);
        };
        let value = written.tail(prefix.len());
        let before = name.map(|name| format!("{name}=")).unwrap_or_default();
        let as_it_is = || Some(vec![format!("{before}{}", value.text)]);
        Ok(self.translated_value(name, value)?.or_else(as_it_is))
    }

    fn translated_value(
        &self,
        name: Option<&str>,
        value: Word<'_>,
    ) -> Result<Option<Vec<String>>, Diagnostic> {
        let named = |own: &str, value: &str| Some(vec![format!("{}={value}", name.unwrap_or(own))]);
        if let Some(inner) = value.text.strip_prefix("str(").and_then(|rest| rest.strip_suffix(')')) {
            return self.text(name, inner, value).map(|word| Some(vec![word]));
        }
        if let Some(call) = self.call
            && let Some(words) = in_call(call, name, value.text)
        {
            return Ok(Some(words));
        }
        let (head, rest) =
            value.text.split_at(value.text.find(['-', '.', ':', '[']).unwrap_or(value.text.len()));
        if self.call.is_none() && self.parameter(head).is_some() {
            return Ok(None);
        }
        // What the kernel names after its last member, unless it has a name.
        let member = |value: &str| {
            let before = name.map(|name| format!("{name}=")).unwrap_or_default();
            Some(vec![format!("{before}{value}{rest}")])
        };
        let is_value = rest.is_empty() || rest.starts_with(':');
        let is_path = rest.starts_with("->");
        Ok(match head {
            "*" if rest.is_empty() && name.is_none() && self.call.is_none() => Some(vec!["$arg*".to_owned()]),
            "retval" if is_value => named("retval", &format!("$retval{rest}")),
            "retval" if is_path => member("$retval"),
            "comm" if is_value => named("comm", &format!("$comm{rest}")),
            other => match number(other).filter(|_| self.call.is_none() && (is_value || is_path)) {
                Some(index) => match self.numbered(index) {
                    Some(parameter) => member(&parameter.name),
                    None if is_value => named(other, &format!("$arg{}{rest}", index.saturating_add(1))),
                    None => None,
                },
                None => None,
            },
        })
    }

    fn parameter(&self, name: &str) -> Option<&KnownParameter> {
        let known = self.function.as_ref()?;
        known.parameters.iter().find(|parameter| parameter.name == name && !name.is_empty())
    }

    fn numbered(&self, index: usize) -> Option<&KnownParameter> {
        let known = self.function.as_ref()?;
        known.parameters.get(index).filter(|parameter| !parameter.name.is_empty())
    }

    /// `str(VALUE)`: the text that a value points to.
    fn text(&self, name: Option<&str>, inner: &str, word: Word<'_>) -> Result<String, Diagnostic> {
        let before = name.map(|name| format!("{name}=")).unwrap_or_default();
        if let Some(argument) = self.call.and_then(|call| argument_of(call, inner)) {
            let name = name.unwrap_or(&argument.name);
            return Ok(format!("{name}=+0({}):ustring", argument.value));
        }
        let by_number = number(inner).and_then(|index| self.numbered(index));
        let parameter = self.parameter(inner).or(by_number);
        let value = parameter.map_or(inner, |parameter| &parameter.name);
        match parameter.and_then(|parameter| parameter.is_of_program) {
            Some(true) => Ok(format!("{before}{value}:ustring")),
            Some(false) => Ok(format!("{before}{value}:string")),
            None => {
                let message = format!("`{}` does not say whose memory `{value}` points to", word.text);
                let hint = format!(
                    "write `{before}{value}:ustring` for the memory of a program, `{before}{value}:string` for the kernel's"
                );
                Err(word.error(Code::UnknownCommand, message).with_hint(hint))
            }
        }
    }
}

/// What a return records by itself.
const RETVAL: &str = "retval=$retval";

/// The number of `argN`.
pub(super) fn number(word: &str) -> Option<usize> {
    let digits = word.strip_prefix("arg")?;
    let are_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| are_digits && digits.len() <= 2)
}

/// The argument of a system call that is called by its name or its number.
fn argument_of<'c>(call: &'c SystemCall, name: &str) -> Option<&'c CallArgument> {
    let by_name = call.arguments.iter().find(|argument| argument.name == name);
    by_name.or_else(|| call.arguments.get(number(name)?))
}

/// A word about an argument of a system call: `NAME`, `NAME:TYPE`, `*`.
fn in_call(call: &SystemCall, name: Option<&str>, value: &str) -> Option<Vec<String>> {
    if matches!(value, "*" | "$arg*") && name.is_none() && !call.arguments.is_empty() {
        return Some(call.arguments.iter().map(whole).collect());
    }
    let (written, ty) = value.split_once(':').map_or((value, None), |(written, ty)| (written, Some(ty)));
    let argument = argument_of(call, written)?;
    Some(vec![fetched(name.unwrap_or(&argument.name), argument, ty.unwrap_or(&argument.ty))])
}

/// An argument of a system call as its type says.
fn whole(argument: &CallArgument) -> String {
    fetched(&argument.name, argument, &argument.ty)
}

fn fetched(name: &str, argument: &CallArgument, ty: &str) -> String {
    let value = &argument.value;
    if ty.starts_with("string") || ty.starts_with("ustring") {
        return format!("{name}=+0({value}):{ty}");
    }
    format!("{name}={value}:{ty}")
}
