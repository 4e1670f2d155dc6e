//! Whether a verdict on the code of an image depends on what boot makes of that code.
//!
//! Only places inside of what boot may rewrite do: whole instructions replace whole instructions
//! there, so that all others keep their boundaries and their opcodes. Each possibility is judged by
//! the rules that judge the likeliest.

use nix::errno::Errno;

use super::case::Case;
use super::refusal::{Refusal, Rule};
use super::report::Report;
use super::rules::judge;
use kprobed_host::kernel::{BootSite, KernelFacts};
use kprobed_lang::definition::ProbeDefinition;

/// Verdicts that differ with what boot makes of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootDependence {
    /// The code that boot may rewrite. Several where the sites of two tables lie over each other.
    pub sites: Vec<BootSite>,
    /// Whether the place works with some of what boot may write.
    pub some_accept: bool,
    /// Whether it does not with some.
    pub some_refuse: bool,
}

/// How the verdict of a report depends on boot. None when it is the same whatever boot does: always
/// so for a kernel that runs, and for a place that is refused before its code is looked at.
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
    let key = |verdict: Result<(), Refusal>| verdict.map_err(|refusal| (refusal.rule, refusal.errno));
    let mut verdicts: Vec<Result<(), (Rule, Errno)>> = vec![key(judge(&likeliest, offset))];
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
