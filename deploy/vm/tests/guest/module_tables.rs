//! The tables of code that modules have. Sysfs says where each begins, and the kernel counts its entries in
//! `struct module`, whose form differs by kernel: what lies behind the entries is none.
//!
//! The daemon's own code reads memory of the guest here, in which such entries follow each table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result, ensure};
use kprobed_host::kernel::{KernelText, PatchSites, SymbolTable};
use kprobed_host::samples;
use kprobed_vm::progress;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget};

use crate::Test;
use crate::daemon::DaemonGuest;
use crate::fixture::Fixture;
use crate::kernel_memory::Memory;
use crate::kernel_module::{Build, Function};

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        what_lies_behind_a_table_is_no_entry_of_it,
    }
};

const JUMP_LABELS: &str = "__jump_table";
const STATIC_CALLS: &str = ".static_call_sites";
const EXCEPTIONS: &str = "__ex_table";

/// The bytes of an entry of each.
const TABLES: [(&str, u64); 3] = [(JUMP_LABELS, 16), (STATIC_CALLS, 8), (EXCEPTIONS, 12)];

/// The section that holds `struct module`.
const THIS_MODULE: &str = ".gnu.linkonce.this_module";

/// How far the daemon reads at most, and without another section behind the table.
const MOST_BYTES: u64 = 256 << 10;
const PAGE_BYTES: u64 = 4096;

/// A module that is loaded.
struct Module<'a> {
    name: &'a str,
    /// Addresses by name.
    sections: BTreeMap<&'a str, u64>,
    file: object::File<'a>,
}

impl Module<'_> {
    fn bytes_of(&self, section: &str) -> Result<u64> {
        Ok(self.file.section_by_name(section).with_context(|| section.to_owned())?.size())
    }

    /// The code that the entries of a table are about, and that the kernel keeps, as the file has it.
    fn code_of(&self, table: &str, entry_bytes: u64) -> Result<BTreeSet<u64>> {
        let mut code = BTreeSet::new();
        let Some(table) = self.file.section_by_name(table) else { return Ok(code) };
        for (_, relocation) in table.relocations().filter(|(at, _)| at % entry_bytes == 0) {
            let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
            let symbol = self.file.symbol_by_index(symbol)?;
            let section = symbol.section_index().context("code of another module")?;
            let section = self.file.section_by_index(section)?;
            let section = section.name()?;
            if !section.starts_with(".init") {
                let start = *self.sections.get(section).with_context(|| section.to_owned())?;
                code.insert(start.wrapping_add(symbol.address()).wrapping_add_signed(relocation.addend()));
            }
        }
        Ok(code)
    }
}

/// Entries for the room behind a table that ends at `at`, about this code.
fn entries(mut at: u64, room: u64, entry_bytes: u64, code: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for _ in 0..room / entry_bytes {
        let distance = |from: u64| i32::try_from(code.wrapping_sub(from).cast_signed());
        // A key follows where static calls have no other distance; its lowest bits are flags.
        let second = if entry_bytes == 8 { 4 } else { distance(at + 4)? };
        let mut entry = [distance(at)?.to_le_bytes(), second.to_le_bytes()].concat();
        entry.resize(usize::try_from(entry_bytes)?, 0);
        bytes.extend(entry);
        at += entry_bytes;
    }
    bytes.resize(usize::try_from(room)?, 0);
    Ok(bytes)
}

