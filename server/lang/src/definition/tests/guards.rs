//! Tests of guard arguments.

use super::dangers::TABLE;
use super::{probe, v6_1, v6_12, v7_3};
use crate::definition::Features;
use crate::definition::diagnostic::merged;
use crate::definition::guard::{
    END, Reason, Unproven, companion_name, end_companion_name, guarded, reads_memory, warnings,
};
use crate::definition::{Code, Diagnostic, Severity, Span};

fn guard(text: &str, features: &Features) -> (String, Vec<usize>) {
    let guarded = guarded(&probe(text, features), features);
    let unproven = guarded.unproven.iter().map(|unproven| unproven.index).collect();
    (guarded.definition.render("g", "e"), unproven)
}

#[test]
fn companions_follow_the_arguments() {
    let end = format!("__kpd_end=\\\"{}\":string", crate::definition::guard::END_TEXT);
    let cases = [
        ("p f %di $stack0 x=%si:u32", "p:g/e f %di $stack0 x=%si:u32".to_owned()),
        (
            "p f x=@jiffies+8:u64[3]",
            format!(
                "p:g/e f x=@jiffies+8:u64[3] __kpd_g0=-2147483647(@jiffies+8):ustring \
                 __kpd_g0_e=-2147483647(@jiffies+24):ustring {end}"
            ),
        ),
        ("p f $comm", format!("p:g/e f $comm {end}")),
        ("p f a=%ip:symstr", "p:g/e f a=%ip:symbol".to_owned()),
        ("p mod:symstr a=%ip", "p:g/e mod:symstr a=%ip".to_owned()),
        ("p f +0(%di):symstr", format!("p:g/e f +0(%di):symbol __kpd_g0=-2147483647(+0(%di)):ustring {end}")),
        (
            "p f %di a=+8(%si):b4@0/32",
            format!("p:g/e f %di a=+8(%si):b4@0/32 __kpd_g1=-2147483647(+8(%si)):ustring {end}"),
        ),
        ("p f @16:u8[8]", format!("p:g/e f @16:u8[8] __kpd_g0=-2147483647(@16):ustring {end}")),
        (
            "p f -u8(%si):u64 +4(%di):u16[6]",
            format!(
                "p:g/e f -u8(%si):u64 +4(%di):u16[6] __kpd_g0=-2147483647(-u8(%si)):ustring \
                 __kpd_g1=-2147483647(+4(%di)):ustring __kpd_g1_e=-2147483647(+8(%di)):ustring {end}"
            ),
        ),
    ];
    for features in [v6_1(), v6_12()] {
        for (text, expected) in &cases {
            assert_eq!(guard(text, &features), (expected.clone(), vec![]));
        }
    }
    let (line, unguarded) = guard("p f file->f_mode file->x:u8 file", &v6_12());
    assert!(
        line.contains("__kpd_g0=-2147483647(file->f_mode):ustring __kpd_g1=-2147483647(file->x):ustring")
    );
    assert!(!line.contains("__kpd_g2") && unguarded.is_empty());
    assert_eq!(companion_name(3), "__kpd_g3");
    assert_eq!(end_companion_name(3), "__kpd_g3_e");
}

#[test]
fn what_can_not_be_guarded_is_named() {
    let without = Features { ustring: false, ..v6_12() };
    assert_eq!(guard("p f +0(%di)", &without).1, [0]);
    // 42 bytes and 21 around them are 63, one more is too long.
    let expression =
        |bytes: usize| format!("p f +0(%di) +{}(+1234567(+1234567(+1234567(%di))))", "1".repeat(bytes - 36));
    assert_eq!(guard(&expression(42), &v6_12()).1, [0usize; 0]);
    assert_eq!(guard(&expression(43), &v6_12()).1, [1]);
    // The end of an array that is reached by name has no spelling.
    assert_eq!(guard("p f file->x:u64[2]", &v6_12()).1, [0]);
    // All slots of the fetch program, all levels of nesting.
    let nested = |levels: usize| format!("p f {}%di{}", "+0(".repeat(levels), ")".repeat(levels));
    assert_eq!(guard(&nested(9), &v6_12()).1, [0usize; 0]);
    let long = Features { expression_max_bytes: 255, ..v6_12() };
    assert_eq!(guard(&nested(13), &long).1, [0usize; 0]);
    assert_eq!(guard(&nested(14), &long).1, [0]);
    assert_eq!(guard(&nested(6), &v7_3()).1, [0usize; 0]);
    assert_eq!(guard(&nested(7), &v7_3()).1, [0]);
    // 128 arguments with the one at the end.
    let many = |count: usize| format!("p f +0(%di){}", " %di".repeat(count - 1));
    assert_eq!(guard(&many(126), &v6_12()).1, [0usize; 0]);
    let full = guarded(&probe(&many(127), &v6_12()), &v6_12());
    assert_eq!(full.unproven, [Unproven { index: 0, reason: Reason::Many }]);
    assert_eq!(full.definition.args.len(), 127);
    let text = guarded(&probe(&format!("{} $comm", many(126)), &v6_12()), &v6_12());
    assert_eq!(text.definition.args.last().unwrap().name.as_ref().unwrap().text, END);
}

