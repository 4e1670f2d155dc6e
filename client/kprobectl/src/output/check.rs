//! Verdicts of `kprobectl check`.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io;

use kprobed_client::api::{CheckProbeResponse, CheckedDefinition, Instruction, RefusedBy, Verdict};
use kprobed_document::json::json;

use super::Output;
use super::cost;
use super::data::{arming, covers, hex};
use super::diagnostic;
use super::terminal::{Style, Tone};

fn word(answer: &CheckProbeResponse) -> &'static str {
    match answer.verdict() {
        Verdict::Accepted => "accepted",
        Verdict::Refused => "refused",
        Verdict::Unspecified => "unknown",
    }
}

impl Output {
    /// Prints a verdict with all that led to it.
    pub(crate) fn check(&mut self, definition: &str, answer: &CheckProbeResponse) -> io::Result<()> {
        self.remember(definition, answer);
        if self.is_structured() {
            return self.structured(&json(answer)?).map(drop);
        }
        let text = render(definition, answer, self.style);
        self.text(&text)
    }

    /// Prints the verdict on one of many definitions.
    pub(crate) fn check_in_file(&mut self, checked: &CheckedDefinition) -> io::Result<()> {
        let Some(answer) = &checked.check else { return Ok(()) };
        self.remember(&checked.definition, answer);
        if self.is_structured() {
            return self.structured_stream(&json(checked)?).map(drop);
        }
        let mut text = format!("{}: {}", checked.line, head(answer, word(answer), self.style));
        text.push_str(&diagnostic::render(&checked.definition, &answer.diagnostics, self.style));
        self.text(&text)
    }
}

fn render(definition: &str, answer: &CheckProbeResponse, style: Style) -> String {
    let mut text = head(answer, word(answer), style);
    if let Some(cost) = &answer.hit_cost {
        let armed = arming(answer.arming()).map_or_else(String::new, |way| format!(", armed by {way}"));
        writeln!(text, "{}{armed}", cost::hit_in_words(cost)).ok();
    }
    if let Some(schema) = &answer.schema {
        let fields: Vec<_> = schema.fields.iter().map(|field| field.name.as_str()).collect();
        writeln!(text, "fields: {}", fields.join(" ")).ok();
    }
    text.push_str(&diagnostic::render(definition, &answer.diagnostics, style));
    if !answer.listing.is_empty() {
        text.push('\n');
        push_listing(&mut text, answer, style);
    }
    if !answer.explanation.is_empty() {
        text.push('\n');
        text.push_str(&answer.explanation);
    }
    text
}

