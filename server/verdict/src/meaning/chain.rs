//! Expressions taken apart: a root, and the reads of memory that follow.
//!
//! Owns what a register or a word of the stack means at a place. Never reads types.

use std::ops::Range;

use super::capture::bits_of;
use kprobed_lang::definition::{Argument, FetchKind, MemoryAddress};

/// Registers whose meaning does not depend on code.
const FIXED_REGISTERS: [&str; 6] = ["ip", "cs", "flags", "ss", "sp", "orig_ax"];

/// The position of a probe in its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// At the entry of a function: parameters are in the places of the calling convention, and the
    /// return address is on top of the stack.
    Entry,
    /// Inside a function.
    Inside,
    /// At the return of a function. Its parameters are those with which it was called.
    Return,
}

/// The root of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// A word of the parameters: `%di` and `$arg1` are 1.
    Word(u32),
    /// Another register.
    Register(&'static str),
    /// A word of the stack that is not one of the parameters.
    Stack,
    /// The result.
    Result,
    /// The same on every kernel.
    Fixed,
    /// Not known; the text says why.
    Unknown(String),
}

/// A read of memory through a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryRead {
    pub(super) user: bool,
    /// Added to the pointer, in bytes.
    pub(super) offset: i32,
    /// The bits to read, counted from there.
    bits: Range<u64>,
}

/// An expression taken apart.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) root: Root,
    /// From the innermost to the outermost.
    pub(super) reads: Vec<MemoryRead>,
}

impl MemoryRead {
    /// The bits that are read, counted from the target of the pointer; absent for bits before it.
    pub(super) fn bits(&self) -> Option<Range<u64>> {
        let start = u64::try_from(self.offset).ok()?.saturating_mul(8);
        Some(start.saturating_add(self.bits.start)..start.saturating_add(self.bits.end))
    }
}

impl Chain {
    /// Takes an argument apart.
    pub(super) fn of(argument: &Argument, at: At) -> Self {
        let mut reads = Vec::new();
        let mut fetch = &argument.fetch;
        while let FetchKind::Deref { user, offset, inner } = &fetch.kind {
            // All but the outermost are pointers.
            let bits = if reads.is_empty() { bits_of(argument) } else { 0..64 };
            reads.push(MemoryRead { user: *user, offset: *offset, bits });
            fetch = inner;
        }
        reads.reverse();
        let mut root = root(&fetch.kind, at);
        let is_stack_pointer = match &fetch.kind {
            FetchKind::Stack => true,
            FetchKind::Register(register) => register.name() == "sp",
            _ => false,
        };
        // `+8(%sp)` is `$stack1`.
        if is_stack_pointer && !reads.is_empty() {
            let first = reads.remove(0);
            let offset = u32::try_from(first.offset).ok().filter(|offset| offset % 8 == 0);
            root = offset.map_or(Root::Stack, |offset| self::root(&FetchKind::StackNth(offset / 8), at));
        }
        Self { root, reads }
    }
}

fn root(kind: &FetchKind, at: At) -> Root {
    if let Some(word) = kind.held_argument().filter(|_| at == At::Entry) {
        return Root::Word(word);
    }
    match kind {
        FetchKind::Register(register) => match register.name() {
            name if FIXED_REGISTERS.contains(&name) => Root::Fixed,
            "ax" if at == At::Return => Root::Result,
            name => Root::Register(name),
        },
        // The return address.
        FetchKind::StackNth(0) if at == At::Entry => Root::Fixed,
        FetchKind::StackNth(_) => Root::Stack,
        FetchKind::Argument(number) => Root::Word(*number),
        FetchKind::Retval => Root::Result,
        FetchKind::Stack | FetchKind::Comm | FetchKind::Immediate(_) | FetchKind::ImmediateString(_) => {
            Root::Fixed
        }
        FetchKind::Memory(MemoryAddress::Symbol { offset: 0, .. }) => Root::Fixed,
        FetchKind::Memory(MemoryAddress::Symbol { symbol, .. }) => {
            Root::Unknown(format!("the type of `{symbol}` is not known"))
        }
        FetchKind::Memory(MemoryAddress::Address(_)) => {
            Root::Unknown("an address is another location on every build".to_owned())
        }
        FetchKind::Btf { .. } | FetchKind::AllArguments | FetchKind::Deref { .. } => {
            Root::Unknown("the kernel resolves the name, and shows no types".to_owned())
        }
    }
}
