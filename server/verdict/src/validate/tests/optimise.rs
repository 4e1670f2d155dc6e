//! Tests of jump optimisation: which breakpoints become jumps.

use std::fs;

use tempfile::TempDir;

use crate::validate::{Arming, check, disassembly, predicted_arming};
use kprobed_host::kernel::{KernelFacts, KernelPaths};
use kprobed_host::samples::core;
use kprobed_lang::definition::{Definition, Features, ProbeDefinition, parse};

const BASE: u64 = 0xffff_ffff_8100_0000;
const SYMBOLS: &str = "\
ffffffff81000000 T _stext
ffffffff81000000 T f
ffffffff81000020 T __entry_text_start
ffffffff81000020 T in_entry
ffffffff81000040 T __entry_text_end
ffffffff81000040 T g
ffffffff81000060 T _etext
ffffffff81000100 D __start___ex_table
ffffffff8100010c D __stop___ex_table
";

/// What differs between the kernels of these tests.
#[derive(Clone, Copy)]
struct World<'a> {
    symbols: &'a str,
    code: &'a [u8],
    /// Offset from `f` of the instruction in the exception table.
    faults: i32,
    probes: &'a str,
    switch: &'a str,
    readme: &'a str,
}

/// push %rbp; mov %rsp,%rbp; push %rbx; mov %rdi,%rbx; shl $3,%eax; ret
const CODE: &[u8] = &[0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x89, 0xfb, 0xc1, 0xe0, 3, 0xc3];
const PLAIN: World<'_> = World {
    symbols: "ffffffff82000000 T __x86_indirect_thunk_rax\n",
    code: CODE,
    faults: 0x41,
    probes: "",
    switch: "1\n",
    readme: "kernel return probes support",
};

fn facts(world: World<'_>) -> (KernelFacts, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("kallsyms", format!("{SYMBOLS}{}", world.symbols).as_str()),
        ("available_filter_functions_addrs", "ffffffff81000010 f\nffffffff81000030 in_entry\n"),
        ("README", world.readme),
        ("kprobes/list", world.probes),
        ("sys/debug/kprobes-optimization", world.switch),
    ] {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut memory = vec![0x90; 0x200];
    for start in [0, 0x20] {
        memory[start..start + world.code.len()].copy_from_slice(world.code);
    }
    memory[0x100..0x104].copy_from_slice(&(world.faults - 0x100).to_le_bytes());
    fs::write(directory.path().join("kcore"), core(&[(BASE, memory)])).unwrap();
    let root = || directory.path().to_owned();
    let paths = KernelPaths { procfs: root(), sysfs: root(), debugfs: root(), tracefs: root() };
    (KernelFacts::read(&paths).unwrap(), directory)
}

fn probe(text: &str) -> ProbeDefinition {
    match parse(text, &Features::from_readme("")).unwrap() {
        Definition::Probe(definition) => definition,
        Definition::Delete(_) => unreachable!("{text}"),
    }
}

/// Offsets of `f` at which a jump is predicted, of those before its call site.
fn jumps(world: World<'_>) -> Vec<u32> {
    let (facts, _directory) = facts(world);
    let (judged, _) = disassembly(&probe("p f"), BASE, &facts);
    let before = judged.iter().filter(|one| one.instruction.offset < 0x10);
    let mut found = Vec::new();
    for one in before {
        let offset = one.instruction.offset;
        let definition = probe(&format!("p f+{offset}"));
        let report = check(&definition, &facts);
        assert_ne!(report.arming, Some(Arming::Optimised), "a check alone does not look that far");
        let is_taken = report.objection.is_none();
        let alone = predicted_arming(&definition, &report, &facts).filter(|_| is_taken);
        assert_eq!(alone, one.verdict.as_ref().ok().copied(), "+{offset}");
        found.extend((alone == Some(Arming::Optimised)).then_some(offset));
    }
    found
}

#[test]
fn whole_instructions_that_can_be_copied_give_room_for_a_jump() {
    // From +12 on the jump would reach into the call site at +16.
    assert_eq!(jumps(PLAIN), [0, 1, 4, 5, 8, 11]);
    // Before 6.9 a shift was not boosted.
    assert_eq!(jumps(World { readme: "", ..PLAIN }), [0, 1, 11]);
    // A call at +8 (and the code after it).
    let call = &[0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x89, 0xfb, 0xe8, 0, 0, 0, 0][..];
    assert_eq!(jumps(World { code: call, ..PLAIN }), [0, 1]);
}

#[test]
fn what_holds_for_a_function_holds_everywhere_in_it() {
    assert!(jumps(World { switch: "0\n", ..PLAIN }).is_empty());
    assert!(jumps(World { faults: 8, ..PLAIN }).is_empty(), "the shift may fault");
    assert_eq!(jumps(World { faults: 9, ..PLAIN }).len(), 6, "no instruction begins there");
    // jmp *%rax instead of the shift.
    let indirect = &[0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x89, 0xfb, 0xff, 0xe0, 0x90, 0xc3][..];
    assert!(!jumps(World { code: indirect, ..PLAIN }).is_empty());
    assert!(jumps(World { code: indirect, symbols: "", ..PLAIN }).is_empty(), "may be a jump table");
    let (facts, _directory) = facts(PLAIN);
    let (judged, _) = disassembly(&probe("p in_entry"), BASE + 0x20, &facts);
    assert!(judged.iter().all(|one| one.verdict.as_ref().ok() != Some(&Arming::Optimised)));
}

#[test]
fn nothing_may_lead_into_a_jump() {
    // jmp to +5 instead of the shift: +0 is left out because the byte after a jump counts, +1 and
    // +4 because the jump leads into them.
    let jump = &[0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x89, 0xfb, 0xeb, 0xfb, 0x90, 0xc3][..];
    assert_eq!(jumps(World { code: jump, ..PLAIN }), [10, 11]);
    // An enabled probe in the middle; one that is disabled does not count.
    let probes = "ffffffff81000004  k  f+0x4\n";
    assert_eq!(jumps(World { probes, ..PLAIN }), [4, 5, 8, 11]);
    let probes = "ffffffff81000004  k  f+0x4    [DISABLED]\n";
    assert_eq!(jumps(World { probes, ..PLAIN }), [0, 1, 4, 5, 8, 11]);
}
