//! Tests of short forms over the facts of a kernel: the line that each becomes, and what is stored.

use std::fs;
use std::sync::Arc;

use kprobed_host::kernel::FactsCache;
use kprobed_lang::definition::short::Expansion;

use super::{CheckError, Checker, DefinitionText};
use crate::validate::tests::typed::{Kernel, NATIVE, OTHER, kernel};

const EVENTS: &str =
    "sched:sched_switch\nsyscalls:sys_enter_close\next4:ext4_open\next4:ext4_only\nftrace:print\n";

fn checker_of(readme: &str) -> (Checker, Kernel) {
    let kernel = kernel(readme);
    fs::write(kernel.paths.tracefs.join("available_events"), EVENTS).unwrap();
    fs::write(kernel.paths.tracefs.join("dynamic_events"), "").unwrap();
    let facts = Arc::new(FactsCache::new(kernel.paths.clone()));
    (Checker::new(kernel.features.clone(), facts), kernel)
}

fn expansion(checker: &Checker, text: &str) -> Expansion {
    checker.reading(&DefinitionText::new(text)).expansion.clone().unwrap_or_default()
}

#[test]
fn a_short_form_becomes_a_line_of_this_kernel() {
    for readme in [NATIVE, OTHER] {
        let (checker, _files) = checker_of(readme);
        // Where the kernel resolves `$arg*` by itself, it does not know what to do with `...`.
        let printk = if readme == NATIVE { "p printk" } else { "p printk $arg*" };
        // Nor does it find the types of what a module has.
        let of_module = if readme == NATIVE { "p ext4:ext4_open" } else { "p ext4:ext4_open $arg*" };
        for (text, line) in [
            ("vfs_open", "p vfs_open $arg*"),
            ("vfs_open flags", "p vfs_open flags"),
            ("vfs_open%return", "r vfs_open retval=$retval"),
            ("vfs_open arg1", "p vfs_open flags"),
            ("nothing", "p nothing"),
            ("nothing%return", "r nothing"),
            ("twice", "p twice"),
            ("printk", printk),
            ("asm_entry", "p asm_entry"),
            ("kprobe:ext4:ext4_open", of_module),
            ("close", "p __x64_sys_close fd=regs->di:u32 name=+0(regs->si):ustring"),
            ("__x64_sys_close fd", "p __x64_sys_close fd=regs->di:u32"),
            ("task_*", "p task_look $arg*"),
            ("sched:sched_switch", "sched/sched_switch"),
            ("sched_switch", "sched/sched_switch"),
            ("ext4:ext4_only", "ext4/ext4_only"),
            ("sys_enter_close", "syscalls/sys_enter_close"),
            ("nosuch", "p nosuch"),
        ] {
            assert_eq!(expansion(&checker, text).lines, [line], "{text}");
        }
        for text in ["vfs_open", "close", "vfs_open%return", "vfs_open arg1", "__x64_sys_close *"] {
            let outcome = checker.check(text).unwrap();
            assert!(outcome.is_taken(), "{text}: {:?}", outcome.against(None));
            let line = expansion(&checker, text).lines.remove(0);
            assert_eq!(outcome.text.as_str(), line, "the line is stored");
            let same = checker.check(&line).unwrap();
            assert_eq!(outcome.definition.without_spans(), same.definition.without_spans(), "{text}");
        }
    }
}

#[test]
fn what_several_things_could_be_is_refused() {
    let (checker, _files) = checker_of(OTHER);
    let refused = |text: &str| match checker.check(text) {
        Err(CheckError::Definition { diagnostics, .. }) => {
            let first = diagnostics.into_iter().next().unwrap();
            (first.code.name(), first.hint.unwrap_or_default())
        }
        Err(other) => panic!("{text}: {other}"),
        Ok(_) => panic!("{text}: it is read"),
    };
    let (code, hint) = refused("ext4:ext4_open");
    assert_eq!(code, "UNKNOWN_COMMAND");
    assert_eq!(hint, "write `ext4/ext4_open` for the event, or `p ext4:ext4_open` for the function");
    assert_eq!(refused("vfs_open,task_look").0, "SEVERAL_LINES");
    assert_eq!(refused("xfs:vfs_open").1, "`vfs_open` is in the kernel itself: write `p vfs_open`");
    assert!(refused("xfs:nosuch").1.contains("write `p xfs:nosuch`"));
    // No type says whose memory it is.
    assert!(refused("printk str(fmt)").1.contains("`fmt:ustring` for the memory of a program"));
}

#[test]
fn functions_and_events_are_proposed_together() {
    let (checker, _files) = checker_of(OTHER);
    let hint = |text: &str| {
        let outcome = checker.check(text).unwrap();
        outcome.report.refusal.unwrap().hint.unwrap()
    };
    assert_eq!(hint("sched_swich"), "did you mean `sched/sched_switch`?");
    assert_eq!(hint("vfs_opne"), "did you mean `vfs_open`?");
    assert_eq!(hint("p sched_swich"), "did you mean `sched/sched_switch`?");
}

#[test]
fn what_is_left_out_and_what_else_is_there_is_said() {
    let (checker, _files) = checker_of(OTHER);
    let notes = |text: &str| expansion(&checker, text).notes;
    assert!(notes("lo*")[0].contains("leaves out 2 functions"), "they share a name");
    assert!(notes("close")[0].starts_with("`syscalls/sys_enter_close` is its event"));
    assert!(notes("vfs_open").is_empty());
}
