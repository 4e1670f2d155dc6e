//! Structure layout: the members in some bytes of a structure, and names of types that are equal whenever the bytes
//! mean the same.
//!
//! Owns the paths and types of members. Never compares them across builds, and never renders C for people.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use kprobed_host::kernel::btf::{Btf, BtfError, Composite, Kind, Modifier, TypeId};

/// Greatest depth of nested structures.
const DEPTH_MAX: usize = 32;

/// Most members in the bytes of one read. A read of 64 elements of 8 bytes meets fewer in all
/// structures that are read so.
pub(super) const SLOTS_MAX: usize = 64;

/// A member with a value: not a structure, but a member inside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Its path from the structure, such as `f_path.dentry` or `slots[2].id`. Structures without a
    /// name are omitted.
    pub path: String,
    /// Distance from the beginning of the structure, in bits.
    pub bit_offset: u64,
    /// Its size in bits; 0 for an array without end.
    pub bits: u64,
    /// Its type, with `typedef` names replaced.
    pub ty: String,
    /// Its declaration in C.
    pub declaration: String,
}

/// A slot with its type, to follow further.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) slot: Slot,
    pub(super) ty: TypeId,
}

impl Slot {
    /// Whether it is the same member, at any offset.
    pub(super) fn is_same_member(&self, other: &Self) -> bool {
        self.path == other.path && self.bits == other.bits && self.ty == other.ty
    }

    /// Whether it is the same member at the same offset.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.is_same_member(other) && self.bit_offset == other.bit_offset
    }

    /// Whether all its bits are among those of another one.
    pub(super) fn lies_in(&self, other: &Self) -> bool {
        let end =
            |slot: &Self| if slot.bits == 0 { u64::MAX } else { slot.bit_offset.saturating_add(slot.bits) };
        self.bit_offset >= other.bit_offset && end(self) <= end(other)
    }
}

/// The members in these bits of a structure, in the order of their declaration, or `None` if they
/// are more than [`SLOTS_MAX`]: in a union several overlap.
pub(super) fn slots(
    btf: &Btf,
    composite: Composite<'_>,
    bits: &Range<u64>,
) -> Result<Option<Vec<Found>>, BtfError> {
    let mut found = Vec::new();
    visit(btf, composite, &Around::default(), bits, &mut found)?;
    Ok((found.len() <= SLOTS_MAX).then_some(found))
}

/// The slot of that path, if it exists.
pub(super) fn slot_at(btf: &Btf, composite: Composite<'_>, path: &str) -> Result<Option<Found>, BtfError> {
    let (first, rest) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
    let Some(member) = btf.member(composite, first)? else { return Ok(None) };
    let begin = member.bit_offset;
    let bits = match btf.size(member.member.ty)? {
        Some(bytes) if rest.is_empty() || bytes > 0 => bytes.saturating_mul(8).max(1),
        _ => 1,
    };
    let bits = member.member.bits.map_or(bits, u64::from);
    let mut found = Vec::new();
    visit(btf, composite, &Around::default(), &(begin..begin.saturating_add(bits)), &mut found)?;
    Ok(found.into_iter().find(|found| found.slot.path == path))
}

#[derive(Default)]
struct Around {
    base: u64,
    prefix: String,
    depth: usize,
}

fn visit(
    btf: &Btf,
    composite: Composite<'_>,
    around: &Around,
    wanted: &Range<u64>,
    found: &mut Vec<Found>,
) -> Result<(), BtfError> {
    for member in composite.members() {
        let member = member?;
        let bit_offset = around.base.saturating_add(member.bit_offset.into());
        let bits = match member.bits {
            Some(bits) => u64::from(bits),
            None => btf.size(member.ty)?.unwrap_or_default().saturating_mul(8),
        };
        let end = if bits == 0 { u64::MAX } else { bit_offset.saturating_add(bits) };
        if bit_offset >= wanted.end || end <= wanted.start || found.len() > SLOTS_MAX {
            continue;
        }
        let path = match (around.prefix.as_str(), member.name) {
            ("", name) => name.to_owned(),
            (prefix, "") => prefix.to_owned(),
            (prefix, name) => format!("{prefix}.{name}"),
        };
        descend(btf, member.ty, bits, &Around { base: bit_offset, prefix: path, ..*around }, wanted, found)?;
    }
    Ok(())
}

