//! Member paths: `->member.member->member` becomes reads of memory.
//!
//! Owns the path from a pointer to its target. Follows kernel/trace/trace_probe.c:parse_btf_field:
//! each `->` is a read of memory, members after a `.` only add to its distance. Never chooses a
//! type.

use super::default;
use super::problems;
use kprobed_host::kernel::btf::{Btf, Composite, FoundMember, Kind, Type, TypeId};
use kprobed_lang::definition::{
    BaseType, BtfMember, Code, Diagnostic, Fetch, FetchKind, PartStep, Span, Step,
};

/// A value whose type is known.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// The expression that reads it.
    pub(super) fetch: Fetch,
    /// Its type, as declared.
    pub(super) ty: TypeId,
    /// If it is a bit-field, its first bit, from the beginning of the target of the last pointer, and
    /// its width.
    pub(super) bits: Option<(u64, u8)>,
}

/// The members of a path, each with its span.
pub(super) fn placed(members: &[BtfMember], mut start: usize) -> Vec<(&BtfMember, Span)> {
    members
        .iter()
        .map(|member| {
            let name = start + if member.arrow { 2 } else { 1 };
            start = name + member.to_string().len();
            (member, Span::new(name, start))
        })
        .collect()
}

/// Follows a path from `root` of type `ty`, in the argument of this index; `start` is the position
/// of the first separator.
pub(super) fn follow(
    btf: &Btf,
    root: Fetch,
    ty: TypeId,
    members: &[BtfMember],
    start: usize,
    argument: usize,
) -> Result<Value, Diagnostic> {
    let mut value = Value { fetch: root, ty, bits: None };
    let mut rest = placed(members, start).into_iter().peekable();
    while let Some((first, at)) = rest.next() {
        let possible = Step::part(argument, at.start, PartStep::Possible);
        let broken = |error| problems::broken(at, &error).at(possible);
        let pointer = btf.resolved(value.ty).map_err(broken)?;
        let Kind::Pointer(target) = pointer.kind else {
            return Err(problems::no_pointer(btf, value.ty, first, at).at(possible));
        };
        let mut bit_offset = 0;
        let (mut name, mut at) = (first, at);
        let mut owner = target;
        let (ty, bits) = loop {
            let looked_up = Step::part(argument, at.start, PartStep::LookUp);
            let found = member(btf, owner, &name.name, at).map_err(|problem| problem.at(looked_up))?;
            let (ty, within) =
                element(btf, found.member.ty, name, at).map_err(|problem| problem.at(looked_up))?;
            bit_offset += found.bit_offset + within;
            let Some((next, next_at)) = rest.next_if(|(next, _)| !next.arrow) else {
                break (ty, found.member.bits);
            };
            (name, at, owner) = (next, next_at, ty);
        };
        let offset = i32::try_from(bit_offset / 8).map_err(|_too_large| {
            let message = format!("`{}` lies beyond 2 GiB", name.name);
            Diagnostic::error(Code::BadBtfTid, at, message).at(Step::part(
                argument,
                at.start,
                PartStep::LookUp,
            ))
        })?;
        value = Value { fetch: value.fetch.followed(offset), ty, bits: bits.map(|bits| (bit_offset, bits)) };
    }
    Ok(value)
}

/// The member of a structure.
fn member<'a>(btf: &'a Btf, owner: TypeId, name: &str, at: Span) -> Result<FoundMember<'a>, Diagnostic> {
    let broken = |error| problems::broken(at, &error);
    let Type { kind: Kind::Composite(composite), .. } = btf.resolved(owner).map_err(broken)? else {
        return Err(problems::no_structure(btf, owner, at));
    };
    let found = btf.member(composite, name).map_err(broken)?;
    found.ok_or_else(|| problems::no_member(btf, owner, composite, name, at))
}

/// The type of the element of an array that a member is, and its distance from the beginning of the member in bits.
fn element(btf: &Btf, mut ty: TypeId, member: &BtfMember, at: Span) -> Result<(TypeId, u64), Diagnostic> {
    let broken = |error| problems::broken(at, &error);
    let mut bit_offset = 0_u64;
    for index in &member.indices {
        let Kind::Array { element, count } = btf.resolved(ty).map_err(broken)?.kind else {
            return Err(problems::no_array(btf, ty, member, at));
        };
        // The length of `[]` is not known.
        if count != 0 && *index >= count {
            return Err(problems::no_element(member, *index, count, at));
        }
        let bytes = btf.size(element).map_err(broken)?.unwrap_or_default();
        bit_offset = bit_offset.saturating_add(bytes.saturating_mul(8).saturating_mul((*index).into()));
        ty = element;
    }
    Ok((ty, bit_offset))
}

/// Names of the members of a structure, including those of anonymous structures in it.
pub(super) fn member_names<'a>(btf: &'a Btf, composite: Composite<'a>) -> Vec<&'a str> {
    let mut names = Vec::new();
    let all = btf.each_member(composite, &mut |found| {
        names.push(found.member.name);
        true
    });
    // This is for hints: of a broken structure nothing is listed.
    if all.is_ok() { names } else { Vec::new() }
}

/// The member that is a structure with a member of that name.
pub(super) fn inside_of_member<'a>(btf: &'a Btf, composite: Composite<'a>, name: &str) -> Option<&'a str> {
    let mut found = None;
    let has = |ty| match btf.resolved(ty).ok()?.kind {
        Kind::Composite(inner) => btf.member(inner, name).ok()?,
        _ => None,
    };
    let all = btf.each_member(composite, &mut |at| {
        found = Some(at.member.name).filter(|_| has(at.member.ty).is_some());
        found.is_none()
    });
    found.filter(|_| all.is_ok())
}

/// A bit-field as its own default: the type, and the fetch of the integer that holds it.
pub(super) fn bit_field(btf: &Btf, value: &Value) -> Option<(Fetch, BaseType)> {
    let (bit_offset, bits) = value.bits?;
    let (base, byte) = default::bit_field(btf, value.ty, bit_offset, bits)?;
    let FetchKind::Deref { user, inner, .. } = &value.fetch.kind else { return None };
    let kind = FetchKind::Deref { user: *user, offset: i32::try_from(byte).ok()?, inner: inner.clone() };
    Some((Fetch { kind, span: value.fetch.span }, base))
}
