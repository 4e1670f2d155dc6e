//! Guard arguments: companions that show whether a number was really read.
//!
//! Owns their names and forms. When a numeric fetch faults, the kernel leaves its slot in the
//! record as it was: stale bytes, without a sign. Text arguments do have one: their descriptor is
//! preset with a length and the offset of the next free byte, and its later contents depend on how
//! far the fetch came (kernel/trace/trace_probe_tmpl.h: store_trace_args; observed on 6.1 to 7.3):
//!
//! - a fault in an *intermediate* read stops the fetch; the preset stays: a length that is not 0,
//!   and no byte consumed;
//! - a fault in the *last* read, that of the string, writes the length 0.
//!
//! So each argument that reads memory gets a companion of type `ustring` with the same expression
//! inside one more dereference: `__kpd_g3=-2147483647(EXPRESSION):ustring` for the fourth argument.
//! Its intermediate read is the read of the argument. If that faults, the preset stays. If it
//! succeeds, the string is looked for nearly 2 GiB below the value, which for a kernel pointer or a
//! small number is no user address and fails at once with the length 0. Should the value be a user
//! address, a string may be found there and bytes be consumed: that too is not the preset.
//! `__kpd_end` closes the row: bytes consumed are counted up to the offset of the next descriptor,
//! and the preset length is what is left of the record, which without a text behind could be 0 as
//! well.
//!
//! The intermediate read takes 8 bytes, whatever the type: a smaller value in the last 7 bytes
//! before an unmapped page is reported as a fault although it was read. Arrays of more than 8 bytes
//! have a second companion, `__kpd_g3_e`, at their last 8 bytes.
//!
//! If no companion fits, and on kernels before the fixes of July 2023, which set the length 0 in
//! both cases, a number is *unproven*: it can be what was in the ring buffer before. [`unproven`]
//! returns which and why, [`warnings`] warns the writer, and the schema of the events marks the
//! field for every reader.
//!
//! Companions follow all arguments of the user, so that positions in kernel messages stay those of
//! the user's. This module makes definitions, and never reads records: the decoder does.

use super::Span;
use super::argument::{ARGS_MAX, RECORD_MAX_BYTES};
use super::ast::{Argument, BaseType, Fetch, FetchKind, Name, ProbeDefinition, ProbeKind, Register, Type};
use super::code::Code;
use super::dangerous;
use super::diagnostic::Diagnostic;
use super::features::Features;
use super::line::LINE_MAX_BYTES;
use super::names::EVENT_NAME_MAX_BYTES;
use super::program;

/// Prefix of every guard's name; refused in definitions of users.
pub const PREFIX: &str = "__kpd_";
/// The argument after the last text argument.
pub const END: &str = "__kpd_end";
/// Its text. A descriptor that was never written covers everything up to the end of this text, which is how the filters
/// of the kernel find it; no text in memory that is worth reading ends like that.
pub const END_TEXT: &str = "\u{1}";

/// The distance of the string from the value: as far down as the kernel's 32-bit offset goes.
pub const DISTANCE: i32 = -0x7fff_ffff;
/// Bytes of an intermediate read.
const WORD_BYTES: usize = 8;

/// A definition with companions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guarded {
    /// The arguments of the user in the form that the kernel gets, then the companions.
    pub definition: ProbeDefinition,
    /// Numbers from memory that could not get all their companions.
    pub unproven: Vec<Unproven>,
}

/// A number from memory that has no proof that it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unproven {
    /// The index of the argument.
    pub index: usize,
    /// Why it has no companion.
    pub reason: Reason,
}

/// Why a number has no companion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The kernel leaves the same companion whether the number could be read or not.
    Kernel,
    /// The companion would be longer than an expression may be, by so many bytes.
    Long(usize),
    /// The companion would have more dereferences than the kernel accepts.
    Deep,
    /// The end of an array at a path of members has no spelling.
    Members,
    /// All companions together do not fit: too many arguments, too large a record, too long a line.
    Many,
}

