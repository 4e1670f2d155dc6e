//! Tests of the order of findings: the verdict is the problem that the kernel finds first, whether
//! the parser, the types or a rule find it.

use std::sync::Arc;

use kprobed_host::kernel::{FactsCache, KernelPaths};
use kprobed_lang::definition::{Features, Step};
use kprobed_lang::model::ProbeName;

use super::{Against, CheckError, Checker, DefinitionText, named};
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
                (refusal.rule.name().to_owned(), refusal.span.start, outcome.unread.len())
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
        checker.parse_probe(text).map(|definition| checker.preview(&definition)).unwrap()
    };
    assert_eq!(preview("f(int a)").kernel_definition, "p:functions/f f a=$arg1:s32");
    assert_eq!(preview("f(int a)").name, "functions/f");
    assert_eq!(preview("p:x f a0").canonical, "p:kprobes/x f a0=$arg1");
    assert_eq!(preview("p:x f %di").canonical, "p:kprobes/x f arg1=%di");
    let guarded = preview("p:x f a=+0(%di):u8");
    assert_eq!(guarded.canonical, "p:kprobes/x f a=+0(%di):u8");
    let hidden = guarded.kernel_definition.strip_prefix(&guarded.canonical).unwrap();
    assert!(hidden.starts_with(" __kpd_"), "{guarded:?}");
    assert!(checker().parse_probe("-:x").is_err());
    assert!(checker().definition(&DefinitionText::new("-:x")).is_ok());
}

#[test]
fn explaining_needs_no_facts() {
    let explain = |text: &str| checker().explain(&DefinitionText::new(text));
    let explanation = explain("f(char a | char a)").unwrap();
    assert_eq!(explanation.line, "p:functions/f f a=$arg1:char a_2=$arg1:char");
    assert!(explanation.assumptions.iter().any(|one| one.contains("a_2")), "the warning: {explanation:?}");
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
        Ok::<_, String>(checker.preview(&definition).canonical)
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
