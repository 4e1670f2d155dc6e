//! Boot dependence: whether a verdict on the code of an image depends on how boot patches that
//! code.
//!
//! Owns that question. Only places inside of what boot may rewrite depend on it: whole instructions
//! replace whole instructions there, so that all others keep their boundaries and their opcodes.
//! Each possibility is judged by the rules that judge the likeliest. Never patches an image.

use super::case::Case;
use super::report::Report;
use super::rules::judge;
use kprobed_host::kernel::{BootSite, KernelFacts};
use kprobed_lang::definition::{Code, Diagnostic, ProbeDefinition};

/// Verdicts that depend on how boot patches a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootDependence {
    /// The code that boot may rewrite. Several if the sites of two tables overlap.
    pub sites: Vec<BootSite>,
    /// Whether the place works with some of the possible patches.
    pub some_accept: bool,
    /// Whether it does not work with some.
    pub some_refuse: bool,
}

/// How the verdict of a report depends on boot. None if it is always the same: for a running
/// kernel, and for a place that is refused before its code is read.
pub fn boot_dependence(
    definition: &ProbeDefinition,
    report: &Report,
    facts: &KernelFacts,
) -> Option<BootDependence> {
    let start = report.code_range.as_ref()?.start;
    let case = || Some(Case::at(definition, start.checked_add(report.offset)?, facts)?.whole());
    let likeliest = case()?;
    let offset = likeliest.offset;
    let found = facts.boot_sites.over(likeliest.address_of(offset), &facts.text, &facts.symbols);
    let key = |verdict: Result<(), Diagnostic>| verdict.map_err(|refusal| (refusal.code, refusal.errno));
    let mut verdicts: Vec<Result<(), (Code, i32)>> = vec![key(judge(&likeliest, offset))];
    let mut sites = Vec::new();
    for (site, possible) in found {
        let Ok(at) = usize::try_from(site.range.start.wrapping_sub(start)) else { continue };
        for bytes in possible {
            let mut code = likeliest.code().to_vec();
            if let Some(place) = code.get_mut(at..at.saturating_add(bytes.len())) {
                place.copy_from_slice(&bytes);
            }
            let verdict = key(judge(&case()?.with_code(code), offset));
            if !verdicts.contains(&verdict) {
                verdicts.push(verdict);
            }
        }
        sites.push(site);
    }
    (verdicts.len() > 1).then(|| BootDependence {
        sites,
        some_accept: verdicts.iter().any(Result::is_ok),
        some_refuse: verdicts.iter().any(Result::is_err),
    })
}
