//! Refusals of a place, and the rules behind them.
//!
//! Owns the names of rules and the codes of the kernel. Never decides that a place is refused.

use nix::errno::Errno;

use kprobed_lang::definition::{RefusedBy, Span, Step};

/// A rule. Clients see its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// No such symbol.
    UnknownSymbol,
    /// Several symbols of that name.
    AmbiguousSymbol,
    /// The kernel has no name for the place at the offset.
    UnnamedPlace,
    /// A symbol that an argument reads (`@SYMBOL`) does not exist.
    UnknownMemorySymbol,
    /// What an argument reads (`@...`) cannot be a symbol and an offset.
    BadMemorySymbol,
    /// A return probe that is not at a function's entry.
    NotFunctionEntry,
    /// As [`Rule::NotFunctionEntry`], for a place that is given as an address.
    NotEntryAddress,
    /// A function whose return must not be touched.
    ReturnBlacklisted,
    /// A function that ftrace does not trace.
    NotraceFunction,
    /// Not code of the kernel or of a module.
    NotText,
    /// A range that kprobes must not touch.
    Blacklisted,
    /// Part of a jump label.
    JumpLabel,
    /// Part of a static call.
    StaticCall,
    /// The instruction of a BUG or WARN.
    BugTrap,
    /// The padding or the type hash in front of a function.
    Preamble,
    /// The bytes there cannot be read.
    UnreadableCode,
    /// Not the beginning of an instruction.
    InstructionBoundary,
    /// An instruction that traps by itself.
    TrapInstruction,
    /// An instruction that can be neither executed out of line nor emulated.
    UnsupportedInstruction,
    /// The offset is after the end of the function. If the kernel refuses what is there, it does so for
    /// another reason; if it accepts that, this daemon does not.
    OutsideFunction,
    /// The kernel accepts it, this daemon does not: the kernel may replace it by a jump over an
    /// instruction that other code jumps to.
    JumpOverLanding,
    /// The kernel accepts it, this daemon does not: the kernel expects that the instruction faults.
    ExpectedFault,
    /// The kernel accepts it, this daemon does not: a conditional jump goes the wrong way.
    MisjudgedJump,
    /// The kernel accepts it, this daemon does not: the kernel reads behind the end of the module.
    EndOfModule,
    /// The kernel accepts it, this daemon does not: the CPU can have no table of interrupts there.
    NoInterruptTable,
    /// The kernel accepts it, this daemon does not: an argument reads memory that must not be read.
    DangerousMemory,
    /// The kernel accepts it, this daemon does not: it is never armed.
    NeverArmed,
}

impl Rule {
    /// Stable identifier: the kernel's own if it has one for exactly this.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownSymbol | Self::UnnamedPlace => "BAD_PROBE_ADDR",
            Self::AmbiguousSymbol => "NON_UNIQ_SYMBOL",
            Self::UnknownMemorySymbol => "UNKNOWN_MEMORY_SYMBOL",
            Self::BadMemorySymbol => "BAD_MEM_SYMBOL",
            Self::NotFunctionEntry => "BAD_RETPROBE",
            Self::NotEntryAddress => "NOT_FUNCTION_ENTRY",
            Self::ReturnBlacklisted => "RETURN_BLACKLISTED",
            Self::NotraceFunction => "NOTRACE_FUNCTION",
            Self::NotText => "NOT_KERNEL_TEXT",
            Self::Blacklisted => "BLACKLISTED",
            Self::JumpLabel => "JUMP_LABEL",
            Self::StaticCall => "STATIC_CALL",
            Self::BugTrap => "BUG_TRAP",
            Self::Preamble => "FUNCTION_PREAMBLE",
            Self::UnreadableCode => "UNREADABLE_CODE",
            Self::InstructionBoundary => "BAD_INSN_BNDRY",
            Self::TrapInstruction => "TRAP_INSTRUCTION",
            Self::UnsupportedInstruction => "UNSUPPORTED_INSTRUCTION",
            Self::OutsideFunction => "OUTSIDE_FUNCTION",
            Self::JumpOverLanding => "JUMP_OVER_LANDING",
            Self::ExpectedFault => "EXPECTED_FAULT",
            Self::MisjudgedJump => "MISJUDGED_JUMP",
            Self::EndOfModule => "END_OF_MODULE",
            Self::NoInterruptTable => "NO_INTERRUPT_TABLE",
            Self::DangerousMemory => "DANGEROUS_MEMORY",
            Self::NeverArmed => "NEVER_ARMED",
        }
    }
}

