//! Diagnostic: one problem of a definition, with its position and what to write instead.
//!
//! Owns what is known of a problem, and the order of the steps in which a kernel processes a definition. Never decides
//! whether there is a problem, and never shows it.

use std::fmt;

use super::Span;
use super::code::Code;

/// Whether a definition with this problem can still be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The definition is refused.
    Error,
    /// The definition is accepted; the writer should know something about it.
    Warning,
}

/// Who refuses a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusedBy {
    /// The kernel refuses it too.
    Kernel,
    /// The kernel accepts it, or has no such language. `server/fixtures/stricter.rs` lists these rules.
    Kprobed,
}

/// One problem of a definition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Diagnostic {
    /// Whether the definition is refused because of it.
    pub severity: Severity,
    /// The kernel's name for the problem, or the daemon's if the kernel has none.
    pub code: Code,
    /// The errno with which the running kernel refuses this; if the kernel would accept it, that of
    /// the daemon's refusal.
    pub errno: i32,
    /// Who refuses it.
    pub by: RefusedBy,
    /// The step at which the kernel finds it. The step of a warning means nothing, since nothing is
    /// refused.
    pub step: Step,
    /// The part of the text; the start is the position of the kernel's caret.
    pub span: Span,
    /// What is wrong, for people.
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// An error with the general hint of its code.
    pub fn error(code: Code, span: Span, message: impl Into<String>) -> Self {
        let hint = code.hint();
        Self {
            severity: Severity::Error,
            code,
            errno: code.errno(),
            by: code.refused_by(),
            step: Step::Line,
            span,
            message: message.into(),
            hint: (!hint.is_empty()).then(|| hint.to_owned()),
        }
    }

    /// A warning without a hint.
    pub fn warning(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, hint: None, ..Self::error(code, span, message) }
    }

    /// Replaces the errno of the code by another one of this kernel.
    #[must_use]
    pub fn with_errno(mut self, errno: i32) -> Self {
        self.errno = errno;
        self
    }

    /// Sets the step at which the kernel finds it. Without a step, it is about the line as a whole.
    #[must_use]
    pub fn at(mut self, step: Step) -> Self {
        self.step = step;
        self
    }

    /// Says that only this daemon refuses it, if that depends on more than the code.
    #[must_use]
    pub(crate) fn by_kprobed(mut self) -> Self {
        self.by = RefusedBy::Kprobed;
        self
    }

    /// Replaces the general hint of the code by one for this case.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with a hint, if it had none.
    #[must_use]
    pub fn or_hint(mut self, hint: impl FnOnce() -> String) -> Self {
        if self.hint.as_deref().unwrap_or_default().is_empty() {
            self.hint = Some(hint());
        }
        self
    }

    /// The position that the kernel would print for this problem: a byte offset into the command as
    /// the kernel shows it, which is the words of the line joined by single blanks
    /// (kernel/trace/trace_probe.c:__trace_probe_log_err). The caret column of `error_log` is 11
    /// more (two blanks and `Command: `).
    pub fn kernel_position(&self, text: &str) -> usize {
        let mut joined = 0;
        let mut position = 0;
        for word in super::line::words(text) {
            if word.start > self.span.start {
                break;
            }
            position = joined + (self.span.start - word.start).min(word.text.len());
            joined += word.text.len() + 1;
        }
        position
    }
}

