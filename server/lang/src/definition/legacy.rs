//! The words of the first version of the language (2009), where variables had no `$`.
//!
//! Owns which words there were and what each is today. The rest of a definition was the same then: head,
//! place, `NAME=`, `%REG`, `@SYM` and `±OFFS(...)` are read by the parser of today, so that the syntax tree
//! and its spans are the same for both.
//!
//! | word | meaning | today |
//! |---|---|---|
//! | `sN`, `sa` | Nth entry of the stack, stack address | `$stackN`, `$stack` |
//! | `aN` at a function | argument N, from 0 | `$arg(N+1)`; in a return probe the value at entry, with a warning |
//! | `aN` at an offset or an address | what is where argument N would be | the register or the stack entry, with a warning |
//! | `rv` | return value | `$retval` |
//! | `ra` | return address | no argument: see below |
//!
//! A word without `NAME=` is its own name, as the listings of 2009 show it: `rv` becomes `rv=$retval`.
//!
//! Every event of a return probe carries the return address (`__probe_ret_ip`) today, so a plain `ra` adds
//! nothing to the definition; a warning at the word says which field has it. `NAME=ra` and `+8(ra)` would
//! need an argument and are refused.
//!
//! Kernels with BTF take a bare word as the name of a parameter, and functions with a parameter `sa` or `ra`
//! exist. [`BareWords`] is the rule for that, and [`Parameters`] tells which functions those are.

use super::Span;
use super::ast::{Fetch, FetchKind, ProbeDefinition, ProbeKind, Register};
use super::code::Code;
use super::diagnostic::Diagnostic;
use super::line::{self, Word};

/// What a bare word such as `a0` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BareWords {
    /// What the running kernel makes of it, which may be nothing.
    Kernel,
    /// A word of 2009 where the running kernel makes nothing of it, else what the kernel makes of it.
    OldWhereFree,
    /// A word of 2009, whatever the running kernel makes of it.
    Old,
}

/// What is known of the functions of the running kernel while a definition is read.
pub trait Parameters {
    /// Whether that function has a parameter of that name; `None` where that is not known. A function that is known to have no types
    /// has no parameter.
    fn has(&self, module: Option<&str>, function: &str, name: &str) -> Option<bool>;

    /// Whether the kernel finds parameters of that function by itself, and so reads a plain `$argN` as the name of one; `None` where that
    /// is not known.
    fn found_by_kernel(&self, module: Option<&str>, function: &str) -> Option<bool>;
}

/// Nothing is known of any function.
#[derive(Debug, Clone, Copy)]
pub struct UnknownParameters;

impl Parameters for UnknownParameters {
    fn has(&self, _module: Option<&str>, _function: &str, _name: &str) -> Option<bool> {
        None
    }

    fn found_by_kernel(&self, _module: Option<&str>, _function: &str) -> Option<bool> {
        None
    }
}

/// A word of 2009.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OldWord {
    /// `aN`.
    Argument(u32),
    /// `sN`.
    StackNth,
    /// `sa`.
    Stack,
    /// `rv`.
    Retval,
    /// `ra`.
    ReturnAddress,
}

/// Where the first arguments of a function are on x86-64; the others are on the stack, above the return
/// address.
const ARGUMENT_REGISTERS: [&str; 6] = ["di", "si", "dx", "cx", "r8", "r9"];

impl OldWord {
    /// The word of 2009 that is written like this.
    pub(super) fn named(text: &str) -> Option<Self> {
        let index = |prefix: char| -> Option<u32> {
            let digits = text.strip_prefix(prefix)?;
            if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
        };
        match text {
            "rv" => Some(Self::Retval),
            "ra" => Some(Self::ReturnAddress),
            "sa" => Some(Self::Stack),
            _ => index('a').map(Self::Argument).or_else(|| index('s').map(|_| Self::StackNth)),
        }
    }
}

/// Whether a bare word was a variable in 2009: `a0`, `s1`, `sa`, `rv` or `ra`.
pub fn is_word_of_2009(word: &str) -> bool {
    OldWord::named(word).is_some()
}

