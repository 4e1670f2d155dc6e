//! Tests against the answers of two real kernels: every byte offset of some 230 functions of each,
//! as `p`, and the first twenty as `r`. Equal means the same errno, and the same code in
//! `error_log`.
//!
//! What this proves, and what not. Code, symbols, lists of functions and blacklist are those of the
//! kernels that answered. Their tables of jump labels, static calls and BUGs were not stored.
//! `patch-sites-*.tsv` is derived from the answers themselves (see `derive_patch_sites`): so for
//! those three rules the test only proves that the tables are parsed correctly, and that the right
//! bytes of a site are refused with the right errno; guest tests prove that our sites are the
//! kernel's. All other rules are proven here. A place after the end of a function belongs to its
//! neighbour, whose code is not stored: such rows are judged if the call sites show how it begins,
//! or if the verdict does not need it, and counted otherwise.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use super::world::{Row, fixture, functions, rows, stored, world};
use crate::validate::{Report, check, kernel_code};
use kprobed_host::insn;
use kprobed_host::kernel::{KernelFacts, SymbolTable, TraceableFunctions};
use kprobed_lang::definition::{Code, Definition, Features, ProbeDefinition, parse};

const KERNELS: [&str; 2] = ["6.1", "6.12"];

fn definition(letter: char, row: &Row, features: &Features) -> ProbeDefinition {
    let text = format!("{letter}:g/e {}+{}", row.function, row.offset);
    match parse(&text, features).unwrap() {
        Definition::Probe(definition) => definition,
        Definition::Delete(_) => unreachable!("{text}"),
    }
}

/// The code of a text in `error_log`.
fn code(error: &str) -> &str {
    match error {
        "" => "",
        "Probe point is not an instruction boundary" => "BAD_INSN_BNDRY",
        "Failed to register probe event" => "FAIL_REG_PROBE",
        "The symbol is not unique" => "NON_UNIQ_SYMBOL",
        "Retprobe address must be an function entry" => "BAD_RETPROBE",
        other => panic!("unknown text: {other}"),
    }
}

#[derive(Default)]
struct Tally {
    equal: usize,
    code_not_stored: usize,
    by_rule: BTreeMap<String, usize>,
    different: Vec<String>,
}

impl Tally {
    fn add(&mut self, letter: char, row: &Row, report: &Report) {
        let refusal = report.refusal.as_ref();
        let ours = refusal.map_or((0, ""), |refusal| (refusal.errno, kernel_code(refusal)));
        let rule = refusal.map_or("accepted".to_owned(), |refusal| refusal.code.name().to_owned());
        if refusal.is_some_and(|refusal| refusal.code == Code::UnreadableCode) {
            self.code_not_stored += 1;
        } else if ours == (row.errno, code(&row.error)) {
            self.equal += 1;
            *self.by_rule.entry(rule).or_default() += 1;
        } else {
            let Row { function, offset, errno, error } = row;
            self.different
                .push(format!("{letter} {function}+{offset}: kernel {errno} {error:?}, we {ours:?} {rule}"));
        }
    }
}

fn compare(kernel: &str) -> Tally {
    let sites = fs::read_to_string(fixture(&format!("patch-sites-{kernel}.tsv"))).unwrap();
    let world = world(kernel, &sites);
    let facts = &KernelFacts::read(&world.paths).unwrap();
    let features = Features::from_readme("");
    let mut tally = Tally::default();
    for (letter, table) in [('p', "oracle"), ('r', "oracle-ret")] {
        for row in rows(table, kernel) {
            tally.add(letter, &row, &check(&definition(letter, &row, &features), facts));
        }
    }
    tally
}

/// How many bytes from an offset on the kernel refuses with EINVAL, up to five: to the kernel none
/// of them is the middle of an instruction.
fn reserved(answers: &HashMap<u64, i32>, offset: u64) -> u64 {
    (0..5).take_while(|n| answers.get(&(offset + n)) == Some(&22)).count() as u64
}

