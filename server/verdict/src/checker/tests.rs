//! Tests of the order of findings: the verdict is the problem that the kernel finds first, whether
//! the parser, the types or a rule find it.

use std::collections::HashSet;
use std::sync::Arc;

use kprobed_host::kernel::{FactsCache, KernelPaths};
use kprobed_lang::definition::{Diagnostic, Features, Step};
use kprobed_lang::model::ProbeName;

use super::{Against, CheckError, CheckOutcome, Checker, DefinitionText, KernelLine, named};
use crate::validate::tests::typed::{NATIVE, OTHER, kernel};

/// Code and position of the verdict on a text in which `^` marks the position, and the number of
/// its own mistakes that are also shown.
fn verdict(readme: &str, marked: &str) -> (String, usize, usize) {
    let kernel = kernel(readme);
    let checker = Checker::new(kernel.features.clone(), Arc::new(FactsCache::new(kernel.paths.clone())));
    let text = marked.replacen('^', "", 1);
    match checker.check(&text) {
        Ok(outcome) => match outcome.against(None) {
            Some(Against::Place(refusal)) => {
                (refusal.code.name().to_owned(), refusal.span.start, outcome.unread.len())
            }
            Some(Against::Text(problem)) => (problem.code.name().to_owned(), problem.span.start, 0),
            other => panic!("{text}: {other:?}"),
        },
        Err(CheckError::Definition { diagnostics, .. }) => {
            assert!(diagnostics.is_sorted_by_key(|found| found.step), "{text}: {diagnostics:?}");
            (diagnostics[0].code.name().to_owned(), diagnostics[0].span.start, diagnostics.len())
        }
        Err(error) => panic!("{text}: {error}"),
    }
}

#[track_caller]
fn first(readme: &str, marked: &str, code: &str, shown: usize) {
    let at = marked.find('^').unwrap();
    assert_eq!(verdict(readme, marked), (code.to_owned(), at, shown), "{marked}");
}

#[test]
fn symbols_are_looked_up_before_the_rest_is_read() {
    first(NATIVE, "p ^nosuch %bad", "BAD_PROBE_ADDR", 1);
    first(NATIVE, "p:1x ^nosuch %bad nope", "BAD_PROBE_ADDR", 2);
    first(NATIVE, "p^junk:x nosuch", "IGNORED_TEXT", 1);
    first(NATIVE, "p nosuch^%what", "BAD_ADDR_SUFFIX", 1);
    first(NATIVE, "p:^1x vfs_open nope", "BAD_EVENT_NAME", 1);
    // Early kernels notice it when they register the probe.
    first(OTHER, "p nosuch ^%bad", "BAD_REG_NAME", 1);
    first(OTHER, "p nosuch ^$arg1", "BAD_VAR", 0);
    first(OTHER, "r ^vfs_open+1 %bad", "BAD_RETPROBE", 1);
}

#[test]
fn names_are_looked_up_as_they_are_read() {
    first(NATIVE, "p vfs_open ^nope %bad", "NO_BTFARG", 2);
    first(NATIVE, "p vfs_open ^%bad nope", "BAD_REG_NAME", 1);
    first(NATIVE, "p vfs_open x=^nope:u8[4]", "NO_BTFARG", 2);
    first(NATIVE, "p vfs_open x=nope:u8[4]^x", "BAD_ARRAY_SUFFIX", 1);
    first(NATIVE, "p vfs_open x=+8(^nope)junk", "NO_BTFARG", 2);
    first(NATIVE, "p vfs_open x=+8(nope^", "DEREF_OPEN_BRACE", 1);
    first(NATIVE, "p vfs_open x=path->^nope->dentry-x", "NO_BTF_FIELD", 2);
    first(NATIVE, "p vfs_open x=path->nope^-x", "BAD_HYPHEN", 1);
    first(NATIVE, "p vfs_open x=nope^-x", "BAD_HYPHEN", 1);
    first(NATIVE, "p vfs_open x=nope.^x", "NOSUP_DAT_ARG", 1);
    first(NATIVE, "p vfs_open x=path->dentry->^1x", "NO_BTF_FIELD", 2);
    first(NATIVE, "p vfs_open x=flags->^1x", "NO_PTR_STRCT", 2);
    first(OTHER, "p vfs_open ^nope %bad", "NO_BTFARG", 2);
}

