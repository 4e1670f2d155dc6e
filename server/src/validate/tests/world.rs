//! A kernel made of stored facts: the files that the daemon reads, in a directory.
//!
//! Kernel memory holds the code of the stored functions and nothing else, except for the tables of patch sites, which are written anew
//! from the list of expected sites, at the addresses and with the lengths that the stored symbol table says.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use tempfile::TempDir;

use crate::kernel::{KernelFacts, KernelPaths, SymbolTable};

/// A stored function.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) address: u64,
    pub(super) code: Vec<u8>,
}

/// A row of an oracle table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) function: String,
    pub(super) offset: u64,
    pub(super) errno: i32,
    /// What the kernel wrote to `error_log`.
    pub(super) error: String,
}

pub(super) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oracle").join(name)
}

pub(super) fn stored(name: &str) -> String {
    let mut text = String::new();
    GzDecoder::new(fs::File::open(fixture(name)).unwrap()).read_to_string(&mut text).unwrap();
    text
}

pub(super) fn rows(table: &str, kernel: &str) -> Vec<Row> {
    let text = stored(&format!("{table}-{kernel}.tsv.gz"));
    let row = |line: &str| {
        let words: Vec<&str> = line.split('\t').collect();
        let error = words[5].rsplit_once(" @").map_or("", |(text, _column)| text);
        Row {
            function: words[0].to_owned(),
            offset: words[1].parse().unwrap(),
            errno: words[3].parse().unwrap(),
            error: error.to_owned(),
        }
    };
    text.lines().skip(1).map(row).collect()
}

pub(super) fn functions(kernel: &str) -> HashMap<String, Function> {
    let text = stored(&format!("funcs-{kernel}.tsv.gz"));
    let function = |line: &str| {
        let words: Vec<&str> = line.split('\t').collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let code = words[5].as_bytes().chunks(2).map(byte).collect();
        (words[0].to_owned(), Function { address: u64::from_str_radix(words[1], 16).unwrap(), code })
    };
    text.lines().skip(1).map(function).collect()
}

/// What decides in the README of that kernel.
fn readme(kernel: &str) -> &'static str {
    match kernel {
        "6.1" => "",
        _ => "\t     kernel return probes support: $retval, $arg<N>, $comm\n",
    }
}

pub(super) struct World {
    pub(super) paths: KernelPaths,
    _directory: TempDir,
}

/// The stored kernel, with patch sites as `KIND FUNCTION OFFSET` says, or without any.
pub(super) fn world(kernel: &str, sites: &str) -> World {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let file = |name: &str, text: &[u8]| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let kallsyms = stored(&format!("kallsyms-{kernel}.txt.gz"));
    let symbols = SymbolTable::parse(&kallsyms);
    let functions = functions(kernel);
    file("proc/kallsyms", kallsyms.as_bytes());
    file("debug/kprobes/blacklist", stored(&format!("blacklist-{kernel}.txt.gz")).as_bytes());
    file("tracing/README", readme(kernel).as_bytes());
    for list in ["available_filter_functions", "available_filter_functions_addrs"] {
        if fixture(&format!("{list}-{kernel}.txt.gz")).exists() {
            file(&format!("tracing/{list}"), stored(&format!("{list}-{kernel}.txt.gz")).as_bytes());
        }
    }
    let mut memory: Vec<(u64, Vec<u8>)> =
        functions.values().map(|function| (function.address, function.code.clone())).collect();
    memory.extend(tables(sites, &symbols, &functions));
    file("proc/kcore", &core(&memory));
    let paths = KernelPaths {
        procfs: root.join("proc"),
        sysfs: root.join("sys"),
        debugfs: root.join("debug"),
        tracefs: root.join("tracing"),
    };
    let facts = KernelFacts::read(&paths).unwrap();
    memory.extend(functions.values().filter_map(|function| entry_behind(function, &facts)));
    file("proc/kcore", &core(&memory));
    World { paths, _directory: directory }
}

/// The first bytes of what follows a function, if the list of call sites says what they are: the NOP, or ENDBR and the NOP.
fn entry_behind(function: &Function, facts: &KernelFacts) -> Option<(u64, Vec<u8>)> {
    const ENTRY: [u8; 9] = [0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0, 0];
    let end = function.address + function.code.len() as u64;
    if facts.text.read(end, 1).is_ok() {
        return None;
    }
    let entry = match end {
        _ if facts.traceable.is_site(end) => &ENTRY[4..],
        _ if facts.traceable.is_site(end + 4) => &ENTRY[..],
        _ => return None,
    };
    Some((end, entry.to_vec()))
}

fn tables(sites: &str, symbols: &SymbolTable, functions: &HashMap<String, Function>) -> Vec<(u64, Vec<u8>)> {
    let of_kind = |kind: &str| -> Vec<u64> {
        let words = sites.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        let chosen = words.filter(|words| words[0] == kind);
        chosen.map(|words| functions[words[1]].address + words[2].parse::<u64>().unwrap()).collect()
    };
    [
        ("jump_label", "__start___jump_table", "__stop___jump_table", 16),
        ("static_call", "__start_static_call_sites", "__stop_static_call_sites", 8),
        ("bug", "__start___bug_table", "__stop___bug_table", 12),
    ]
    .into_iter()
    .map(|(kind, start, stop, size)| {
        let address = |name| symbols.lookup(name, None).unwrap().address;
        let (start, stop) = (address(start), address(stop));
        let targets = of_kind(kind);
        let mut table = Vec::new();
        // As long as the real one: the same sites again and again.
        for (at, index) in (start..stop).step_by(size).zip(0..) {
            let mut entry = vec![0; size];
            if let Some(target) = targets.get(index % targets.len().max(1)) {
                let distance = i32::try_from(target.wrapping_sub(at).cast_signed()).unwrap();
                entry[..4].copy_from_slice(&distance.to_le_bytes());
            }
            table.extend(entry);
        }
        (start, table)
    })
    .collect()
}

/// A core file that holds these pieces of memory.
pub(crate) fn core(memory: &[(u64, Vec<u8>)]) -> Vec<u8> {
    const HEADER: usize = 64;
    const PROGRAM_HEADER: usize = 56;
    let mut file = vec![0; HEADER + PROGRAM_HEADER * memory.len()];
    file[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
    file[32..40].copy_from_slice(&(HEADER as u64).to_le_bytes());
    file[54..56].copy_from_slice(&56u16.to_le_bytes());
    file[56..58].copy_from_slice(&u16::try_from(memory.len()).unwrap().to_le_bytes());
    for (index, (address, bytes)) in memory.iter().enumerate() {
        let offset = file.len() as u64;
        let header = &mut file[HEADER + PROGRAM_HEADER * index..][..PROGRAM_HEADER];
        header[0] = 1;
        header[8..16].copy_from_slice(&offset.to_le_bytes());
        header[16..24].copy_from_slice(&address.to_le_bytes());
        header[40..48].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        file.extend_from_slice(bytes);
    }
    file
}