/// Visits what is at a path: a structure, an array of structures, or a value.
fn descend(
    btf: &Btf,
    ty: TypeId,
    bits: u64,
    around: &Around,
    wanted: &Range<u64>,
    found: &mut Vec<Found>,
) -> Result<(), BtfError> {
    let depth = around.depth + 1;
    if depth > DEPTH_MAX {
        return Err(BtfError::TooDeep { id: ty });
    }
    match btf.resolved(ty)?.kind {
        Kind::Composite(inner) => {
            let around = Around { prefix: around.prefix.clone(), base: around.base, depth };
            return visit(btf, inner, &around, wanted, found);
        }
        Kind::Array { element, count } if is_composite(btf, element)? => {
            let element_bits = btf.size(element)?.unwrap_or_default().saturating_mul(8);
            if element_bits == 0 {
                return Ok(());
            }
            let first = wanted.start.saturating_sub(around.base) / element_bits;
            let end = wanted.end.saturating_sub(around.base).div_ceil(element_bits);
            let end = if count == 0 { end } else { end.min(count.into()) };
            for index in (first..end).take(SLOTS_MAX + 1) {
                let base = around.base.saturating_add(index.saturating_mul(element_bits));
                let around = Around { base, prefix: format!("{}[{index}]", around.prefix), depth };
                descend(btf, element, element_bits, &around, wanted, found)?;
            }
            return Ok(());
        }
        _ => {}
    }
    // A bit-field without a name is only padding.
    if around.prefix.is_empty() {
        return Ok(());
    }
    let name = around.prefix.rsplit('.').next().unwrap_or_default();
    let slot = Slot {
        path: around.prefix.clone(),
        bit_offset: around.base,
        bits,
        ty: type_name(btf, ty)?,
        declaration: btf.declaration(ty, name)?,
    };
    found.push(Found { slot, ty });
    Ok(())
}

fn is_composite(btf: &Btf, ty: TypeId) -> Result<bool, BtfError> {
    Ok(matches!(btf.resolved(ty)?.kind, Kind::Composite(_)))
}

/// Greatest depth of nested pointers and arrays.
const POINTERS_MAX: usize = 16;

/// A type without qualifiers such as `const`, and with `typedef` names replaced: `fmode_t` is
/// `u32`, `const struct file *` is `struct file *`. A structure without a name has that of its
/// `typedef`.
pub(super) fn type_name(btf: &Btf, id: TypeId) -> Result<String, BtfError> {
    let mut declarators = String::new();
    let mut id = id;
    let mut alias = "";
    for _ in 0..POINTERS_MAX * POINTERS_MAX {
        let ty = btf.ty(id)?;
        let called = if ty.name.is_empty() { alias } else { ty.name };
        let base = match ty.kind {
            Kind::Modifier(modifier, target) => {
                if modifier == Modifier::Typedef {
                    alias = ty.name;
                }
                id = target;
                continue;
            }
            Kind::Pointer(target) => {
                (id, alias) = (target, "");
                declarators.insert(0, '*');
                if declarators.len() > POINTERS_MAX * POINTERS_MAX {
                    return Err(BtfError::TooDeep { id });
                }
                continue;
            }
            Kind::Array { element, count } => {
                (id, alias) = (element, "");
                declarators = format!("{declarators}[{count}]");
                continue;
            }
            Kind::Void => "void".to_owned(),
            // Signed up to 6.1, unsigned since 6.2 (Makefile: -funsigned-char): a character in
            // both.
            Kind::Int(int) if int.bytes == 1 && ty.name == "char" => "char".to_owned(),
            Kind::Int(int) => format!("{}{}", if int.signed { 's' } else { 'u' }, u64::from(int.bytes) * 8),
            Kind::Float(bytes) => format!("float{}", u64::from(bytes) * 8),
            Kind::Composite(composite) if composite.is_union => format!("union {called}"),
            Kind::Composite(_) | Kind::Forward { union: false } => format!("struct {called}"),
            Kind::Forward { union: true } => format!("union {called}"),
            Kind::Enum { bytes, .. } if called.is_empty() => format!("u{}", u64::from(bytes) * 8),
            Kind::Enum { .. } => format!("enum {called}"),
            Kind::Function(_) | Kind::Prototype(_) => "function".to_owned(),
            Kind::Declaration => "declaration".to_owned(),
        };
        let blank = if declarators.is_empty() { "" } else { " " };
        return Ok(format!("{base}{blank}{declarators}"));
    }
    Err(BtfError::TooDeep { id })
}

/// The target type of a pointer. Absent if the type is not a pointer.
pub(super) fn pointed(btf: &Btf, id: TypeId) -> Result<Option<TypeId>, BtfError> {
    Ok(match btf.resolved(id)?.kind {
        Kind::Pointer(target) => Some(target),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprobed_host::samples::BtfWriter;

    #[test]
    fn a_character_is_one_whatever_its_sign() {
        for signed in [true, false] {
            let mut w = BtfWriter::default();
            let char = w.int("char", 1, signed);
            let text = w.pointer(char);
            let byte = w.int("unsigned char", 1, false);
            let btf = Btf::parse(w.finish()).unwrap();
            assert_eq!(type_name(&btf, text).unwrap(), "char *");
            assert_eq!(type_name(&btf, byte).unwrap(), "u8");
        }
    }
}
