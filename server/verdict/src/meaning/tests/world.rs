//! Two builds of a small kernel, for tests.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;

use tempfile::TempDir;

use crate::meaning::{Meaning, Subject, capture, notations, port};
use crate::validate::{Report, check, typed};
use kprobed_filter::Notation;
use kprobed_host::kernel::btf::TypeId;
use kprobed_host::kernel::{KernelFacts, KernelPaths};
use kprobed_host::samples::BtfWriter;
use kprobed_host::samples::core;
use kprobed_lang::definition::{Definition, Features, ProbeDefinition, parse};

const BASE: u64 = 0xffff_ffff_8100_0000;

/// Bytes between two functions.
const FUNCTION: usize = 0x40;

/// A build.
#[derive(Clone, Debug)]
pub(super) struct Build {
    pub(super) id: &'static [u8],
    pub(super) types: fn() -> BtfWriter,
    /// Functions with their code, in the order of their addresses.
    pub(super) functions: Vec<(&'static str, Vec<u8>)>,
}

pub(super) struct Kernel {
    pub(super) facts: KernelFacts,
    features: Features,
    _directory: TempDir,
}

/// A definition and its check.
pub(super) struct Known<'k> {
    kernel: &'k Kernel,
    written: ProbeDefinition,
    resolved: ProbeDefinition,
    notes: Vec<typed::Note>,
    pub(super) report: Report,
}

fn note(id: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [4, u32::try_from(id.len()).unwrap(), 3] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(b"GNU\0");
    bytes.extend(id);
    bytes
}

impl Build {
    pub(super) fn boot(&self) -> Kernel {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        let mut symbols = format!("{BASE:016x} T _stext\n");
        // As in real kernels, the first address has several names.
        let mut memory = vec![0xcc; FUNCTION];
        for (name, code) in &self.functions {
            writeln!(symbols, "{:016x} T {name}", BASE + memory.len() as u64).unwrap();
            memory.extend(code);
            memory.resize(memory.len().next_multiple_of(FUNCTION), 0xcc);
        }
        for end in ["_etext", "_end"] {
            writeln!(symbols, "{:016x} T {end}", BASE + memory.len() as u64).unwrap();
        }
        file("kernel/btf/vmlinux", &(self.types)().finish());
        file("kernel/notes", &note(self.id));
        file("sys/kernel/osrelease", b"6.1\n");
        file("kallsyms", symbols.as_bytes());
        file("available_filter_functions_addrs", b"");
        file("README", b"char, string, symstr, ustring");
        file("kcore", &core(&[(BASE, memory)]));
        let root = || directory.path().to_owned();
        let paths = KernelPaths { procfs: root(), sysfs: root(), debugfs: root(), tracefs: root() };
        let facts = KernelFacts::read(&paths).unwrap();
        let features = Features::from_readme("char, string, symstr, ustring $arg<N>").with_types(true);
        Kernel { facts, features, _directory: directory }
    }
}

impl Kernel {
    pub(super) fn know(&self, text: &str) -> Known<'_> {
        let Ok(Definition::Probe(written)) = parse(text, &self.features) else { panic!("{text}") };
        let report = check(&written, &self.facts);
        let resolution = typed::resolve(&written, &self.facts, &self.features)
            .unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
        Known {
            kernel: self,
            report,
            resolved: resolution.definition.with_explicit_names(),
            notes: resolution.notes,
            written,
        }
    }

    pub(super) fn meaning(&self, text: &str) -> Meaning {
        self.know(text).meaning()
    }
}

impl Known<'_> {
    fn subject(&self) -> Subject<'_> {
        Subject {
            written: &self.written,
            resolved: &self.resolved,
            notes: &self.notes,
            report: &self.report,
            facts: &self.kernel.facts,
        }
    }

    pub(super) fn meaning(&self) -> Meaning {
        capture(&self.subject())
    }

    pub(super) fn notations(&self) -> HashMap<String, Notation> {
        notations(&self.subject())
    }

    pub(super) fn ported(&self, before: &Meaning) -> Option<String> {
        Some(port(before, &self.subject())?.render("g", "e"))
    }
}

/// The members of `struct file`: name, offset in bytes.
struct Layout {
    flags: u32,
    position: u32,
    inode: u32,
    number: u32,
    union: bool,
}