#[test]
fn numbers_become_names_before_anything_is_read() {
    first(NATIVE, "p vfs_open %bad ^$arg9", "NO_BTFARG", 2);
    first(NATIVE, "p vfs_open %bad $arg9 ^$argx", "BAD_VAR", 2);
    first(NATIVE, "p vfs_open+4 %bad ^$argx", "NOFENTRY_ARGS", 3);
    first(NATIVE, "p vfs_open ^$arg9x $arg8", "BAD_VAR", 1);
    // Without parameters to expand to, in their order.
    first(NATIVE, "p asm_entry ^%bad $arg9999", "BAD_REG_NAME", 2);
    first(OTHER, "p vfs_open ^%bad $arg9999", "BAD_REG_NAME", 2);
}

#[test]
fn steps_are_in_their_order() {
    let kernel = kernel(NATIVE);
    let checker = Checker::new(kernel.features.clone(), Arc::new(FactsCache::new(kernel.paths.clone())));
    let outcome = checker.check("p nosuch").unwrap();
    assert_eq!(outcome.report.refusal.unwrap().step, Step::SymbolFirst);
    let outcome = checker.check("p asm_entry").unwrap();
    assert!(outcome.report.refusal.unwrap().step >= Step::REGISTRATION, "it has no call of ftrace");
    assert!(
        Step::SymbolFirst < Step::Entry && Step::Entry < Step::SymbolThen && Step::SymbolThen < Step::Group
    );
}

/// A checker of a kernel of which only the features are known.
fn checker() -> Checker {
    let nowhere = || "/nonexistent".into();
    let paths = KernelPaths { procfs: nowhere(), sysfs: nowhere(), tracefs: nowhere(), debugfs: nowhere() };
    Checker::new(Features::from_readme("char, string, symstr, ustring"), Arc::new(FactsCache::new(paths)))
}

#[test]
fn every_dialect_is_taken_wherever_a_definition_is() {
    let preview = |text: &str| {
        let checker = checker();
        checker.new_line(&checker.parse_probe(text).unwrap(), &HashSet::new())
    };
    assert_eq!(preview("f(int a)").text, "p:functions/f f a=$arg1:s32");
    let KernelLine { group, event, .. } = preview("f(int a)");
    assert_eq!((group.as_str(), event.as_str()), ("functions", "f"));
    assert_eq!(preview("p:x f a0").canonical, "p:kprobes/x f a0=$arg1");
    assert_eq!(preview("p:x f %di").canonical, "p:kprobes/x f arg1=%di");
    let guarded = preview("p:x f a=+0(%di):u8");
    assert_eq!(guarded.canonical, "p:kprobes/x f a=+0(%di):u8");
    let hidden = guarded.text.strip_prefix(&guarded.canonical).unwrap();
    assert!(hidden.starts_with(" __kpd_"), "{guarded:?}");
    assert!(checker().parse_probe("-:x").is_err());
    assert!(checker().definition(&DefinitionText::new("-:x")).is_ok());
}

#[test]
fn explaining_needs_no_facts() {
    let explain = |text: &str| checker().explain(&DefinitionText::new(text));
    let explanation = explain("f(char a | char a)").unwrap();
    assert!(explanation.starts_with("p:functions/f f a=$arg1:char a_2=$arg1:char\n"), "{explanation}");
    assert!(explanation.contains("this one is called `a_2`"), "the warning: {explanation}");
    assert!(explain("-:x").is_err());
}

#[test]
fn a_kernel_without_kprobe_events_takes_no_probe() {
    let checker = checker().without_kprobe_events();
    assert!(matches!(checker.check("p:x f"), Err(CheckError::NoKprobeEvents)));
    assert!(checker.explain(&DefinitionText::new("p:x f")).is_ok(), "what it means can still be said");
}

#[test]
fn a_text_is_parsed_once_whoever_asks() {
    let checker = checker();
    // It needs the parameters of `f`, which are not known here and stay so.
    let text = Arc::new(DefinitionText::new("p:g/x f a=$arg1"));
    for _ in 0..3 {
        assert_eq!(checker.probe(&text).unwrap().args.len(), 1);
        assert!(matches!(checker.check_text(&text, &mut checker.recent_facts()), Err(CheckError::Facts(_))));
        assert!(checker.explain(&text).is_ok());
    }
    assert_eq!(checker.texts_parsed(), 1);
    // Words that another kernel could read as parameters are pinned, with their syntax tree.
    let old = Arc::new(DefinitionText::new("p:x f a0"));
    let pinned = old.pinned(&checker.reading(&old));
    assert_ne!(pinned, old);
    assert_eq!(checker.probe(&pinned).unwrap(), checker.probe(&old).unwrap());
    assert_eq!(checker.texts_parsed(), 2);
}

