//! Steps in which a kernel processes a definition, in its order.
//!
//! Owns that order. Every finding has the step at which the running kernel would find it, whether
//! the parser, the types of the kernel, or a rule about places found it. The verdict is the finding
//! with the lowest step. Steps are values to compare: this module never finds a problem by itself.
//!
//! Follows kernel/trace/trace_kprobe.c:trace_kprobe_create_internal and what it calls. If kernels
//! differ, the code that makes a finding chooses the step by what the running kernel does: for
//! example, it looks a symbol up before or after the check for a function entry, or only when the
//! probe is registered.

/// A step of the kernel.
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
