//! Notation of values: how people write the numbers of a type of the kernel.
//!
//! Owns which types have which notation. What a notation shows is in [`Notation`].

use super::default;
use kprobed_filter::{Names, Notation};
use kprobed_host::kernel::btf::{Btf, BtfError, Enumerators, Kind, Modifier, TypeId};
use kprobed_lang::definition::{Argument, BaseType, Width};

/// Most types around each other: `typedef` of `typedef`, and structures of one member.
const DEPTH_MAX: usize = 32;

/// How people write a value of this type that an argument reads whole. `is_result`: a function returned it.
pub(crate) fn of(btf: &Btf, ty: TypeId, argument: &Argument, is_result: bool) -> Result<Notation, BtfError> {
    let (base, count) = (argument.base_type(), argument.ty.and_then(|ty| ty.count));
    if let Some(count) = count {
        let is_address = base == BaseType::Unsigned(Width::W8) && count == 16;
        let is_address = is_address && btf.resolved(ty)?.name == default::IPV6;
        return Ok(if is_address { Notation::Ipv6 } else { Notation::Number });
    }
    let is_unsigned = match base {
        BaseType::Unsigned(_) | BaseType::Hex(_) => true,
        BaseType::Signed(_) => false,
        // Some bits of the integer that is declared.
        BaseType::BitField { .. } => return Ok(of_enumeration(btf, ty)),
        _ => return Ok(Notation::Number),
    };
    let bytes = btf.size(ty)?;
    // The lower half of a number that is small has its value and its sign.
    let is_half = is_result && base == BaseType::Signed(Width::W32) && bytes == Some(8);
    if bytes != Some(base.bytes().into()) && !is_half {
        return Ok(Notation::Number);
    }
    let mut id = ty;
    for _ in 0..DEPTH_MAX {
        let ty = btf.ty(id)?;
        match (ty.kind, ty.name) {
            (Kind::Modifier(Modifier::Typedef, _), "__be16" | "__be32" | "__be64") if is_unsigned => {
                return Ok(Notation::NetworkOrder);
            }
            (Kind::Modifier(Modifier::Typedef, _), "dev_t") => return Ok(Notation::Device),
            (Kind::Modifier(Modifier::Typedef, _), "umode_t") => return Ok(Notation::Octal),
            (Kind::Modifier(_, target), _) => id = target,
            (Kind::Composite(_), "in_addr") if base.bytes() == 4 && is_unsigned => return Ok(Notation::Ipv4),
            (Kind::Composite(composite), _) => match composite.members().next().transpose()? {
                Some(only) if composite.len() == 1 && only.bits.is_none() => id = only.ty,
                _ => break,
            },
            (Kind::Int(_), "_Bool") => return Ok(Notation::Bool),
            (Kind::Int(int), _) if is_result && int.signed && int.bytes >= 4 => return Ok(Notation::Errno),
            (Kind::Pointer(_), _) if is_result && !is_half => return Ok(Notation::Errno),
            (Kind::Enum { values, .. }, _) => return Ok(names(values)),
            _ => break,
        }
    }
    Ok(Notation::Number)
}

fn of_enumeration(btf: &Btf, ty: TypeId) -> Notation {
    match btf.resolved(ty).map(|ty| (ty.kind, ty.name)) {
        Ok((Kind::Enum { values, .. }, _)) => names(values),
        Ok((Kind::Int(_), "_Bool")) => Notation::Bool,
        _ => Notation::Number,
    }
}

/// The names of an enumeration; none if they are too many, or cannot be read.
fn names(values: Enumerators<'_>) -> Notation {
    let names: Result<Vec<_>, _> = values.iter().take(Names::MAX + 1).collect();
    names.ok().and_then(Names::new).map_or(Notation::Number, Notation::Names)
}
