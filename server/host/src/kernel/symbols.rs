//! The kernel's symbol table (`/proc/kallsyms`).
//!
//! Owns lookup by name and by address. Never assumes that they are a bijection: static functions
//! share names, aliases share addresses, and both matter to a probe.

use std::ops::Range;
use std::sync::OnceLock;

use kprobed_filter::Functions;
use kprobed_filter::names::most_edits;

use super::similar::SimilarNames;
use super::symbol::{Located, Symbol};

#[derive(Clone, Copy, Debug)]
struct PackedSymbol {
    address: u64,
    name_start: u32,
    name_len: u16,
    /// 0: the kernel itself; otherwise one more than the index of the module.
    module: u16,
    kind: u8,
}

/// All symbols of `/proc/kallsyms`, held in about 10 MiB for 160,000 of them.
#[derive(Debug, Default)]
pub struct SymbolTable {
    names: String,
    modules: Vec<String>,
    /// Memory of each module, its code first, as far as it is known.
    extents: Vec<Range<u64>>,
    /// By address; symbols of one address keep the order of the file, as the kernel's own table
    /// does.
    entries: Vec<PackedSymbol>,
    /// Addresses that the kernel's own table covers (include/linux/kallsyms.h:is_ksym_addr); all
    /// when its ends are not known.
    core: Range<u64>,
    /// Indices of `entries`, by name.
    by_name: Vec<u32>,
    /// The first bytes of the same names: a search looks at them alone until few names are left.
    heads: Vec<u64>,
    /// Code symbols that have names like a given one, as places in `by_name`.
    similar: OnceLock<SimilarNames>,
}

impl SymbolTable {
    /// Parses the text of `/proc/kallsyms`. Lines of another form are left out, and the pages of
    /// kprobes and ftrace that only this file knows.
    pub fn parse(text: &str) -> Self {
        let mut table = Self::default();
        table.names.reserve(text.len() / 2);
        for line in text.lines() {
            table.add_line(line);
        }
        table.sorted()
    }

    /// The kernel's own symbols, each as address, letter of `nm` and name.
    pub fn of_kernel<N: AsRef<str>>(symbols: impl Iterator<Item = (u64, u8, N)>) -> Self {
        let mut table = Self::default();
        for (address, kind, name) in symbols {
            table.add(address, kind, name.as_ref(), 0);
        }
        table.sorted()
    }

    /// The same, with the memory of each module, its code first: the last function of a module ends there at the
    /// latest. The next symbol may be one of another module, megabytes behind it.
    #[must_use]
    pub fn within(self, extent: impl Fn(&str) -> Range<u64>) -> Self {
        Self { extents: self.modules.iter().map(|module| extent(module)).collect(), ..self }
    }

    /// Where a symbol ends at the latest that begins at `start` in a module. Its data may be elsewhere.
    fn module_end(&self, start: u64, module: u16) -> u64 {
        let extent = usize::from(module).checked_sub(1).and_then(|index| self.extents.get(index));
        let most = start.saturating_add(MODULE_SYMBOL_MAX_BYTES);
        extent.filter(|extent| extent.contains(&start)).map_or(most, |extent| extent.end.min(most))
    }

    fn sorted(self) -> Self {
        let mut table = self;
        table.entries.sort_by_key(|entry| entry.address);
        // Most names differ in their first bytes, and numbers are compared in a fraction of the
        // time.
        let mut by_name: Vec<(u128, u32)> =
            (0..).zip(&table.entries).map(|(index, entry)| (heads(table.name_of(*entry)), index)).collect();
        by_name.sort_unstable_by(|(a_heads, a), (b_heads, b)| {
            let by_rest = || table.name_at(*a).cmp(table.name_at(*b)).then(a.cmp(b));
            a_heads.cmp(b_heads).then_with(by_rest)
        });
        (table.heads, table.by_name) =
            by_name.into_iter().map(|(heads, index)| ((heads >> 64) as u64, index)).unzip();
        table.core = table.address("_stext").unwrap_or(0)..table.address("_end").unwrap_or(u64::MAX);
        table.names.shrink_to_fit();
        table.entries.shrink_to_fit();
        table
    }

