//! Kernel modules built from a few bytes of code, without a compiler and without kernel headers.
//!
//! Owns their form as the module loader reads it (kernel/module/main.c). What depends on the build
//! of the kernel comes from a module of the same build: the size of `struct module`, and the place
//! of the name and of the two functions that the loader calls in it. Symbols have no versions: with
//! `CONFIG_MODULE_FORCE_LOAD`, which Debian's kernels have, the loader accepts them (check_version,
//! try_to_force_load).

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use kprobed_host::kernel::btf::{Btf, Kind};
use object::elf::{R_X86_64_64, R_X86_64_PC32, R_X86_64_PLT32, SHF_ALLOC, SHF_WRITE, SHT_NOTE, SHT_PROGBITS};
use object::write::{Object, Relocation, SectionId, Symbol, SymbolId, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, Object as _, ObjectSection as _, ObjectSymbol as _,
    RelocationFlags, RelocationTarget, SectionFlags, SectionKind, SymbolFlags, SymbolKind, SymbolScope,
};

use crate::daemon::DaemonGuest;

/// `endbr64`: since 6.2 the kernel may be built to call nothing indirectly that does not begin with
/// it.
const ENDBR: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];

/// `call`, and the distance to what is called, which the loader fills in.
const CALL: &[u8] = &[0xe8, 0, 0, 0, 0];

const RETURN: &[u8] = &[0xc3];

/// `jmp`, and the distance.
const JUMP: &[u8] = &[0xe9, 0, 0, 0, 0];

/// A function of a module, which ftrace can trace.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    name: &'static str,
    body: Vec<u8>,
    part: Option<Part>,
}

/// A part of a function that has a symbol of its own, as compilers make of unlikely code. All it does
/// is to jump back.
#[derive(Clone, Copy, Debug)]
struct Part {
    name: &'static str,
    /// Where it jumps to, in bytes from the beginning of the function's body.
    returns_to: usize,
}

impl Function {
    /// A function whose body is these instructions, and which then returns what is in `eax`.
    pub(crate) fn new(name: &'static str, body: &[u8]) -> Self {
        Self { name, body: [body, RETURN].concat(), part: None }
    }

    /// A function whose body begins with a jump to its part, which jumps to the body of these
    /// instructions, `returns_to` bytes behind that jump.
    pub(crate) fn in_parts(name: &'static str, part: &'static str, body: &[u8], returns_to: usize) -> Self {
        let part = Some(Part { name: part, returns_to: JUMP.len() + returns_to });
        Self { part, ..Self::new(name, &[JUMP, body].concat()) }
    }

    /// A function that returns a number.
    pub(crate) fn returning(name: &'static str, value: i32) -> Self {
        // mov eax, VALUE
        Self::new(name, &[&[0xb8], value.to_le_bytes().as_slice()].concat())
    }
}

/// What all modules of a build of the kernel have in common.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    /// `vermagic=...`.
    vermagic: String,
    /// Size of `struct module` in bytes.
    module_bytes: u64,
    /// Where it has its name.
    name_at: usize,
    /// Where it has the functions that are called first and last.
    init_at: u64,
    exit_at: u64,
    /// Whether functions begin with `endbr64`.
    has_endbr: bool,
    /// Size of `struct klp_func` in bytes.
    livepatch_function_bytes: u64,
}

/// The section that holds `struct module`.
const THIS_MODULE: &str = ".gnu.linkonce.this_module";

impl Build {
    /// That of the kernel of a guest.
    pub(crate) fn of(guest: &DaemonGuest) -> Result<Self> {
        let file = guest.shell("ls /lib/kprobed-guest/modules/*-virtio_rng.ko")?;
        let image = guest.machine.get(file.trim()).with_context(|| file.clone())?;
        let types = Btf::parse(guest.machine.get("/sys/kernel/btf/vmlinux")?)?;
        let livepatch_function = types.types().find_map(|ty| match ty.ok()? {
            ty if ty.name == "klp_func" => match ty.kind {
                Kind::Composite(composite) => Some(u64::from(composite.bytes)),
                _ => None,
            },
            _ => None,
        });
        Self::read(&image, livepatch_function.context("the kernel has no livepatches")?).with_context(|| file)
    }