/// The warnings about a definition: code, subject and hint.
fn warned(text: &str, features: &Features) -> Vec<(Code, String, String)> {
    let found = warnings(&probe(text, features), features);
    assert!(found.iter().all(|warning| warning.severity == Severity::Warning));
    let part = |warning: &Diagnostic| text[warning.span.range()].to_owned();
    found.iter().map(|warning| (warning.code, part(warning), warning.hint.clone().unwrap())).collect()
}

#[test]
fn the_writer_is_told_of_values_that_are_unproven() {
    let long = "+1111(+1111(+1111(+1111(+1111(+1111(\\16))))))";
    let [(code, part, hint)] = &warned(&format!("p f a={long}:x64 b=+0(%di) c=%si"), &v6_12())[..] else {
        panic!("one warning")
    };
    assert_eq!((*code, part.as_str()), (Code::Unproven, long));
    assert!(hint.starts_with("shorten the expression by 3 bytes"), "{hint}");

    let nested = format!("p f {}%di{}", "+0(".repeat(7), ")".repeat(7));
    assert!(warned(&nested, &v7_3())[0].2.starts_with("use fewer dereferences"));

    let many = format!("p f{}", " +0(%di)".repeat(127));
    let told = warned(&many, &v6_12());
    // One guard for each of 63 and one at the end are 127 and 64: those that do not fit are marked.
    assert!(!told.is_empty() && told.iter().all(|(code, ..)| *code == Code::Unproven));
    assert!(told[0].2.starts_with("use fewer arguments, or two probes"));

    let members = warned("p f file->x:u64[2]", &v6_12());
    assert!(members[0].2.starts_with("read the array by its offset"));

    // Before the fixes of July 2023 a companion is the same whether the number could be read or
    // not.
    let old = Features::from_readme("ustring");
    assert_eq!(guard("p f +0(%di)", &old), ("p:g/e f +0(%di)".to_owned(), vec![0]));
    assert!(warned("p f +0(%di) %si", &old)[0].2.starts_with("kernels from 6.5, and those of 6.1 since"));
}

#[test]
fn warnings_of_one_kind_are_one() {
    let text = "p f a=+0(%di) b=+8(%di)";
    let warning = |place: &str, message: &str| {
        let start = text.find(place).unwrap();
        Diagnostic::warning(Code::Unproven, Span::new(start, start + place.len()), message)
    };
    let said = |warnings| merged(warnings, text).into_iter().map(|one| one.message).collect::<Vec<_>>();
    assert_eq!(
        said(vec![warning("+0(%di)", "a"), warning("+8(%di)", "b")]),
        ["a; the same holds for `+8(%di)`"]
    );
    // Arguments of a short form have the place of the whole text.
    assert_eq!(
        said(["a", "b", "c"].map(|message| warning(text, message)).into()),
        ["a; the same holds for 2 more"]
    );
    assert_eq!(said(vec![warning("+0(%di)", "a")]), ["a"]);
}

/// Every number from memory has a companion or is marked; the line contains nothing that harms the
/// kernel.
pub(super) fn check_guards(
    named: &crate::definition::ProbeDefinition,
    guarded: &crate::definition::guard::Guarded,
    features: &Features,
) {
    let (own, companions) = guarded.definition.args.split_at(named.args.len());
    for (index, (argument, written)) in named.args.iter().zip(own).enumerate() {
        let has = |name: String| companions.iter().any(|one| one.name.as_ref().unwrap().text == name);
        let is_marked = guarded.unproven.iter().any(|unproven| unproven.index == index);
        let is_long = argument.fixed_bytes() > 8;
        let is_guarded =
            has(companion_name(index)) && has(END.to_owned()) && (!is_long || has(end_companion_name(index)));
        assert_eq!(reads_memory(argument), is_guarded || is_marked, "{argument}");
        assert!(!(is_guarded && is_marked), "{argument}");
        assert_eq!((&written.name, &written.fetch), (&argument.name, &argument.fetch));
    }
    let told = warnings(named, features);
    let unproven = told.iter().filter(|warning| warning.code == Code::Unproven).count();
    assert_eq!(unproven, guarded.unproven.len());
    let line = guarded.definition.render("g", "e");
    assert_harmless(&line);
}

/// No line for the kernel contains a dangerous form.
fn assert_harmless(line: &str) {
    assert_eq!(TABLE.len(), 7, "a new danger needs a check here");
    let words: Vec<_> = line.split(' ').collect();
    assert!(words.len() - 2 <= 128, "{line}");
    for word in &words[2..] {
        assert!(!word.contains(":symstr"), "{line}");
        assert!(!word.contains("@0xffffffffff600"), "{line}");
        let number = word.strip_prefix("$arg").map(|rest| rest.split(':').next().unwrap_or_default());
        let number = number.filter(|number| *number != "*").map(str::parse::<u32>);
        assert!(
            number.is_none_or(|number| number.is_ok_and(|number| (1..=2048).contains(&number))),
            "{line}"
        );
    }
}
