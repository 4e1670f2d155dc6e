//! Tests of rules that the stored answers do not cover: unknown symbols, addresses, places between
//! functions, other probes.

use std::fs;

use nix::errno::Errno;
use tempfile::TempDir;

use crate::validate::functions::{self, FunctionQuery, Meant};
use crate::validate::{Arming, JudgedInstruction, Report, check, disassembly, kernel_code, surroundings};
use kprobed_host::kernel::{KernelFacts, KernelPaths};
use kprobed_host::samples::core;
use kprobed_lang::definition::{Code, Definition, Features, ProbeDefinition, RefusedBy, parse};

const SYMBOLS: &str = "\
0000000000000000 A fixed_percpu_data
000000000000b000 A gdt_page
ffffffff81000000 T _stext
ffffffff81000000 T first
ffffffff81000040 t part.cold
ffffffff81000060 t part
ffffffff81000080 t twin
ffffffff810000a0 t twin
ffffffff810000c0 t quiet
ffffffff810000e0 t __switch_to
ffffffff81000100 T _etext
ffffffff81000100 D jiffies
ffffffff81000200 t count_symbols
ffffffff81000300 B _end
ffffffffc0000000 t open\t[mod]
ffffffffc0000100 t open\t[mod]
ffffffffc0001000 t prog\t[bpf]
";
const BASE: u64 = 0xffff_ffff_8100_0000;
const CALL_SITES: &str = "\
ffffffff81000004 first
ffffffff81000060 part
ffffffff81000080 twin
ffffffff810000a0 twin
ffffffff810000e0 __switch_to
ffffffffc0000000 open [mod]
";
const NEW: &str = "kernel return probes support";

struct Kernel {
    facts: KernelFacts,
    features: Features,
    _directory: TempDir,
}

/// A kernel with this README and these registered probes. Its functions are: ENDBR, a call of
/// ftrace, `push %rbp`, a breakpoint, the same again.
fn kernel(readme: &str, probes: &str) -> Kernel {
    kernel_with("", readme, probes, &[0x55, 0xcc, 0xf4])
}

/// A kernel with more symbols, and with this code behind the call of ftrace in `first`.
fn kernel_with(symbols: &str, readme: &str, probes: &str, rest: &[u8]) -> Kernel {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("kallsyms", [SYMBOLS, symbols].concat().as_str()),
        ("available_filter_functions_addrs", CALL_SITES),
        ("README", readme),
        ("kprobes/list", probes),
    ] {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut code = vec![0x90; 0x100];
    let first = [&[0xf3, 0x0f, 0x1e, 0xfa, 0xe8, 1, 2, 3, 4][..], rest].concat();
    code[..first.len()].copy_from_slice(&first);
    fs::write(directory.path().join("kcore"), core(&[(BASE, code)])).unwrap();
    let root = || directory.path().to_owned();
    let paths = KernelPaths { procfs: root(), sysfs: root(), debugfs: root(), tracefs: root() };
    let facts = KernelFacts::read(&paths).unwrap();
    Kernel { facts, features: Features::from_readme(readme), _directory: directory }
}

impl Kernel {
    fn parse(&self, text: &str) -> ProbeDefinition {
        match parse(text, &self.features).unwrap() {
            Definition::Probe(definition) => definition,
            Definition::Delete(_) => unreachable!("{text}"),
        }
    }

    fn check(&self, text: &str) -> Report {
        check(&self.parse(text), &self.facts)
    }

    /// Errno and code of a refusal; none when accepted.
    fn refusal(&self, text: &str) -> Option<(Errno, Code)> {
        self.check(text).refusal.map(|refusal| (Errno::from_raw(refusal.errno), refusal.code))
    }

    fn objection(&self, text: &str) -> Option<Code> {
        self.check(text).objection.map(|objection| objection.code)
    }
}

