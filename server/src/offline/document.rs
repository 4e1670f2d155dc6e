//! Verdicts as JSON: one object on one line.

use std::fmt::Write as _;

use kprobed_proto::v1;
use serde::Serialize;

use super::definitions::AskedDefinition;
use super::kernel::OfflineVerdict;
use kprobed_host::kernel::SiteKind;
use kprobed_verdict::meaning::Difference;

/// What does not apply is null.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    definition: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    kernel: &'a str,
    verdict: &'static str,
    errno: u32,
    errno_name: Option<&'a str>,
    reason: Option<&'a str>,
    rule: Option<&'a str>,
    by: Option<&'static str>,
    position: Option<u32>,
    hint: Option<&'a str>,
    /// Why the verdict is not known.
    remark: Option<&'a str>,
    canonical: Option<&'a str>,
    prototype: Option<&'a str>,
    /// Differences to its meaning on the first kernel.
    changes: Vec<Change<'a>>,
    /// The line that records the same on this kernel.
    offered: Option<&'a str>,
    name: Option<&'a str>,
    location: Option<&'a str>,
    nearest_before: Option<u32>,
    nearest_after: Option<u32>,
    diagnostics: Vec<Finding<'a>>,
    /// The code that boot may rewrite, as far as the verdict depends on it.
    boot_sites: Vec<Site>,
    listing: Vec<Instruction<'a>>,
}

#[derive(Serialize)]
struct Finding<'a> {
    severity: &'static str,
    code: &'a str,
    message: &'a str,
    hint: &'a str,
    span_start: u32,
    span_end: u32,
}

#[derive(Serialize)]
struct Change<'a> {
    code: &'static str,
    argument: &'a str,
    message: &'a str,
    before: &'a str,
    after: &'a str,
}

#[derive(Serialize)]
struct Site {
    kind: &'static str,
    bytes: u64,
}

#[derive(Serialize)]
struct Instruction<'a> {
    offset: u32,
    code: String,
    text: &'a str,
    probeable: bool,
    refusal: &'a str,
}

impl<'a> Document<'a> {
    pub(super) fn new(asked: &'a AskedDefinition, kernel: &'a str, verdict: &'a OfflineVerdict) -> Self {
        let known = |text: &'a str| (!text.is_empty()).then_some(text);
        let answer = &verdict.answer;
        let is_error = |one: &&v1::Diagnostic| one.severity() != v1::Severity::Warning;
        let problem = answer.diagnostics.iter().find(is_error);
        Self {
            definition: &asked.text,
            file: asked.file.as_deref(),
            line: asked.line,
            kernel,
            verdict: verdict.word(),
            errno: answer.errno,
            errno_name: known(&answer.errno_name),
            reason: known(&answer.kernel_reason),
            rule: known(&answer.rule),
            by: match answer.by() {
                v1::RefusedBy::Unspecified => None,
                v1::RefusedBy::Kernel => Some("kernel"),
                v1::RefusedBy::Kprobed => Some("kprobed"),
            },
            position: problem.map(|problem| problem.span_start),
            hint: problem.and_then(|problem| known(&problem.hint)),
            remark: known(&verdict.remark),
            canonical: known(&answer.canonical),
            prototype: verdict.prototype.as_deref(),
            changes: verdict.change.iter().flat_map(|change| &change.differences).map(change).collect(),
            offered: verdict.change.as_ref().and_then(|change| change.offered.as_deref()),
            name: known(&answer.name),
            location: known(&answer.location),
            nearest_before: answer.nearest_before,
            nearest_after: answer.nearest_after,
            diagnostics: answer.diagnostics.iter().map(finding).collect(),
            boot_sites: verdict.boot.iter().flat_map(|boot| &boot.sites).map(site).collect(),
            listing: answer.listing.iter().map(instruction).collect(),
        }
    }

    /// As one line.
    pub(super) fn line(&self) -> String {
        // Texts and numbers always can be written.
        serde_json::to_string(self).map(|line| line + "\n").unwrap_or_default()
    }
}

fn finding(one: &v1::Diagnostic) -> Finding<'_> {
    Finding {
        severity: if one.severity() == v1::Severity::Warning { "warning" } else { "error" },
        code: &one.code,
        message: &one.message,
        hint: &one.hint,
        span_start: one.span_start,
        span_end: one.span_end,
    }
}

fn change(one: &Difference) -> Change<'_> {
    Change {
        code: one.kind.code(),
        argument: &one.argument,
        message: &one.message,
        before: &one.before,
        after: &one.after,
    }
}

fn site(site: &kprobed_host::kernel::BootSite) -> Site {
    let kind = match site.kind {
        SiteKind::Alternative => "alternative",
        SiteKind::Retpoline => "retpoline",
        SiteKind::Return => "return",
    };
    Site { kind, bytes: site.range.end.saturating_sub(site.range.start) }
}

fn hex(code: &[u8]) -> String {
    code.iter().fold(String::with_capacity(2 * code.len()), |mut text, byte| {
        write!(text, "{byte:02x}").ok();
        text
    })
}

fn instruction(one: &v1::Instruction) -> Instruction<'_> {
    Instruction {
        offset: one.offset,
        code: hex(&one.code),
        text: &one.text,
        probeable: one.probeable,
        refusal: &one.refusal,
    }
}