/// What a word of the old language is written like today, if it is one.
pub(super) fn modern_spelling(word: &str) -> Option<String> {
    Some(match OldWord::named(word)? {
        OldWord::Retval => "the return value is written `$retval` today".to_owned(),
        OldWord::Stack => "the stack address is written `$stack` today".to_owned(),
        OldWord::ReturnAddress => {
            "leave it out: every event of a return probe carries the return address".to_owned()
        }
        OldWord::Argument(index) => {
            format!("function arguments count from one today: `$arg{}`", index.checked_add(1)?)
        }
        OldWord::StackNth => format!("stack entries are written `$stack{}` today", &word[1..]),
    })
}

/// Where argument `index` (from 0) would be if a function started here.
pub(super) fn argument_location(index: u32) -> Option<FetchKind> {
    let register = usize::try_from(index).ok().and_then(|index| ARGUMENT_REGISTERS.get(index));
    match register {
        Some(name) => Register::named(name).map(FetchKind::Register),
        // The first word on the stack is the return address.
        None => index.checked_sub(5).map(FetchKind::StackNth),
    }
}

/// The problem of an `ra` that is not an argument by itself in a return probe.
pub(super) fn misplaced_return_address(word: Word<'_>, in_return_probe: bool) -> Diagnostic {
    if in_return_probe {
        let message = "the return address is a field of the event: it takes no name and cannot be followed";
        return Diagnostic::error(Code::NoEquivalent, word.span(), message)
            .with_hint("write `ra` alone, or leave it out: the field is `__probe_ret_ip`");
    }
    Diagnostic::error(Code::NoEquivalent, word.span(), "`ra` is known only when the function returns")
        .with_hint("at the entry of a function the return address is `$stack0`")
}

/// What the writer should know about a plain `ra`.
pub(super) fn return_address_note(word: Word<'_>) -> Diagnostic {
    let message = "the return address is the field `__probe_ret_ip` of every event: no argument is added";
    Diagnostic::warning(Code::OldDialect, word.span(), message)
}

/// The words of 2009 that a definition was read with, and what is not as it was then.
pub(super) struct OldWords {
    /// Whether there is one at all.
    pub(super) any: bool,
    /// What the writer should know.
    pub(super) warnings: Vec<Diagnostic>,
}

/// Looks at a definition after it was read from `text`.
pub(super) fn old_words(text: &str, definition: &ProbeDefinition) -> OldWords {
    let mut found = OldWords { any: false, warnings: Vec::new() };
    for argument in &definition.args {
        let value = innermost(&argument.fetch);
        let Some(old) = text.get(value.span.range()).and_then(OldWord::named) else { continue };
        if matches!(value.kind, FetchKind::Btf { .. }) {
            continue;
        }
        found.any = true;
        found.warnings.extend(difference(old, value, definition.kind));
    }
    // A plain `ra` left no argument behind.
    let left_out = |span: Span| definition.args.iter().all(|argument| argument.span != span);
    found.any |= line::words(text).skip(2).any(|word| word.text == "ra" && left_out(word.span()));
    found
}

/// What is not as it was in 2009, although the word is read.
fn difference(old: OldWord, value: &Fetch, kind: ProbeKind) -> Option<Diagnostic> {
    let OldWord::Argument(index) = old else { return None };
    let message = match (&value.kind, kind) {
        (FetchKind::Argument(_), ProbeKind::Return) => {
            format!("`a{index}` is the value that the argument had when the function was entered")
        }
        (FetchKind::Register(_) | FetchKind::StackNth(_), _) => {
            format!(
                "`a{index}` is read as `{value}`, which holds the argument only where the function starts"
            )
        }
        _ => return None,
    };
    Some(Diagnostic::warning(Code::OldDialect, value.span, message))
}

/// What all dereferences are around.
fn innermost(fetch: &Fetch) -> &Fetch {
    let mut fetch = fetch;
    while let FetchKind::Deref { inner, .. } = &fetch.kind {
        fetch = inner;
    }
    fetch
}