/// The first line of a verdict, which comes to this word.
pub(super) fn head(answer: &CheckProbeResponse, word: &str, style: Style) -> String {
    let tone = if word == "accepted" { Tone::Good } else { Tone::Bad };
    let mut head = style.paint(tone, word);
    if answer.by() == RefusedBy::Kprobed {
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
    head + "\n"
}

/// The instructions, with `>` at the one that was requested, or around the byte that was, and `*`
/// at the nearest that work where that one does not.
pub(super) fn push_listing(text: &mut String, answer: &CheckProbeResponse, style: Style) {
    let asked = asked_offset(&answer.location);
    let is_at_fault = !answer.listing.iter().any(|one| Some(one.offset) == asked && one.probeable);
    let offset_width = answer.listing.iter().map(|one| one.offset.to_string().len()).max().unwrap_or(0);
    let code_width = answer.listing.iter().map(|one| one.code.len() * 3).max().unwrap_or(0);
    let text_width = answer.listing.iter().map(|one| one.text.chars().count()).max().unwrap_or(0);
    let nearest = [answer.nearest_before, answer.nearest_after];
    // A reason that holds for many is said once.
    let mut said: HashSet<String> = answer.diagnostics.iter().map(|found| found.message.clone()).collect();
    for instruction in &answer.listing {
        let is_asked = asked.is_some_and(|byte| covers(instruction.offset, &instruction.code, byte));
        let works = is_at_fault && nearest.contains(&Some(instruction.offset));
        let (marker, tone) = match (is_asked, works) {
            (true, _) => ('>', if instruction.probeable { Tone::Strong } else { Tone::Bad }),
            (false, true) => ('*', Tone::Good),
            (false, false) if instruction.probeable => (' ', Tone::Plain),
            (false, false) => (' ', Tone::Faint),
        };
        let offset = format!("+{}", instruction.offset);
        let code = hex(&instruction.code);
        let mut line = format!(
            "{marker} {offset:>0$}  {code:<code_width$} {1:<text_width$}",
            offset_width + 1,
            instruction.text
        );
        let remark = remark(instruction, asked.filter(|_| is_asked), works);
        if !remark.is_empty() && said.insert(remark.clone()) {
            write!(line, "  {remark}").ok();
        }
        text.push_str(&style.paint(tone, line.trim_end()));
        text.push('\n');
    }
}

fn remark(instruction: &Instruction, asked: Option<u32>, works: bool) -> String {
    match asked {
        Some(offset) if offset != instruction.offset => format!("+{offset} is inside of this instruction"),
        _ if works => format!("+{} works", instruction.offset),
        _ => instruction.refusal.clone(),
    }
}

/// The offset in `FUNCTION+0xOFFSET`.
fn asked_offset(location: &str) -> Option<u32> {
    // Behind a blank it says which of several functions of the name it is.
    let (_, offset) = location.split(' ').next()?.rsplit_once("+0x")?;
    u32::from_str_radix(offset, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprobed_client::api::{Diagnostic, Dialect, Severity};

    fn instruction(offset: u32, code: &[u8], text: &str, refusal: &str) -> Instruction {
        Instruction {
            offset,
            code: code.to_vec(),
            text: text.to_owned(),
            probeable: refusal.is_empty(),
            refusal: refusal.to_owned(),
        }
    }

    fn answer() -> CheckProbeResponse {
        CheckProbeResponse {
            verdict: Verdict::Refused.into(),
            errno: 84,
            errno_name: "EILSEQ".to_owned(),
            rule: "BAD_INSN_BNDRY".to_owned(),
            diagnostics: vec![Diagnostic {
                severity: Severity::Error.into(),
                code: "BAD_INSN_BNDRY".to_owned(),
                message: "probe point is not an instruction boundary".to_owned(),
                hint: "`do_sys_openat2+9` works".to_owned(),
                span_start: 7,
                span_end: 24,
                by: RefusedBy::Kernel.into(),
            }],
            kernel_definition: "p:kprobes/open do_sys_openat2+11".to_owned(),
            name: "kprobes/open".to_owned(),
            location: "do_sys_openat2+0xb".to_owned(),
            listing: vec![
                instruction(4, &[0x0f, 0x1f, 0x44, 0, 0], "nopl 0x0(%rax,%rax,1)", "ftrace site"),
                instruction(9, &[0x55], "push %rbp", ""),
                instruction(10, &[0x48, 0x89, 0xe5], "mov %rsp,%rbp", ""),
                instruction(13, &[0xe8, 0, 0, 0, 0], "call 0x5", ""),
            ],
            nearest_before: Some(10),
            nearest_after: Some(13),
            dialect: Dialect::Kernel.into(),
            ..CheckProbeResponse::default()
        }
    }

    #[test]
    fn a_refusal_shows_where_it_would_work() {
        insta::assert_snapshot!(render("p:open do_sys_openat2+11", &answer(), Style::new(false)), @"
        refused BAD_INSN_BNDRY EILSEQ kprobes/open at do_sys_openat2+0xb
        error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
          | p:open do_sys_openat2+11
          |        ^^^^^^^^^^^^^^^^^
        hint: `do_sys_openat2+9` works

           +4  0f 1f 44 00 00  nopl 0x0(%rax,%rax,1)  ftrace site
           +9  55              push %rbp
        > +10  48 89 e5        mov %rsp,%rbp          +11 is inside of this instruction
        * +13  e8 00 00 00 00  call 0x5               +13 works
        ");
    }

    #[test]
    fn a_reason_is_said_once() {
        let mut answer = answer();
        let reason = "`f` cannot be traced by ftrace";
        for instruction in &mut answer.listing {
            (instruction.probeable, instruction.refusal) = (false, reason.to_owned());
        }
        (answer.nearest_before, answer.nearest_after) = (None, None);
        assert_eq!(render("p f", &answer, Style::new(false)).matches(reason).count(), 1);
        answer.diagnostics[0].message = reason.to_owned();
        assert_eq!(render("p f", &answer, Style::new(false)).matches(reason).count(), 1, "by the error");
    }

    #[test]
    fn a_rule_of_kprobed_is_told_apart() {
        let mut answer =
            CheckProbeResponse { by: RefusedBy::Kprobed.into(), listing: Vec::new(), ..answer() };
        answer.diagnostics[0].by = answer.by;
        insta::assert_snapshot!(render("p:open do_sys_openat2+11", &answer, Style::new(false)), @"
        refused by kprobed BAD_INSN_BNDRY EILSEQ kprobes/open at do_sys_openat2+0xb
        error: probe point is not an instruction boundary [BAD_INSN_BNDRY, by kprobed]
          | p:open do_sys_openat2+11
          |        ^^^^^^^^^^^^^^^^^
        hint: `do_sys_openat2+9` works
        ");
    }

    #[test]
    fn no_other_address_helps_where_the_address_works() {
        let answer = CheckProbeResponse { location: "do_sys_openat2+0xa".to_owned(), ..answer() };
        let text = render("p:open do_sys_openat2+10 nosuch", &answer, Style::new(false));
        assert!(!text.contains("+13 works") && !text.contains("\n*"), "{text}");
    }

    #[test]
    fn an_accepted_probe_is_marked() {
        let mut answer = answer();
        answer.verdict = Verdict::Accepted.into();
        answer.errno_name.clear();
        answer.rule.clear();
        answer.diagnostics.clear();
        answer.location = "do_sys_openat2+0xa".to_owned();
        insta::assert_snapshot!(render("p:open do_sys_openat2+10", &answer, Style::new(false)), @"
        accepted kprobes/open at do_sys_openat2+0xa

           +4  0f 1f 44 00 00  nopl 0x0(%rax,%rax,1)  ftrace site
           +9  55              push %rbp
        > +10  48 89 e5        mov %rsp,%rbp
          +13  e8 00 00 00 00  call 0x5
        ");
    }
}