#[test]
fn symbols_are_refused_as_each_kernel_does() {
    let (old, new) = (kernel("", ""), kernel(NEW, ""));
    for (text, of_old, of_new) in [
        ("p absent", (Errno::ENOENT, Code::BadProbeAddr), (Errno::EINVAL, Code::BadProbeAddr)),
        ("r absent+1", (Errno::ENOENT, Code::BadProbeAddr), (Errno::EINVAL, Code::BadProbeAddr)),
        ("p mod:absent", (Errno::ENOENT, Code::BadProbeAddr), (Errno::EINVAL, Code::BadProbeAddr)),
        ("p prog", (Errno::ENOENT, Code::BadProbeAddr), (Errno::EINVAL, Code::BadProbeAddr)),
        ("p fixed_percpu_data", (Errno::ENOENT, Code::BadProbeAddr), (Errno::ENOENT, Code::BadProbeAddr)),
        ("p gdt_page", (Errno::ENOENT, Code::UnnamedPlace), (Errno::ENOENT, Code::UnnamedPlace)),
        ("p twin", (Errno::EADDRNOTAVAIL, Code::NonUniqSymbol), (Errno::EINVAL, Code::NonUniqSymbol)),
        ("r twin+1", (Errno::EINVAL, Code::BadRetprobe), (Errno::EINVAL, Code::NonUniqSymbol)),
        (
            "p first @nowhere",
            (Errno::ENOENT, Code::UnknownMemorySymbol),
            (Errno::ENOENT, Code::UnknownMemorySymbol),
        ),
        ("p quiet @nowhere", (Errno::EINVAL, Code::NotraceFunction), (Errno::EINVAL, Code::NotraceFunction)),
        ("p jiffies", (Errno::EINVAL, Code::NotraceFunction), (Errno::EINVAL, Code::NotraceFunction)),
        ("r __switch_to", (Errno::EINVAL, Code::ReturnBlacklisted), (Errno::EINVAL, Code::ReturnBlacklisted)),
    ] {
        assert_eq!(old.refusal(text), Some(of_old), "old: {text}");
        assert_eq!(new.refusal(text), Some(of_new), "new: {text}");
    }
    assert_eq!(old.refusal("p mod:open"), None, "names with a module were not counted");
    assert_eq!(new.refusal("p mod:open"), Some((Errno::EINVAL, Code::NonUniqSymbol)));
    let hint = new.check("p twin").refusal.unwrap().hint.unwrap();
    assert_eq!(hint, "they are at _stext+128, _stext+160");
    let twice = kernel_with("ffffffffc0000200 t first\t[mod]\n", NEW, "", &[0x55]);
    let hint = twice.check("p first+9").refusal.unwrap().hint.unwrap();
    assert_eq!(hint, "they are at _stext+9, mod:first+9");
}

#[test]
fn entries_lie_behind_endbr() {
    let kernel = kernel(NEW, "");
    for (text, refusal) in [
        ("p first", None),
        ("p first+4", None),
        ("r first+4", None),
        ("p first+1", Some((Errno::EILSEQ, Code::BadInsnBndry))),
        ("p first+5", Some((Errno::EILSEQ, Code::BadInsnBndry))),
        ("p first+9", None),
        ("r first+9", Some((Errno::EINVAL, Code::BadRetprobe))),
        ("r 0xffffffff81000004", None),
        ("r 0xffffffff81000009", Some((Errno::EINVAL, Code::NotEntryAddress))),
        ("p first+10", Some((Errno::EILSEQ, Code::TrapInstruction))),
    ] {
        assert_eq!(kernel.refusal(text), refusal, "{text}");
    }
    assert_eq!(kernel.check("p first").arming, Some(Arming::Ftrace));
    assert_eq!(kernel.check("p first+9").arming, Some(Arming::Breakpoint));
    let (_, nearest) = surroundings(&kernel.parse("p first+6"), &kernel.check("p first+6"), &kernel.facts);
    assert_eq!((nearest.before, nearest.after), (Some(4), Some(9)));
}