impl Reason {
    /// What to write instead.
    fn hint(self) -> String {
        match self {
            Self::Kernel => {
                "kernels from 6.5, and those of 6.1 since July 2023, leave a trace of a failed read: this one does not".to_owned()
            }
            Self::Long(bytes) => {
                format!("shorten the expression by {bytes} bytes: the daemon then adds an argument that shows failed reads")
            }
            Self::Deep => "use fewer dereferences: the daemon then adds an argument that shows failed reads".to_owned(),
            Self::Members => "read the array by its offset: NAME=+OFFSET(POINTER):TYPE[N]".to_owned(),
            Self::Many => "use fewer arguments, or two probes: the daemon adds an argument or two for each that reads memory".to_owned(),
        }
    }
}

/// The name of the companion of the argument at `index`.
pub fn companion_name(index: usize) -> String {
    format!("{PREFIX}g{index}")
}

/// The name of the companion for the end of an array at `index`.
pub(crate) fn end_companion_name(index: usize) -> String {
    format!("{PREFIX}g{index}_e")
}

/// Adds the companions that fit the limits of the kernel: bytes of an expression, slots of the
/// fetch program, number of arguments, size of the record, length of the line. `$arg*` counts as
/// one argument: expand it before.
pub fn guarded(definition: &ProbeDefinition, features: &Features) -> Guarded {
    let (companions, unproven) = companions(definition, features);
    let mut definition = dangerous::defused(definition.clone());
    definition.args.extend(companions);
    Guarded { definition, unproven }
}

/// Numbers from memory that have no proof that they were read.
pub fn unproven(definition: &ProbeDefinition, features: &Features) -> Vec<Unproven> {
    companions(definition, features).1
}

/// The register of an argument that a value is read from, or behind, when the function returns, and
/// the number of the argument. The function may have used the register for anything since its
/// entry.
pub fn register_at_return(definition: &ProbeDefinition, argument: &Argument) -> Option<(Register, u32)> {
    let kind = &argument.fetch.root().kind;
    let FetchKind::Register(register) = *kind else { return None };
    let number = kind.held_argument()?;
    (definition.kind == ProbeKind::Return).then_some((register, number))
}

/// What the writer should know of a definition that the kernel gets with companions, or in another
/// form.
pub fn warnings(definition: &ProbeDefinition, features: &Features) -> Vec<Diagnostic> {
    let unproven = unproven(definition, features).into_iter();
    let unproven =
        unproven.filter_map(|Unproven { index, reason }| Some((definition.args.get(index)?, reason)));
    let unproven = unproven.map(|(argument, reason)| {
        let message = format!(
            "nothing shows whether `{argument}` could be read: its values are unproven, and shown with `(?)`"
        );
        Diagnostic::warning(Code::Unproven, argument.fetch.span, message).with_hint(reason.hint())
    });
    unproven.chain(dangerous::notes(definition)).collect()
}

/// The companions, and the arguments that could not get all of theirs.
fn companions(definition: &ProbeDefinition, features: &Features) -> (Vec<Argument>, Vec<Unproven>) {
    let text = |argument: &Argument| argument.base_type().is_text();
    if !definition.args.iter().any(|argument| reads_memory(argument) || text(argument)) {
        return Default::default();
    }
    let mut budget = Budget::of(definition);
    let mut companions = Vec::new();
    let mut unproven = Vec::new();
    let mut text = definition.args.iter().any(text);
    // The one at the end is the most important: without it no text argument can be judged.
    let end = end_argument(definition.span);
    let end_fits = budget.take(std::slice::from_ref(&end));

    let needs_one = |argument: &Argument| reads_memory(argument) && !definition.is_part_of_path(argument);
    for (index, argument) in definition.args.iter().enumerate().filter(|(_, argument)| needs_one(argument)) {
        let made = wanted(argument, index, definition, features)
            .and_then(|made| if end_fits && budget.take(&made) { Ok(made) } else { Err(Reason::Many) });
        match made {
            Ok(made) => companions.extend(made),
            Err(reason) => unproven.push(Unproven { index, reason }),
        }
    }
    text |= !companions.is_empty();
    if text && end_fits {
        companions.push(end);
    }
    (companions, unproven)
}

