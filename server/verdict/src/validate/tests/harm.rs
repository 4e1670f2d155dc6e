//! Tests of the places that this daemon refuses because a probe there harms the kernel: it may put a
//! jump over code that is entered from elsewhere, it expects a fault, or it cannot handle a breakpoint.

use std::collections::BTreeMap;
use std::fs;

use tempfile::TempDir;

use crate::validate::{Arming, check, disassembly, nearest, predicted_arming, surroundings};
use kprobed_host::kernel::{KernelFacts, KernelImage, KernelPaths, SymbolTable};
use kprobed_host::samples::{core, image};
use kprobed_lang::definition::{Code, Definition, Features, ProbeDefinition, RefusedBy, parse};

const BASE: u64 = 0xffff_ffff_8100_0000;
const MODULE: u64 = 0xffff_ffff_c000_0000;

/// `f` is 64 bytes long and its part 32, and so is `g`.
const SYMBOLS: &str = "\
ffffffff81000000 T f
ffffffff81000000 T _stext
ffffffff81000040 t f.cold
ffffffff81000060 T g
ffffffff81000080 T _etext
ffffffff81000100 D __start___ex_table
ffffffff8100010c D __stop___ex_table
ffffffff81000110 D __start___jump_table
ffffffff81000120 D __stop___jump_table
ffffffff81000130 D __start_mcount_loc
ffffffff81000138 D __stop_mcount_loc
ffffffff81000138 D __start_kprobe_blacklist
ffffffff81000138 D __stop_kprobe_blacklist
ffffffff81000200 B kprobe_table
ffffffff82000000 T __x86_indirect_thunk_rax
";
const COLD: usize = 0x40;
const G: usize = 0x60;
const EXCEPTION: usize = 0x100;
const LABEL: usize = 0x110;
const CALL_SITES: usize = 0x130;
const KPROBES: usize = 0x200;

/// The landing of most tests, and the places whose jump would cover it.
const LANDING: usize = 0x20;
const OVER_LANDING: [u32; 4] = [0x1c, 0x1d, 0x1e, 0x1f];

/// Of the `README` of a kernel of today, and of one that evaluates some jumps wrongly.
const NEWER: &str = "[<group>/][<event>] kernel return probes support";
const OLDER: &str = "[<group>/]<event>";

/// A kernel in the making.
struct Kernel {
    memory: Vec<u8>,
    symbols: String,
    probes: String,
    switch: Option<&'static str>,
    readme: &'static str,
    /// The code of a module, whose last page follows nothing.
    module: Vec<u8>,
}

impl Kernel {
    /// One in which no code leads into another function: after the call of ftrace all is NOPs.
    fn new() -> Self {
        let mut memory = vec![0x90; 0x200];
        memory.resize(0x600, 0);
        memory[..5].copy_from_slice(&[0x0f, 0x1f, 0x44, 0, 0]);
        memory[EXCEPTION..CALL_SITES].fill(0);
        memory[CALL_SITES..CALL_SITES + 8].copy_from_slice(&BASE.to_le_bytes());
        Self {
            memory,
            symbols: SYMBOLS.to_owned(),
            probes: String::new(),
            switch: Some("1\n"),
            readme: NEWER,
            module: Vec::new(),
        }
    }

    fn with(mut self, at: usize, bytes: &[u8]) -> Self {
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// With an instruction of these bytes and the distance to `to` behind them.
    fn leading(self, at: usize, opcode: &[u8], to: usize) -> Self {
        let end = at + opcode.len() + 4;
        self.with(at, &[opcode, &distance(end, to)].concat())
    }

    /// With an entry in a table that begins with two addresses.
    fn entry(self, at: usize, from: usize, to: usize) -> Self {
        self.with(at, &[distance(at, from), distance(at + 4, to)].concat())
    }

    fn facts(&self) -> (KernelFacts, TempDir) {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("kallsyms", Some(self.symbols.as_str())),
            (
                "available_filter_functions_addrs",
                Some("ffffffff81000000 f\nffffffffc0000000 first [ext]\nffffffffc0000040 last [ext]\n"),
            ),
            ("README", Some(self.readme)),
            ("kprobes/list", Some(self.probes.as_str())),
            ("sys/debug/kprobes-optimization", self.switch),
        ] {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if let Some(text) = text {
                fs::write(path, text).unwrap();
            }
        }
        fs::write(
            directory.path().join("kcore"),
            core(&[(BASE, self.memory.clone()), (MODULE, self.module.clone())]),
        )
        .unwrap();
        let root = || directory.path().to_owned();
        let paths = KernelPaths { procfs: root(), sysfs: root(), debugfs: root(), tracefs: root() };
        (KernelFacts::read(&paths).unwrap(), directory)
    }

