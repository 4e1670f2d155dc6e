//! Wording of explanations: places, expressions and types.
//!
//! Owns the sentences. Never decides what a definition means.

use super::super::ast::{
    Argument, BaseType, BtfMember, BtfRoot, Fetch, FetchKind, MemoryAddress, Place, ProbeDefinition,
    ProbeKind,
};
use super::super::features::Features;

/// When the probe hits.
pub(super) fn when(definition: &ProbeDefinition) -> String {
    let place = match &definition.place {
        Place::Event { .. } => return "each time the event happens".to_owned(),
        Place::Address { address, .. } => format!("the instruction at {address:#x}"),
        Place::Symbol { module, symbol, offset, .. } => {
            let module = module.as_ref().map(|module| format!(" of module {module}")).unwrap_or_default();
            match (offset, definition.kind) {
                (0, _) => format!("{symbol}{module}"),
                (_, ProbeKind::Entry | ProbeKind::Event) => {
                    format!("the instruction {offset} bytes into {symbol}{module}")
                }
                (_, ProbeKind::Return) => format!("the function {offset} bytes behind {symbol}{module}"),
            }
        }
    };
    match (definition.kind, definition.maxactive) {
        (ProbeKind::Entry | ProbeKind::Event, _) => format!("each time {place} is reached"),
        (ProbeKind::Return, None) => format!("each time {place} returns"),
        (ProbeKind::Return, Some(1)) => {
            format!("each time {place} returns, but only one execution at a time")
        }
        (ProbeKind::Return, Some(most)) => {
            format!("each time {place} returns, of at most {most} executions at the same time")
        }
    }
}

/// Whether no type is written, and the kernel's BTF determines it.
pub(super) fn typed_by_btf(argument: &Argument, features: &Features) -> bool {
    features.btf_args
        && argument.ty.is_none()
        && matches!(argument.fetch.kind, FetchKind::Btf { .. } | FetchKind::AllArguments | FetchKind::Retval)
}

/// What an argument reads.
pub(super) fn meaning(argument: &Argument, features: &Features) -> String {
    let fetch = &argument.fetch;
    if let FetchKind::AllArguments = fetch.kind {
        return "every parameter of the function, with the names and types of the kernel's BTF".to_owned();
    }
    if typed_by_btf(argument, features) {
        return format!("{}, as in the kernel's BTF", held(fetch, 64));
    }
    match argument.ty.and_then(|ty| ty.count) {
        Some(count) => array(fetch, argument.base_type(), count),
        None => single(fetch, argument.base_type()),
    }
}

fn single(fetch: &Fetch, base: BaseType) -> String {
    match base {
        BaseType::Unsigned(width) => format!("{}, as unsigned", held(fetch, width.bits())),
        BaseType::Signed(width) => format!("{}, as signed", held(fetch, width.bits())),
        BaseType::Hex(width) => format!("{}, in hexadecimal", held(fetch, width.bits())),
        BaseType::Char => format!("{}, as a character", held(fetch, 8)),
        BaseType::Symbol => format!("{}, shown as the symbol at that address", held(fetch, 64)),
        BaseType::SymbolString => {
            format!("the name of the symbol at this address: {}", held(fetch, 64))
        }
        BaseType::String if matches!(fetch.kind, FetchKind::Comm | FetchKind::ImmediateString(_)) => {
            value(&fetch.kind)
        }
        BaseType::String => format!("the string up to its NUL at {}", text_place(fetch)),
        BaseType::UserString => format!("the string up to its NUL in user memory at {}", text_place(fetch)),
        BaseType::DentryName => {
            format!("the name in the struct dentry at which {} points", value(&fetch.kind))
        }
        BaseType::FileName => {
            format!("the file name of the struct file at which {} points", value(&fetch.kind))
        }
        BaseType::Path => format!("the whole path of the file at which {} points", value(&fetch.kind)),
        BaseType::BitField { width, offset, container } => {
            let bits = match (width, offset) {
                (1, bit) => format!("bit {bit}"),
                (width, first) => format!("bits {first} to {}", u16::from(first) + u16::from(width) - 1),
            };
            format!("{bits} of {}, as unsigned", held(fetch, container.bits()))
        }
    }
}

