//! Objections: places that the kernel accepts, and this daemon does not.
//!
//! The kernel accepts more than a writer means: it adds an offset without checking that it is still
//! in the function, and it accepts addresses that it has no name for, as those of modules that may
//! be loaded later. And it accepts what harms it: it replaces breakpoints by jumps without a look at
//! what other code does with the bytes behind them. Verdicts follow the kernel, and never change for
//! an objection.

use nix::errno::Errno;

use super::case::Case;
use super::memory_symbols;
use super::optimise::JUMP_BYTES;
use super::refusal::{Refusal, Rule};
use super::symbol::Symbols;
use kprobed_host::kernel::{KernelFacts, Landing, Way};
use kprobed_lang::definition::{Place, ProbeDefinition};

/// Symbols of the beginning of the kernel's text: an offset from them may lead into any function.
const ANCHORS: [&str; 2] = ["_stext", "_text"];

/// The objection to a place in another function than the named one.
pub(super) fn outside(found: &Symbols<'_>, case: &Case<'_>) -> Option<Refusal> {
    let symbol = found.taken.filter(|symbol| symbol.address != case.start)?;
    if ANCHORS.contains(&symbol.name) {
        return None;
    }
    let size = facts_size(case.facts, symbol.address);
    let message = format!(
        "`{}` is {size} bytes long: the kernel would probe `{}` at offset {}",
        symbol.name,
        case.location(),
        found.offset
    );
    let hint = "name that function, if it is meant".to_owned();
    Some(case.refuse(Rule::OutsideFunction, message).with_hint(hint))
}

/// The objection to a place at which the kernel may put a jump over an instruction that is entered
/// from elsewhere. The kernel considers the jumps of the function itself alone
/// (arch/x86/kernel/kprobes/opt.c:can_optimize), and whatever else enters there would execute the
/// middle of the jump.
pub(super) fn over_landing(case: &Case<'_>, offset: u64) -> Option<Refusal> {
    let offset = case.effective_offset(offset);
    let address = case.start.wrapping_add(offset);
    let Landing { to, from, way } = case.facts.landing_in(&(address + 1..address + JUMP_BYTES))?;
    case.optimiser()?.may_cover(offset)?;
    let function = case.function;
    let source = case.facts.symbols.locate(from).map_or(function, |located| located.symbol.name);
    let at = to.wrapping_sub(case.start);
    let leads = match way {
        Way::Branch => format!("code of `{source}` jumps to +{at} of `{function}`"),
        Way::JumpLabel => format!("a jump label of `{source}` leads to +{at} of `{function}`"),
        Way::Fixup => format!("the kernel continues at +{at} of `{function}` after a fault in `{source}`"),
    };
    let message = format!(
        "{leads}, inside of the {JUMP_BYTES} bytes from +{offset} on that the kernel would replace by a jump"
    );
    Some(case.refuse(Rule::JumpOverLanding, message))
}

fn facts_size(facts: &KernelFacts, address: u64) -> u64 {
    facts.symbols.locate(address).map_or(0, |located| located.size)
}

/// The verdict on a place that the kernel has no name for (kernel/kprobes.c:_kprobe_addr): ENOENT,
/// which it ignores for addresses (kernel/trace/trace_kprobe.c:register_trace_kprobe).
pub(super) fn check_unnamed(definition: &ProbeDefinition, facts: &KernelFacts) -> Result<(), Refusal> {
    memory_symbols::check_definition(definition, facts)?;
    match &definition.place {
        Place::Address { address: 0, span } => {
            let message = "the kernel does not take 0 as an address".to_owned();
            Err(Refusal::new(Rule::UnnamedPlace, message, *span))
        }
        Place::Address { .. } => Ok(()),
        Place::Symbol { symbol, offset, span, .. } => {
            let message =
                format!("no symbol of the kernel covers the address {offset} bytes after `{symbol}`");
            Err(Refusal::new(Rule::UnnamedPlace, message, *span).with_errno(Errno::ENOENT))
        }
    }
}

/// The objection to a place that the kernel has no name for and accepts.
pub(super) fn never_armed(definition: &ProbeDefinition, address: Option<u64>) -> Refusal {
    let address = address.unwrap_or_default();
    let message = format!("{address:#x} is not in a function: the kernel would accept this and never arm it");
    Refusal::new(Rule::NeverArmed, message, definition.place.span())
}
