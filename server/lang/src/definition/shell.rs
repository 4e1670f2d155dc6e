//! Definitions that a shell has changed: in double quotes it replaces `$arg2` by nothing.
//!
//! Owns the signs of that, and the hint. Never reads a definition.

use super::Span;
use super::diagnostic::Diagnostic;
use super::line::{self, Word};

/// What to do.
const HINT: &str =
    "the shell has replaced a word that begins with `$` by nothing: put the definition in single quotes";

/// Gives the first problem in a word that lacks its expression the hint about quotes.
pub(super) fn explain(text: &str, findings: &mut [Diagnostic]) {
    let emptied = line::words(text).skip(1).filter(|word| lacks_expression(word.text));
    let is_in = |span: Span, word: &Word<'_>| word.start <= span.start && span.start <= word.end();
    for word in emptied {
        if let Some(finding) = findings.iter_mut().find(|finding| is_in(finding.span, &word)) {
            finding.hint = Some(HINT.to_owned());
            return;
        }
    }
}

/// Whether a word is an argument that reads nothing: `+0()`, `NAME=`, `NAME=:TYPE`, `:TYPE`.
fn lacks_expression(word: &str) -> bool {
    let value = word.split_once('=').map_or(word, |(_, value)| value);
    let is_dereference = value.starts_with(['+', '-']) && value.contains("()");
    is_dereference || value.is_empty() || value.starts_with(':')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::dialect::parse_any;
    use super::*;
    use crate::samples::{v6_1, v6_12};

    #[test]
    fn what_a_shell_has_emptied_is_recognised() {
        for text in [
            "p:e6 do_sys_openat2 f=+0():ustring",
            "p do_sys_openat2 +0():ustring",
            "p do_sys_openat2 :u32",
            "r:o do_sys_openat2 fd=:s32",
            "p vfs_read a=%di b=",
            "p vfs_read x=-8(+16())",
        ] {
            for features in [v6_1(), v6_12()] {
                let found = parse_any(text, &features).result.unwrap_err();
                assert!(found.iter().any(|found| found.hint.as_deref() == Some(HINT)), "{text}: {found:?}");
            }
        }
        for text in
            ["p vfs_read +0(", "p vfs_read $arg", "p vfs_read x=+a(%di)", "p:e", "p vfs_read a=+0(%zz)"]
        {
            let found = parse_any(text, &v6_12()).result.unwrap_err();
            assert!(found.iter().all(|found| found.hint.as_deref() != Some(HINT)), "{text}: {found:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in r"\PC{0,30}") {
            let mut findings = parse_any(&text, &v6_12()).result.err().unwrap_or_default();
            explain(&text, &mut findings);
        }
    }
}