impl Rule {
    /// Every rule.
    pub const ALL: &[Self] = &[
        Self::UnknownSymbol,
        Self::AmbiguousSymbol,
        Self::UnnamedPlace,
        Self::UnknownMemorySymbol,
        Self::BadMemorySymbol,
        Self::NotFunctionEntry,
        Self::NotEntryAddress,
        Self::ReturnBlacklisted,
        Self::NotraceFunction,
        Self::NotText,
        Self::Blacklisted,
        Self::JumpLabel,
        Self::StaticCall,
        Self::BugTrap,
        Self::Preamble,
        Self::UnreadableCode,
        Self::InstructionBoundary,
        Self::TrapInstruction,
        Self::UnsupportedInstruction,
        Self::OutsideFunction,
        Self::JumpOverLanding,
        Self::ExpectedFault,
        Self::MisjudgedJump,
        Self::EndOfModule,
        Self::NoInterruptTable,
        Self::DangerousMemory,
        Self::NeverArmed,
    ];

    /// Who refuses a place by this rule.
    pub fn refused_by(self) -> RefusedBy {
        match self {
            Self::OutsideFunction
            | Self::JumpOverLanding
            | Self::ExpectedFault
            | Self::MisjudgedJump
            | Self::EndOfModule
            | Self::NoInterruptTable
            | Self::DangerousMemory
            | Self::NeverArmed => RefusedBy::Kprobed,
            _ => RefusedBy::Kernel,
        }
    }
}

/// A refusal with all that is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rule that was broken.
    pub rule: Rule,
    /// The errno that a write to `kprobe_events` would return.
    pub errno: Errno,
    /// What is wrong.
    pub message: String,
    /// What to do instead; empty if nothing is known.
    pub hint: String,
    /// The part of the definition that is at fault.
    pub span: Span,
    /// The step at which the kernel finds it.
    pub step: Step,
}

impl Refusal {
    /// EINVAL, the errno of most rules.
    pub(super) fn new(rule: Rule, message: String, span: Span) -> Self {
        let step = match rule.refused_by() {
            RefusedBy::Kernel => Step::REGISTRATION,
            RefusedBy::Kprobed => Step::OwnPlace,
        };
        Self { rule, errno: Errno::EINVAL, message, hint: String::new(), span, step }
    }

    pub(super) fn at(mut self, step: Step) -> Self {
        self.step = step;
        self
    }

    pub(super) fn with_errno(mut self, errno: Errno) -> Self {
        self.errno = errno;
        self
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Who refuses the place: the kernel, at one of its steps, or this daemon after all of them.
    pub fn refused_by(&self) -> RefusedBy {
        if self.step == Step::OwnPlace { RefusedBy::Kprobed } else { RefusedBy::Kernel }
    }

    /// The refusal with a hint, if it had none.
    #[must_use]
    pub fn or_hint(mut self, hint: impl FnOnce() -> String) -> Self {
        if self.hint.is_empty() {
            self.hint = hint();
        }
        self
    }

    /// The code that the kernel would write to `error_log`
    /// (kernel/trace/trace_kprobe.c:__trace_kprobe_create): it has a code of its own for few of the
    /// rules, and one for all others.
    pub fn kernel_code(&self) -> &'static str {
        match (self.rule, self.errno) {
            (Rule::UnknownSymbol | Rule::AmbiguousSymbol | Rule::NotFunctionEntry, _) => self.rule.name(),
            (_, Errno::EILSEQ) => "BAD_INSN_BNDRY",
            (_, Errno::ENOENT) => "BAD_PROBE_ADDR",
            _ => "FAIL_REG_PROBE",
        }
    }
}
