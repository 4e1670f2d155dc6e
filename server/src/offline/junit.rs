//! Verdicts as JUnit XML, for CI systems: a suite for each kernel, with a case for each definition.

use std::fmt::Write as _;

use super::kernel::OfflineVerdict;

/// The verdicts of one kernel, each with its definition.
pub(super) struct Suite<'a> {
    pub(super) release: &'a str,
    pub(super) cases: Vec<(&'a str, OfflineVerdict)>,
}

/// All suites as one document. What is not known to be accepted, with the meaning that it was made
/// with, is a failure.
pub(super) fn render(suites: &[Suite<'_>]) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for Suite { release, cases } in suites {
        let release = escaped(release);
        let failures = cases.iter().filter(|(_, verdict)| !verdict.is_good()).count();
        let count = cases.len();
        writeln!(text, "  <testsuite name=\"{release}\" tests=\"{count}\" failures=\"{failures}\">").ok();
        for (definition, verdict) in cases {
            write!(text, "    <testcase classname=\"{release}\" name=\"{}\"", escaped(definition)).ok();
            if verdict.is_good() {
                text.push_str("/>\n");
                continue;
            }
            let word = verdict.word();
            let changed = verdict.change.as_ref().and_then(|change| change.differences.first());
            let (kind, message) = if let Some(difference) = changed {
                (difference.kind.code(), difference.message.as_str())
            } else {
                let kind = if verdict.answer.rule.is_empty() { word } else { &verdict.answer.rule };
                let why = verdict.answer.diagnostics.first().map_or("", |finding| &finding.message);
                (kind, if verdict.remark.is_empty() { why } else { &verdict.remark })
            };
            let (kind, message) = (escaped(kind), escaped(message));
            writeln!(
                text,
                ">\n      <failure type=\"{kind}\" message=\"{word}: {message}\"/>\n    </testcase>"
            )
            .ok();
        }
        text.push_str("  </testsuite>\n");
    }
    text + "</testsuites>\n"
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
    use super::*;
    use crate::offline::Outcome;
    use kprobed_proto::v1;

    #[test]
    fn what_is_not_accepted_fails() {
        let verdict = |outcome, remark: &str| OfflineVerdict {
            outcome,
            answer: v1::CheckProbeResponse::default(),
            boot: None,
            remark: remark.to_owned(),
            prototype: None,
            change: None,
        };
        let cases = vec![
            ("p f a=\\\"x\"", verdict(Outcome::Accepted, "")),
            ("p g->h\u{1}", verdict(Outcome::DependsOnBoot, "in <code>")),
        ];
        let expected = "\
<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<testsuites>
  <testsuite name=\"6.1\" tests=\"2\" failures=\"1\">
    <testcase classname=\"6.1\" name=\"p f a=\\&quot;x&quot;\"/>
    <testcase classname=\"6.1\" name=\"p g-&gt;h \">
      <failure type=\"uncertain\" message=\"uncertain: in &lt;code&gt;\"/>
    </testcase>
  </testsuite>
</testsuites>
";
        assert_eq!(render(&[Suite { release: "6.1", cases }]), expected);
    }
}