fn types(layout: &Layout, accept: impl FnOnce(&mut BtfWriter, TypeId, TypeId)) -> BtfWriter {
    let mut w = BtfWriter::default();
    let int = w.int("int", 4, true);
    let u32 = w.int("unsigned int", 4, false);
    let u64 = w.int("long unsigned int", 8, false);
    let char = w.int("char", 1, false);
    let text = w.pointer(char);
    let void = w.pointer(TypeId::VOID);
    let inode = w.structure("inode", 64, &[("i_ino", u64, layout.number * 8, 0)]);
    let inode = w.pointer(inode);
    let link = w.union("", 8, &[("next", void), ("count", u64)]);
    let plain = w.union("", 8, &[("next", void)]);
    let fmode = w.typedef("fmode_t", u32);
    let file = w.structure(
        "file",
        192,
        &[
            ("f_mode", fmode, 0, 0),
            ("low", u32, 32, 4),
            ("high", u32, 36, 4),
            ("f_flags", u32, layout.flags * 8, 0),
            ("f_pos", u64, layout.position * 8, 0),
            ("f_inode", inode, layout.inode * 8, 0),
            ("", if layout.union { link } else { plain }, 1280, 0),
            ("f_data", void, 1408, 0),
        ],
    );
    let file = w.pointer(file);
    w.function("look", int, &[("file", file), ("name", text), ("how", u64)]);
    w.function(
        "many",
        file,
        &[("a", u64), ("b", u64), ("c", u64), ("d", u64), ("e", u64), ("f", u64), ("g", u64), ("h", u64)],
    );
    accept(&mut w, int, u64);
    w
}

fn old_types() -> BtfWriter {
    types(&Layout { flags: 64, position: 72, inode: 32, number: 16, union: false }, |w, int, _| {
        let sock = w.structure("sock", 8, &[("s", int, 0, 0)]);
        let sock = w.pointer(sock);
        let error = w.pointer(int);
        w.function("accept", sock, &[("sk", sock), ("flags", int), ("err", error)]);
        w.function("moved", int, &[("first", int), ("second", sock)]);
    })
}

/// `f_flags` has moved; `accept` takes another parameter; `moved` takes one more. A union has one
/// more member.
fn new_types() -> BtfWriter {
    types(&Layout { flags: 80, position: 64, inode: 40, number: 24, union: true }, |w, int, u64| {
        let sock = w.structure("sock", 16, &[("more", u64, 0, 0), ("s", int, 64, 0)]);
        let sock = w.pointer(sock);
        let how = w.structure("proto_accept_arg", 8, &[("flags", int, 0, 0)]);
        let how = w.pointer(how);
        w.function("accept", sock, &[("sk", sock), ("arg", how)]);
        w.function("moved", int, &[("new", u64), ("first", int), ("second", sock)]);
    })
}

/// `push %rbp; mov %rsp,%rbp; mov 0x10(%rdi),%rax; mov 0x18(%rdi),%rdx; call CALLED; test
/// %eax,%eax; pop %rbp; ret`, with `between` before the reads.
fn calling(between: &[u8], from: usize, to: usize) -> Vec<u8> {
    let mut code = vec![0x55, 0x48, 0x89, 0xe5];
    code.extend(between);
    code.extend([0x48, 0x8b, 0x47, 0x10, 0x48, 0x8b, 0x57, 0x18]);
    let next = i32::try_from(from * FUNCTION + code.len() + 5).unwrap();
    code.push(0xe8);
    code.extend((i32::try_from(to * FUNCTION).unwrap() - next).to_le_bytes());
    code.extend([0x85, 0xc0, 0x5d, 0xc3]);
    code
}

fn returning() -> Vec<u8> {
    vec![0x31, 0xc0, 0xc3]
}

/// The first build.
pub(super) fn old() -> Build {
    let functions = vec![
        ("look", calling(&[], 0, 4)),
        ("many", returning()),
        ("accept", returning()),
        ("moved", returning()),
        ("callee", returning()),
        ("in_assembly", vec![0x48, 0x89, 0xf8, 0xc3]),
    ];
    Build { id: &[1; 20], types: old_types, functions }
}

/// The next build: addresses and prototypes differ, and `look` has more code before its reads.
pub(super) fn new() -> Build {
    let functions = vec![
        ("callee", returning()),
        ("many", returning()),
        ("look", calling(&[0x48, 0xff, 0xc0], 2, 0)),
        ("accept", returning()),
        ("moved", returning()),
        ("in_assembly", vec![0x48, 0x89, 0xf0, 0xc3]),
    ];
    Build { id: &[2; 20], types: new_types, functions }
}

/// The first build, linked in another order: everything means the same.
pub(super) fn relinked() -> Build {
    let mut build = old();
    let look = calling(&[], 5, 0);
    build.functions = vec![
        ("callee", returning()),
        ("in_assembly", vec![0x48, 0x89, 0xf8, 0xc3]),
        ("accept", returning()),
        ("moved", returning()),
        ("many", returning()),
        ("look", look),
    ];
    Build { id: &[3; 20], ..build }
}