/// A step of the kernel. Every finding has the step at which the running kernel would find it, whether the parser, the
/// types of the kernel, or a rule about places found it. The verdict is the finding with the lowest step.
///
/// Follows kernel/trace/trace_kprobe.c:trace_kprobe_create_internal and what it calls. If kernels differ, the code that
/// makes a finding chooses the step by what the running kernel does: for example, it looks a symbol up before or after
/// the check for a function entry, or only when the probe is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The text as a line of the language: lines, characters, the letter
    /// (kernel/trace/trace.c:trace_parse_run_command). Also everything about a text of another
    /// language than the kernel's.
    Line,
    /// The number after the letter.
    Maxactive,
    /// The text of the place.
    Place,
    /// The symbol of the place, if it is looked up before anything else (validate_probe_symbol,
    /// 6.8).
    SymbolFirst,
    /// Whether a return probe is at the entry of a function
    /// (kernel/kprobes.c:kprobe_on_func_entry).
    Entry,
    /// The symbol of the place, if it is looked up after that.
    SymbolThen,
    /// The group of the event (kernel/trace/trace_probe.c:traceprobe_parse_event_name).
    Group,
    /// The name of the event.
    Event,
    /// Whether the word of this index, which starts with `$arg`, may be there, and what it is
    /// (argv_has_var_arg, 6.5).
    VariableWord(usize, VariableWordStep),
    /// The word of this index becomes the names of parameters (traceprobe_expand_meta_args, 6.5).
    Expansion(usize),
    /// The number of arguments.
    ArgumentCount,
    /// The argument of this index (traceprobe_parse_probe_arg).
    Argument(usize, ArgumentStep),
    /// Whether the name of the event is free (kernel/trace/trace_kprobe.c:register_trace_kprobe).
    Name,
    /// The place, when the probe is registered: the rule of this index in the kernel's order.
    Registration(usize),
    /// The kernel accepts the definition. This daemon's own rules about its name.
    OwnName,
    /// This daemon's own rules about its place.
    OwnPlace,
}

/// The kernel's checks of a word that starts with `$arg`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VariableWordStep {
    /// Whether a function has its arguments at the place.
    Entry,
    /// The text after `$arg`.
    Form,
}

/// A step within one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ArgumentStep {
    /// Its name, written or made by the kernel.
    Name,
    /// The length of its expression.
    Length,
    /// The text of its type.
    Type,
    /// The expression, which is parsed from left to right: the part that begins at this byte of the
    /// text.
    Expression(usize, PartStep),
    /// Whether type and expression fit.
    Fit,
    /// This daemon's own rules about it.
    Own,
    /// Whether the record has room for it.
    Record,
}

/// The kernel's checks of one part of an expression: a variable, an offset, a parameter or a
/// member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartStep {
    /// Whether such a part is allowed: at this place, or after a value of this type.
    Possible,
    /// The sign or the text that follows it.
    Following,
    /// Which one it is: number, parameter or member.
    LookUp,
    /// This daemon's own rules.
    Own,
}

impl Step {
    /// The beginning of registration.
    pub const REGISTRATION: Self = Self::Registration(0);

    /// The step at which the kernel processes a part of the expression of an argument.
    pub fn part(argument: usize, at: usize, part: PartStep) -> Self {
        Self::Argument(argument, ArgumentStep::Expression(at, part))
    }
}

/// Texts in a message, at most so many.
pub fn listed(texts: &[impl fmt::Display], most: usize) -> String {
    let shown: Vec<_> = texts.iter().take(most).map(|text| format!("`{text}`")).collect();
    let more = texts.len().saturating_sub(most);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

/// Most subjects that a warning lists.
const LISTED_MAX: usize = 8;

/// Warnings of which those of one kind, with one hint, are one: the first, with the other subjects.
pub fn merged(warnings: Vec<Diagnostic>, text: &str) -> Vec<Diagnostic> {
    let mut kinds: Vec<(Diagnostic, Vec<Span>)> = Vec::new();
    for warning in warnings {
        let same = |(first, _): &&mut (Diagnostic, Vec<Span>)| {
            first.code == warning.code && first.hint == warning.hint && warning.severity == Severity::Warning
        };
        match kinds.iter_mut().find(same) {
            Some((_, others)) => others.push(warning.span),
            None => kinds.push((warning, Vec::new())),
        }
    }
    let with_others = |(mut first, others): (Diagnostic, Vec<Span>)| {
        // The arguments of a short form are not in the text: all of them have its place.
        let (nameless, named): (Vec<_>, Vec<_>) = others.into_iter().partition(|span| *span == first.span);
        let subjects: Vec<_> = named.iter().filter_map(|span| text.get(span.range())).collect();
        let more = (!nameless.is_empty()).then(|| format!("{} more", nameless.len()));
        let subjects = (!subjects.is_empty()).then(|| listed(&subjects, LISTED_MAX));
        let others: Vec<_> = subjects.into_iter().chain(more).collect();
        if !others.is_empty() {
            first.message.push_str("; the same holds for ");
            first.message.push_str(&others.join(" and "));
        }
        first
    };
    kinds.into_iter().map(with_others).collect()
}