    /// The offsets of `f` that are refused for a landing: by the check, and in every list of places.
    fn refused(&self) -> Vec<u32> {
        let refused = self.objections();
        assert!(refused.values().all(|rule| *rule == Code::JumpOverLanding), "{refused:?}");
        refused.into_keys().collect()
    }

    /// The offsets of `f` that are refused.
    fn objections(&self) -> BTreeMap<u32, Code> {
        let (facts, _directory) = self.facts();
        objections(&facts)
    }

    /// What is said of one of them.
    fn message(&self, offset: u32) -> String {
        let (facts, _directory) = self.facts();
        check(&probe(offset), &facts).objection.unwrap().message
    }
}

fn distance(from: usize, to: usize) -> [u8; 4] {
    i32::try_from(to.cast_signed() - from.cast_signed()).unwrap().to_le_bytes()
}

fn probe(offset: u32) -> ProbeDefinition {
    place(&format!("f+{offset}"))
}

fn place(place: &str) -> ProbeDefinition {
    match parse(&format!("p {place}"), &Features::from_readme("")).unwrap() {
        Definition::Probe(definition) => definition,
        Definition::Delete(_) => unreachable!(),
    }
}

fn objections(facts: &KernelFacts) -> BTreeMap<u32, Code> {
    let by_check: BTreeMap<u32, Code> =
        (0..0x40).filter_map(|offset| Some((offset, check(&probe(offset), facts).objection?.code))).collect();
    let (judged, _) = disassembly(&probe(0), BASE, facts);
    let listed = judged.iter().filter_map(|one| {
        let rule = one.verdict.as_ref().err()?.code;
        (rule.refused_by() == RefusedBy::Kprobed).then_some((one.instruction.offset, rule))
    });
    assert_eq!(listed.collect::<BTreeMap<_, _>>(), by_check);
    for offset in 0..0x40 {
        let report = check(&probe(offset), facts);
        let around = nearest(&probe(offset), &report, facts);
        let offered = [around.before, around.after];
        assert!(!by_check.keys().any(|refused| offered.contains(&Some(*refused))), "{offset}: {around:?}");
        for shown in surroundings(&probe(offset), &report, facts).0 {
            let is_refused = by_check.contains_key(&shown.offset);
            assert!(!is_refused || !shown.probeable, "{offset}: {shown:?}");
        }
    }
    by_check
}

#[test]
fn no_place_is_refused_without_a_landing() {
    assert!(Kernel::new().refused().is_empty());
    // A jump and a call to the beginnings of functions.
    let between = Kernel::new().leading(COLD, &[0xe9], 0).leading(G, &[0xe8], COLD);
    assert!(between.refused().is_empty());
}

#[test]
fn code_of_other_symbols_leads_into_a_function() {
    for (at, opcode) in [(COLD, &[0xe9][..]), (COLD + 7, &[0x0f, 0x84]), (G + 3, &[0xe8])] {
        assert_eq!(Kernel::new().leading(at, opcode, LANDING).refused(), OVER_LANDING, "{opcode:x?}");
    }
    let cold = Kernel::new().leading(COLD, &[0xe9], LANDING);
    let expected = "code of `f.cold` jumps to +32 of `f`, inside of the 5 bytes from +30 on that the kernel would replace by a jump";
    assert_eq!(cold.message(0x1e), expected);
    // Short jumps, which reach neighbours only.
    let short = |at: usize, to: usize| {
        Kernel::new().with(at, &[0xeb, u8::try_from(to.wrapping_sub(at + 2) & 0xff).unwrap()])
    };
    assert_eq!(short(COLD + 3, LANDING).refused(), OVER_LANDING);
    assert_eq!(short(G + 3, LANDING).refused(), OVER_LANDING);
    assert!(short(8, LANDING).refused().is_empty(), "the kernel sees the jumps of the function");
}

#[test]
fn a_call_of_the_function_itself_is_not_seen_by_the_kernel() {
    assert_eq!(Kernel::new().leading(8, &[0xe8], LANDING).refused(), OVER_LANDING);
    assert!(Kernel::new().leading(8, &[0xe9], LANDING).refused().is_empty());
}

