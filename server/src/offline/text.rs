//! Verdicts as text for a terminal.

use std::collections::HashSet;
use std::fmt::Write as _;

use kprobed_filter::{Excerpt, Span};
use kprobed_proto::v1;

use super::definitions::AskedDefinition;
use super::kernel::{OfflineVerdict, Outcome};
use kprobed_verdict::checker::MeaningChange;

/// One definition with its verdicts, each after the release of its kernel. The code around the
/// place is shown for a single verdict.
pub(super) fn render(asked: &AskedDefinition, verdicts: &[(&str, OfflineVerdict)], alone: bool) -> String {
    let definition = &asked.text;
    let mut text = String::new();
    if !alone {
        let file = asked.file.as_ref().map(|file| format!("{file}:")).unwrap_or_default();
        let line = asked.line.map(|line| format!("{line}: ")).unwrap_or_default();
        writeln!(text, "{file}{line}{definition}").ok();
    }
    let width = verdicts.iter().map(|(release, _)| release.len()).max().unwrap_or_default();
    for (release, verdict) in verdicts {
        let indent = if alone { "" } else { "  " };
        writeln!(text, "{indent}{release:<width$}  {}", head(verdict)).ok();
        if !verdict.remark.is_empty() {
            writeln!(text, "{indent}{}: {}", verdict.outcome.word(), verdict.remark).ok();
        }
        for finding in &verdict.answer.diagnostics {
            push_finding(&mut text, indent, definition, finding);
        }
        if let Some(change) = &verdict.change {
            push_change(&mut text, change);
        }
        if alone {
            push_listing(&mut text, verdict);
        }
    }
    text
}

/// What a definition means else than on the kernel that it was made for, with both sides.
fn push_change(text: &mut String, change: &MeaningChange) {
    for difference in &change.differences {
        writeln!(text, "  error: {} [{}]", difference.message, difference.kind.code()).ok();
        for (sign, side) in [('-', &difference.before), ('+', &difference.after)] {
            for line in side.lines() {
                writeln!(text, "  {sign} {line}").ok();
            }
        }
    }
    if let Some(line) = &change.offered {
        writeln!(text, "  hint: here `{line}` records the same").ok();
    }
}

fn head(verdict: &OfflineVerdict) -> String {
    let answer = &verdict.answer;
    let mut head = verdict.word().to_owned();
    if answer.by() == v1::RefusedBy::Kprobed {
        head.push_str(" by kprobed");
    }
    for part in [&answer.rule, &answer.errno_name, &answer.name] {
        if !part.is_empty() {
            head.push(' ');
            head.push_str(part);
        }
    }
    if !answer.location.is_empty() {
        write!(head, " at {}", answer.location).ok();
    }
    head
}

fn push_finding(text: &mut String, indent: &str, definition: &str, finding: &v1::Diagnostic) {
    let severity = if finding.severity() == v1::Severity::Warning { "warning" } else { "error" };
    writeln!(text, "{indent}{severity}: {} [{}]", finding.message, finding.code).ok();
    let span = Span::new(finding.span_start as usize, finding.span_end as usize);
    let Excerpt { shown, before, width } = Excerpt::of(definition, span);
    let carets = "^".repeat(width.max(1));
    writeln!(text, "{indent}  | {shown}\n{indent}  | {}{carets}", " ".repeat(before)).ok();
    if !finding.hint.is_empty() {
        writeln!(text, "{indent}hint: {}", finding.hint).ok();
    }
}

