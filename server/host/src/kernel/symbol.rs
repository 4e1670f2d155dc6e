//! A kernel symbol, and an address as `SYMBOL+0xOFFSET/0xSIZE [MODULE]`.

use std::fmt;
use std::ops::Range;

/// One symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its address.
    pub address: u64,
    /// The module that it belongs to; absent for the kernel itself.
    pub module: Option<&'a str>,
    /// Letter of `nm`: `t`, `T`, `w`, `W` are code.
    pub kind: char,
}

impl Symbol<'_> {
    /// Whether this names code.
    pub fn is_code(&self) -> bool {
        matches!(self.kind, 't' | 'T' | 'w' | 'W')
    }
}

/// An address in terms of the symbol that it lies in. Prints as the kernel's `%pS`:
/// `SYMBOL+0xOFFSET/0xSIZE [MODULE]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located<'a> {
    /// The symbol.
    pub symbol: Symbol<'a>,
    /// Distance from the symbol, in bytes.
    pub offset: u64,
    /// Distance from the symbol to the next higher one, in bytes: what the kernel takes for its
    /// size (kernel/kallsyms.c:get_symbol_pos).
    pub size: u64,
}

impl Located<'_> {
    /// The addresses that are the symbol's.
    pub fn range(&self) -> Range<u64> {
        let start = self.symbol.address;
        start..start.saturating_add(self.size)
    }

    /// The address without the size: `SYMBOL`, or `SYMBOL+0xOFFSET`, with ` [MODULE]` after it for
    /// modules.
    pub fn short(&self) -> String {
        let Self { symbol, offset, .. } = self;
        let offset = if *offset == 0 { String::new() } else { format!("+{offset:#x}") };
        let module = symbol.module.map(|module| format!(" [{module}]")).unwrap_or_default();
        format!("{}{offset}{module}", symbol.name)
    }
}

impl fmt::Display for Located<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:#x}/{:#x}", self.symbol.name, self.offset, self.size)?;
        self.symbol.module.map_or(Ok(()), |module| write!(f, " [{module}]"))
    }
}
