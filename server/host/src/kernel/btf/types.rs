//! One BTF type, decoded: integers, pointers, structures, functions.
//!
//! Owns the meaning of the bytes of each kind. Names and references are looked up at each use.

use super::raw::{Head, TYPE_BYTES, kind};
use super::{Btf, BtfError};
use crate::little_endian::u32_at;

/// The number of a type. 0 is `void`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub u32);

impl TypeId {
    /// `void`.
    pub const VOID: Self = Self(0);
}

impl std::fmt::Display for TypeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A type.
#[derive(Clone, Copy, Debug)]
pub struct Type<'a> {
    /// Its number.
    pub id: TypeId,
    /// Its name; empty if it has none.
    pub name: &'a str,
    /// Its kind.
    pub kind: Kind<'a>,
}

/// The kind of a type, with its contents.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'a> {
    /// `void`.
    Void,
    /// An integer, a `char` or a `bool`.
    Int(Int),
    /// A pointer to this.
    Pointer(TypeId),
    /// An array.
    Array {
        /// The type of its elements.
        element: TypeId,
        /// Number of elements; 0 for `[]`.
        count: u32,
    },
    /// A structure or a union.
    Composite(Composite<'a>),
    /// An enumeration.
    Enum {
        /// Its size in bytes.
        bytes: u32,
        /// A value is negative.
        signed: bool,
        /// It was declared as one of 64 bits (since 6.0; before, such values were cut).
        wide: bool,
        /// Its enumerators.
        values: Enumerators<'a>,
    },
    /// A structure or union that is declared and not defined.
    Forward {
        /// A union.
        union: bool,
    },
    /// `typedef`, `const`, `volatile`, `restrict` or a tag: this with something added.
    Modifier(Modifier, TypeId),
    /// A function with this prototype.
    Function(TypeId),
    /// What a function takes and returns.
    Prototype(Prototype<'a>),
    /// A floating point number of so many bytes.
    Float(u32),
    /// A variable, a section or a tag on a declaration: nothing that a value has as its type.
    Declaration,
}

/// What a modifier adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modifier {
    /// A name of its own.
    Typedef,
    /// `const`.
    Const,
    /// `volatile`.
    Volatile,
    /// `restrict`.
    Restrict,
    /// An attribute such as `user`.
    Tag,
}

/// An integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int {
    /// Bytes in memory.
    pub bytes: u32,
    /// Bits of these that count.
    pub bits: u8,
    /// Signed.
    pub signed: bool,
}

impl<'a> Type<'a> {
    pub(super) fn read(btf: &'a Btf, id: TypeId, offset: usize) -> Result<Self, BtfError> {
        let bytes = btf.bytes();
        let cut = || BtfError::CutOff { id, offset };
        let head = Head::read(bytes, offset).ok_or_else(cut)?;
        let tail_start = offset + TYPE_BYTES;
        let tail_bytes = head.tail_bytes().ok_or(BtfError::UnknownKind { id, offset, kind: head.kind })?;
        let tail = bytes.get(tail_start..tail_start + tail_bytes).ok_or_else(cut)?;
        let number = |at| u32_at(tail, at).ok_or_else(cut);
        let target = TypeId(head.size_or_type);
        let size = head.size_or_type;
        let kind = match head.kind {
            kind::INT => {
                let [bits, _, _, encoding] = number(0)?.to_le_bytes();
                Kind::Int(Int { bytes: size, bits, signed: encoding & 1 != 0 })
            }
            kind::POINTER => Kind::Pointer(target),
            kind::ARRAY => Kind::Array { element: TypeId(number(0)?), count: number(8)? },
            kind::STRUCT | kind::UNION => Kind::Composite(Composite {
                btf,
                bytes: size,
                is_union: head.kind == kind::UNION,
                bit_fields: head.flag,
                members: tail,
            }),
            kind::ENUM | kind::ENUM64 => {
                let (signed, wide) = (head.flag, head.kind == kind::ENUM64);
                let values = Enumerators { btf, signed, wide, bytes: tail };
                Kind::Enum { bytes: size, signed, wide, values }
            }
            kind::FORWARD => Kind::Forward { union: head.flag },
            kind::TYPEDEF => Kind::Modifier(Modifier::Typedef, target),
            kind::VOLATILE => Kind::Modifier(Modifier::Volatile, target),
            kind::CONST => Kind::Modifier(Modifier::Const, target),
            kind::RESTRICT => Kind::Modifier(Modifier::Restrict, target),
            kind::TYPE_TAG => Kind::Modifier(Modifier::Tag, target),
            kind::FUNCTION => Kind::Function(target),
            kind::PROTOTYPE => Kind::Prototype(Prototype { btf, result: target, parameters: tail }),
            kind::FLOAT => Kind::Float(size),
            // VARIABLE, SECTION, DECL_TAG: no other kind has a known length.
            _ => Kind::Declaration,
        };
        Ok(Self { id, name: btf.name(head.name)?, kind })
    }
}

