//! ELF files with debug information: their kind, their sections, their symbols.
//!
//! Sections are decompressed, and those of modules relocated. A module is a relocatable file in which each
//! section begins at 0: here each one gets addresses of its own. A kernel is linked: its sections are used as
//! they are.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{Cursor, Read as _};

use gimli::{EndianSlice, LittleEndian, SectionId};
use object::elf;
use object::read::elf::ElfFile64;
use object::{
    CompressionFormat, Object as _, ObjectKind, ObjectSection as _, ObjectSymbol as _, RelocationFlags,
    RelocationTarget, SectionFlags, SectionIndex, SymbolKind,
};

use crate::error::{LinesError, Result};
use crate::symbols::{Region, Symbol, Symbols};

/// What gimli reads.
pub(crate) type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// The first address that a section of a module gets. 0 and the addresses near it stand for removed code.
const MODULE_BASE: u64 = 0x10_0000;

/// A compressed section grows by this factor at most, and by this many bytes: zlib cannot do more.
const GROWTH_MAX: u64 = 1100;
const GROWTH_BYTES: u64 = 64 << 10;

/// The longest name of a symbol (include/linux/kallsyms.h: KSYM_NAME_LEN).
const NAME_MAX: usize = 512;

/// Sections that unwinding needs; they are part of the code, and have no other form in split files.
const FRAMES: [SectionId; 2] = [SectionId::DebugFrame, SectionId::EhFrame];

/// Sections of debug information.
const SECTIONS: [SectionId; 16] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugCuIndex,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugTuIndex,
    SectionId::DebugFrame,
    SectionId::EhFrame,
];

/// An ELF file with debug information: a kernel, a module, a supplementary file, or the split part of one.
///
/// Reads the bytes that the caller has; nothing is copied but what is compressed or relocated.
#[derive(Debug)]
pub struct Image<'a> {
    build_id: Vec<u8>,
    supplementary: Option<(String, Vec<u8>)>,
    pub(crate) symbols: Symbols,
    pub(crate) is_split: bool,
    pub(crate) frames_base: u64,
    sections: HashMap<SectionId, Cow<'a, [u8]>>,
}

impl<'a> Image<'a> {
    /// Reads a file.
    pub fn read(bytes: &'a [u8]) -> Result<Self> {
        let file = elf_file(bytes)?;
        let is_relocatable = file.kind() == ObjectKind::Relocatable;
        let bases = if is_relocatable { bases(&file)? } else { HashMap::new() };
        let mut sections = HashMap::new();
        let mut is_split = false;
        for section in file.sections() {
            let name = section.name().unwrap_or_default();
            let plain = SECTIONS.into_iter().find(|id| {
                id.name() == name
                    || name
                        .strip_prefix(".zdebug_")
                        .is_some_and(|rest| id.name().strip_prefix(".debug_") == Some(rest))
            });
            let split = SECTIONS.into_iter().find(|id| id.dwo_name() == Some(name) && !FRAMES.contains(id));
            is_split |= split.is_some();
            let Some(id) = plain.or(split) else { continue };
            let mut data = decompressed(&section)?;
            if is_relocatable {
                relocate(&file, &section, &bases, &mut data)?;
            }
            sections.entry(id).or_insert(data);
        }
        let frames = file.section_by_name(".eh_frame");
        let frames_base = frames.map_or(0, |section| {
            section.address().wrapping_add(bases.get(&section.index()).copied().unwrap_or(0))
        });
        let module = module_name(&file)?;
        let supplementary = file
            .gnu_debugaltlink()?
            .map(|(path, id)| (String::from_utf8_lossy(path).into_owned(), id.to_vec()));
        Ok(Self {
            build_id: file.build_id()?.unwrap_or_default().to_vec(),
            supplementary,
            symbols: symbols(&file, module, &bases),
            is_split,
            frames_base,
            sections,
        })
    }

    /// The build id, by which a host's kernel or module is known; empty if the file has none.
    pub fn build_id(&self) -> &[u8] {
        &self.build_id
    }

    /// The name of a module; absent for a kernel.
    pub fn module(&self) -> Option<&str> {
        self.symbols.module()
    }