#[test]
fn a_definition_can_leave_its_name_to_its_probe() {
    let name: ProbeName = "mine/open".parse().unwrap();
    let read = |text: &str| {
        let (checker, text) = (checker(), DefinitionText::new(text));
        let definition = named(checker.probe(&text).unwrap(), checker.reading(&text).dialect, &name)?;
        Ok::<_, String>(checker.new_line(&definition, &HashSet::new()).canonical)
    };
    for (text, line) in [
        ("p f a=%di", "p:mine/open f a=%di"),
        ("p:open f a=%di", "p:mine/open f a=%di"),
        ("p:mine/open f a=%di", "p:mine/open f a=%di"),
        ("r4 f", "r4:mine/open f"),
        ("p f a0", "p:mine/open f a0=$arg1"),
        ("f(int a)", "p:mine/open f a=$arg1:s32"),
    ] {
        assert_eq!(read(text).as_deref(), Ok(line), "{text}");
    }
    for (text, found) in [("p:other f", "mine/other"), ("p:yours/open f", "yours/open"), ("r:a/b f", "a/b")] {
        assert_eq!(read(text), Err(found.to_owned()), "{text}");
    }
}

/// A checker of one of these kernels, and the kernel's files.
pub(super) fn checker_of(readme: &str) -> (Checker, impl Sized) {
    let kernel = kernel(readme);
    let facts = Arc::new(FactsCache::new(kernel.paths.clone()));
    (Checker::new(kernel.features.clone(), facts), kernel)
}

fn accepted(checker: &Checker, text: &str) -> CheckOutcome {
    let outcome = checker.check(text).unwrap();
    assert!(outcome.is_taken(), "{text}: {:?}", outcome.against(None));
    outcome
}

/// Code, message and hint of each warning.
fn warned(checker: &Checker, text: &str) -> Vec<(String, String, String)> {
    let text_of = |found: &Diagnostic| {
        (found.code.name().to_owned(), found.message.clone(), found.hint.clone().unwrap_or_default())
    };
    accepted(checker, text).definition.warnings.iter().map(text_of).collect()
}

/// Message and hint of the first problem.
fn problem(checker: &Checker, text: &str) -> (String, String) {
    match checker.check(text) {
        Ok(outcome) => match outcome.against(None) {
            Some(Against::Place(found) | Against::Text(found)) => {
                (found.message.clone(), found.hint.clone().unwrap_or_default())
            }
            other => panic!("{text}: {other:?}"),
        },
        Err(CheckError::Definition { diagnostics, .. }) => {
            (diagnostics[0].message.clone(), diagnostics[0].hint.clone().unwrap())
        }
        Err(error) => panic!("{text}: {error}"),
    }
}

#[test]
fn arguments_in_a_module_that_is_not_loaded_have_a_hint_of_their_own() {
    let (checker, _files) = checker_of(OTHER);
    for (text, expected) in [
        ("p xfs:vfs_open $arg1", "`vfs_open` is in the kernel itself: leave `xfs:` out"),
        (
            "p xfs:xfs_absent $arg1",
            "load module `xfs` first, so that the entries of its functions are known; or read registers",
        ),
    ] {
        assert_eq!(problem(&checker, text).1, expected, "{text}");
    }
}

#[test]
fn registers_of_arguments_are_unproven_when_the_function_returns() {
    for readme in [NATIVE, OTHER] {
        let (checker, _files) = checker_of(readme);
        let warnings = warned(&checker, "r vfs_open a=%bx b=%si c=+8(%di):u64 d=$retval e=$stack1");
        let found: Vec<_> = warnings.iter().filter(|(code, ..)| code == "REGISTER_AT_RETURN").collect();
        let [(_, message, hint)] = found[..] else { panic!("{warnings:?}") };
        assert!(message.starts_with("`%si` held `flags` at the entry of the function"), "{message}");
        assert!(message.ends_with("the same holds for `+8(%di)`"), "{message}");
        assert_eq!(hint, "record the arguments of the function with a probe at its entry");
        assert_eq!(warned(&checker, "p vfs_open b=%si"), []);
        let explanation = checker.explain(&DefinitionText::new("r vfs_open b=%si")).unwrap();
        assert!(explanation.contains("`%si` held `flags`"), "{explanation}");
    }
    let (native, _files) = checker_of(NATIVE);
    assert_eq!(warned(&native, "r vfs_open flags x=$arg2"), [], "this kernel keeps the arguments");
}