/// The instructions, with `>` at the place, and `*` at the nearest that work.
fn push_listing(text: &mut String, verdict: &OfflineVerdict) {
    let answer = &verdict.answer;
    // Behind a blank it says which of several functions of the name it is.
    let place = answer.location.split(' ').next().unwrap_or_default();
    let asked = place.rsplit_once("+0x").and_then(|(_, offset)| u32::from_str_radix(offset, 16).ok());
    let hex = |code: &[u8]| code.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    let widest =
        |width: &dyn Fn(&v1::Instruction) -> usize| answer.listing.iter().map(width).max().unwrap_or(0);
    let offset_width = widest(&|one| one.offset.to_string().len() + 1);
    let code_width = widest(&|one| one.code.len() * 3);
    let text_width = widest(&|one| one.text.chars().count());
    if !answer.listing.is_empty() {
        text.push('\n');
    }
    // A reason that holds for many is said once.
    let mut said: HashSet<String> = answer.diagnostics.iter().map(|found| found.message.clone()).collect();
    for one in &answer.listing {
        let inside = asked.and_then(|asked| asked.checked_sub(one.offset)).map(|inside| inside as usize);
        let is_asked = inside.is_some_and(|inside| inside == 0 || inside < one.code.len());
        let is_near = [answer.nearest_before, answer.nearest_after].contains(&Some(one.offset));
        let works = verdict.outcome != Outcome::Accepted && is_near;
        let marker = match (is_asked, works) {
            (true, _) => '>',
            (false, true) => '*',
            (false, false) => ' ',
        };
        let remark = match (is_asked, inside) {
            (true, Some(1..)) => format!("+{} is inside of this instruction", asked.unwrap_or_default()),
            _ if works && !is_asked => format!("+{} works", one.offset),
            _ => one.refusal.clone(),
        };
        let remark = if said.insert(remark.clone()) { remark } else { String::new() };
        let offset = format!("+{}", one.offset);
        let code = hex(&one.code);
        let line = format!(
            "{marker} {offset:>offset_width$}  {code:<code_width$} {:<text_width$}  {remark}",
            one.text
        );
        writeln!(text, "{}", line.trim_end()).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprobed_verdict::meaning::{Build, Difference, DifferenceKind};

    fn verdict(outcome: Outcome) -> OfflineVerdict {
        let instruction = |offset, code: &[u8], text: &str, refusal: &str| v1::Instruction {
            offset,
            code: code.to_vec(),
            text: text.to_owned(),
            probeable: refusal.is_empty(),
            refusal: refusal.to_owned(),
        };
        OfflineVerdict {
            outcome,
            answer: v1::CheckProbeResponse {
                errno: 84,
                errno_name: "EILSEQ".to_owned(),
                rule: "BAD_INSN_BNDRY".to_owned(),
                location: "f+0x6".to_owned(),
                diagnostics: vec![v1::Diagnostic {
                    severity: v1::Severity::Error.into(),
                    code: "BAD_INSN_BNDRY".to_owned(),
                    message: "in the middle".to_owned(),
                    hint: "+5 works".to_owned(),
                    span_start: 2,
                    span_end: 5,
                    ..Default::default()
                }],
                nearest_before: Some(0),
                listing: vec![
                    instruction(0, &[0x55], "push %rbp", ""),
                    instruction(5, &[0x89, 0xe5], "mov", "no"),
                ],
                ..Default::default()
            },
            boot: None,
            remark: String::new(),
            prototype: None,
            change: None,
        }
    }

    fn asked(line: Option<u64>, text: &str) -> AskedDefinition {
        AskedDefinition { file: None, line, text: text.to_owned() }
    }

    #[test]
    fn one_verdict_has_its_listing() {
        let text = render(&asked(None, "p f+6"), &[("6.1.0", verdict(Outcome::Refused))], true);
        let expected = "\
6.1.0  refused BAD_INSN_BNDRY EILSEQ at f+0x6
error: in the middle [BAD_INSN_BNDRY]
  | p f+6
  |   ^^^
hint: +5 works

* +0  55     push %rbp  +0 works
> +5  89 e5  mov        +6 is inside of this instruction
";
        assert_eq!(text, expected);
    }

    #[test]
    fn several_kernels_have_a_line_each() {
        let mut other = verdict(Outcome::DependsOnBoot);
        other.answer.diagnostics.clear();
        other.remark = "`f+0x6` is in an alternative".to_owned();
        let mut accepted = verdict(Outcome::Accepted);
        accepted.answer = v1::CheckProbeResponse { location: "f+0x6".to_owned(), ..Default::default() };
        let difference = Difference {
            kind: DifferenceKind::Prototype,
            argument: "a".to_owned(),
            message: "`a` is another parameter".to_owned(),
            before: "int f(int a)".to_owned(),
            after: "void f(void)".to_owned(),
        };
        let build = |name: &str| Build { name: name.to_owned(), id: None };
        let change = MeaningChange {
            before: Some(build("6.1.0")),
            module_before: None,
            now: build("7.2"),
            module_now: None,
            differences: vec![difference],
            offered: Some("p g+6".to_owned()),
        };
        let changed = OfflineVerdict { change: Some(change), ..accepted.clone() };
        let verdicts = [("6.1.0", accepted), ("6.12.117", other), ("7.2", changed)];
        let text = render(&asked(Some(3), "p f+6"), &verdicts, false);
        let expected = "\
3: p f+6
  6.1.0     accepted at f+0x6
  6.12.117  uncertain BAD_INSN_BNDRY EILSEQ at f+0x6
  uncertain: `f+0x6` is in an alternative
  7.2       changed at f+0x6
  error: `a` is another parameter [PROTOTYPE_CHANGED]
  - int f(int a)
  + void f(void)
  hint: here `p g+6` records the same
";
        assert_eq!(text, expected);
    }

    #[test]
    fn spans_that_lie_anywhere_do_no_harm() {
        for (start, end) in [(0, 0), (1, 2), (2, 1), (99, 7), (u32::MAX, u32::MAX)] {
            let mut one = verdict(Outcome::Refused);
            (one.answer.diagnostics[0].span_start, one.answer.diagnostics[0].span_end) = (start, end);
            one.answer.location = "f+0xffffffff".to_owned();
            assert!(render(&asked(None, "ö\t"), &[("6.1", one)], true).contains("refused"));
        }
    }
}
