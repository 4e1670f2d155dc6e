//! Notation of what a definition records, whether it names a member or reads at an offset.
//!
//! Owns the search for the type at an offset. Which type has which notation is in [`typed::notation`].

use std::collections::HashMap;
use std::ops::Range;

use super::Origin;
use super::capture::{Around, Behind, Subject, origin};
use super::chain::{Chain, Root};
use super::layout::pointed;
use crate::validate::typed::{self, Note};
use kprobed_filter::Notation;
use kprobed_host::kernel::btf::{Btf, BtfError, Kind, TypeId};
use kprobed_lang::definition::{Argument, BaseType, FetchKind, ProbeKind, Width};

/// Greatest depth of nested structures.
const DEPTH_MAX: usize = 32;

/// Most types at one place: members of a union overlap.
const TYPES_MAX: usize = 16;

/// Most types that are looked at. A damaged file can have structures inside of themselves.
const LOOKED_AT_MAX: usize = 4096;

/// Members of structures that hold flags of `open`.
const OPEN_FLAGS: [(&str, &str); 2] = [("open_how", "flags"), ("file", "f_flags")];

/// Functions whose parameter `flags` holds flags of `open`.
const OPENING: [&str; 4] = ["do_sys_open", "__do_sys_open", "__do_sys_openat", "filp_open"];

/// How people write the numbers that a definition records, by the name of the field. A field that is not there is
/// shown as it is.
pub fn notations(subject: &Subject<'_>) -> HashMap<String, Notation> {
    let Subject { written, resolved, notes, .. } = *subject;
    let around = Around::of(subject);
    let of_argument = |(index, argument): (usize, &Argument)| {
        let name = &argument.name.as_ref()?.text;
        let by_name =
            notes.iter().find(|note| note.index == index).map(|Note { notation, .. }| notation.clone());
        let of_call = around.as_ref().and_then(|around| of_system_call(around, argument));
        let by_offset = || by_offset(around.as_ref()?, argument);
        let known = match of_call.or(by_name) {
            // What is a plain number by its type can be more by its name.
            Some(Notation::Number) => by_offset().filter(|notation| *notation == Notation::OpenFlags),
            Some(known) => Some(known),
            None => by_offset(),
        };
        let notation = known.or_else(|| of_result(argument, written.kind, around.as_ref()))?;
        (notation != Notation::Number).then(|| (name.clone(), notation))
    };
    resolved.args.iter().enumerate().filter_map(of_argument).collect()
}

/// Whether an argument is one whole number: its parts, arrays and texts are not what its name says.
fn is_number(argument: &Argument) -> bool {
    let is_one = argument.ty.is_none_or(|ty| ty.count.is_none());
    is_one && argument.base_type().is_integer()
}

/// The notation of an argument of a system call, which its registers hold as plain words.
fn of_system_call(around: &Around<'_>, argument: &Argument) -> Option<Notation> {
    let Chain { root, reads } = Chain::of(argument, around.at());
    let [read] = reads.as_slice() else { return None };
    let is_register = root == Root::Word(1) && !read.user && is_number(argument);
    is_register.then(|| typed::system_call::notation(around.function, &read.bits()?, around.facts))?
}

/// A result with a sign, of a function without types.
fn of_result(argument: &Argument, kind: ProbeKind, around: Option<&Around<'_>>) -> Option<Notation> {
    let is_signed = matches!(argument.base_type(), BaseType::Signed(Width::W32 | Width::W64));
    let is_result = kind == ProbeKind::Return && argument.fetch.kind == FetchKind::Retval;
    let is_unknown = around.is_none_or(|around| around.types.is_none());
    (is_signed && is_number(argument) && is_result && is_unknown).then_some(Notation::Errno)
}

/// The notation of what the kernel's types have at the place that an argument reads. `None` if they do not say.
fn by_offset(around: &Around<'_>, argument: &Argument) -> Option<Notation> {
    let Chain { root, mut reads } = Chain::of(argument, around.at());
    let (origin, ty) = origin(around, &root);
    let btf = &around.types.as_ref()?.btf;
    let Some(last) = reads.pop() else {
        let is_flags = |name: &str| name == "flags" && OPENING.contains(&around.function);
        if matches!(&origin, Origin::Parameter { name, .. } if is_flags(name))
            && is_number(argument)
            && argument.base_type().bytes() == 4
        {
            return Some(Notation::OpenFlags);
        }
        return typed::notation::of(btf, ty?, argument, root == Root::Result).ok();
    };
    let mut behind = Behind { around, ty };
    for read in &reads {
        behind.read(read, None);
    }
    let target = pointed(btf, behind.ty?).ok()??;
    let found = at(btf, target, &last.bits()?, argument).ok()?;
    let first = found.first()?;
    // Of members of a union that are written in different ways, any can be meant.
    (found.len() <= TYPES_MAX && found.iter().all(|other| other == first)).then(|| first.clone())
}

/// The notations of the types that lie at exactly these bits of a type, the outer ones before those inside.
fn at(btf: &Btf, ty: TypeId, wanted: &Range<u64>, argument: &Argument) -> Result<Vec<Notation>, BtfError> {
    let mut found = Vec::new();
    let mut waiting = vec![(ty, 0_u64, 0)];
    let mut looked_at = 0;
    while let Some((ty, begin, depth)) = waiting.pop() {
        looked_at += 1;
        let Some(bits) = btf.size(ty)?.map(|bytes| bytes.saturating_mul(8)) else { continue };
        let is_there = begin == wanted.start && begin.saturating_add(bits) == wanted.end;
        let notation =
            if is_there { typed::notation::of(btf, ty, argument, false)? } else { Notation::Number };
        if notation != Notation::Number {
            found.push(notation);
            continue;
        }
        if depth > DEPTH_MAX || found.len() > TYPES_MAX || looked_at > LOOKED_AT_MAX {
            return Err(BtfError::TooDeep { id: ty });
        }
        let meets = |begin: u64, bits: u64| begin < wanted.end && begin.saturating_add(bits) > wanted.start;
        let ty = btf.resolved(ty)?;
        match ty.kind {
            Kind::Composite(composite) => {
                for member in composite.members() {
                    let member = member?;
                    let begin = begin.saturating_add(member.bit_offset.into());
                    let bits = btf.size(member.ty)?.unwrap_or_default().saturating_mul(8);
                    let is_it = begin == wanted.start && begin.saturating_add(bits) == wanted.end;
                    if is_it && is_number(argument) && OPEN_FLAGS.contains(&(ty.name, member.name)) {
                        found.push(Notation::OpenFlags);
                    } else if member.bits.is_none() && meets(begin, bits) {
                        waiting.push((member.ty, begin, depth + 1));
                    }
                }
            }
            Kind::Array { element, .. } => {
                let bits = btf.size(element)?.unwrap_or_default().saturating_mul(8);
                let Some(index) = wanted.start.saturating_sub(begin).checked_div(bits) else { continue };
                let begin = begin.saturating_add(index.saturating_mul(bits));
                if meets(begin, bits) {
                    waiting.push((element, begin, depth + 1));
                }
            }
            _ if is_there => found.push(Notation::Number),
            _ => {}
        }
    }
    Ok(found)
}