/// Every spelling of an argument gets the same reason, and a line that works.
#[test]
fn one_reason_for_arguments_at_a_return() {
    let (checker, _files) = checker_of(OTHER);
    for argument in ["$arg2", "x=$arg2:u32", "flags", "x=+0($arg3):string", "path->dentry", "$arg*"] {
        let (message, hint) = problem(&checker, &format!("r:back vfs_open {argument}"));
        assert_eq!(
            message, "this kernel has the arguments of a function at its entry only, not when it returns",
            "{argument}"
        );
        let line = hint.split('`').nth(1).unwrap();
        assert!(line.starts_with("p vfs_open "), "{hint}");
        accepted(&checker, line);
    }
    let (_, hint) = problem(&checker, "r vfs_open $nonsense");
    assert_eq!(hint, "there are $retval, $stack, $stackN and $comm here");
    let (_, hint) = problem(&checker, "p vfs_open $nonsense");
    assert_eq!(hint, "there are $argN, $stack, $stackN and $comm here");
}

#[test]
fn numbers_are_compared_with_the_parameters() {
    for readme in [NATIVE, OTHER] {
        let (checker, _files) = checker_of(readme);
        for (text, message, hint) in [
            (
                "p __x64_sys_close fd=$arg1:s32",
                "`fd=$arg1:s32` is a part of the pointer `const struct pt_regs *regs`",
                "the arguments of the system call are `regs->di`, `regs->si`, `regs->dx`, `regs->r10`, `regs->r8`, `regs->r9`, in this order",
            ),
            (
                "p task_look x=$arg1:u8",
                "`x=$arg1:u8` is a part of the pointer `struct task_struct *task`",
                "write `x=$arg1:x64` for the pointer, or follow it",
            ),
            (
                "p by_value x=$arg3",
                "`$arg3` is word 2 of 2 of the parameter `struct two two`",
                "parameter 3 of `by_value`, `two`, is `$arg2`",
            ),
            (
                "p vfs_open x=+0($arg2):u8",
                "`$arg2` is not a pointer: it is `unsigned int flags`",
                "write `flags=$arg2`",
            ),
        ] {
            let warnings = warned(&checker, text);
            let found = warnings.iter().filter(|(code, ..)| code == "ARGUMENT_TYPE");
            let found: Vec<_> = found.map(|(_, message, hint)| (message.as_str(), hint.as_str())).collect();
            assert_eq!(found, [(message, hint)], "{text}: {warnings:?}");
        }
        for text in [
            "p vfs_open x=$arg1 y=$arg2:u8 z=+0($arg3):string a=$arg3:x64",
            "p __x64_sys_close fd=regs->di:s32 x=$arg1:x64 y=+0($arg1):u64",
            "p by_value x=$arg1:u32 y=$arg4",
            "p asm_entry+1 x=%di",
        ] {
            if let Ok(outcome) = checker.check(text) {
                let found = outcome.definition.warnings;
                assert!(found.iter().all(|found| found.code.name() != "ARGUMENT_TYPE"), "{text}: {found:?}");
            }
        }
    }
}

#[test]
fn a_number_behind_the_last_parameter_is_no_argument() {
    let (checker, _files) = checker_of(OTHER);
    for (text, message, hint) in [
        (
            "p task_look x=$arg2",
            "`task_look` has no `$arg2`: what is recorded is not an argument of it",
            "the function is `struct task_struct *task_look(struct task_struct *task)`",
        ),
        (
            "p __x64_sys_close fd=$arg2:s32",
            "`__x64_sys_close` has no `$arg2`: what is recorded is not an argument of it",
            "the arguments of the system call are `regs->di`, `regs->si`, `regs->dx`, `regs->r10`, `regs->r8`, `regs->r9`, in this order",
        ),
    ] {
        let expected = ("ARGUMENT_TYPE".to_owned(), message.to_owned(), hint.to_owned());
        assert!(warned(&checker, text).contains(&expected), "{text}: {:?}", warned(&checker, text));
    }
    // The words of a large structure on the stack are behind all registers, and are its own.
    let message = |text| warned(&checker, text).remove(0).1;
    assert_eq!(message("p by_value x=$arg9"), "`$arg9` is word 3 of 3 of the parameter `struct large large`");
    assert!(message("p by_value x=$arg10").starts_with("`by_value` has no `$arg10`"));
}

