//! Companions of what reads memory.

use super::{probe, v6_1, v6_12, v7_3};
use crate::definition::Features;
use crate::definition::guard::{END, companion_name, end_companion_name, guarded};

fn guard(text: &str, features: &Features) -> (String, Vec<usize>) {
    let guarded = guarded(&probe(text, features), features);
    (guarded.definition.render("g", "e"), guarded.unguarded)
}

#[test]
fn companions_follow_the_arguments() {
    let end = "__kpd_end=\\\"k\":string";
    let cases = [
        ("p f %di $stack0 x=@jiffies:u32", "p:g/e f %di $stack0 x=@jiffies:u32".to_owned()),
        ("p f $comm", format!("p:g/e f $comm {end}")),
        ("p f +0(%di):symstr", format!("p:g/e f +0(%di):symstr {end}")),
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
    // The end of an array that is found by name has no spelling.
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
    assert_eq!(full.unguarded, [0]);
    assert_eq!(full.definition.args.len(), 127);
    let text = guarded(&probe(&format!("{} $comm", many(126)), &v6_12()), &v6_12());
    assert_eq!(text.definition.args.last().unwrap().name.as_ref().unwrap().text, END);
}
