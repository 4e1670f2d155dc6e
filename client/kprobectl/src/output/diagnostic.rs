//! Diagnostics with the source text and carets under each span.
//!
//! Kept, and not `annotate-snippets`: the daemon's spans are of one line, and the form is the
//! compiler's.

use std::fmt::Write as _;

use kprobed_client::RpcError;
use kprobed_client::api::{Diagnostic, RefusedBy, Severity};
use kprobed_filter::{Excerpt, Span};

use super::terminal::{Style, Tone, columns_of};

/// Most findings of one text that are shown.
const SHOWN_FINDINGS: usize = 20;

/// Shows findings one below the other.
pub(super) fn render(text: &str, diagnostics: &[Diagnostic], style: Style) -> String {
    let mut rendered = String::new();
    for diagnostic in diagnostics.iter().take(SHOWN_FINDINGS) {
        let head = match diagnostic.severity() {
            Severity::Warning => style.warning("warning:"),
            Severity::Error | Severity::Unspecified => style.error("error:"),
        };
        let code = match diagnostic.by() {
            RefusedBy::Kprobed => format!(" [{}, by kprobed]", diagnostic.code),
            RefusedBy::Kernel | RefusedBy::Unspecified => code(&diagnostic.code),
        };
        writeln!(rendered, "{head} {}{code}", diagnostic.message).ok();
        push_carets(&mut rendered, text, diagnostic, style);
        if !diagnostic.hint.is_empty() {
            writeln!(rendered, "{} {}", style.hint("hint:"), diagnostic.hint).ok();
        }
    }
    let more = diagnostics.len().saturating_sub(SHOWN_FINDINGS);
    if more > 0 {
        writeln!(rendered, "and {more} more findings in this text").ok();
    }
    rendered
}

/// Shows why the daemon refused. Findings say more than the message, which is left out when one of
/// them repeats it.
pub(super) fn refusal(refusal: &RpcError, style: Style) -> String {
    let diagnostics = refusal.diagnostics.as_ref();
    let findings =
        diagnostics.map(|found| render(&found.text, &found.diagnostics, style)).unwrap_or_default();
    let repeated = diagnostics.is_some_and(|found| {
        found
            .diagnostics
            .iter()
            .any(|finding| !finding.message.is_empty() && refusal.message.contains(&finding.message))
    });
    if repeated {
        return findings;
    }
    let mut text = format!("{} {}{}\n", style.error("error:"), refusal.message, code(&refusal.reason));
    for violation in &refusal.fields {
        if findings.is_empty() && !refusal.message.contains(&violation.description) {
            writeln!(text, "  {}: {}", violation.field, violation.description).ok();
        }
    }
    text + &findings
}

fn code(code: &str) -> String {
    if code.is_empty() { String::new() } else { format!(" [{code}]") }
}

fn push_carets(rendered: &mut String, text: &str, diagnostic: &Diagnostic, style: Style) {
    if text.is_empty() {
        return;
    }
    let span = Span::new(diagnostic.span_start as usize, diagnostic.span_end as usize);
    let Excerpt { shown, before, width } = Excerpt::of(text, span);
    let columns =
        |first: usize, count: usize| columns_of(&shown.chars().skip(first).take(count).collect::<String>());
    let carets = style.paint(Tone::Bad, &"^".repeat(columns(before, width).max(1)));
    writeln!(rendered, "  | {shown}\n  | {}{carets}", " ".repeat(columns(0, before))).ok();
}

#[cfg(test)]
mod tests {
    use kprobed_client::api::Diagnostics;
    use tonic::Code;

    use super::*;

    fn finding(message: &str, start: u32, end: u32) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error.into(),
            code: "BAD_INSN_BNDRY".to_owned(),
            message: message.to_owned(),
            hint: "`+4` works".to_owned(),
            span_start: start,
            span_end: end,
            by: RefusedBy::Kernel.into(),
        }
    }

    #[test]
    fn carets_stand_under_their_span() {
        let text = "p:öpen do_sys_openat2+3 a=%di";
        let mut warning = finding("`a` is never used", 25, 30);
        warning.severity = Severity::Warning.into();
        warning.hint.clear();
        let findings =
            [finding("not an instruction boundary", 8, 24), warning, finding("something is missing", 30, 30)];
        insta::assert_snapshot!(render(text, &findings, Style::new(false)), @"
        error: not an instruction boundary [BAD_INSN_BNDRY]
          | p:öpen do_sys_openat2+3 a=%di
          |        ^^^^^^^^^^^^^^^^
        hint: `+4` works
        warning: `a` is never used [BAD_INSN_BNDRY]
          | p:öpen do_sys_openat2+3 a=%di
          |                         ^^^^^
        error: something is missing [BAD_INSN_BNDRY]
          | p:öpen do_sys_openat2+3 a=%di
          |                              ^
        hint: `+4` works
        ");
    }

    #[test]
    fn carets_follow_wide_characters() {
        let text = "p:読む do_sys_openat2+3";
        insta::assert_snapshot!(render(text, &[finding("not an instruction boundary", 9, 25)], Style::new(false)), @"
        error: not an instruction boundary [BAD_INSN_BNDRY]
          | p:読む do_sys_openat2+3
          |        ^^^^^^^^^^^^^^^^
        hint: `+4` works
        ");
    }

    /// 128 arguments with a mistake each, in a line of 4 KB.
    #[test]
    fn a_long_line_with_many_findings_stays_readable() {
        let text = "p f".to_owned() + &" a=+1(%axx):u64".repeat(128);
        let found: Vec<_> =
            (0..128).map(|n| finding("there is no register `%axx`", n * 16, n * 16 + 4)).collect();
        let shown = render(&text, &found, Style::new(false));
        assert!(shown.len() < 8000 && shown.ends_with("and 108 more findings in this text\n"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 120), "{shown}");
    }

    #[test]
    fn spans_that_lie_anywhere_do_no_harm() {
        for (start, end) in [(0, 0), (1, 2), (2, 1), (99, 7), (u32::MAX, u32::MAX)] {
            render("ö\t", &[finding("x", start, end)], Style::new(true));
        }
    }

    #[test]
    fn a_refusal_says_everything_once() {
        let mut error = RpcError {
            code: Code::InvalidArgument,
            message: "not an instruction boundary".to_owned(),
            reason: "BAD_INSN_BNDRY".to_owned(),
            metadata: Vec::new(),
            fields: Vec::new(),
            diagnostics: Some(Diagnostics {
                text: "p foo+3".to_owned(),
                diagnostics: vec![finding("not an instruction boundary", 2, 7)],
            }),
            operation: String::new(),
        };
        insta::assert_snapshot!(refusal(&error, Style::new(false)), @"
        error: not an instruction boundary [BAD_INSN_BNDRY]
          | p foo+3
          |   ^^^^^
        hint: `+4` works
        ");
        error.diagnostics = None;
        insta::assert_snapshot!(refusal(&error, Style::new(false)), @"error: not an instruction boundary [BAD_INSN_BNDRY]");
    }
}