    fn add_line(&mut self, line: &str) -> Option<()> {
        let (address, rest) = leading_address(line)?;
        let kind = *rest.as_bytes().first()?;
        let rest = rest.get(1..)?.strip_prefix(' ')?;
        let (name, module) = match rest.split_once('\t') {
            Some((_, pages)) if pages.starts_with("[__builtin__") => return None,
            Some((name, bracketed)) => {
                (name, self.module_index(bracketed.strip_prefix('[')?.strip_suffix(']')?)?)
            }
            None => (rest, 0),
        };
        if name.is_empty() {
            return None;
        }
        self.add(address, kind, name, module)
    }

    fn add(&mut self, address: u64, kind: u8, name: &str, module: u16) -> Option<()> {
        let name_start = u32::try_from(self.names.len()).ok()?;
        let name_len = u16::try_from(name.len()).ok()?;
        self.names.push_str(name);
        self.entries.push(PackedSymbol { address, name_start, name_len, module, kind });
        Some(())
    }

    /// Modules come in runs, so looking from the end finds the right one at once.
    fn module_index(&mut self, module: &str) -> Option<u16> {
        if let Some(index) = self.modules.iter().rposition(|known| known == module) {
            return u16::try_from(index + 1).ok();
        }
        self.modules.push(module.to_owned());
        u16::try_from(self.modules.len()).ok()
    }

    fn name_at(&self, index: u32) -> &str {
        self.entries.get(index as usize).map_or("", |entry| self.name_of(*entry))
    }

    fn name_of(&self, entry: PackedSymbol) -> &str {
        let start = entry.name_start as usize;
        self.names.get(start..start + usize::from(entry.name_len)).unwrap_or_default()
    }

