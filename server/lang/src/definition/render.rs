//! Canonical text of a definition: one line that the kernel reads as the same definition.
//!
//! Owns the spelling. Never makes a text longer than the user may have written it: decimal offsets,
//! the shorter base for addresses.

use std::fmt::{self, Write as _};

use super::ast::{
    Argument, BaseType, BtfMember, BtfRoot, Fetch, FetchKind, MemoryAddress, Place, ProbeDefinition,
    ProbeKind, Type,
};
use super::number::shortest;

impl ProbeDefinition {
    /// The canonical line, under the given final names: single blanks, no comment, no newline.
    ///
    /// Parsing it gives this definition back, except for spans, warnings and names.
    pub fn render(&self, group: &str, event: &str) -> String {
        let mut line = String::with_capacity(TYPICAL_LINE_BYTES);
        line.push(match self.kind {
            ProbeKind::Entry => 'p',
            ProbeKind::Return => 'r',
            ProbeKind::Event => return format!("{group}/{event}"),
        });
        if let Some(maxactive) = self.maxactive {
            write!(line, "{maxactive}").ok();
        }
        write!(line, ":{group}/{event} {}", self.place).ok();
        for argument in &self.args {
            write!(line, " {argument}").ok();
        }
        line
    }
}

/// Bytes that suffice for most lines.
const TYPICAL_LINE_BYTES: usize = 128;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event { .. } => Ok(()),
            Self::Address { address, .. } => write!(f, "{address:#x}"),
            Self::Symbol { module, symbol, offset, .. } => {
                if let Some(module) = module {
                    write!(f, "{module}:")?;
                }
                f.write_str(symbol)?;
                if *offset > 0 { write!(f, "+{offset}") } else { Ok(()) }
            }
        }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{}=", name.text)?;
        }
        self.fetch.fmt(f)?;
        self.ty.map_or(Ok(()), |ty| write!(f, ":{ty}"))
    }
}

impl fmt::Display for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            FetchKind::Register(register) => write!(f, "%{}", register.name()),
            FetchKind::StackNth(index) => write!(f, "$stack{index}"),
            FetchKind::Stack => f.write_str("$stack"),
            FetchKind::Argument(index) => write!(f, "$arg{index}"),
            FetchKind::AllArguments => f.write_str("$arg*"),
            FetchKind::Retval => f.write_str("$retval"),
            FetchKind::Comm => f.write_str("$comm"),
            FetchKind::Memory(MemoryAddress::Address(address)) => write!(f, "@{}", shortest(*address)),
            FetchKind::Memory(MemoryAddress::Symbol { symbol, offset }) => {
                write!(f, "@{symbol}")?;
                match *offset {
                    0 => Ok(()),
                    1.. => write!(f, "+{}", shortest(offset.unsigned_abs())),
                    _ => write!(f, "-{}", shortest(offset.unsigned_abs())),
                }
            }
            FetchKind::Deref { user, offset, inner } => {
                let sign = if *offset < 0 { '-' } else { '+' };
                let user = if *user { "u" } else { "" };
                write!(f, "{sign}{user}{}({inner})", offset.unsigned_abs())
            }
            FetchKind::Immediate(value) => {
                // The parser never makes a value outside 64 bits; one that is made by hand stays
                // readable.
                let sign = if *value < 0 { "-" } else { "" };
                match u64::try_from(value.unsigned_abs()) {
                    Ok(magnitude) => write!(f, "\\{sign}{}", shortest(magnitude)),
                    Err(_) => write!(f, "\\{value}"),
                }
            }
            FetchKind::ImmediateString(text) => write!(f, "\\\"{text}\""),
            FetchKind::Btf { root, members } => {
                match root {
                    BtfRoot::Parameter(name) => f.write_str(name)?,
                    BtfRoot::Retval => f.write_str("$retval")?,
                }
                members.iter().try_for_each(|member| write!(f, "{}{member}", member.separator()))
            }
        }
    }
}

/// Without the separator.
impl fmt::Display for BtfMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.indices.iter().try_for_each(|index| write!(f, "[{index}]"))
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.base.fmt(f)?;
        self.count.map_or(Ok(()), |count| write!(f, "[{count}]"))
    }
}

impl fmt::Display for BaseType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(width) => write!(f, "u{}", width.bits()),
            Self::Signed(width) => write!(f, "s{}", width.bits()),
            Self::Hex(width) => write!(f, "x{}", width.bits()),
            Self::Char => f.write_str("char"),
            Self::Symbol => f.write_str("symbol"),
            Self::String => f.write_str("string"),
            Self::UserString => f.write_str("ustring"),
            Self::SymbolString => f.write_str("symstr"),
            Self::DentryName => f.write_str("%pd"),
            Self::FileName => f.write_str("%pD"),
            Self::Path => f.write_str("path"),
            Self::BitField { width, offset, container } => {
                write!(f, "b{width}@{offset}/{}", container.bits())
            }
        }
    }
}
