//! Tests of texts with many definitions, of any dialect and mixed: what the cutter cuts out is parsed by itself.

use proptest::prelude::*;

use super::*;
use crate::definition::{CutDefinition, Cutter, Dialect, parse_any};

const FILE: &str = "\
# what we look at
p:fork _do_fork clone_flags=%ax \\
    stack_start=%dx   # and more

  ip_rcv(x64 skb | int skb[32], \\\r
         x64 dev)\r
r:back do_sys_open rv ra
# not joined \\
p:x f +0(
-:fork
\\
";

fn cut(text: &str) -> Vec<CutDefinition> {
    let mut cutter = Cutter::default();
    cutter.push(text.as_bytes());
    let mut found: Vec<_> = std::iter::from_fn(|| cutter.next_complete()).collect();
    found.extend(cutter.finish());
    found
}

fn begin(cut: &CutDefinition) -> usize {
    usize::try_from(cut.offset).unwrap()
}

#[test]
fn dialects_comments_and_joined_lines() {
    let shown: Vec<_> = cut(FILE)
        .iter()
        .map(|found| {
            let reading = parse_any(&found.text, &v6_1());
            let what = match &reading.result {
                Ok(Definition::Probe(probe)) => probe.render("g", "e"),
                Ok(Definition::Delete(_)) => "deletion".to_owned(),
                Err(problems) => {
                    let at = begin(found) + problems[0].span.start;
                    format!("{} at {:?}", problems[0].code.name(), &FILE[at - 3..at])
                }
            };
            (found.line, reading.dialect, what)
        })
        .collect();
    let line = |text: &str| text.to_owned();
    assert_eq!(
        shown,
        [
            (2, Dialect::Kernel, line("p:g/e _do_fork clone_flags=%ax stack_start=%dx")),
            (5, Dialect::Prototype, line("p:g/e ip_rcv skb=$arg1:x64 skb_2=+128($arg1):s32 dev=$arg2:x64")),
            (7, Dialect::Legacy, line("r:g/e do_sys_open rv=$retval")),
            (9, Dialect::Kernel, line("DEREF_OPEN_BRACE at \"+0(\"")),
            (10, Dialect::Kernel, line("deletion")),
        ]
    );
    let first = &cut(FILE)[0];
    let joined = probe(&first.text, &v6_1());
    let name = joined.args[1].name.as_ref().unwrap();
    assert_eq!(&FILE[begin(first) + name.span.start..begin(first) + name.span.end], "stack_start");
    assert!(cut("").is_empty() && cut("\\").is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn what_is_cut_out_lies_in_the_text(text in "[pr:f (){}#\\\\\n\ré a0-]{0,80}") {
        for found in cut(&text) {
            let there = &text[begin(&found)..begin(&found) + found.text.len()];
            prop_assert_eq!(there.len(), found.text.len());
            prop_assert_eq!(text[..begin(&found)].matches('\n').count() as u64 + 1, found.line);
            if let Err(problems) = parse_any(&found.text, &v6_12()).result {
                for problem in problems {
                    let _ = &found.text[problem.span.range()];
                }
            }
        }
    }
}