    fn symbol(&self, entry: PackedSymbol) -> Symbol<'_> {
        Symbol {
            name: self.name_of(entry),
            address: entry.address,
            module: usize::from(entry.module)
                .checked_sub(1)
                .and_then(|i| self.modules.get(i))
                .map(String::as_str),
            kind: char::from(entry.kind),
        }
    }

    /// Number of symbols. 0 if the kernel shows no addresses to the daemon.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the kernel shows no address to the daemon.
    pub fn is_empty(&self) -> bool {
        self.entries.last().is_none_or(|entry| entry.address < KERNEL_HALF)
    }

    /// All symbols of that name that can be asked for by name, in the order of their addresses:
    /// data and per-CPU offsets too, BPF programs not. With a module, only those of it.
    pub fn named<'a>(&'a self, name: &'a str, module: Option<&'a str>) -> impl Iterator<Item = Symbol<'a>> {
        self.by_name(name)
            .take_while(move |symbol| symbol.name == name)
            .filter(move |symbol| symbol.module != Some(BPF))
            .filter(move |symbol| module.is_none() || symbol.module == module)
    }

    /// The symbol that the kernel takes for a name: the first of its own, else the first of a
    /// module (kernel/kallsyms.c:kallsyms_lookup_name). One at address 0 counts as absent there,
    /// and so it does here.
    pub fn lookup<'a>(&'a self, name: &'a str, module: Option<&'a str>) -> Option<Symbol<'a>> {
        Self::taken(self.named(name, module))
    }

    /// The same for a name that may have its module before it: `[MODULE:]NAME`.
    pub fn lookup_spelled<'a>(&'a self, name: &'a str) -> Option<Symbol<'a>> {
        match name.split_once(':') {
            Some((module, name)) => self.lookup(name, Some(module)),
            None => self.lookup(name, None),
        }
    }

    /// The address that the kernel takes for a name: see [`SymbolTable::lookup`].
    pub fn address(&self, name: &str) -> Option<u64> {
        Some(self.lookup(name, None)?.address)
    }

    /// The addresses from one name up to another.
    pub(super) fn between(&self, start: &str, end: &str) -> Option<Range<u64>> {
        Some(self.address(start)?..self.address(end)?)
    }

    /// The one of some symbols of a name, in the order of [`SymbolTable::named`], that the kernel
    /// takes: see [`SymbolTable::lookup`].
    pub fn taken<'a>(mut named: impl Iterator<Item = Symbol<'a>>) -> Option<Symbol<'a>> {
        named.find(|symbol| symbol.address != 0)
    }

    /// All symbols in the order of their names, and of their addresses if names are equal, from the
    /// first name that is not less than `from`.
    pub fn by_name(&self, from: &str) -> impl Iterator<Item = Symbol<'_>> {
        let head = head(from);
        let first = self.heads.partition_point(|other| *other < head);
        let last = self.heads.partition_point(|other| *other <= head);
        let alike = self.by_name.get(first..last).unwrap_or_default();
        let before = alike.partition_point(|index| self.name_at(*index) < from);
        let rest = self.by_name.get(first + before..).unwrap_or_default();
        rest.iter().filter_map(|index| self.entries.get(*index as usize)).map(|entry| self.symbol(*entry))
    }

    /// Names of code that are at most [`most_edits`] away from `name`, the nearest first.
    pub fn similar_code_names(&self, name: &str) -> Vec<&str> {
        let name_of = |place: u32| self.by_name.get(place as usize).map_or("", |index| self.name_at(*index));
        let index = self.similar.get_or_init(|| {
            let mut names: Vec<_> = (0..)
                .zip(self.by_name(""))
                .filter(|(_, symbol)| symbol.is_code())
                .map(|(place, symbol)| (place, symbol.name))
                .collect();
            names.dedup_by_key(|(_, name)| *name);
            SimilarNames::new(&names)
        });
        let found = index.find(name, name_of).into_iter();
        found.filter(|(edits, _)| *edits <= most_edits(name)).map(|(_, place)| name_of(place)).collect()
    }

    /// Addresses of the kernel's own code and data.
    pub fn core(&self) -> Range<u64> {
        self.core.clone()
    }

    /// Modules that have symbols.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().map(String::as_str).filter(|module| *module != BPF)
    }

    /// Whether a module of that name has symbols here.
    pub fn has_module(&self, module: &str) -> bool {
        self.modules().any(|known| known == module)
    }

    /// The symbol that `address` lies in: the first of those with the greatest address that is not
    /// above it. Absent if the kernel has no name for the address either
    /// (kernel/kallsyms.c:kallsyms_lookup_size_offset).
    pub fn locate(&self, address: u64) -> Option<Located<'_>> {
        if address < KERNEL_HALF {
            return None;
        }
        let after = self.entries.partition_point(|entry| entry.address <= address);
        let base = self.entries.get(after.checked_sub(1)?)?.address;
        // Aliases are few: walking back is cheaper than a second search.
        let aliases =
            self.entries.get(..after)?.iter().rev().take_while(|entry| entry.address == base).count();
        let entry = *self.entries.get(after - aliases)?;
        let symbol = self.symbol(entry);
        let most = symbol.module.map_or(u64::MAX, |_| self.module_end(base, entry.module));
        let covered = match symbol.module {
            None => base >= KERNEL_HALF && self.core.contains(&address),
            Some(_) => address < most,
        };
        if !covered {
            return None;
        }
        // Behind the last of all, memory of the module goes on to the end of the page
        // (kernel/module/kallsyms.c: find_kallsyms_symbol).
        let end =
            self.entries.get(after).map_or((address | PAGE_MASK).saturating_add(1), |next| next.address);
        Some(Located { symbol, offset: address - base, size: end.min(most) - base })
    }

    /// The functions of a module, or of the kernel itself, in the order of their addresses, aliases
    /// once: each reaches to the next symbol, at most as far as code of a module can.
    pub fn functions(&self, module: Option<&str>) -> Vec<Range<u64>> {
        let index = module
            .map_or(Some(0), |module| self.modules.iter().position(|known| known == module).map(|at| at + 1));
        let of_module = |entry: &PackedSymbol| Some(usize::from(entry.module)) == index;
        let mut found: Vec<Range<u64>> = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.address >= KERNEL_HALF) {
            if let Some(last) = found.last_mut().filter(|last| last.end > entry.address) {
                if last.start == entry.address {
                    continue;
                }
                last.end = entry.address;
            }
            if of_module(entry) && self.symbol(*entry).is_code() {
                found.push(entry.address..self.module_end(entry.address, entry.module));
            }
        }
        found
    }

    /// Code symbols that begin in `range`, in the order of their addresses, aliases included.
    pub fn code_in(&self, range: Range<u64>) -> impl Iterator<Item = Symbol<'_>> {
        let first = self.entries.partition_point(|entry| entry.address < range.start);
        let rest = self.entries.get(first..).unwrap_or_default();
        rest.iter()
            .take_while(move |entry| entry.address < range.end)
            .map(|entry| self.symbol(*entry))
            .filter(Symbol::is_code)
    }
}