    /// The path and the build id of the supplementary file (`.gnu_debugaltlink`) without which this one
    /// cannot be read.
    pub fn supplementary(&self) -> Option<(&str, &[u8])> {
        self.supplementary.as_ref().map(|(path, id)| (path.as_str(), id.as_slice()))
    }

    pub(crate) fn section(&self, id: SectionId) -> Bytes<'_> {
        EndianSlice::new(self.sections.get(&id).map_or(&[], |data| data), LittleEndian)
    }
}

/// What a file of debug information, or an index of one, is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The build id, by which a host's kernel or module is known; empty if the file has none.
    pub build_id: Vec<u8>,
    /// The name of the module; absent for a kernel.
    pub module: Option<String>,
    /// The file is the split part of another one (`.dwo`, `.dwp`).
    pub is_split: bool,
}

impl Identity {
    /// That of an ELF file, without what the file says of code.
    pub(crate) fn of_elf(bytes: &[u8]) -> Result<Self> {
        let file = elf_file(bytes)?;
        let is_of_split = |name: &str| matches!(name, ".debug_info.dwo" | ".debug_cu_index");
        let is_split = file.sections().any(|section| section.name().is_ok_and(is_of_split));
        Ok(Self {
            build_id: file.build_id()?.unwrap_or_default().to_vec(),
            module: module_name(&file)?,
            is_split,
        })
    }
}

type File<'a> = ElfFile64<'a, object::LittleEndian>;
type Section<'a, 'file> = object::read::elf::ElfSection64<'a, 'file, object::LittleEndian>;

fn elf_file(bytes: &[u8]) -> Result<File<'_>> {
    if bytes.get(..4) != Some(b"\x7fELF") {
        return Err(LinesError::new("the file is not an ELF file"));
    }
    let file = File::parse(bytes)?;
    if file.elf_header().e_machine.get(object::LittleEndian) != elf::EM_X86_64 {
        return Err(LinesError::new("the file is not one of x86-64"));
    }
    Ok(file)
}

fn is_loaded(section: &Section<'_, '_>) -> bool {
    matches!(section.flags(), SectionFlags::Elf { sh_flags } if sh_flags & u64::from(elf::SHF_ALLOC) != 0)
}

/// An address of its own for each section of a relocatable file that is loaded.
fn bases(file: &File<'_>) -> Result<HashMap<SectionIndex, u64>> {
    let mut next = MODULE_BASE;
    let mut bases = HashMap::new();
    for section in file.sections().filter(is_loaded) {
        let align = section.align().clamp(16, 1 << 21).next_power_of_two();
        let base = next.next_multiple_of(align);
        bases.insert(section.index(), base);
        // A byte between them, so that the end of one is not the beginning of another.
        next = base
            .checked_add(section.size())
            .and_then(|end| end.checked_add(16))
            .filter(|end| *end < 1 << 40)
            .ok_or_else(|| LinesError::new("the sections of the module are larger than any module"))?;
    }
    Ok(bases)
}

fn decompressed<'a>(section: &Section<'a, '_>) -> Result<Cow<'a, [u8]>> {
    let compressed = section.compressed_data()?;
    let name = section.name().unwrap_or_default();
    let size = compressed.uncompressed_size;
    let limit = (compressed.data.len() as u64).saturating_mul(GROWTH_MAX).saturating_add(GROWTH_BYTES);
    if compressed.format == CompressionFormat::None {
        return Ok(Cow::Borrowed(compressed.data));
    }
    let damaged = |why: &str| LinesError::new(format!("the compressed section `{name}` is damaged: {why}"));
    if size > limit {
        return Err(damaged("it claims to be larger than what such compression can hold"));
    }
    let mut data = Vec::new();
    let outcome = match compressed.format {
        CompressionFormat::Zlib => {
            flate2::read::ZlibDecoder::new(compressed.data).take(size + 1).read_to_end(&mut data)
        }
        CompressionFormat::Zstandard => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(Cursor::new(compressed.data));
            decoder.map_err(|error| damaged(&error.to_string()))?.take(size + 1).read_to_end(&mut data)
        }
        _ => return Err(LinesError::new(format!("the section `{name}` has an unknown compression"))),
    };
    outcome.map_err(|error| damaged(&error.to_string()))?;
    if data.len() as u64 != size {
        return Err(damaged("it has another size than it claims"));
    }
    Ok(Cow::Owned(data))
}