    fn read(image: &[u8], livepatch_function_bytes: u64) -> Result<Self> {
        let module = object::File::parse(image)?;
        let text = module.section_by_name(".text").context("no code")?.data()?;
        let modinfo = module.section_by_name(".modinfo").context("no .modinfo")?;
        let modinfo = modinfo.data()?;
        let entries = modinfo.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
        let find = |key: &str| entries.clone().find(|entry| entry.starts_with(key)).map(str::to_owned);
        let vermagic = find("vermagic=").context("no vermagic")?;
        let name = find("name=").context("no name")?;
        let this = module.section_by_name(THIS_MODULE).context("no struct module")?;
        let name = name.trim_start_matches("name=").as_bytes();
        let name_at = this.data()?.windows(name.len()).position(|bytes| bytes == name);
        let mut functions = BTreeMap::new();
        for (at, relocation) in this.relocations() {
            if let RelocationTarget::Symbol(index) = relocation.target() {
                functions.insert(module.symbol_by_index(index)?.name()?.to_owned(), at);
            }
        }
        let at = |name: &str| functions.get(name).copied().with_context(|| format!("no {name}"));
        Ok(Self {
            vermagic,
            module_bytes: this.size(),
            name_at: name_at.context("struct module has no name")?,
            init_at: at("init_module")?,
            exit_at: at("cleanup_module")?,
            has_endbr: text.windows(ENDBR.len()).any(|bytes| bytes == ENDBR),
            livepatch_function_bytes,
        })
    }

    fn prologue(&self) -> &'static [u8] {
        if self.has_endbr { ENDBR } else { &[] }
    }

    /// Where the body of a function begins, in bytes: after the call of ftrace.
    pub(crate) fn body_at(&self) -> usize {
        self.prologue().len() + CALL.len()
    }

    /// A module with a function that is called with each write to its parameter `call`. The build
    /// id tells it from others of its name.
    pub(crate) fn module(&self, name: &str, build_id: u8, function: &Function) -> Result<Vec<u8>> {
        let mut made = Made::new(self, name, "")?;
        // xor eax, eax
        made.code("init_module", &[&[0x31, 0xc0], RETURN].concat())?;
        let called = made.function(function)?;
        // include/linux/moduleparam.h: struct kernel_param_ops has flags and `set`; struct
        // kernel_param has name, module, those, permissions and the level at which it is
        // initialised, which counts for built-in code only.
        let ops = made.data(".data", &[0; 32], &[(8, called)])?;
        let parameter_name = made.data(".rodata", b"call\0", &[])?;
        let mut parameter = [0; 40];
        parameter[24..26].copy_from_slice(&0o200_u16.to_le_bytes());
        parameter[26] = 0xff;
        let this = made.this;
        made.data("__param", &parameter, &[(0, parameter_name), (8, this), (16, ops)])?;
        let id = [build_id; 20];
        let note = [4_u32, 20, 3]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .chain(*b"GNU\0")
            .chain(id)
            .collect::<Vec<_>>();
        made.data(".note.gnu.build-id", &note, &[])?;
        made.finish()
    }

    /// A module whose function may fault at the beginning of its body, after which the kernel goes on that many bytes
    /// further.
    pub(crate) fn with_exception(&self, name: &str, function: &Function, further: i64) -> Result<Vec<u8>> {
        let mut made = Made::new(self, name, "")?;
        // xor eax, eax
        made.code("init_module", &[&[0x31, 0xc0], RETURN].concat())?;
        let function = made.function(function)?;
        let table = made.section("__ex_table");
        // arch/x86/include/asm/extable.h: two distances, and what depends on the kernel.
        let entry = made.object.append_section_data(table, &[0; 12], 4);
        let body = i64::try_from(self.body_at())?;
        made.relocate(table, entry, function, body, R_X86_64_PC32)?;
        made.relocate(table, entry + 4, function, body + further, R_X86_64_PC32)?;
        made.finish()
    }

    /// A livepatch of functions of the kernel: the name of each, and what takes its place.
    pub(crate) fn livepatch(&self, name: &str, replacements: &[(&str, Function)]) -> Result<Vec<u8>> {
        let mut made = Made::new(self, name, "livepatch=Y\0")?;
        // include/linux/livepatch.h. Zeros end both lists: struct klp_func begins with the old name
        // and the new function, struct klp_object with its name, which is none for the kernel
        // itself, and its functions. There is one object, so that its size does not matter.
        let entry_bytes = self.livepatch_function_bytes;
        let mut pointers = Vec::new();
        for ((old, new), at) in replacements.iter().zip((0_u64..).step_by(usize::try_from(entry_bytes)?)) {
            let old = made.data(".rodata", &[old.as_bytes(), &[0]].concat(), &[])?;
            pointers.extend([(at, old), (at + 8, made.function(new)?)]);
        }
        let functions = vec![0; usize::try_from(entry_bytes)? * (replacements.len() + 1)];
        let functions = made.data(".data", &functions, &pointers)?;
        let objects = made.data(".data", &[0; 1024], &[(8, functions)])?;
        // struct klp_patch begins with its module and its objects.
        let this = made.this;
        let patch = made.data(".data", &[0; 1024], &[(0, this), (8, objects)])?;
        let enable = made.outside(b"klp_enable_patch");
        // lea rdi, [rip + patch]; jmp klp_enable_patch
        let init = made.code("init_module", &[0x48, 0x8d, 0x3d, 0, 0, 0, 0, 0xe9, 0, 0, 0, 0])?;
        let begun = self.prologue().len() as u64;
        made.relocate_code(init, begun + 3, patch, R_X86_64_PC32)?;
        made.relocate_code(init, begun + 8, enable, R_X86_64_PLT32)?;
        made.finish()
    }
}

