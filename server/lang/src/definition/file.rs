//! Definition files: many definitions in one text, of any dialect and mixed.
//!
//! Owns the list of parsed definitions. [`Cutter`] splits the text, and [`parse_any_knowing`]
//! parses each definition. One that is refused does not affect the others. Never does I/O.

use super::Span;
use super::cutter::{CutDefinition, Cutter};
use super::dialect::{Reading, parse_any_knowing};
use super::features::Features;
use super::parameters::Parameters;

/// One definition of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The line on which it starts, from 1.
    pub line: usize,
    /// Its position in the file.
    pub span: Span,
    /// Its text with joined lines as one, as long as in the file: a byte of it is `span.start`
    /// bytes further on in the file. Spans of the reading are positions in this text.
    pub text: String,
    /// The result of parsing it.
    pub reading: Reading,
}

/// Parses all definitions of a file, in order.
pub fn parse(text: &str, features: &Features, parameters: &dyn Parameters) -> Vec<Entry> {
    let mut cutter = Cutter::default();
    cutter.push(text.as_bytes());
    let complete: Vec<CutDefinition> = std::iter::from_fn(|| cutter.next_complete()).collect();
    complete.into_iter().chain(cutter.finish()).map(|cut| entry(cut, features, parameters)).collect()
}

fn entry(cut: CutDefinition, features: &Features, parameters: &dyn Parameters) -> Entry {
    // A text in memory has no more lines and bytes than a `usize` counts.
    let [line, begin] = [cut.line, cut.offset].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    let span = Span::new(begin, begin.saturating_add(cut.text.len()));
    Entry { line, span, reading: parse_any_knowing(&cut.text, features, parameters), text: cut.text }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ast::Definition;
    use super::super::dialect::Dialect;
    use super::super::parameters::UnknownParameters;
    use super::*;
    use crate::samples::{v6_1, v6_12};

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

    #[test]
    fn dialects_comments_and_joined_lines() {
        let entries = parse(FILE, &v6_1(), &UnknownParameters);
        let shown: Vec<_> = entries
            .iter()
            .map(|entry| {
                let what = match &entry.reading.result {
                    Ok(Definition::Probe(probe)) => probe.render("g", "e"),
                    Ok(Definition::Delete(_)) => "deletion".to_owned(),
                    Err(problems) => {
                        let at = entry.span.start + problems[0].span.start;
                        format!("{} at {:?}", problems[0].code.name(), &FILE[at - 3..at])
                    }
                };
                (entry.line, entry.reading.dialect, what)
            })
            .collect();
        let line = |text: &str| text.to_owned();
        assert_eq!(
            shown,
            [
                (2, Dialect::Kernel, line("p:g/e _do_fork clone_flags=%ax stack_start=%dx")),
                (
                    5,
                    Dialect::Prototype,
                    line("p:g/e ip_rcv skb=$arg1:x64 skb_2=+128($arg1):s32 dev=$arg2:x64")
                ),
                (7, Dialect::Legacy, line("r:g/e do_sys_open rv=$retval")),
                (9, Dialect::Kernel, line("DEREF_OPEN_BRACE at \"+0(\"")),
                (10, Dialect::Kernel, line("deletion")),
            ]
        );
        let Ok(Definition::Probe(joined)) = &entries[0].reading.result else { panic!() };
        let (name, begin) = (joined.args[1].name.as_ref().unwrap(), entries[0].span.start);
        assert_eq!(&FILE[begin + name.span.start..begin + name.span.end], "stack_start");
        assert!(
            parse("", &v6_1(), &UnknownParameters).is_empty()
                && parse("\\", &v6_1(), &UnknownParameters).is_empty()
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

        #[test]
        fn entries_lie_in_the_file(text in "[pr:f (){}#\\\\\n\ré a0-]{0,80}") {
            for entry in parse(&text, &v6_12(), &UnknownParameters) {
                let there = &text[entry.span.range()];
                prop_assert_eq!(there.len(), entry.text.len());
                prop_assert_eq!(text[..entry.span.start].matches('\n').count() + 1, entry.line);
                if let Err(problems) = entry.reading.result {
                    for problem in problems {
                        let _ = &entry.text[problem.span.range()];
                    }
                }
            }
        }
    }
}
