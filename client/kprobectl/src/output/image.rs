//! Verdicts of `kprobectl check --kernel`, as text, JSON and JUnit XML.

use std::fmt::Write as _;
use std::io;

use kprobed_document::json::json;
use kprobed_verdict::offline::OfflineVerdict;
use serde_json::Value;

use super::check::{head, push_listing};
use super::terminal::{self, Style};
use super::{Output, diagnostic, meaning};

/// A definition, and where it is: in which file, if there are several, and in which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacedDefinition {
    pub(crate) place: Option<(Option<String>, u64)>,
    pub(crate) text: String,
}

/// A verdict for a kernel.
#[derive(Clone, Debug)]
pub(crate) struct ImageVerdict {
    /// `uname -r`.
    pub(crate) release: String,
    pub(crate) verdict: OfflineVerdict,
}

impl Output {
    /// Prints the verdicts on one definition, with the code around the place if there is no other verdict.
    pub(crate) fn image_verdicts(
        &mut self,
        definition: &PlacedDefinition,
        verdicts: &[ImageVerdict],
        is_alone: bool,
    ) -> io::Result<()> {
        if !self.is_structured() {
            return self.text(&render(definition, verdicts, is_alone, self.style, terminal::columns()));
        }
        let place = definition.place.as_ref();
        for ImageVerdict { release, verdict } in verdicts {
            let change = verdict.change.as_ref().map(json).transpose()?;
            let mut record = serde_json::json!({
                "kernel": release,
                "file": place.and_then(|(file, _)| file.as_ref()),
                "line": place.map(|(_, line)| line),
                "definition": definition.text,
                "verdict": verdict.word(),
                // Why the verdict is not known.
                "remark": Some(&verdict.remark).filter(|remark| !remark.is_empty()),
                "prototype": verdict.prototype,
                "check": json(&verdict.answer)?,
                // What it means else than on the first kernel.
                "change": change,
            });
            if let Value::Object(fields) = &mut record {
                fields.retain(|_, value| !value.is_null());
            }
            self.structured_stream(&record)?;
        }
        Ok(())
    }
}

fn render(
    definition: &PlacedDefinition,
    verdicts: &[ImageVerdict],
    is_alone: bool,
    style: Style,
    columns: usize,
) -> String {
    let mut text = String::new();
    if !is_alone {
        if let Some((file, line)) = &definition.place {
            let file = file.as_ref().map(|file| format!("{file}:")).unwrap_or_default();
            write!(text, "{file}{line}: ").ok();
        }
        writeln!(text, "{}", definition.text).ok();
    }
    let width = verdicts.iter().map(|one| one.release.len()).max().unwrap_or_default();
    let indent = if is_alone { "" } else { "  " };
    for ImageVerdict { release, verdict } in verdicts {
        let mut block = format!("{release:<width$}  {}", head(&verdict.answer, verdict.word(), style));
        if !verdict.remark.is_empty() {
            writeln!(block, "{}: {}", verdict.word(), verdict.remark).ok();
        }
        block.push_str(&diagnostic::render(&definition.text, &verdict.answer.diagnostics, style));
        if let Some(change) = &verdict.change {
            block.push_str(&meaning::render(change, columns));
        }
        if is_alone && !verdict.answer.listing.is_empty() {
            block.push('\n');
            push_listing(&mut block, &verdict.answer, style);
        }
        for line in block.lines() {
            writeln!(text, "{}", format!("{indent}{line}").trim_end()).ok();
        }
    }
    text
}

/// Verdicts as JUnit XML, for CI systems: a suite for each kernel, with a case for each definition. A verdict is a
/// failure unless the definition is accepted with the meaning that it was made with.
#[derive(Debug)]
pub(crate) struct JunitReport {
    suites: Vec<Suite>,
}

#[derive(Debug)]
struct Suite {
    release: String,
    cases: usize,
    failures: usize,
    text: String,
}

impl JunitReport {
    /// A report without cases, for these kernels.
    pub(crate) fn new(releases: &[&str]) -> Self {
        let suite =
            |release: &str| Suite { release: escaped(release), cases: 0, failures: 0, text: String::new() };
        Self { suites: releases.iter().copied().map(suite).collect() }
    }

    /// The verdicts on one more definition, in the order of the kernels.
    pub(crate) fn add(&mut self, definition: &str, verdicts: &[ImageVerdict]) {
        for (Suite { release, cases, failures, text }, ImageVerdict { verdict, .. }) in
            self.suites.iter_mut().zip(verdicts)
        {
            *cases += 1;
            write!(text, "    <testcase classname=\"{release}\" name=\"{}\"", escaped(definition)).ok();
            if verdict.is_good() {
                text.push_str("/>\n");
                continue;
            }
            *failures += 1;
            let word = verdict.word();
            let changed = verdict.change.as_ref().and_then(|change| change.differences.first());
            let (kind, message) = if let Some(difference) = changed {
                (difference.code.as_str(), difference.message.as_str())
            } else {
                let rule = verdict.answer.rule.as_str();
                let why = verdict.answer.diagnostics.first().map_or("", |finding| &finding.message);
                let message = if verdict.remark.is_empty() { why } else { &verdict.remark };
                (if rule.is_empty() { word } else { rule }, message)
            };
            let (kind, message) = (escaped(kind), escaped(message));
            writeln!(
                text,
                ">\n      <failure type=\"{kind}\" message=\"{word}: {message}\"/>\n    </testcase>"
            )
            .ok();
        }
    }