#[test]
fn bytes_that_only_look_like_a_jump_lead_nowhere() {
    // mov $...,%rax, with the bytes of the jump in the number.
    let jump = distance(COLD + 7, LANDING);
    let constant = Kernel::new().with(COLD, &[&[0x48, 0xb8, 0xe9][..], &jump, &[0x90; 3]].concat());
    assert!(constant.refused().is_empty());
    let short = Kernel::new().with(COLD, &[0xb8, 0xeb, 0xdd, 0x90, 0x90]);
    assert!(short.refused().is_empty(), "eb dd leads to +0x20");
    // Behind bytes that are no instruction, it may be one.
    let data =
        Kernel::new().with(COLD, &[&[0x06, 0x48, 0xb8, 0xe9][..], &distance(COLD + 8, LANDING)].concat());
    assert_eq!(data.refused(), OVER_LANDING);
}

#[test]
fn a_fault_in_another_function_continues_in_this_one() {
    let fixup = Kernel::new().entry(EXCEPTION, G + 4, LANDING);
    assert_eq!(fixup.refused(), OVER_LANDING);
    assert!(fixup.message(0x1f).starts_with("the kernel continues at +32 of `f` after a fault in `g`"));
    let own = Kernel::new().entry(EXCEPTION, 8, LANDING).objections();
    assert_eq!(own, BTreeMap::from([(8, Code::ExpectedFault)]), "it is never optimised");
}

#[test]
fn an_instruction_that_may_fault_is_not_probed() {
    let kernel = Kernel::new().entry(EXCEPTION, 0x10, G);
    assert_eq!(kernel.objections(), BTreeMap::from([(0x10, Code::ExpectedFault)]));
    let message = kernel.message(0x10);
    assert!(
        message.starts_with("the kernel expects that the instruction at +16 of `f` can fault"),
        "{message}"
    );
    assert!(Kernel::new().entry(EXCEPTION, G + 4, G + 8).objections().is_empty());
}

#[test]
fn a_jump_that_the_kernel_misjudges_is_not_probed() {
    let symbols = format!("{SYMBOLS}ffffffff82000010 t kprobe_emulate_jcc\n");
    // jle, jg, and a jl, which is judged right.
    let of = |readme| {
        let kernel = Kernel { symbols: symbols.clone(), readme, ..Kernel::new() };
        kernel.with(0x10, &[0x7e, 0, 0x7c, 0]).leading(0x18, &[0x0f, 0x8f], 0x20).objections()
    };
    assert_eq!(of(OLDER), BTreeMap::from([(0x10, Code::MisjudgedJump), (0x18, Code::MisjudgedJump)]));
    assert!(of(NEWER).is_empty());
}

#[test]
fn the_last_function_of_a_module_is_probed_if_its_rest_is_whole_instructions() {
    let symbols = format!("{SYMBOLS}ffffffffc0000000 t first\t[ext]\nffffffffc0000040 t last\t[ext]\n");
    // The call of ftrace, NOPs, and what the page has behind them.
    let rule = |nops: usize, at: &str| {
        let mut module = vec![0x90; 0x40 + 5 + nops];
        for start in [0, 0x40] {
            module[start..start + 5].copy_from_slice(&[0x0f, 0x1f, 0x44, 0, 0]);
        }
        module.resize(0x1000, 0);
        // Another module begins there, whose last byte is zero.
        module.resize(0x1fff, 0x90);
        module.push(0);
        let kernel = Kernel { symbols: symbols.clone(), module, ..Kernel::new() };
        let (facts, _directory) = kernel.facts();
        let report = check(&place(&format!("ext:{at}")), &facts);
        assert!(report.refusal.is_none(), "{report:?}");
        report.objection.map(|found| found.code)
    };
    assert_eq!(rule(8, "last+5"), Some(Code::EndOfModule));
    assert_eq!(rule(9, "last+5"), None);
    assert_eq!(rule(8, "last"), None, "it is armed by ftrace");
    assert_eq!(rule(8, "first+5"), None);
}