/// What the daemon reads of a table that begins there, if entries about `other` code follow it.
fn read(
    module: &Module<'_>,
    (table, entry_bytes, start): (&str, u64, u64),
    other: u64,
    (memory, symbols): (&Memory<'_>, &SymbolTable),
) -> Result<PatchSites> {
    let itself = *module.sections.get(THIS_MODULE).context("no struct module")?;
    let known = memory.read(&(itself..itself + module.bytes_of(THIS_MODULE)?))?;
    let counted = memory.read(&(start..start + module.bytes_of(table)?))?;
    // As far as the daemon reads at most where no other section follows.
    let end = if itself > start { itself.min(start + MOST_BYTES) } else { (start | (PAGE_BYTES - 1)) + 1 };
    let behind = start + counted.len() as u64;
    let room = end.checked_sub(behind).context("a table that reaches further than it may")?;
    let lengthened = [counted, entries(behind, room, entry_bytes, other)?].concat();
    let directory = tempfile::tempdir()?;
    let sections = directory.path().join(module.name).join("sections");
    fs::create_dir_all(&sections)?;
    for (name, address) in [(table, start), (THIS_MODULE, itself)] {
        fs::write(sections.join(name), format!("{address:#018x}\n"))?;
    }
    let core = directory.path().join("core");
    fs::write(&core, samples::core(&[(start, lengthened), (itself, known)]))?;
    Ok(PatchSites::read(&KernelText::open(&core)?, symbols, directory.path()))
}

/// A module with what the others lack: code that may fault.
const FAULTS: &str = "kpd_faults";

fn what_lies_behind_a_table_is_no_entry_of_it(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let build = Build::of(&guest)?;
    // nop; mov eax, 0; the second is where the kernel goes on.
    let faulting = build.with_exception(FAULTS, &Function::new("faulting", &[0x90, 0xb8, 0, 0, 0, 0]), 1)?;
    let file = format!("/tmp/{FAULTS}.ko");
    guest.machine.put(&file, 0o644, &faulting)?;
    guest.shell(&format!(
        "for file in /lib/kprobed-guest/modules/*.ko; do insmod $file 2> /dev/null; done; insmod {file}"
    ))?;
    let symbols = SymbolTable::parse(&guest.shell("cat /proc/kallsyms")?);
    let memory = Memory::new(&guest)?;
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for path in guest.shell(&format!("ls /lib/kprobed-guest/modules/*.ko {file}"))?.lines() {
        let stem = path.rsplit('/').next().and_then(|file| file.strip_suffix(".ko")).context("no name")?;
        let name = stem.split_once('-').map_or(stem, |(_place, name)| name);
        let sections = sections(&guest, name)?;
        let sections: BTreeMap<_, _> =
            sections.iter().map(|(name, address)| (name.as_str(), *address)).collect();
        let tables = TABLES.map(|(table, bytes)| Some((table, bytes, *sections.get(table)?)));
        let tables: Vec<_> = tables.into_iter().flatten().collect();
        if tables.is_empty() {
            continue;
        }
        let image = guest.machine.get(path)?;
        let module = Module { name, sections, file: object::File::parse(image.as_slice())? };
        for table in tables {
            let (kind, entry_bytes, _start) = table;
            let expected = module.code_of(kind, entry_bytes)?;
            let text = *module.sections.get(".text").context("no code")?;
            let mut code = text..=text + expected.len() as u64;
            let other = code.find(|address| !expected.contains(address)).context("each byte has an entry")?;
            let sites = read(&module, table, other, (&memory, &symbols))?;
            let found: BTreeSet<_> = match kind {
                JUMP_LABELS => sites.jump_labels().iter().map(|label| label.from).collect(),
                EXCEPTIONS => sites.exceptions().iter().map(|exception| exception.from).collect(),
                _ => {
                    let begins = |address: &u64| sites.static_call_over(*address) == Some(*address);
                    expected.iter().copied().chain([other]).filter(begins).collect()
                }
            };
            let differ: Vec<_> = found.symmetric_difference(&expected).collect();
            ensure!(
                differ.is_empty(),
                "{name}, {kind}: {differ:x?} are found, or in the file, and not both; {other:x} follows"
            );
            *seen.entry(kind).or_default() += expected.len();
        }
    }
    guest.shell(&format!("rmmod {FAULTS}"))?;
    progress::note(format_args!("{}: {seen:?}", fixture.series()));
    ensure!(TABLES.iter().all(|(table, _)| seen.get(table) > Some(&0)), "not every table was tested");
    Ok(())
}

/// The addresses of a module's sections by their names; none if it is not loaded.
fn sections(guest: &DaemonGuest, module: &str) -> Result<BTreeMap<String, u64>> {
    let listed =
        guest.shell(&format!("cd /sys/module/{module}/sections 2> /dev/null && grep -r . .; true"))?;
    let parse = |line: &str| {
        let (name, address) = line.trim_start_matches("./").split_once(":0x").context("no address")?;
        Ok((name.to_owned(), u64::from_str_radix(address, 16)?))
    };
    listed.lines().map(parse).collect()
}
