//! Tests with the examples of the documents from which the project started.

use super::{probe, v6_1, v6_12};
use crate::definition::{Code, parse};

#[test]
fn examples_in_the_language_of_today() {
    let examples = [
        "p:doforkprobe _do_fork clone_flags=%ax stack_start=%dx regs=%cx parent_tidptr=+4($stack) child_tidptr=+8($stack)",
        "p:kprobes/doforkprobe 0xc102bac0 clone_flags=%ax stack_start=%dx regs=%cx parent_tidptr=+4($stack) \
         child_tidptr=+8($stack)",
        "p:myprobe do_sys_open dfd=%ax filename=%dx flags=%cx mode=+4($stack)",
        "r:myretprobe do_sys_open $retval",
        "r:fork_retprobe _do_fork $retval",
        "r:do_dentry_openprobe do_dentry_open $retval",
        // The synopsis, form by form.
        "p SYMBOL+4 @0xffffffff81000000 @SYM @SYM+8 @SYM-8 $stack0 $stack +8(%di) -8(%di) NAME=%ax",
        "r:EVENT SYMBOL+0 $retval",
    ];
    for features in [v6_1(), v6_12()] {
        for text in examples {
            let definition = probe(text, &features);
            assert!(definition.warnings.is_empty(), "{text}");
        }
        assert!(parse("-:doforkprobe", &features).is_ok());
    }
}

#[test]
fn words_of_2009_get_a_hint_with_the_spelling_of_today() {
    let entry = "p:myprobe do_sys_open dfd=a0 filename=a1 flags=s2 mode=+8(sa)";
    let exit = "r:myretprobe do_sys_open rv ra";
    let expected = [
        (entry, vec!["`$arg1`", "`$arg2`", "`$stack2`", "`$stack`"]),
        (exit, vec!["`$retval`", "carries the return address"]),
    ];
    for (text, hints) in expected {
        let problems = parse(text, &v6_1()).unwrap_err();
        assert!(problems.iter().all(|problem| problem.code == Code::BadFetchArg));
        // With BTF these can be parameters: a warning.
        let warnings = probe(text, &v6_12()).warnings;
        for found in [problems, warnings] {
            assert_eq!(found.len(), hints.len());
            for (problem, hint) in found.iter().zip(&hints) {
                assert!(problem.hint.as_ref().unwrap().contains(hint), "{problem:?}");
            }
        }
    }
}
