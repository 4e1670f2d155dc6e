//! The symbol table: addresses to the names that a kernel knows them by.

use std::hash::BuildHasher as _;
use std::ops::Range;
use std::sync::OnceLock;

use hashbrown::{DefaultHashBuilder, HashTable};
use serde::{Deserialize, Serialize};

use crate::error::{LinesError, Result};

/// What the kernel can find in its list of symbols.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) is_function: bool,
    /// No other function of the kernel has its name.
    pub(crate) is_global: bool,
}

/// A part of the memory of a kernel or a module.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Each processor has a copy at another address.
    pub(crate) is_per_cpu: bool,
}

/// A symbol whose name is a part of the text of all names: a kernel has 150,000.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Stored {
    name: Range<u32>,
    address: u64,
    bytes: u64,
    is_function: bool,
    is_global: bool,
}

/// All symbols, by address.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Symbols {
    module: Option<String>,
    names: String,
    by_address: Vec<Stored>,
    regions: Vec<Region>,
    #[serde(skip)]
    by_name: OnceLock<ByName>,
}

/// The numbers of all symbols, by name.
#[derive(Debug)]
struct ByName {
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Symbol<'_> {
    /// An address behind it, as the kernel takes it.
    fn plus(&self, address: u64) -> String {
        format!("{}+{}", self.name, address - self.address)
    }
}

impl Symbols {
    pub(crate) fn new(module: Option<String>, symbols: &[Symbol<'_>], regions: Vec<Region>) -> Self {
        let mut made = Self { module, regions, ..Self::default() };
        for &Symbol { name, address, bytes, is_function, is_global } in symbols {
            let end = |names: &str| u32::try_from(names.len()).unwrap_or(u32::MAX);
            let start = end(&made.names);
            made.names.push_str(name);
            let name = start..end(&made.names);
            made.by_address.push(Stored { name, address, bytes, is_function, is_global });
        }
        made.sort();
        made
    }

    /// Sorts the symbols, whose order a file may have changed.
    pub(crate) fn sort(&mut self) {
        self.by_address.sort_by_key(|symbol| symbol.address);
    }

    fn symbol(&self, stored: &Stored) -> Symbol<'_> {
        let Stored { ref name, address, bytes, is_function, is_global } = *stored;
        let name = self.names.get(name.start as usize..name.end as usize).unwrap_or_default();
        Symbol { name, address, bytes, is_function, is_global }
    }

    fn numbered(&self, number: u32) -> Option<Symbol<'_>> {
        self.by_address.get(number as usize).map(|stored| self.symbol(stored))
    }

    fn by_name(&self) -> &ByName {
        self.by_name.get_or_init(|| {
            let hasher = DefaultHashBuilder::default();
            let hash =
                |number: &u32| hasher.hash_one(self.numbered(*number).map_or("", |symbol| symbol.name));
            let mut numbers = HashTable::with_capacity(self.by_address.len());
            for (number, _) in (0..).zip(&self.by_address) {
                numbers.insert_unique(hash(&number), number, hash);
            }
            ByName { numbers, hasher }
        })
    }

    pub(crate) fn module(&self) -> Option<&str> {
        self.module.as_deref()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// The symbols of this name.
    pub(crate) fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = Symbol<'a>> {
        let ByName { numbers, hasher } = self.by_name();
        let numbers = numbers.iter_hash(hasher.hash_one(name));
        let mut found: Vec<_> = numbers
            .filter_map(|number| self.numbered(*number))
            .filter(|symbol| symbol.name == name)
            .collect();
        found.sort_by_key(|symbol| symbol.address);
        found.into_iter()
    }

    /// The functions of this name, and the parts that the compiler has made of them, such as `NAME.cold`.
    pub(crate) fn functions_and_parts(&self, name: &str) -> Vec<Symbol<'_>> {
        let is_part = |symbol: &Symbol<'_>| {
            let rest = symbol.name.strip_prefix(name);
            symbol.is_function && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.by_address.iter().map(|stored| self.symbol(stored)).filter(is_part).collect()
    }

    fn is_unique(&self, name: &str) -> bool {
        self.named(name).count() == 1
    }

    /// The symbols whose bytes have this address. One without a size reaches to the next.
    fn around(&self, address: u64, of_code: bool) -> Vec<Symbol<'_>> {
        let end = self.by_address.partition_point(|symbol| symbol.address <= address);
        let before = self.by_address.get(..end).unwrap_or_default();
        let mut found = Vec::new();
        let mut nearest = None;
        // Functions do not nest: some symbols back there is nothing any more.
        for symbol in before.iter().rev().take(64).filter(|symbol| !of_code || symbol.is_function) {
            let is_nearest = *nearest.get_or_insert(symbol.address) == symbol.address;
            let reaches = address - symbol.address < symbol.bytes;
            if reaches || is_nearest && (symbol.bytes == 0 || address == symbol.address) {
                found.push(self.symbol(symbol));
            }
        }
        found
    }

    /// The symbol of the kernel's own text from which any address can be counted.
    fn anchor(&self) -> Option<Symbol<'_>> {
        ["_stext", "_text"].iter().find_map(|name| {
            self.named(name).next().filter(|_| self.module.is_none() && self.is_unique(name))
        })
    }

    /// The function or part of one that has this address, by its symbol.
    pub(crate) fn function_at(&self, address: u64) -> Option<Symbol<'_>> {
        self.around(address, true).first().copied()
    }

    /// An address by the name of one of the symbols around it, which the kernel cannot mistake, or else by that of
    /// the anchor. `wanted` is taken if it is one.
    fn by_unique_name(&self, address: u64, around: &[Symbol<'_>], wanted: &str) -> Option<String> {
        let unique = around.iter().filter(|symbol| self.is_unique(symbol.name));
        let best = unique.min_by_key(|symbol| (symbol.name != wanted, address - symbol.address)).copied();
        let anchor = || self.anchor().filter(|anchor| anchor.address <= address);
        best.or_else(anchor).map(|symbol| symbol.plus(address))
    }

    /// An address of code, by a name that the kernel cannot mistake. `wanted` is taken if it is one.
    pub(crate) fn code(&self, address: u64, wanted: &str) -> Result<String> {
        let around = self.around(address, true);
        let Some(first) = around.first() else {
            return Err(LinesError::new(format!("no function has the address {address:#x}")));
        };
        self.by_unique_name(address, &around, wanted).ok_or_else(|| {
            let name = first.name;
            LinesError::new(format!(
                "several symbols are named `{name}`, and the kernel takes the first of them"
            ))
            .hint("take another function that calls this one, or is called by it")
        })
    }

    /// An address of data, by a name that the kernel cannot mistake.
    pub(crate) fn data(&self, address: u64) -> Result<String> {
        let region = self.regions.iter().find(|region| region.start <= address && address < region.end);
        let refused = |text: &str| Err(LinesError::new(format!("the variable {text}")));
        match region {
            None => return refused("is not in this file: another one defines it"),
            Some(region) if region.is_per_cpu => {
                return refused(
                    "has one copy for each processor, and the kernel cannot read that of the current one",
                );
            }
            Some(_) => {}
        }
        let named = self.by_unique_name(address, &self.around(address, false), "");
        named.map_or_else(|| refused("has no symbol whose name is unique, so the kernel cannot find it"), Ok)
    }
}
