//! What a probe reads: the classes of data that rules name.
//!
//! Owns the classes, and which of them a definition needs. A class is what a definition can reach
//! by its form, whatever it is meant for. Never looks at a kernel.

use std::fmt;

use kprobed_lang::definition::{Argument, BaseType, Fetch, FetchKind, ProbeDefinition};

/// A class of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Read {
    /// Registers, arguments and return values of the probed function.
    Registers,
    /// Words of the kernel stack (`$stackN`).
    Stack,
    /// Kernel memory behind a pointer that the function has at hand.
    KernelMemory,
    /// User memory of the task that runs.
    UserMemory,
    /// Texts.
    Strings,
    /// Memory at an address that the definition chooses itself: `@SYMBOL`, `@0xADDRESS`,
    /// `+0(\0xADDRESS)`, `\0xADDRESS:string`, an offset larger than any structure; and a place given as an
    /// address.
    RawAddresses,
    /// Stack traces of the task.
    StackTraces,
    /// Events of the host that the daemon did not define, with all of their fields.
    HostEvents,
    /// Where the kernel is in memory: numbers that become symbols, places given as an address, filters that
    /// compare addresses, buckets of addresses. In what clients receive, addresses are hidden without this class of
    /// a rule.
    Addresses,
}

impl Read {
    /// All classes.
    pub const ALL: [Self; 9] = [
        Self::Registers,
        Self::Stack,
        Self::KernelMemory,
        Self::UserMemory,
        Self::Strings,
        Self::RawAddresses,
        Self::StackTraces,
        Self::HostEvents,
        Self::Addresses,
    ];

    /// The name in role files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Registers => "registers",
            Self::Stack => "stack",
            Self::KernelMemory => "kernel-memory",
            Self::UserMemory => "user-memory",
            Self::Strings => "strings",
            Self::RawAddresses => "raw-addresses",
            Self::StackTraces => "stack-traces",
            Self::HostEvents => "host-events",
            Self::Addresses => "addresses",
        }
    }

    /// The class of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|read| read.name() == name)
    }

    const fn bit(self) -> u16 {
        1_u16.wrapping_shl(self as u32)
    }
}

/// A set of classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads(u16);

impl Reads {
    /// Nothing: that a function was called, by which task, and when.
    pub const NONE: Self = Self(0);
    /// Everything.
    pub const ALL: Self = Self(u16::MAX);

    /// What a definition reads. `definition` has the names of parameters and members as the
    /// resolver left them, or as they are written: the classes are the same.
    pub fn of(definition: &ProbeDefinition) -> Self {
        if definition.is_of_host_event() {
            return Self::NONE.with(Read::HostEvents);
        }
        let mut reads = Self::NONE;
        if matches!(definition.place, kprobed_lang::definition::Place::Address { .. }) {
            // Its location is the symbol at the address.
            reads = reads.with(Read::RawAddresses).with(Read::Addresses);
        }
        definition.args.iter().fold(reads, |reads, argument| reads.and(of_argument(argument)))
    }

    /// This set and one class.
    #[must_use]
    pub const fn with(self, read: Read) -> Self {
        Self(self.0 | read.bit())
    }

    /// Both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The classes of this set that `other` does not have.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether it has a class.
    pub const fn has(self, read: Read) -> bool {
        self.0 & read.bit() != 0
    }

    /// Whether both have a class.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether there is no class in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its classes.
    pub fn iter(self) -> impl Iterator<Item = Read> {
        Read::ALL.into_iter().filter(move |read| self.has(*read))
    }
}

/// With commas between.
impl fmt::Display for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, read) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", read.name())?;
        }
        Ok(())
    }
}

/// Larger than the structures of the kernel. With a larger offset, a pointer that is 0, or another number that
/// the definition's writer can know, makes an address of the writer's choice.
const STRUCTURE_BYTES: u32 = 1 << 20;

fn of_argument(argument: &Argument) -> Reads {
    let mut value = of_fetch(&argument.fetch);
    let base = argument.base_type();
    // The kernel takes the number for a pointer to the text.
    if is_chosen(&argument.fetch) && base.is_text() {
        value = value.with(Read::RawAddresses);
    }
    match base {
        // Whoever chooses the number, in the definition or as an argument of the function, finds the kernel by
        // the names of some.
        BaseType::Symbol | BaseType::SymbolString => value.with(Read::Addresses),
        // The kernel reads user memory for an address below TASK_SIZE
        // (kernel/trace/trace_probe_kernel.h:fetch_store_string, since 5.5).
        BaseType::String if is_pointer(&argument.fetch) => {
            value.with(Read::Strings).with(Read::KernelMemory).with(Read::UserMemory)
        }
        BaseType::UserString => value.with(Read::Strings).with(Read::UserMemory),
        // The kernel expands them to dereferences of the value, and a `string` at the end of them
        // (kernel/trace/trace_probe.c:traceprobe_expand_dentry_args).
        BaseType::DentryName | BaseType::FileName | BaseType::Path => {
            value.with(Read::Strings).with(Read::KernelMemory).with(Read::UserMemory)
        }
        _ => value,
    }
}

/// Whether a `string` of this value is read from memory: `$comm` and texts in the definition are
/// not.
const fn is_pointer(fetch: &Fetch) -> bool {
    !matches!(fetch.kind, FetchKind::Comm | FetchKind::ImmediateString(_))
}

fn of_fetch(fetch: &Fetch) -> Reads {
    match &fetch.kind {
        FetchKind::Register(_)
        | FetchKind::Stack
        | FetchKind::Argument(_)
        | FetchKind::AllArguments
        | FetchKind::Retval => Reads::NONE.with(Read::Registers),
        FetchKind::StackNth(_) => Reads::NONE.with(Read::Stack),
        FetchKind::Memory(_) => Reads::NONE.with(Read::RawAddresses),
        FetchKind::Comm | FetchKind::Immediate(_) | FetchKind::ImmediateString(_) => Reads::NONE,
        FetchKind::Deref { user, offset, inner } => {
            let behind = if *user { Read::UserMemory } else { Read::KernelMemory };
            let pointer = of_fetch(inner).with(behind);
            // Nothing but the definition says where it reads.
            let is_raw = is_chosen(inner) || offset.unsigned_abs() >= STRUCTURE_BYTES;
            if is_raw { pointer.with(Read::RawAddresses) } else { pointer }
        }
        FetchKind::Btf { members, .. } => {
            let value = Reads::NONE.with(Read::Registers);
            // A member of a struct that a register holds is not memory; such parameters are rare, and
            // a path can have arrows after it.
            if members.is_empty() { value } else { value.with(Read::KernelMemory) }
        }
    }
}

/// Whether the value is a number in the definition.
const fn is_chosen(fetch: &Fetch) -> bool {
    matches!(fetch.kind, FetchKind::Immediate(_))
}