    /// The whole document.
    pub(crate) fn render(&self) -> String {
        let mut document = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
        for Suite { release, cases, failures, text } in &self.suites {
            let head =
                format!("  <testsuite name=\"{release}\" tests=\"{cases}\" failures=\"{failures}\">\n");
            document.extend([head.as_str(), text, "  </testsuite>\n"]);
        }
        document + "</testsuites>\n"
    }
}

/// Text for an attribute. XML has no way to write most control characters: blanks stand for them.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use kprobed_client::api::{
        CheckProbeResponse, Diagnostic, KernelBuild, MeaningChange, MeaningDifference, Severity, Verdict,
    };
    use kprobed_verdict::offline::Outcome;

    use super::*;

    fn verdict(release: &str, outcome: Outcome) -> ImageVerdict {
        let is_accepted = outcome == Outcome::Accepted;
        let found = Diagnostic {
            severity: Severity::Error.into(),
            code: "BAD_INSN_BNDRY".to_owned(),
            message: "in the middle".to_owned(),
            hint: "+5 works".to_owned(),
            span_start: 2,
            span_end: 5,
            ..Default::default()
        };
        let answer = CheckProbeResponse {
            verdict: if is_accepted { Verdict::Accepted } else { Verdict::Refused }.into(),
            rule: if is_accepted { "" } else { "BAD_INSN_BNDRY" }.to_owned(),
            location: "f+0x6".to_owned(),
            diagnostics: if outcome == Outcome::Refused { vec![found] } else { Vec::new() },
            ..Default::default()
        };
        let remark = if outcome == Outcome::DependsOnBoot { "in <code>" } else { "" }.to_owned();
        let verdict = OfflineVerdict { outcome, answer, boot: None, remark, prototype: None, change: None };
        ImageVerdict { release: release.to_owned(), verdict }
    }

    fn changed(release: &str) -> ImageVerdict {
        let difference = MeaningDifference {
            code: "PROTOTYPE_CHANGED".to_owned(),
            argument: "a".to_owned(),
            message: "`a` is another parameter".to_owned(),
            before: "int f(int a)".to_owned(),
            after: "void f(void)".to_owned(),
        };
        let build = |name: &str| KernelBuild { name: name.to_owned(), build_id: String::new() };
        let mut one = verdict(release, Outcome::Accepted);
        one.verdict.change = Some(MeaningChange {
            made_for: Some(build("6.1.0")),
            running: Some(build(release)),
            differences: vec![difference],
            offered_definition: "p g+6".to_owned(),
            ..Default::default()
        });
        one
    }

    #[test]
    fn several_kernels_have_a_block_each() {
        let definition =
            PlacedDefinition { place: Some((Some("a.yaml".to_owned()), 3)), text: "p f+6".to_owned() };
        let verdicts = [
            verdict("6.1.0", Outcome::Accepted),
            verdict("6.12.117", Outcome::DependsOnBoot),
            verdict("6.18", Outcome::Refused),
            changed("7.2"),
        ];
        insta::assert_snapshot!(render(&definition, &verdicts, false, Style::new(false), 80), @"
        a.yaml:3: p f+6
          6.1.0     accepted at f+0x6
          6.12.117  uncertain BAD_INSN_BNDRY at f+0x6
          uncertain: in <code>
          6.18      refused BAD_INSN_BNDRY at f+0x6
          error: in the middle [BAD_INSN_BNDRY]
            | p f+6
            |   ^^^
          hint: +5 works
          7.2       changed at f+0x6

          `a` is another parameter
            MADE FOR 6.1.0   ON 7.2
            int f(int a)     void f(void)

          the line for 7.2:
            p g+6
        ");
    }

    #[test]
    fn spans_that_lie_anywhere_do_no_harm() {
        for (start, end) in [(0, 0), (1, 2), (2, 1), (99, 7), (u32::MAX, u32::MAX)] {
            let mut one = verdict("6.1", Outcome::Refused);
            let found = &mut one.verdict.answer.diagnostics[0];
            (found.span_start, found.span_end) = (start, end);
            one.verdict.answer.location = "f+0xffffffff".to_owned();
            let definition = PlacedDefinition { place: None, text: "ö\t".to_owned() };
            assert!(render(&definition, &[one], true, Style::new(false), 0).contains("refused"));
        }
    }

    #[test]
    fn a_report_has_failures_for_all_that_is_not_accepted() {
        let mut report = JunitReport::new(&["6.1"]);
        report.add("p f a=\"x\"", &[verdict("6.1", Outcome::Accepted)]);
        report.add("p g->h\u{1}", &[verdict("6.1", Outcome::DependsOnBoot)]);
        report.add("p f", &[changed("6.1")]);
        insta::assert_snapshot!(report.render(), @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites>
          <testsuite name="6.1" tests="3" failures="2">
            <testcase classname="6.1" name="p f a=&quot;x&quot;"/>
            <testcase classname="6.1" name="p g-&gt;h ">
              <failure type="BAD_INSN_BNDRY" message="uncertain: in &lt;code&gt;"/>
            </testcase>
            <testcase classname="6.1" name="p f">
              <failure type="PROTOTYPE_CHANGED" message="changed: `a` is another parameter"/>
            </testcase>
          </testsuite>
        </testsuites>
        "#);
    }
}