/// Writes addresses into the debug information of a module, as the loader of modules would.
fn relocate(
    file: &File<'_>,
    section: &Section<'_, '_>,
    bases: &HashMap<SectionIndex, u64>,
    data: &mut Cow<'_, [u8]>,
) -> Result<()> {
    let base = |index: Option<SectionIndex>| index.and_then(|index| bases.get(&index)).copied().unwrap_or(0);
    let own = base(Some(section.index()));
    for (offset, relocation) in section.relocations() {
        let target = match relocation.target() {
            RelocationTarget::Symbol(index) => {
                let symbol = file.symbol_by_index(index)?;
                symbol.address().wrapping_add(base(symbol.section_index()))
            }
            _ => 0,
        };
        let value = target.wrapping_add(relocation.addend().cast_unsigned());
        let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
        let (value, bytes) = match r_type {
            elf::R_X86_64_NONE => continue,
            elf::R_X86_64_64 => (value, 8),
            elf::R_X86_64_32 | elf::R_X86_64_32S => (value, 4),
            elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => (value.wrapping_sub(own.wrapping_add(offset)), 4),
            elf::R_X86_64_PC64 => (value.wrapping_sub(own.wrapping_add(offset)), 8),
            other => {
                let name = section.name().unwrap_or_default();
                return Err(LinesError::new(format!(
                    "the section `{name}` has an unknown relocation of type {other}"
                )));
            }
        };
        let start = usize::try_from(offset).ok();
        let place = start.and_then(|start| data.to_mut().get_mut(start..start.checked_add(bytes)?));
        let place = place.ok_or_else(|| LinesError::new("a relocation lies outside of its section"))?;
        place.copy_from_slice(value.to_le_bytes().get(..bytes).unwrap_or_default());
    }
    Ok(())
}

/// The name of a module: what modpost has written, or else that of the source in which modpost has written it. A
/// separate file of debug information has the place of `.modinfo`, and no data there.
fn module_name(file: &File<'_>) -> Result<Option<String>> {
    // Supplementary and split files are relocatable too; they have no code.
    if file.kind() != ObjectKind::Relocatable || file.section_by_name(".text").is_none() {
        return Ok(None);
    }
    let data = file.section_by_name(".modinfo").and_then(|section| section.data().ok());
    let mut entries = data.unwrap_or_default().split(|byte| *byte == 0);
    if let Some(name) = entries.find_map(|entry| entry.strip_prefix(b"name=")) {
        return Ok(Some(String::from_utf8_lossy(name).into_owned()));
    }
    let mut sources = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::File);
    let path = sources.find_map(|symbol| symbol.name().ok()?.strip_suffix(".mod.c")).ok_or_else(|| {
        LinesError::new(
            "the name of the module is not known: `.modinfo` has no data, and no symbol `NAME.mod.c` has the name",
        )
        .hint("give the whole module (`NAME.ko`) with its debug information")
    })?;
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    Ok(Some(name.replace('-', "_")))
}

fn symbols(file: &File<'_>, module: Option<String>, bases: &HashMap<SectionIndex, u64>) -> Symbols {
    let listed = file.symbols().filter_map(|symbol| {
        let name = symbol.name().unwrap_or_default();
        // Those that the kernel leaves out of its list.
        let is_left_out =
            name.is_empty() || name.len() > NAME_MAX || name.starts_with(".L") || name.starts_with('$');
        let kind = symbol.kind();
        if symbol.is_undefined() || is_left_out || matches!(kind, SymbolKind::File | SymbolKind::Section) {
            return None;
        }
        let base = symbol.section_index().and_then(|index| bases.get(&index)).copied().unwrap_or(0);
        Some(Symbol {
            name,
            address: symbol.address().wrapping_add(base),
            bytes: symbol.size(),
            is_function: kind == SymbolKind::Text,
            is_global: symbol.is_global(),
        })
    });
    let listed: Vec<_> = listed.collect();
    let regions = file.sections().filter(is_loaded).map(|section| {
        let start = section.address().wrapping_add(bases.get(&section.index()).copied().unwrap_or(0));
        let is_per_cpu = section.name().is_ok_and(|name| name.starts_with(".data..percpu"));
        Region { start, end: start.saturating_add(section.size()), is_per_cpu }
    });
    Symbols::new(module, &listed, regions.collect())
}
