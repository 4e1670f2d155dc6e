//! Type names that are equal whenever the bytes mean the same.
//!
//! Owns that normalisation. Never renders C for people.

use kprobed_host::kernel::btf::{Btf, BtfError, Kind, Modifier, TypeId};

/// Greatest depth of nested pointers and arrays.
const DEPTH_MAX: usize = 16;

/// A type without qualifiers such as `const`, and with `typedef` names replaced: `fmode_t` is
/// `u32`, `const struct file *` is `struct file *`. A structure without a name has that of its
/// `typedef`.
pub(super) fn type_name(btf: &Btf, id: TypeId) -> Result<String, BtfError> {
    let mut declarators = String::new();
    let mut id = id;
    let mut alias = "";
    for _ in 0..DEPTH_MAX * DEPTH_MAX {
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
                if declarators.len() > DEPTH_MAX * DEPTH_MAX {
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