/// The enumerators of an enumeration.
#[derive(Clone, Copy, Debug)]
pub struct Enumerators<'a> {
    btf: &'a Btf,
    signed: bool,
    wide: bool,
    bytes: &'a [u8],
}

impl<'a> Enumerators<'a> {
    /// Their values and names, in the order of their declaration. A value of 64 bits without sign is given as the
    /// number with the same bits.
    pub fn iter(&self) -> impl Iterator<Item = Result<(i64, &'a str), BtfError>> + use<'a> {
        let Self { btf, signed, wide, bytes } = *self;
        bytes.chunks_exact(if wide { 12 } else { 8 }).map(move |one| {
            let number = |at| u32_at(one, at).unwrap_or_default();
            let (low, high) = (number(4), if wide { number(8) } else { 0 });
            let value = match (wide, signed) {
                (false, true) => i64::from(low.cast_signed()),
                _ => (u64::from(high) << 32 | u64::from(low)).cast_signed(),
            };
            Ok((value, btf.name(number(0))?))
        })
    }
}

/// A structure or a union.
#[derive(Clone, Copy, Debug)]
pub struct Composite<'a> {
    btf: &'a Btf,
    /// Its size.
    pub bytes: u32,
    /// A union.
    pub is_union: bool,
    /// Members say how many bits they have.
    bit_fields: bool,
    members: &'a [u8],
}

/// A member of a structure or a union.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its name; empty for an anonymous structure or union.
    pub name: &'a str,
    /// Its type.
    pub ty: TypeId,
    /// Distance from the beginning of the structure, in bits.
    pub bit_offset: u32,
    /// How many bits a bit-field has; absent for other members.
    pub bits: Option<u8>,
}

impl<'a> Composite<'a> {
    /// How many members it has.
    pub fn len(&self) -> usize {
        self.members.len() / 12
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Its members, in the order of their declaration.
    pub fn members(&self) -> impl Iterator<Item = Result<Member<'a>, BtfError>> + use<'a> {
        let Self { btf, bit_fields, members, .. } = *self;
        members.chunks_exact(12).map(move |member| {
            let number = |at| u32_at(member, at).unwrap_or_default();
            let position = number(8);
            let [low, middle, high, bits] = position.to_le_bytes();
            let (bit_offset, bits) = if bit_fields {
                (u32::from_le_bytes([low, middle, high, 0]), Some(bits).filter(|bits| *bits > 0))
            } else {
                (position, None)
            };
            Ok(Member { name: btf.name(number(0))?, ty: TypeId(number(4)), bit_offset, bits })
        })
    }
}

/// What a function takes and returns.
#[derive(Clone, Copy, Debug)]
pub struct Prototype<'a> {
    btf: &'a Btf,
    /// Its return type.
    pub result: TypeId,
    parameters: &'a [u8],
}

/// A parameter of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// Its name; empty for `...`, and if the declaration has none.
    pub name: &'a str,
    /// Its type; `void` for `...`.
    pub ty: TypeId,
}

impl<'a> Prototype<'a> {
    /// Its parameters. The last one of a function with `...` has no name and the type `void`.
    pub fn parameters(&self) -> impl Iterator<Item = Result<Parameter<'a>, BtfError>> + use<'a> {
        let Self { btf, parameters, .. } = *self;
        parameters.chunks_exact(8).map(move |parameter| {
            let number = |at| u32_at(parameter, at).unwrap_or_default();
            Ok(Parameter { name: btf.name(number(0))?, ty: TypeId(number(4)) })
        })
    }
}
