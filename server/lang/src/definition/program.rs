//! Fetch program limits: the instructions into which the kernel would compile an argument.
//!
//! Owns this count. The kernel compiles each argument into at most 16 instructions, the last of
//! which ends it. Counts them like kernel/trace/trace_probe.c:parse_probe_arg and
//! finalize_fetch_insn (5.15, 6.12), and refuses arguments that do not fit with the same codes.
//! Never generates a program.

use super::Span;
use super::ast::{Argument, BaseType, Fetch, FetchKind, MemoryAddress, ProbeKind};
use super::code::{Code, E2BIG, EINVAL};
use super::diagnostic::Diagnostic;
use super::features::Features;

/// The slot of the instruction that ends the program (`FETCH_INSN_MAX - 1`).
const END_SLOT: usize = 15;

/// The form of the value after the last instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// A register, a stack entry, an argument at entry or a return value.
    Value,
    /// A value that the kernel does not convert to a `symstr`: the stack pointer, or an argument
    /// that was saved at entry.
    OtherValue,
    Immediate,
    /// The name of the task or an immediate string.
    Text,
    Deref,
    UserDeref,
}

/// The end of a fetch program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Program {
    /// The slot of the last instruction.
    last: usize,
    operation: Operation,
}

impl Program {
    /// The next slot, or the kernel's problem with `span`.
    fn advance(&mut self, span: Span) -> Result<(), Diagnostic> {
        self.last += 1;
        if self.last >= END_SLOT {
            return Err(Diagnostic::error(
                Code::TooManyOps,
                span,
                "the expression needs more steps than the kernel has for one argument",
            ));
        }
        Ok(())
    }

    fn dereference(&mut self, user: bool, span: Span) -> Result<(), Diagnostic> {
        if self.operation == Operation::Text {
            return Err(Diagnostic::error(Code::CommCantDeref, span, "a string is not a pointer"));
        }
        self.advance(span)?;
        self.operation = if user { Operation::UserDeref } else { Operation::Deref };
        Ok(())
    }
}

/// The program that fetches the value itself.
fn fetch(fetch: &Fetch, kind: ProbeKind) -> Result<Program, Diagnostic> {
    let simple = |operation| Ok(Program { last: 0, operation });
    let argument = match kind {
        ProbeKind::Entry | ProbeKind::Event => Operation::Value,
        ProbeKind::Return => Operation::OtherValue,
    };
    match &fetch.kind {
        FetchKind::Register(_) | FetchKind::StackNth(_) | FetchKind::Retval => simple(Operation::Value),
        FetchKind::Stack => simple(Operation::OtherValue),
        FetchKind::Argument(_) | FetchKind::AllArguments => simple(argument),
        FetchKind::Comm | FetchKind::ImmediateString(_) => simple(Operation::Text),
        FetchKind::Immediate(_) => simple(Operation::Immediate),
        FetchKind::Memory(MemoryAddress::Address(_)) => Ok(Program { last: 1, operation: Operation::Deref }),
        // One more: the symbol is kept to be resolved again.
        FetchKind::Memory(MemoryAddress::Symbol { .. }) => {
            Ok(Program { last: 2, operation: Operation::Deref })
        }
        FetchKind::Deref { user, inner, .. } => {
            let mut program = self::fetch(inner, kind)?;
            program.dereference(*user, inner.span)?;
            Ok(program)
        }
        FetchKind::Btf { members, .. } => {
            let mut program = Program { last: 0, operation: argument };
            for _ in members.iter().filter(|member| member.arrow) {
                program.dereference(false, fetch.span)?;
            }
            Ok(program)
        }
    }
}

/// Whether the kernel could compile the whole argument.
pub(super) fn check(argument: &Argument, kind: ProbeKind, features: &Features) -> Result<(), Diagnostic> {
    let body = argument.fetch.span;
    let mut program = fetch(&argument.fetch, kind)?;
    let type_span = argument.ty.map_or(body, |ty| ty.span);
    let count = argument.ty.and_then(|ty| ty.count);
    let base = argument.base_type();

    // The kernel gets other arguments for it, which are checked then.
    if base == BaseType::Path {
        return Ok(());
    }
    // The kernel replaces these types before it parses the line: by dereferences and `string`.
    let name_derefs = match base {
        BaseType::DentryName => 2,
        BaseType::FileName => 3,
        _ => 0,
    };
    for _ in 0..name_derefs {
        program.dereference(false, body)?;
    }
    // The kernel follows a parameter that is a `char *`; only BTF has its type, so it counts as one
    // here.
    let by_name = match argument.fetch.kind {
        FetchKind::Btf { .. } => true,
        // Is the parameter if the kernel knows its name.
        FetchKind::Argument(_) => features.btf_args && argument.name.is_none(),
        // `$retval` has the type of the function.
        FetchKind::Retval => features.btf_args,
        _ => false,
    };
    if by_name && base.is_pointed_text() && program.operation != Operation::Deref {
        program.dereference(base == BaseType::UserString, body)?;
    }

    let array_possible = store(&mut program, base, count.is_some(), body, type_span)?;
    if matches!(base, BaseType::BitField { .. }) {
        // The kernel reports this as a bad bit-field too.
        program.advance(type_span).map_err(|problem| Diagnostic { code: Code::BadBitfield, ..problem })?;
    }
    if count.is_some() {
        if !array_possible {
            return Err(Diagnostic::error(
                Code::BadString,
                type_span,
                "an array can only be read from kernel memory",
            ));
        }
        // Since the commit that added function probes, the loop has an errno of its own.
        let errno = if features.fprobe { E2BIG } else { EINVAL };
        program.advance(body).map_err(|problem| problem.with_errno(errno))?;
    }
    Ok(())
}

/// The instruction that stores the value, and whether it can be repeated for an array.
fn store(
    program: &mut Program,
    base: BaseType,
    array: bool,
    body: Span,
    type_span: Span,
) -> Result<bool, Diagnostic> {
    let operation = program.operation;
    if base == BaseType::SymbolString {
        if !matches!(operation, Operation::Value | Operation::Deref) {
            let message = "`symstr` cannot be made of this expression";
            return Err(Diagnostic::error(Code::BadSymstring, type_span, message));
        }
        program.advance(body)?;
        return Ok(false);
    }
    if base.is_text() {
        if matches!(operation, Operation::Value | Operation::OtherValue) {
            let message = "a string is read from memory, and this expression is a value";
            return Err(Diagnostic::error(Code::BadString, type_span, message));
        }
        // A dereference becomes the store itself, unless it fetches the pointers of an array.
        if array || matches!(operation, Operation::Immediate | Operation::Text) {
            program.advance(body)?;
        }
        return Ok(true);
    }
    match operation {
        Operation::Deref => Ok(true),
        Operation::UserDeref => Ok(false),
        _ => program.advance(body).map(|()| false),
    }
}