/// A module as far as it is made.
struct Made<'a> {
    build: &'a Build,
    object: Object<'static>,
    text: SectionId,
    sections: BTreeMap<&'static str, SectionId>,
    /// `struct module`.
    this: SymbolId,
}

impl<'a> Made<'a> {
    fn new(build: &'a Build, name: &str, more_information: &str) -> Result<Self> {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let text = object.section_id(object::write::StandardSection::Text);
        let mut module = vec![0; usize::try_from(build.module_bytes)?];
        let place = module.get_mut(build.name_at..).and_then(|rest| rest.get_mut(..name.len()));
        place.context("the name is too long")?.copy_from_slice(name.as_bytes());
        let this = section(&mut object, THIS_MODULE);
        object.append_section_data(this, &module, 64);
        let sections = BTreeMap::from([(THIS_MODULE, this)]);
        let this = symbol(&mut object, b"__this_module", SymbolKind::Data, this, 0, build.module_bytes);
        let information = format!(
            "license=GPL\0name={name}\0intree=Y\0retpoline=Y\0{}\0{more_information}",
            build.vermagic
        );
        let mut made = Self { build, object, text, sections, this };
        made.data(".modinfo", information.as_bytes(), &[])?;
        made.code("cleanup_module", RETURN)?;
        Ok(made)
    }

    /// Adds a function that begins with the call of ftrace, and is in the list of those
    /// (`__mcount_loc`).
    fn function(&mut self, function: &Function) -> Result<SymbolId> {
        let added = self.code(function.name, &[CALL, &function.body].concat())?;
        let call_at = self.build.prologue().len() as u64;
        let ftrace = self.outside(b"__fentry__");
        self.relocate_code(added, call_at + 1, ftrace, R_X86_64_PLT32)?;
        if let Some(Part { name, returns_to }) = function.part {
            let body_at = self.build.body_at();
            let part = self.code(name, JUMP)?;
            self.relocate_code(added, body_at as u64 + 1, part, R_X86_64_PLT32)?;
            let jump_at = self.object.symbol(part).value + call_at;
            let addend = i64::try_from(body_at + returns_to)? - 4;
            self.relocate(self.text, jump_at + 1, added, addend, R_X86_64_PC32)?;
        }
        let list = self.section("__mcount_loc");
        let entry = self.object.append_section_data(list, &[0; 8], 8);
        self.relocate(list, entry, added, i64::try_from(call_at)?, R_X86_64_64)?;
        Ok(added)
    }