/// The blacklist comes after it before 5.18, and before it since.
#[test]
fn the_middle_of_a_call_site_is_found_first_or_last() {
    let listed = "ffffffff81000060 T __kprobes_text_start\nffffffff81000080 T __kprobes_text_end\n";
    let later = [listed, "ffffffff82000000 T arch_adjust_kprobe_addr\n"].concat();
    let on_the_list = (Errno::EINVAL, Code::Blacklisted);
    for (symbols, refused) in [(listed, (Errno::EILSEQ, Code::BadInsnBndry)), (later.as_str(), on_the_list)] {
        let kernel = kernel_with(symbols, "", "", &[0x55]);
        assert_eq!(kernel.refusal("p part+1"), Some(refused), "{symbols}");
        assert_eq!(kernel.refusal("p part"), Some(on_the_list), "{symbols}");
        assert_eq!(kernel.refusal("p part+5"), Some(on_the_list), "{symbols}");
    }
}

#[test]
fn what_a_kernel_cannot_emulate_is_refused_where_it_emulates() {
    // call *(%rax); jmp *(%rax); lcall *(%rax); iretq; vmcall; int $0x80
    let code = [0xff, 0x10, 0xff, 0x20, 0xff, 0x18, 0x48, 0xcf, 0x0f, 0x01, 0xc1, 0xcd, 0x80];
    let copying = kernel_with("", "", "", &code);
    let emulating = kernel_with("ffffffff82000000 t kprobe_emulate_jcc\n", "", "", &code);
    for offset in [9, 11, 13, 15, 17] {
        let text = format!("p first+{offset}");
        assert_eq!(copying.refusal(&text), None, "{text}");
        let refused = Some((Errno::EOPNOTSUPP, Code::UnsupportedInstruction));
        assert_eq!(emulating.refusal(&text), refused, "{text}");
    }
    for kernel in [copying, emulating] {
        assert_eq!(kernel.refusal("p first+20"), None, "it is copied before 6.9");
        assert_eq!(kernel.refusal("p first+10").map(|(errno, _)| errno), Some(Errno::EILSEQ));
    }
    // A breakpoint of others is not copied, by any kernel.
    let refused = Some((Errno::EINVAL, Code::TrapInstruction));
    assert_eq!(kernel("", "").refusal("p first+10"), refused);
}

#[test]
fn parts_go_with_their_function() {
    let kernel = kernel(NEW, "");
    assert_eq!(kernel.refusal("p part.cold"), None);
    assert_eq!(kernel.refusal("p quiet"), Some((Errno::EINVAL, Code::NotraceFunction)));
}

#[test]
fn what_the_kernel_takes_and_nobody_means_is_objected_to() {
    let kernel = kernel(NEW, "");
    assert_eq!(kernel.refusal("p part+32"), None, "the kernel goes on to `twin`");
    assert_eq!(kernel.objection("p part+32"), Some(Code::OutsideFunction));
    assert_eq!(kernel.check("p part+32").location, "twin+0x0");
    assert_eq!((kernel.refusal("p _stext+128"), kernel.objection("p _stext+128")), (None, None));
    for nowhere in [
        "p 0x1",
        "p 0xffff888000000000",
        "p 0xffffffff81000400",
        "p 0x1 @nowhere",
        "p 0x1 @",
        "p other:f @-10",
        "p other:f @jiffies+x",
        "p other:",
    ] {
        assert_eq!(
            (kernel.refusal(nowhere), kernel.objection(nowhere)),
            (None, Some(Code::NeverArmed)),
            "{nowhere}"
        );
    }
    assert_eq!(kernel.refusal("p 0x1 @jiffies+x"), Some((Errno::EINVAL, Code::BadMemSymbol)));
    assert_eq!(kernel.refusal("p first @-10"), Some((Errno::ENOENT, Code::BadMemSymbol)));
    assert_eq!(kernel.refusal("p mod:"), Some((Errno::EINVAL, Code::BadProbeAddr)));
    assert_eq!(kernel.refusal("p jiffies+65536"), Some((Errno::ENOENT, Code::UnnamedPlace)));
    assert_eq!(kernel.check("p other:f").absent_module.as_deref(), Some("other"));
}

