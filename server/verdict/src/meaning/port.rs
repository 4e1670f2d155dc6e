//! Porting of a definition to another build, if exactly one line is possible.
//!
//! Owns that line. Never decides whether the daemon uses it.

use super::capture::{self, Around, Subject};
use super::chain::{At, Chain, Root};
use super::layout::{pointed, slot_at, type_name};
use super::{Meaning, Origin, Part, Read};
use kprobed_host::kernel::btf::{Btf, Kind, TypeId};
use kprobed_lang::definition::{Argument, Fetch, FetchKind, Place, ProbeDefinition};

/// A definition that records on this build what `before` says the original did: parameters in their
/// present registers, members at their present offsets, the place at which the same instructions
/// are. Absent if several or none are possible, or if it is not known.
pub fn port(before: &Meaning, subject: &Subject<'_>) -> Option<ProbeDefinition> {
    let around = Around::of(subject)?;
    let place = place(before, &around, &subject.written.place)?;
    let parts = before.parts.as_slice();
    let sources = capture::sources(subject.written, subject.resolved);
    // `$arg*` is not ported: it is not known which of its fields was wanted.
    let sources: Vec<&Argument> = sources.into_iter().collect::<Option<_>>()?;
    let mut args = Vec::with_capacity(subject.written.args.len());
    for written in &subject.written.args {
        // Of the parts of a path the first stands for all.
        let first = sources.iter().position(|source| std::ptr::eq(*source, written))?;
        let resolved = subject.resolved.args.get(first)?;
        let name = resolved.name.as_ref().map(|name| name.text.as_str());
        let part = parts.iter().find(|part| Some(part.argument.as_str()) == name)?;
        args.push(if part.named { written.clone() } else { argument(&around, written, part)? });
    }
    Some(ProbeDefinition { place, args, ..subject.written.clone() })
}

fn place(before: &Meaning, around: &Around<'_>, written: &Place) -> Option<Place> {
    let Some(code) = before.code.as_ref().filter(|code| code.place.is_some()) else {
        return Some(written.clone());
    };
    let Place::Symbol { module, symbol, span, .. } = written else { return None };
    if symbol != around.function || code.function != *symbol {
        return None;
    }
    let offset = code.found_in(&around.lines())?;
    Some(Place::Symbol { module: module.clone(), symbol: symbol.clone(), offset, span: *span })
}

fn argument(around: &Around<'_>, written: &Argument, part: &Part) -> Option<Argument> {
    let chain = Chain::of(written, around.at());
    let (root, mut ty) = root(around, &chain.root, written.fetch.root(), &part.origin)?;
    let span = written.fetch.span;
    let mut fetch = Fetch { kind: root, span };
    if chain.reads.len() != part.reads.len() {
        return None;
    }
    for (read, meant) in chain.reads.iter().zip(&part.reads) {
        let btf = &around.types.as_ref()?.btf;
        let (offset, next) = offset(btf, ty?, meant)?;
        ty = next;
        fetch = Fetch { kind: FetchKind::Deref { user: read.user, offset, inner: Box::new(fetch) }, span };
    }
    Some(Argument { fetch, ..written.clone() })
}

/// The expression for the origin of a value on this build, and its type.
fn root(
    around: &Around<'_>,
    root: &Root,
    written: &Fetch,
    meant: &Origin,
) -> Option<(FetchKind, Option<TypeId>)> {
    match (root, meant) {
        (Root::Word(_), Origin::Parameter { part, name, ty, .. }) => {
            let types = around.types.as_ref()?;
            let parameter = types.named(name)?;
            if type_name(&types.btf, parameter.ty).ok()? != *ty {
                return None;
            }
            let words = parameter.words?;
            let word = words.first.checked_add(*part).filter(|_| *part < words.count)?;
            let kind = match written.kind {
                FetchKind::Argument(_) => FetchKind::Argument(word),
                _ => FetchKind::of_argument(word)?,
            };
            Some((kind, Some(parameter.ty).filter(|_| *part == 0)))
        }
        (Root::Result, Origin::Result { ty, .. }) => {
            let types = around.types.as_ref()?;
            let is_same = type_name(&types.btf, types.result).ok()? == *ty;
            is_same.then(|| (written.kind.clone(), Some(types.result)))
        }
        (_, Origin::Fixed) => Some((written.kind.clone(), None)),
        // The place was found by the code that computes the value.
        (_, Origin::Code) if around.at() == At::Inside => Some((written.kind.clone(), None)),
        _ => None,
    }
}

/// The offset of the same members, all of them moved by the same distance, and the type that is
/// read.
fn offset(btf: &Btf, ty: TypeId, meant: &Read) -> Option<(i32, Option<TypeId>)> {
    let target = pointed(btf, ty).ok()??;
    match meant {
        Read::Members { structure, offset, slots } => {
            let Kind::Composite(composite) = btf.resolved(target).ok()?.kind else { return None };
            if type_name(btf, target).ok()? != *structure {
                return None;
            }
            let mut moved = Vec::with_capacity(slots.len());
            let mut next = None;
            for slot in slots {
                let found = slot_at(btf, composite, &slot.path).ok()??;
                if !found.slot.is_same_member(slot) {
                    return None;
                }
                moved.push(found.slot.bit_offset.checked_signed_diff(slot.bit_offset)?);
                next = Some(found.ty);
            }
            let (first, rest) = moved.split_first()?;
            if first % 8 != 0 || rest.iter().any(|one| one != first) {
                return None;
            }
            let offset = i64::from(*offset).checked_add(first / 8)?;
            Some((i32::try_from(offset).ok()?, next.filter(|_| slots.len() == 1)))
        }
        Read::Elements { ty, offset } => {
            let is_same = type_name(btf, target).ok()? == *ty;
            is_same.then_some((*offset, Some(target)))
        }
        Read::Unknown { .. } => None,
    }
}