#[test]
fn arguments_of_system_calls_are_in_the_registers_of_the_caller() {
    for readme in [NATIVE, OTHER] {
        let (checker, _files) = checker_of(readme);
        let (_, hint) = problem(&checker, "p __x64_sys_close fd");
        assert!(hint.starts_with("write `fd=regs->di`: "), "{hint}");
        let (_, hint) = problem(&checker, "p __x64_sys_close handle");
        assert_eq!(hint, "the arguments of the system call are `fd=regs->di`, `name=regs->si`");
        let outcome = accepted(&checker, "p __x64_sys_close f=regs->si:ustring");
        assert_eq!(outcome.definition.args[0].to_string(), "f=+0(+8($arg1)):ustring");
        let warnings = &outcome.definition.warnings;
        assert!(warnings.iter().all(|found| found.code.name() != "PART_OF_VALUE"), "{warnings:?}");
        for name in ["close", "sys_close", "sys_enter_close", "__se_sys_close"] {
            let (_, hint) = problem(&checker, &format!("p {name} fd=%di"));
            assert_eq!(
                hint,
                "it is a system call: write `__x64_sys_close`, or record the event `syscalls/sys_enter_close`",
                "{name}"
            );
        }
    }
}

#[test]
fn members_of_what_is_passed_itself_are_in_registers() {
    for readme in [NATIVE, OTHER] {
        let (checker, _files) = checker_of(readme);
        for (argument, hint, instead) in [
            ("uid.val", "write `uid`: `val` is all of it", "uid"),
            ("x=uid.val:u32", "write `uid`: `val` is all of it", "uid"),
            (
                "two.b",
                "write `b=$arg3:u64`: `two` itself is passed, and this part of it is there",
                "b=$arg3:u64",
            ),
            ("last.comm", "write `last->comm`: `last` is a pointer", "last->comm"),
        ] {
            let (_, found) = problem(&checker, &format!("p by_value {argument}"));
            assert_eq!(found, hint, "{argument}");
            accepted(&checker, &format!("p by_value {instead}"));
        }
    }
}

/// A name of which the kernel has only what the compiler has made of it.
#[test]
fn names_with_a_suffix_of_the_compiler_are_proposed() {
    let (checker, _files) = checker_of(NATIVE);
    let (_, hint) = problem(&checker, "p lost");
    assert_eq!(hint, "the compiler has made `lost.constprop.0.isra.0` of it, whose arguments may have moved");
    accepted(&checker, "p lost.constprop.0.isra.0");
    let (_, hint) = problem(&checker, "p kept");
    assert_eq!(hint, "the compiler has put it into its callers, and kept a part of it as `kept.cold`");
    // ftrace knows nothing of it.
    let (_, hint) = problem(&checker, "p asm_entri");
    assert!(!hint.contains("asm_entry"), "{hint}");
}

#[test]
fn many_warnings_of_one_kind_are_one() {
    let (checker, _files) = checker_of(NATIVE);
    let arguments: Vec<_> = (0..128).map(|n| format!("+{}(%ax):u64", n * 8)).collect();
    let warnings = warned(&checker, &format!("p vfs_open {}", arguments.join(" ")));
    let [(code, message, _)] = &warnings[..] else { panic!("{warnings:?}") };
    assert_eq!(code, "UNPROVEN_VALUE");
    assert!(message.len() < 500 && message.contains("; the same holds for `+") && message.contains(" more"));
}

#[test]
fn a_place_by_a_distance_is_explained_by_its_function() {
    let (checker, _files) = checker_of(NATIVE);
    let explained = |text: &str| checker.explain(&DefinitionText::new(text)).unwrap();
    let when = |text: &str| explained(text).lines().nth(1).unwrap().to_owned();
    assert_eq!(when("p _stext+16 x=$arg1"), "records each time task_look is reached");
    assert_eq!(when("p _stext+20"), "records each time the instruction 4 bytes into task_look is reached");
    assert_eq!(when("r _stext+16"), "records each time task_look returns");
    assert!(explained("p _stext+16").lines().next().unwrap().contains(" _stext+16"), "the line stays");
    let (message, hint) = problem(&checker, "p _stext+16 task");
    assert!(message.starts_with("names are looked up in the function that is written"), "{message}");
    assert!(!hint.contains("not written in C"), "{hint}");
    accepted(&checker, "p _stext+16 task=$arg1:x64");
}