/// The page of vsyscalls is 0x7e600000 bytes behind the beginning of the text.
#[test]
fn a_symbol_does_not_lead_into_the_vsyscall_page() {
    let kernel = kernel(NEW, "");
    for (argument, objection) in [
        ("@_stext+0x7e600000", Some(Code::DangerousMemory)),
        ("+8(@_stext+0x7e5ffe00)", Some(Code::DangerousMemory)),
        ("@_stext+0x7e601000", None),
        ("@_stext+0x7e5ffdff", None),
        ("@jiffies", None),
    ] {
        let text = format!("p first {argument}");
        assert_eq!((kernel.refusal(&text), kernel.objection(&text)), (None, objection), "{text}");
    }
}

#[test]
fn other_probes_do_not_change_the_verdict() {
    let kernel = kernel(NEW, "ffffffff8100000a  k  first+0xa\n");
    assert_eq!(kernel.refusal("p first+10"), None, "joins the probe that is there");
    assert_eq!(kernel.refusal("p first+9"), None);
}

#[test]
fn every_instruction_of_a_function_is_judged() {
    let kernel = kernel(NEW, "ffffffff81000009  k  first+0x9\n");
    let shown = |text: &str, count: usize| -> Vec<String> {
        let (judged, omitted) = disassembly(&kernel.parse(text), BASE, &kernel.facts);
        assert_eq!((judged.iter().map(|one| one.instruction.bytes.len()).sum::<usize>(), omitted), (0x40, 0));
        let line = |one: &JudgedInstruction| {
            let verdict =
                one.verdict.as_ref().map_or_else(|no| no.code.name().to_owned(), |yes| format!("{yes:?}"));
            let marks = [(one.entry, "entry"), (one.boundary, "boundary"), (one.probed, "probed")];
            let marks = marks.iter().filter(|(set, _)| *set).map(|(_, mark)| format!(" {mark}"));
            let marks: String = marks.collect();
            format!("+{} {}: {verdict}{marks}", one.instruction.offset, one.instruction.text)
        };
        judged.iter().take(count).map(line).collect()
    };
    assert_eq!(
        shown("p first", 4),
        [
            "+0 endbr64: Ftrace entry boundary",
            "+4 nopl (%rax,%rax): Ftrace entry boundary",
            "+9 push %rbp: Breakpoint boundary probed",
            "+10 int3: TRAP_INSTRUCTION boundary",
        ]
    );
    assert_eq!(shown("r first", 3)[2], "+9 push %rbp: BAD_RETPROBE boundary probed");
}

#[test]
fn a_name_means_one_function_or_says_which() {
    let kernel = kernel(NEW, "");
    let meant =
        |place: &str| match functions::meant(&kernel.parse(&format!("p {place}")).place, &kernel.facts) {
            Meant::One { function, start, offset } => {
                format!("{} at {:#x}, +{offset}, {} bytes", function.name, start - BASE, function.size_bytes)
            }
            Meant::Several(functions) => {
                let places =
                    functions.iter().map(|one| if one.place.is_empty() { "-" } else { one.place.as_str() });
                places.collect::<Vec<_>>().join(" ")
            }
            Meant::Nothing => "nothing".to_owned(),
        };
    assert_eq!(meant("quiet"), "quiet at 0xc0, +0, 32 bytes");
    assert_eq!(meant("quiet+33"), "__switch_to at 0xe0, +1, 32 bytes");
    assert_eq!(meant("twin"), "_stext+128 _stext+160");
    assert_eq!(meant("_stext+160"), "twin at 0xa0, +0, 32 bytes");
    assert_eq!(meant("0xffffffff810000a1"), "twin at 0xa0, +1, 32 bytes");
    assert_eq!(meant("mod:open"), "- -", "the module has two");
    for nothing in ["absent", "other:open", "prog", "0x1"] {
        assert_eq!(meant(nothing), "nothing", "{nothing}");
    }
}