    /// Adds code. The functions that the loader calls are entered into `struct module`.
    fn code(&mut self, name: &str, code: &[u8]) -> Result<SymbolId> {
        let mut code = [self.build.prologue(), code].concat();
        if code.len() % 2 == 1 {
            // Of a last function that ends at an odd address, the kernel reads more than there is.
            code.push(0x90);
        }
        let at = self.object.append_section_data(self.text, &code, 16);
        let bytes = code.len() as u64;
        let symbol = symbol(&mut self.object, name.as_bytes(), SymbolKind::Text, self.text, at, bytes);
        let entered = match name {
            "init_module" => Some(self.build.init_at),
            "cleanup_module" => Some(self.build.exit_at),
            _ => None,
        };
        if let Some(at) = entered {
            let this = self.section(THIS_MODULE);
            self.relocate(this, at, symbol, 0, R_X86_64_64)?;
        }
        Ok(symbol)
    }

    /// Adds data with pointers in it, each at its distance from the beginning.
    fn data(&mut self, name: &'static str, bytes: &[u8], pointers: &[(u64, SymbolId)]) -> Result<SymbolId> {
        let section = self.section(name);
        let at = self.object.append_section_data(section, bytes, 8);
        for (offset, target) in pointers {
            ensure!(offset + 8 <= bytes.len() as u64, "{name}: a pointer at {offset}");
            self.relocate(section, at + offset, *target, 0, R_X86_64_64)?;
        }
        Ok(symbol(&mut self.object, b"", SymbolKind::Data, section, at, bytes.len() as u64))
    }

    /// The section of that name, made when it is requested first.
    fn section(&mut self, name: &'static str) -> SectionId {
        *self.sections.entry(name).or_insert_with(|| section(&mut self.object, name))
    }

    /// A symbol of the kernel.
    fn outside(&mut self, name: &[u8]) -> SymbolId {
        self.object.add_symbol(Symbol {
            name: name.to_vec(),
            value: 0,
            size: 0,
            kind: SymbolKind::Unknown,
            scope: SymbolScope::Unknown,
            weak: false,
            section: SymbolSection::Undefined,
            flags: SymbolFlags::None,
        })
    }

    /// Makes four bytes of a function the distance to something, counted from their end.
    fn relocate_code(&mut self, function: SymbolId, offset: u64, target: SymbolId, kind: u32) -> Result<()> {
        let at = self.object.symbol(function).value + offset;
        self.relocate(self.text, at, target, -4, kind)
    }

    fn relocate(
        &mut self,
        section: SectionId,
        offset: u64,
        symbol: SymbolId,
        addend: i64,
        kind: u32,
    ) -> Result<()> {
        let flags = RelocationFlags::Elf { r_type: kind };
        Ok(self.object.add_relocation(section, Relocation { offset, symbol, addend, flags })?)
    }

    fn finish(self) -> Result<Vec<u8>> {
        Ok(self.object.write()?)
    }
}

fn section(object: &mut Object<'static>, name: &str) -> SectionId {
    let (kind, flags) = match name {
        ".modinfo" | ".rodata" | "__param" | "__mcount_loc" => (SHT_PROGBITS, SHF_ALLOC),
        ".note.gnu.build-id" => (SHT_NOTE, SHF_ALLOC),
        _ => (SHT_PROGBITS, SHF_ALLOC | SHF_WRITE),
    };
    let id = object.add_section(Vec::new(), name.as_bytes().to_vec(), SectionKind::Elf(kind));
    object.section_mut(id).flags = SectionFlags::Elf { sh_flags: u64::from(flags) };
    id
}

fn symbol(
    object: &mut Object<'static>,
    name: &[u8],
    kind: SymbolKind,
    section: SectionId,
    value: u64,
    size: u64,
) -> SymbolId {
    object.add_symbol(Symbol {
        name: name.to_vec(),
        value,
        size,
        kind,
        scope: SymbolScope::Compilation,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    })
}
