//! Advice about members of what is no pointer: the kernel cannot name them, and often they are in a
//! register.
//!
//! Owns the texts. Never decides that a path is refused: the parser does.

use super::default;
use super::function::{self, Function, Parameter};
use super::passing::Words;
use kprobed_host::kernel::KernelFacts;
use kprobed_host::kernel::btf::Kind;
use kprobed_lang::definition::{
    BaseType, BtfRoot, Code, Diagnostic, FetchKind, Place, ProbeDefinition, Width,
};

/// Replaces the general hints of the parser by what the types of the function say.
pub fn advise(findings: &mut [Diagnostic], definition: &ProbeDefinition, text: &str, facts: &KernelFacts) {
    let Place::Symbol { module, symbol, .. } = &definition.place else { return };
    let mut wrong = findings.iter_mut().filter(|finding| finding.code == Code::NosupDatArg).peekable();
    if wrong.peek().is_none() {
        return;
    }
    let Ok(function) = function::look_up(symbol, module.as_deref(), facts) else { return };
    for finding in wrong {
        let path = text.get(finding.span.range()).unwrap_or_default();
        let member = path.split(['.', '-']).next().unwrap_or_default();
        let at = finding.span.start;
        let argument = definition.args.iter().find(|argument| argument.span.range().contains(&at));
        let parameter = argument.and_then(|argument| match &argument.fetch.root().kind {
            FetchKind::Btf { root: BtfRoot::Parameter(name), .. } => function.parameter(name),
            _ => None,
        });
        if let Some(hint) = parameter.and_then(|parameter| hint(&function, parameter, member)) {
            finding.hint = Some(hint);
        }
    }
}

/// What to write for a member of a parameter.
fn hint(function: &Function, parameter: &Parameter, member: &str) -> Option<String> {
    let btf = &function.btf;
    let name = &parameter.name;
    let composite = match btf.resolved(parameter.ty).ok()?.kind {
        Kind::Composite(composite) => composite,
        Kind::Pointer(target) => {
            let target = btf.resolved(target).ok()?;
            let Kind::Composite(composite) = target.kind else {
                return Some(format!("write `{name}`: it has no members"));
            };
            btf.member(composite, member).ok()??;
            return Some(format!("write `{name}->{member}`: `{name}` is a pointer"));
        }
        _ => return Some(format!("write `{name}`: it has no members")),
    };
    let Words { first, count } = parameter.words?;
    let found = btf.member(composite, member).ok()??;
    let whole = default::of(btf, parameter.ty, false).ok()?;
    let wanted = default::of(btf, found.member.ty, false).ok()?;
    let is_whole = count == 1 && found.bit_offset == 0 && found.member.bits.is_none();
    if is_whole && whole.base == wanted.base {
        return Some(format!("write `{name}`: `{member}` is all of it"));
    }
    let word = first + u32::try_from(found.bit_offset / 64).ok()?;
    let offset = u8::try_from(found.bit_offset % 64).ok()?;
    let width = found.member.bits.unwrap_or(wanted.base.bytes().checked_mul(8)?);
    let base = match (offset, found.member.bits) {
        (0, None) => wanted.base,
        _ if u16::from(offset) + u16::from(width) <= 64 => {
            BaseType::BitField { width, offset, container: Width::W64 }
        }
        _ => return None,
    };
    Some(format!(
        "write `{member}=$arg{word}:{base}`: `{name}` itself is passed, and this part of it is there"
    ))
}