#[test]
fn functions_are_listed_by_name() {
    let kernel = kernel(NEW, "");
    let all = FunctionQuery { fits: &|_| true, module: None, traceable_only: false, after: "", limit: 100 };
    let names = |query: &FunctionQuery<'_>| {
        let (found, more) = functions::list(query, &kernel.facts);
        (found.into_iter().map(|one| one.name).collect::<Vec<_>>().join(" "), more)
    };
    let everything = "__switch_to _etext _stext count_symbols first open open part part.cold quiet twin twin";
    assert_eq!(names(&all), (everything.to_owned(), false));
    let page = FunctionQuery { after: "part.cold", limit: 2, ..all };
    assert_eq!(names(&page), ("quiet twin twin".to_owned(), false), "all of a name come together");
    assert!(names(&FunctionQuery { limit: 5, ..all }).1, "there is more");
    assert_eq!(names(&FunctionQuery { module: Some("mod"), ..all }).0, "open open");
    let traceable = FunctionQuery { traceable_only: true, fits: &|name| name.starts_with('p'), ..all };
    assert_eq!(names(&traceable).0, "part part.cold", "a part goes with its function");
    let (found, _) = functions::list(&FunctionQuery { fits: &|name| name == "twin", ..all }, &kernel.facts);
    assert_eq!((found[0].same_name, found[0].place.as_str()), (2, "_stext+128"));
    assert_eq!(functions::similar_names("fisrt", &kernel.facts), ["first"]);
}

/// The kernel itself has the function, or nothing has it.
#[test]
fn what_a_module_does_not_have_is_looked_for_outside_of_it() {
    let kernel = kernel("", "");
    let refused = |text: &str| {
        let Some(refusal) = kernel.check(text).refusal else { panic!("{text}") };
        (refusal.message, refusal.hint.unwrap_or_default())
    };
    let (message, hint) = refused("p mod:first");
    assert_eq!(message, "the module `mod` has no symbol `first`");
    assert_eq!(hint, "did you mean `first`?");
    assert_eq!(refused("p mod:nothing_like_it").1, "`kprobectl functions --module mod` lists its functions");
    let (message, hint) = refused("p nothing_like_it");
    assert_eq!(message, "the kernel has no symbol `nothing_like_it`");
    assert!(hint.starts_with("a function of a module that is not loaded"), "{hint}");
    let (_, hint) = refused("p zz_*");
    assert!(hint.contains("has no patterns") && hint.contains("`zz_*%return`"), "{hint}");
}

/// The kernel's own reason is about the function that lies there, which the writer did not mean.
#[test]
fn places_behind_the_end_are_refused_as_such() {
    let kernel = kernel(NEW, "");
    for text in ["p part+96", "p:x part+97"] {
        let Some(refusal) = kernel.check(text).refusal else { panic!("{text}") };
        assert_eq!((refusal.code, refusal.errno), (Code::OutsideFunction, Errno::EINVAL as i32), "{text}");
        // `quiet`, which lies there, has no call of ftrace.
        assert_eq!((kernel_code(&refusal), refusal.by), ("FAIL_REG_PROBE", RefusedBy::Kernel));
        assert!(refusal.message.starts_with("`part` is 32 bytes long"), "{}", refusal.message);
        let hint = refusal.hint.unwrap();
        let last = hint.strip_prefix('+').and_then(|rest| rest.split(' ').next()).unwrap();
        assert_eq!(kernel.refusal(&format!("p part+{last}")), None, "{hint}");
        let (shown, _) = surroundings(&kernel.parse(text), &kernel.check(text), &kernel.facts);
        assert!(shown.is_empty(), "the code of another function says nothing");
    }
    let objection = kernel.check("p part+32").objection.unwrap();
    assert_eq!(objection.by, RefusedBy::Kprobed);
}

#[test]
fn a_listing_for_a_return_probe_has_one_reason() {
    let kernel = kernel(NEW, "");
    let (shown, _) = surroundings(&kernel.parse("r first"), &kernel.check("r first"), &kernel.facts);
    let mut reasons: Vec<_> = shown.into_iter().filter(|one| !one.probeable).map(|one| one.refusal).collect();
    assert!(reasons.len() > 1);
    reasons.dedup();
    assert_eq!(reasons, ["a return probe is at the entry of the function"]);
}