fn array(fetch: &Fetch, base: BaseType, count: u8) -> String {
    let (bits, shown) = match base {
        BaseType::Unsigned(width) => (width.bits(), "as unsigned"),
        BaseType::Signed(width) => (width.bits(), "as signed"),
        BaseType::Hex(width) => (width.bits(), "in hexadecimal"),
        BaseType::Char => (8, "as characters"),
        BaseType::Symbol | BaseType::SymbolString => (64, "shown as symbols"),
        BaseType::BitField { container, .. } => (container.bits(), "a bit-field of each"),
        BaseType::String
        | BaseType::UserString
        | BaseType::DentryName
        | BaseType::FileName
        | BaseType::Path => (64, "each the address of a string"),
    };
    format!("{count} values of {bits} bits, the first at {}, {shown}", memory(&fetch.kind))
}

/// So many bits of the value of the expression.
fn held(fetch: &Fetch, bits: u8) -> String {
    match &fetch.kind {
        FetchKind::Deref { .. } | FetchKind::Memory(_) => format!("{bits} bits at {}", memory(&fetch.kind)),
        kind if bits == 64 => value(kind),
        kind => format!("the low {bits} bits of {}", value(kind)),
    }
}

/// The place of a text: an expression that is a pointer by itself is followed.
fn text_place(fetch: &Fetch) -> String {
    match &fetch.kind {
        FetchKind::Deref { .. } | FetchKind::Memory(_) => memory(&fetch.kind),
        kind => format!("the start of what {} points to", value(kind)),
    }
}

/// The memory that an expression reads, or its value if it reads none.
fn memory(kind: &FetchKind) -> String {
    match kind {
        FetchKind::Memory(MemoryAddress::Address(address)) => format!("address {address:#x}"),
        FetchKind::Memory(MemoryAddress::Symbol { symbol, offset: 0 }) => {
            format!("the start of the kernel's {symbol}")
        }
        FetchKind::Memory(MemoryAddress::Symbol { symbol, offset }) => {
            format!("offset {offset} of the kernel's {symbol}")
        }
        FetchKind::Deref { user, offset, inner } => {
            let user = if *user { " in user memory" } else { "" };
            match (&inner.kind, offset) {
                (pointer @ (FetchKind::Deref { .. } | FetchKind::Memory(_)), 0) => {
                    format!("the target{user} of {}", value(pointer))
                }
                (pointer @ (FetchKind::Deref { .. } | FetchKind::Memory(_)), offset) => {
                    format!("offset {offset}{user} behind {}", value(pointer))
                }
                (pointer, 0) => format!("the start of what {} points to{user}", value(pointer)),
                (pointer, offset) => format!("offset {offset} of what {} points to{user}", value(pointer)),
            }
        }
        kind => value(kind),
    }
}

/// The value of an expression.
fn value(kind: &FetchKind) -> String {
    match kind {
        FetchKind::Register(register) => format!("the register {}", register.name()),
        FetchKind::StackNth(0) => "the word at the top of the stack".to_owned(),
        FetchKind::StackNth(index) => format!("word {index} above the top of the stack"),
        FetchKind::Stack => "the stack pointer".to_owned(),
        FetchKind::Argument(index) => format!("the {} argument", ordinal(*index)),
        FetchKind::AllArguments => "every parameter".to_owned(),
        FetchKind::Retval => "the return value".to_owned(),
        FetchKind::Comm => "the name of the current task".to_owned(),
        FetchKind::Immediate(number) => format!("the number {number}"),
        FetchKind::ImmediateString(text) => format!("the text \"{text}\""),
        FetchKind::Btf { root, members } => {
            let path = path(members);
            match root {
                BtfRoot::Parameter(name) if path.is_empty() => format!("the parameter {name}"),
                BtfRoot::Parameter(name) => format!("the member {name}{path}"),
                BtfRoot::Retval => format!("the member {path} of the return value"),
            }
        }
        FetchKind::Memory(_) | FetchKind::Deref { .. } => format!("the pointer at {}", memory(kind)),
    }
}

fn path(members: &[BtfMember]) -> String {
    members.iter().flat_map(|member| [member.separator().to_owned(), member.to_string()]).collect()
}

fn ordinal(number: u32) -> String {
    const WORDS: [&str; 6] = ["first", "second", "third", "fourth", "fifth", "sixth"];
    let word = number.checked_sub(1).and_then(|index| WORDS.get(usize::try_from(index).ok()?));
    word.map_or_else(|| format!("{number}th"), |word| (*word).to_owned())
}
