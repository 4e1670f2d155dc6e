//! Tests of verdicts on code that boot may rewrite.

use crate::validate::{BootDependence, Report, boot_dependence, check};
use kprobed_host::kernel::{KernelFacts, KernelImage, SymbolTable};
use kprobed_host::samples::image;
use kprobed_lang::definition::{Code, Definition, Features, ProbeDefinition, parse};

const BASE: u64 = 0xffff_ffff_8100_0000;

const SYMBOLS: &str = "\
ffffffff81000000 T _stext
ffffffff81000000 t f
ffffffff81000020 t g
ffffffff81000060 T _etext
ffffffff81000080 D __start_mcount_loc
ffffffff81000088 D __stop_mcount_loc
ffffffff81000088 D __start_kprobe_blacklist
ffffffff81000090 D __stop_kprobe_blacklist
ffffffff81000090 R __alt_instructions
ffffffff810000a8 R __alt_instructions_end
ffffffff810000a8 R __return_sites
ffffffff810000ac R __return_sites_end
ffffffff81000100 R _end
";

/// `f` has a call site of ftrace, NOPs at +5 that a feature replaces by CLAC, NOPs at +8 that a
/// feature replaces by two instructions, and a return at +11. `g` is on the blacklist.
fn kernel() -> KernelFacts {
    let mut memory = vec![0x90; 0x100];
    memory[..16]
        .copy_from_slice(&[0x0f, 0x1f, 0x44, 0, 0, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xe9, 0, 0, 0, 0]);
    memory[0x40..0x45].copy_from_slice(&[0x0f, 0x01, 0xca, 0x55, 0x5d]);
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    let distance = |from: i32, to: i32| (to - from).to_le_bytes();
    put(0x80, &BASE.to_le_bytes());
    put(0x88, &(BASE + 0x20).to_le_bytes());
    put(0x90, &[&distance(0x90, 5)[..], &distance(0x94, 0x40), &[1, 0, 3, 3]].concat());
    put(0x9c, &[&distance(0x9c, 8)[..], &distance(0xa0, 0x43), &[1, 0, 3, 2]].concat());
    put(0xa8, &distance(0xa8, 11));
    let text = image(BASE, &memory);
    let [release, version, readme] = Default::default();
    let symbols = SymbolTable::parse(SYMBOLS);
    KernelFacts::of_image(KernelImage { release, version, readme, symbols, text }).unwrap()
}

fn judged(facts: &KernelFacts, place: &str) -> (Report, Option<BootDependence>) {
    let Ok(Definition::Probe(definition)) = parse(&format!("p {place}"), &Features::from_readme("")) else {
        panic!("{place}")
    };
    let definition: ProbeDefinition = definition;
    let report = check(&definition, facts);
    let boot = boot_dependence(&definition, &report, facts);
    (report, boot)
}

#[test]
fn only_what_boot_may_change_is_uncertain() {
    let facts = kernel();
    let rule = |place: &str| judged(&facts, place).0.refusal.map(|refusal| refusal.code);
    let boot = |place: &str| judged(&facts, place).1.map(|found| (found.some_accept, found.some_refuse));
    for place in ["f", "f+5", "f+8", "f+11"] {
        assert_eq!((rule(place), boot(place)), (None, None), "{place}: a boundary, whatever boot does");
    }
    for place in ["f+1", "f+6", "f+7"] {
        assert_eq!((rule(place), boot(place)), (Some(Code::BadInsnBndry), None), "{place}");
    }
    assert_eq!(rule("f+9"), Some(Code::BadInsnBndry), "the likeliest is one NOP");
    assert_eq!(boot("f+9"), Some((true, true)), "two instructions, or one");
    assert_eq!(boot("f+10"), Some((true, true)));
    assert_eq!(boot("f+12"), Some((false, true)), "inside of a jump, or a trap behind a return");
    assert_eq!((rule("g"), boot("g")), (Some(Code::NotraceFunction), None));
}

#[test]
fn an_image_has_no_probes_and_no_types() {
    let facts = kernel();
    assert!(!facts.armed.is_registered(BASE) && !facts.types.available());
    assert!(facts.blacklist.contains(BASE + 0x20) && !facts.blacklist.contains(BASE));
    assert_eq!(facts.core_text, BASE..BASE + 0x60);
    assert_eq!(facts.code(BASE + 4, 4), [0, 0x0f, 0x1f, 0], "what is likeliest after boot");
    assert!(facts.code(BASE + 0x60, 4).is_empty(), "code of the initialisation is gone");
}