/// The hexadecimal address before the first blank of a line, and what is behind that.
fn leading_address(line: &str) -> Option<(u64, &str)> {
    let end = line.bytes().position(|byte| byte == b' ').filter(|end| (1..=16).contains(end))?;
    let (digits, rest) = line.split_at_checked(end)?;
    let address = digits
        .bytes()
        .try_fold(0, |address, digit| Some(address << 4 | u64::from(char::from(digit).to_digit(16)?)))?;
    Some((address, rest.get(1..)?))
}

/// The first eight bytes of a name as a number. Names are in the order of these numbers, as far as
/// these go.
fn head(name: &str) -> u64 {
    (heads(name) >> 64) as u64
}

/// The first sixteen bytes.
fn heads(name: &str) -> u128 {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(name.as_bytes()).for_each(|(place, byte)| *place = *byte);
    u128::from_be_bytes(bytes)
}

/// Kernel addresses have their top bit set; anything lower in the file is a per-CPU offset or a
/// number.
const KERNEL_HALF: u64 = 1 << 63;

/// Module name of BPF programs in kallsyms: they have names for addresses, not addresses for names.
const BPF: &str = "bpf";

/// The bits of an address within its page.
const PAGE_MASK: u64 = 0xfff;

/// Longest code after a symbol, in bytes: where a module ends is not in the file.
const MODULE_SYMBOL_MAX_BYTES: u64 = 1 << 20;

/// Symbol lookup for `FIELD.function` in event filters.
impl Functions for SymbolTable {
    /// The first symbol of that name, as kernel/kallsyms.c:kallsyms_lookup_name returns it.
    fn named(&self, name: &str) -> Option<Range<u64>> {
        self.at(self.lookup_spelled(name)?.address)
    }

    fn at(&self, address: u64) -> Option<Range<u64>> {
        Some(self.locate(address)?.range())
    }