/// The kind of site of an instruction that the kernel refuses within a function that it accepts
/// otherwise, by its code and by how many of its bytes are refused.
fn kind_of_site(code: &[u8], reserved: u64) -> Option<&'static str> {
    match (code, reserved) {
        ([0x0f, 0x0b | 0xb9, ..], 1..) => Some("bug"),
        ([0x66, 0x90, ..] | [0xeb, ..], 2..) | ([0x0f, 0x1f, 0x44, 0, 0, ..] | [0xe9, ..], 5) => {
            Some("jump_label")
        }
        // A call, or its replacement if it returns at once: a return with padding, or a NOP of
        // another form.
        ([0xe8 | 0xc3, ..] | [0x67, 0x48, 0x0f, 0xb9, 0x3a, ..], 5) => Some("static_call"),
        _ => None,
    }
}

/// Writes `patch-sites-*.tsv` anew: the places that look like a jump label, a static call or a BUG,
/// and that the kernel refuses with EINVAL while it accepts other places of the same function. A
/// long jump that is a static call counts as a jump label: the same bytes are refused with the same
/// errno.
#[test]
#[ignore = "writes a fixture"]
fn derive_patch_sites() {
    for kernel in KERNELS {
        let mut answers: HashMap<String, HashMap<u64, i32>> = HashMap::new();
        for row in rows("oracle", kernel) {
            answers.entry(row.function).or_default().insert(row.offset, row.errno);
        }
        let mut lines = Vec::new();
        for (name, function) in functions(kernel) {
            let answers = &answers[&name];
            let inside = 0..function.code.len() as u64;
            if !inside.into_iter().any(|offset| answers.get(&offset) == Some(&0)) {
                continue;
            }
            for extent in insn::boundaries(&function.code) {
                let offset = extent.start as u64;
                if let Some(kind) = kind_of_site(&function.code[extent.start..], reserved(answers, offset)) {
                    lines.push(format!("{kind}\t{name}\t{offset}\n"));
                }
            }
        }
        lines.sort_unstable();
        fs::write(fixture(&format!("patch-sites-{kernel}.tsv")), lines.concat()).unwrap();
    }
}

/// The order of names gives the same result as addresses, on the one kernel of which both are
/// stored. No code is read here; on a real host the code helps if names alone are ambiguous.
#[test]
fn names_lead_to_the_call_sites_that_the_kernel_lists() {
    let symbols = SymbolTable::parse(&stored("kallsyms-6.12.txt.gz"));
    let names = stored("available_filter_functions-6.12.txt.gz");
    let exact = TraceableFunctions::from_call_sites(&stored("available_filter_functions_addrs-6.12.txt.gz"));
    let found = TraceableFunctions::from_names(&names, &symbols, &mut |_| None);
    // Without the code ENDBR is not known: these are the beginnings of functions.
    let right =
        found.overlapping(0, u64::MAX).filter(|start| exact.is_site(*start) || exact.is_site(start + 4));
    let (right, all) = (right.count(), found.overlapping(0, u64::MAX).count());
    println!("{right} of {all} functions found by name and order are those that the kernel lists");
    assert_eq!((right, all), (names.lines().count(), names.lines().count()));
}

#[test]
fn verdicts_are_those_of_the_kernels() {
    for kernel in KERNELS {
        let Tally { equal, code_not_stored, by_rule, different } = compare(kernel);
        println!("{kernel}: {equal} verdicts equal, {} different", different.len());
        println!("{kernel}: {code_not_stored} not judged, code not stored; {by_rule:?}");
        let shown = different.iter().take(60).cloned().collect::<Vec<_>>().join("\n");
        assert!(different.is_empty(), "{kernel}:\n{shown}");
        // Rows are only left out if the last two offsets of a function lead into code that is not
        // stored.
        assert!(code_not_stored <= 22, "{kernel}: {code_not_stored} rows were not judged");
    }
}