#[test]
fn a_function_that_runs_without_interrupts_is_not_probed() {
    for name in ["load_current_idt", "machine_kexec"] {
        let symbols = SYMBOLS.replace(" T f\n", &format!(" T {name}\n"));
        let kernel = Kernel { symbols, ..Kernel::new() };
        let (facts, _directory) = kernel.facts();
        let report = check(&place(&format!("{name}+9")), &facts);
        let found = report.objection.unwrap();
        assert_eq!(found.code, Code::NoInterruptTable);
        assert_eq!(found.hint.unwrap(), "probe a function that calls it");
    }
}

#[test]
fn a_jump_label_leads_there_while_it_is_on() {
    let label = Kernel::new().entry(LABEL, 8, LANDING);
    let off = label.with(8, &[0x0f, 0x1f, 0x44, 0, 0]);
    assert_eq!(off.refused(), OVER_LANDING);
    assert!(off.message(0x1c).starts_with("a jump label of `f` leads to +32 of `f`"));
    // The kernel sees the jump, and does not optimise as long as it is there.
    let on = off.leading(8, &[0xe9], LANDING);
    assert_eq!(on.refused(), OVER_LANDING);
    let (facts, _directory) = on.facts();
    let report = check(&probe(0x1b), &facts);
    assert_eq!(predicted_arming(&probe(0x1b), &report, &facts), Some(Arming::Breakpoint), "behind it by one");
    let of_another = Kernel::new().entry(LABEL, G + 8, LANDING);
    assert_eq!(of_another.refused(), OVER_LANDING);
}

#[test]
fn what_changes_while_the_kernel_runs_excuses_nothing() {
    let cold = || Kernel::new().leading(COLD, &[0xe9], LANDING);
    assert_eq!(Kernel { switch: Some("0\n"), ..cold() }.refused(), OVER_LANDING);
    let neighbour = "ffffffff8100001f  k  f+0x1f\n".to_owned();
    assert_eq!(Kernel { probes: neighbour, ..cold() }.refused(), OVER_LANDING);
    assert!(Kernel { switch: None, ..cold() }.refused().is_empty(), "the kernel has no optimisation");
}

#[test]
fn a_place_that_never_gets_a_jump_is_accepted() {
    let cold = || Kernel::new().leading(COLD, &[0xe9], LANDING);
    // CPUID is not executed from a copy.
    assert!(cold().with(0x1c, &[0x0f, 0xa2]).with(0x1e, &[0x0f, 0xa2]).refused().is_empty());
    assert_eq!(cold().with(0x21, &[0x0f, 0xa2]).refused(), [0x1c], "+28 to +32 are NOPs");
    // jmp *%rax may be a jump table.
    let indirect = || cold().with(0x10, &[0xff, 0xe0]);
    assert_eq!(indirect().refused(), OVER_LANDING);
    let symbols = SYMBOLS.replace("__x86_indirect_thunk_rax", "other");
    assert!(Kernel { symbols, ..indirect() }.refused().is_empty());
    // The jump would not fit, and ftrace's place is no landing.
    assert_eq!(Kernel::new().leading(COLD, &[0xe9], 0x3d).refused(), [0x39, 0x3a, 0x3b]);
    assert!(Kernel::new().leading(COLD, &[0xe9], 0x4).refused().is_empty());
}

#[test]
fn a_jump_below_a_breakpoint_is_found() {
    let armed = Kernel::new().leading(COLD, &[0xe9], LANDING).with(COLD, &[0xcc]);
    let probes = "ffffffff81000040  k  f.cold+0x0\n".to_owned();
    let (record, copy) = (KPROBES + 0x200, KPROBES + 0x300);
    let pointer = |at: usize| (BASE + at as u64).to_le_bytes();
    let armed = armed
        .with(KPROBES, &pointer(record))
        .with(record + 40, &pointer(COLD))
        .with(record + 80, &[0xe9])
        .with(record + 88, &pointer(copy))
        .with(copy, &[0xe9]);
    assert_eq!(Kernel { probes, ..armed }.refused(), OVER_LANDING);
}

#[test]
fn images_have_landings_too() {
    let kernel = Kernel::new().leading(COLD, &[0xe9], LANDING);
    let [release, version, readme] = Default::default();
    let symbols = SymbolTable::parse(&format!("{SYMBOLS}ffffffff82000000 D optprobe_template_entry\n"));
    let text = image(BASE, &kernel.memory);
    let facts = KernelFacts::of_image(KernelImage { release, version, readme, symbols, text }).unwrap();
    assert_eq!(objections(&facts).into_keys().collect::<Vec<_>>(), OVER_LANDING);
}