    fn nearest(&self, name: &str) -> Option<&str> {
        self.similar_code_names(name).first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T startup_64
ffffffff81000100 t helper
ffffffff81000180 t helper.cold
ffffffff81000200 t helper
ffffffff81000300 D data
ffffffffc0000000 t helper\t[ext4]
ffffffffc0000040 t ext4_open\t[ext4]
";

    #[test]
    fn both_directions() {
        let table = SymbolTable::parse(TEXT);
        assert_eq!(table.len(), 9);
        let helpers: Vec<_> = table.named("helper", None).map(|s| (s.address, s.module)).collect();
        assert_eq!(
            helpers,
            [
                (0xffff_ffff_8100_0100, None),
                (0xffff_ffff_8100_0200, None),
                (0xffff_ffff_c000_0000, Some("ext4"))
            ]
        );
        assert_eq!(table.named("helper", Some("ext4")).count(), 1);
        assert_eq!(table.named("absent", None).count(), 0);
        assert_eq!(table.locate(0xffff_ffff_8100_0104).unwrap().to_string(), "helper+0x4/0x80");
        assert_eq!(
            table.locate(0xffff_ffff_8100_0000).unwrap().to_string(),
            "_stext+0x0/0x100",
            "the first alias"
        );
        assert_eq!(table.locate(0xffff_ffff_c000_0010).unwrap().to_string(), "helper+0x10/0x40 [ext4]");
        let last = table.locate(0xffff_ffff_c000_0040).unwrap();
        assert_eq!(last.to_string(), "ext4_open+0x0/0xfc0 [ext4]", "to the end of its page");
        let short = |address| table.locate(address).unwrap().short();
        assert_eq!(short(0xffff_ffff_8100_0100), "helper");
        assert_eq!(short(0xffff_ffff_c000_0010), "helper+0x10 [ext4]");
        assert!(table.locate(0x1000).is_none());
        assert!(table.has_module("ext4") && !table.has_module("xfs"));
        assert_eq!(table.named("fixed_percpu_data", None).count(), 1);
        assert!(table.lookup("fixed_percpu_data", None).is_none(), "0 is no address");
    }

    /// The next symbol is one of another module, far behind it.
    #[test]
    fn the_last_function_of_a_module_ends_with_its_memory() {
        let data = "ffffffffc0400000 d table\t[ext4]\n";
        let table = SymbolTable::parse(&format!("{TEXT}ffffffffc0080000 t next\t[xfs]\n{data}"));
        let (open, module) = (0xffff_ffff_c000_0040_u64, 0xffff_ffff_c000_0000_u64);
        let size = |table: &SymbolTable, at| table.locate(at).map(|located| located.size);
        assert_eq!(size(&table, open), Some(0x7_ffc0));
        let table = table.within(|name| if name == "ext4" { module..module + 0x3000 } else { 0..0 });
        assert_eq!(size(&table, open), Some(0x2fc0));
        assert_eq!(table.functions(Some("ext4")).last(), Some(&(open..module + 0x3000)));
        assert_eq!(size(&table, module + 0x3000), None, "memory of another one");
        // What is elsewhere, or not known, is as before.
        assert_eq!(size(&table, module + 0x40_0000), Some(0x1000));
        assert_eq!(table.functions(Some("xfs")).len(), 1);
    }

    #[test]
    fn the_kernel_ends_where_it_says_so() {
        let table = SymbolTable::parse(
            "ffffffff81000000 T _stext\nffffffff81000100 t f\nffffffff81000200 B _end\nffffffffc0000000 t g\t[bpf]\n",
        );
        assert!(table.locate(0xffff_ffff_8100_01ff).is_some());
        assert!(table.locate(0xffff_ffff_8100_0200).is_none());
        assert!(table.locate(0xffff_ffff_c000_0000).is_some(), "BPF programs have names");
        assert!(table.named("g", None).next().is_none(), "which nobody can ask for");
    }

    #[test]
    fn functions_reach_to_the_next_symbol() {
        let table = SymbolTable::parse(TEXT);
        let base = 0xffff_ffff_8100_0000_u64;
        let own = [0..0x100, 0x100..0x180, 0x180..0x200, 0x200..0x300];
        assert_eq!(table.functions(None), own.map(|range| base + range.start..base + range.end));
        let module = 0xffff_ffff_c000_0000_u64;
        assert_eq!(
            table.functions(Some("ext4")),
            [module..module + 0x40, module + 0x40..module + 0x40 + MODULE_SYMBOL_MAX_BYTES]
        );
        assert!(table.functions(Some("xfs")).is_empty());
    }

    #[test]
    fn a_name_of_one_letter_is_like_no_other() {
        let table = SymbolTable::parse("ffffffff81000000 t lf\nffffffff81000010 t of\n");
        for name in ["", "P", "f", "go"] {
            assert!(table.similar_code_names(name).is_empty(), "{name}");
        }
        assert_eq!(table.similar_code_names("lff"), ["lf", "of"]);
    }

    #[test]
    fn lines_of_another_form_are_left_out() {
        let text = "\n t f\nffffffff81000000\nffffffff81000000 t\nffffffff81000000 t \nffffffff8100000g t f\n\
                    1ffffffff81000000 t f\nffffffff81000000 t f\tg\nffffffff81000000 t \t[m]\n";
        assert_eq!(SymbolTable::parse(text).len(), 0);
    }

    #[test]
    fn hidden_addresses_leave_nothing() {
        assert!(SymbolTable::parse("0000000000000000 T vfs_read\n").is_empty());
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in ".*", address: u64) {
            let table = SymbolTable::parse(&text);
            let _ = table.locate(address);
        }

        #[test]
        fn names_are_in_order(names in proptest::collection::vec("[ab]{1,19}", 1..40), from in "[ab]{0,19}") {
            let line = |name: &String| format!("ffffffff81000000 t {name}\n");
            let table = SymbolTable::parse(&names.iter().map(line).collect::<String>());
            let mut expected: Vec<_> = names.iter().filter(|name| **name >= from).collect();
            expected.sort_unstable();
            prop_assert_eq!(table.by_name(&from).map(|symbol| symbol.name).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn every_symbol_is_found_again(addresses in proptest::collection::vec(KERNEL_HALF..u64::MAX, 1..50)) {
            let text = addresses.iter().enumerate().map(|(i, a)| format!("{a:x} t f{i}\n")).collect::<Vec<_>>().concat();
            let table = SymbolTable::parse(&text);
            for (i, address) in addresses.iter().enumerate() {
                let name = format!("f{i}");
                prop_assert_eq!(table.named(&name, None).next().unwrap().address, *address);
                prop_assert_eq!(table.locate(*address).unwrap().offset, 0);
            }
        }
    }
}