/// Whether the value is a number from memory that may be unmapped: even that of a symbol, which can
/// be in a part of the kernel that was freed, or an offset into the memory of each CPU.
pub fn reads_memory(argument: &Argument) -> bool {
    let memory = match &argument.fetch.kind {
        FetchKind::Deref { .. } | FetchKind::Memory(_) => true,
        FetchKind::Btf { members, .. } => !members.is_empty(),
        _ => false,
    };
    memory && !argument.base_type().is_text()
}

/// All companions that the argument needs, or why the kernel would refuse one of them.
fn wanted(
    argument: &Argument,
    index: usize,
    definition: &ProbeDefinition,
    features: &Features,
) -> Result<Vec<Argument>, Reason> {
    if !features.ustring || !features.fault_marks {
        return Err(Reason::Kernel);
    }
    let span = Span::point(argument.span.end);
    let mut made = vec![companion(companion_name(index), argument.fetch.clone(), span)];
    let bytes = argument.fixed_bytes();
    if bytes > WORD_BYTES {
        let end = argument.fetch.shifted((bytes - WORD_BYTES) as u64).ok_or(Reason::Members)?;
        made.push(companion(end_companion_name(index), end, span));
    }
    made.iter().try_for_each(|made| possible(made, definition, features))?;
    Ok(made)
}

fn companion(name: String, inner: Fetch, span: Span) -> Argument {
    hidden(name, inner.followed(DISTANCE).kind, BaseType::UserString, span)
}

fn end_argument(span: Span) -> Argument {
    let kind = FetchKind::ImmediateString(END_TEXT.to_owned());
    hidden(END.to_owned(), kind, BaseType::String, Span::point(span.end))
}

fn hidden(name: String, kind: FetchKind, base: BaseType, span: Span) -> Argument {
    Argument {
        name: Some(Name { text: name, span }),
        fetch: Fetch { kind, span },
        ty: Some(Type { base, count: None, span }),
        span,
    }
}

/// Whether the kernel accepts the companion by itself: length, slots and nesting.
fn possible(companion: &Argument, definition: &ProbeDefinition, features: &Features) -> Result<(), Reason> {
    let name_bytes = companion.name.as_ref().map_or(0, |name| name.text.len() + 1);
    let bytes = companion.to_string().len() - name_bytes;
    if bytes > features.expression_max_bytes {
        return Err(Reason::Long(bytes - features.expression_max_bytes));
    }
    let fits = features.nesting_max.is_none_or(|max| companion.fetch.levels().count() <= max)
        && program::check(companion, definition.kind, features).is_ok();
    if fits { Ok(()) } else { Err(Reason::Deep) }
}

/// The rest of the limits for all arguments together.
struct Budget {
    args: usize,
    fixed_bytes: usize,
    line_bytes: usize,
}

impl Budget {
    fn of(definition: &ProbeDefinition) -> Self {
        // The final names are not known yet: the longest fit too.
        let line_bytes = definition.render("", "").len() + 2 * EVENT_NAME_MAX_BYTES;
        let fixed: usize = definition.args.iter().map(Argument::fixed_bytes).sum();
        Self {
            args: ARGS_MAX.saturating_sub(definition.args.len()),
            fixed_bytes: RECORD_MAX_BYTES.saturating_sub(fixed),
            line_bytes: LINE_MAX_BYTES.saturating_sub(line_bytes),
        }
    }

    /// Uses what these arguments need, all or nothing.
    fn take(&mut self, made: &[Argument]) -> bool {
        let fixed: usize = made.iter().map(Argument::fixed_bytes).sum();
        let line: usize = made.iter().map(|argument| argument.to_string().len() + 1).sum();
        let fits = made.len() <= self.args && fixed <= self.fixed_bytes && line <= self.line_bytes;
        if fits {
            self.args -= made.len();
            self.fixed_bytes -= fixed;
            self.line_bytes -= line;
        }
        fits
    }
}
