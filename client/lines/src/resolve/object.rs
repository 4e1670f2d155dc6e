//! Values on the way from a variable to what is recorded: members, elements, pointees, and their bits.

use kprobed_lang::definition::computed::Computed;

use super::fetch::{Fetch, Kind, fetched, memory, or_shifted};
use super::scope::each_variable;
use super::variable::{Argument, Scene, named};
use crate::error::{LinesError, Result};
use crate::grammar::{Expression, Step};
use crate::model::{Location, Member, Type, TypeId, Variable};
use crate::value::Value;

/// Elements of an array that the kernel records, at most (kernel/trace/trace_probe.h: MAX_ARRAY_LEN).
const ELEMENTS_MAX: u64 = 64;

/// Structures of one member within each other, at most.
const WRAPPERS_MAX: usize = 8;

/// A value on the way to the wanted one.
pub(super) struct Object {
    ty: Option<TypeId>,
    shape: Type,
    location: Location,
    bit_offset: u64,
    bit_width: Option<u8>,
    /// It was read through a pointer.
    is_pointee: bool,
}

impl Scene<'_> {
    pub(super) fn object(&self, variable: &Variable) -> Result<Object> {
        let location = self.location(variable).map_err(|error| named(&error, &variable.name))?;
        Ok(Object {
            ty: variable.ty,
            shape: self.shape(variable.ty)?,
            location,
            bit_offset: 0,
            bit_width: None,
            is_pointee: false,
        })
    }

    pub(super) fn step(&self, object: Object, step: &Step, wanted: &Expression) -> Result<Object> {
        let refused = |why: String| LinesError::new(format!("`{}`: {why}", wanted.path()));
        match step {
            Step::Member(name) => match &object.shape {
                Type::Composite { .. } => self.member(object, name),
                Type::Pointer { .. } => {
                    Err(refused(format!("`.{name}` follows a pointer")).hint(format!("write `->{name}`")))
                }
                _ => Err(refused(format!("`.{name}` follows a value without members"))),
            },
            Step::Pointee(name) => match &object.shape {
                Type::Pointer { .. } => {
                    let pointee = self.pointee(&object).map_err(|error| named(&error, &wanted.path()))?;
                    self.member(pointee, name)
                }
                Type::Composite { .. } => {
                    Err(refused(format!("`->{name}` follows a structure")).hint(format!("write `.{name}`")))
                }
                _ => Err(refused(format!("`->{name}` follows a value that is not a pointer"))),
            },
            Step::Element(index) => match object.shape.clone() {
                Type::Array { of, counts } => {
                    let (first, rest) = counts
                        .split_first()
                        .ok_or_else(|| refused("the array has no dimension".to_owned()))?;
                    if first.is_some_and(|count| count > 0 && *index >= count) {
                        return Err(refused(format!(
                            "the array has {} elements, from 0",
                            first.unwrap_or(0)
                        )));
                    }
                    let (ty, shape) = if rest.is_empty() {
                        (of, self.shape(of)?)
                    } else {
                        (of, Type::Array { of, counts: rest.to_vec() })
                    };
                    let bytes = self.bytes_of(&shape, 0)?;
                    moved(Object { ty, shape, ..object }, bytes, *index)
                }
                Type::Pointer { .. } => {
                    let pointee = self.pointee(&object).map_err(|error| named(&error, &wanted.path()))?;
                    let bytes = self.bytes_of(&pointee.shape, 0)?;
                    moved(pointee, bytes, *index)
                }
                _ => {
                    Err(refused("an index follows a value that is neither an array nor a pointer".to_owned()))
                }
            },
        }
    }

    fn member(&self, object: Object, name: &str) -> Result<Object> {
        let Type::Composite { keyword, name: of, bytes, members } = &object.shape else {
            return Err(LinesError::new(format!(
                "`{name}` is a member of no structure: {} is none",
                self.shape_text(&object.shape)
            )));
        };
        let owner = format!("{keyword} {}", of.as_deref().unwrap_or("(unnamed)"));
        if bytes.is_none() && members.is_empty() {
            return Err(LinesError::new(format!(
                "the source declares `{owner}` and does not define it, so its members are not known here"
            )));
        }
        let found = self.find(&object.shape, name, &mut 0)?.ok_or_else(|| {
            LinesError::new(format!("`{owner}` has no member `{name}`"))
                .hint(format!("it has {}", names_of(members, 12)))
        })?;
        let bit_offset = object.bit_offset.checked_add(found.bit_offset);
        let bit_offset = bit_offset.ok_or_else(|| LinesError::new("a member lies outside of memory"))?;
        let shape = self.shape(found.ty)?;
        Ok(Object { ty: found.ty, shape, bit_offset, bit_width: found.bit_width, ..object })
    }

    /// What a pointer leads to.
    fn pointee(&self, object: &Object) -> Result<Object> {
        let Type::Pointer { to } = object.shape else {
            return Err(LinesError::new("it is not a pointer"));
        };
        let (ty, shape) = (to, self.shape(to)?);
        if let (Location::PointerTo { variable, offset }, 0) = (&object.location, object.bit_offset) {
            let (id, offset) = (*variable, *offset);
            let mut target = None;
            for function in &self.unit.functions {
                each_variable(&function.scope, &mut |variable| {
                    target = target.or((variable.id == id).then_some(variable));
                });
            }
            let target = target.or_else(|| self.unit.globals.iter().find(|variable| variable.id == id));
            let target = target
                .ok_or_else(|| LinesError::new("it points to a value that the compiler has removed"))?;
            let bits = u64::try_from(offset).ok().and_then(|offset| offset.checked_mul(8));
            let bit_offset = bits
                .ok_or_else(|| LinesError::new("it points before a value that the compiler has removed"))?;
            let location = self.location(target)?;
            return Ok(Object { ty, shape, location, bit_offset, bit_width: None, is_pointee: false });
        }
        let address = self.value(&object.location, object.bit_offset, 64, false)?;
        Ok(Object {
            ty,
            shape,
            location: Location::Memory(address),
            bit_offset: 0,
            bit_width: None,
            is_pointee: true,
        })
    }

    /// Some bits of what a location holds.
    fn value(&self, location: &Location, offset: u64, width: u8, user: bool) -> Result<Value> {
        let part = |value: Value| match u8::try_from(offset) {
            Ok(offset) if offset < 64 && width <= 64 - offset => Ok(value.bits(offset, width, false)),
            _ => Err(LinesError::new("it is in a part of a value that is not in memory")),
        };
        match location {
            Location::Value(value) => part(value.clone()),
            Location::Memory(address) => {
                let (mut address, mut offset) = (address.clone().plus(offset / 8), offset % 8);
                let bits = offset + u64::from(width);
                let bytes = match bits {
                    0..=8 => 1,
                    9..=16 => 2,
                    17..=32 => 4,
                    33..=64 => 8,
                    // A bit-field over 9 bytes has a beginning of its own.
                    _ => return Err(LinesError::new("it is a bit-field over more than 8 bytes")),
                };
                // The number that holds a field begins where the compiler would read it, so that it stays in
                // the structure.
                let by = address.clone().split().1 % u64::from(bytes);
                if by != 0 && by * 8 + bits <= u64::from(bytes) * 8 {
                    address = address.plus(by.wrapping_neg());
                    offset += by * 8;
                }
                let memory = Value::Memory { address: Box::new(address), bytes, user };
                Ok(memory.bits(u8::try_from(offset).unwrap_or(0), width, false))
            }
            Location::Bytes(bytes) => {
                let start = usize::try_from(offset / 8).ok().and_then(|start| bytes.get(start..));
                let bytes = start.filter(|bytes| bytes.len() as u64 * 8 >= offset % 8 + u64::from(width));
                let bytes = bytes
                    .ok_or_else(|| LinesError::new("the compiler has kept fewer bytes of it than it has"))?;
                if offset % 8 + u64::from(width) > 64 {
                    return Err(LinesError::new("it is a bit-field over more than 8 bytes"));
                }
                let number = bytes.iter().take(8).rev().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
                Ok(Value::Constant(number).bits(u8::try_from(offset % 8).unwrap_or(0), width, false))
            }
            Location::Pieces(pieces) => {
                let (mut start, mut joined, mut has) = (0u64, None, 0u8);
                let end = offset.saturating_add(u64::from(width));
                for piece in pieces {
                    let (first, last) = (start.max(offset), start.saturating_add(piece.bits).min(end));
                    if first < last {
                        let location = piece
                            .location
                            .as_ref()
                            .ok_or_else(|| LinesError::new("the compiler has removed a part of it"))?;
                        let bits = u8::try_from(last - first).unwrap_or(64);
                        let value = self.value(&self.seen(location)?, first - start, bits, user)?;
                        joined = Some(if has == 0 { value } else { or_shifted(joined, value, has) });
                        has = has.saturating_add(bits);
                    }
                    start = start.saturating_add(piece.bits);
                }
                joined
                    .filter(|_| has == width)
                    .ok_or_else(|| LinesError::new("the compiler describes a part of it only"))
            }
            Location::PointerTo { .. } => Err(LinesError::new(
                "it points to a variable that is not in memory, so the pointer has no value",
            )
            .hint("record a member of what it points to")),
            Location::Unknown(why) => Err(LinesError::new(why.clone())),
        }
    }

    /// The arguments of a value that no step follows.
    pub(super) fn finished(&self, object: Object, wanted: &Expression) -> Result<Argument> {
        let name = wanted.argument_name();
        let made = |ty: String, fetches: Vec<Fetch>, rule: Option<Computed>| {
            let only_symbol = self.of.symbols().module().and_then(|_| {
                let source = fetches
                    .iter()
                    .find_map(|fetch| fetch.source.split_once('@').map(|(_, rest)| rest.to_owned()));
                source.map(|source| source.split(['+', '-', ')']).next().unwrap_or_default().to_owned())
            });
            Argument { expression: wanted.path(), ty, fetches, rule, only_symbol }
        };
        let text =
            if object.ty.is_none() { self.shape_text(&object.shape) } else { self.type_text(object.ty) };
        let object = self.only_member(object)?;
        if wanted.user && !object.is_pointee && !matches!(wanted.ty.as_deref(), Some("string")) {
            return Err(LinesError::new("`@user` is for what is read through a pointer"));
        }
        if let Some(ty @ ("string" | "ustring")) = wanted.ty.as_deref() {
            let ty = if wanted.user { "ustring" } else { ty };
            let source = self.string(object)?;
            return Ok(made(text, vec![Fetch { name, source, ty: Some(ty.to_owned()) }], None));
        }
        if let Type::Array { of, counts } = &object.shape {
            let fetch = self.elements(&object, *of, counts, &name, wanted)?;
            return Ok(made(text, vec![fetch], None));
        }
        let kind = self.kind(&object)?;
        let value = self.value(&object.location, object.bit_offset, kind.bits, wanted.user)?;
        let mut found = fetched(self.of.symbols(), &name, value, kind)?;
        if let Some(ty) = &wanted.ty {
            let ([fetch], None) = (found.fetches.as_mut_slice(), &found.rule) else {
                let why = format!("it is computed from what is fetched, which `:{ty}` cannot show");
                return Err(LinesError::new(why).hint("leave out the type"));
            };
            let has = fetch.ty.take().unwrap_or_default();
            fetch.ty = Some(accepted(ty, &has, object.bit_width.is_some())?);
        }
        Ok(made(text, found.fetches, found.rule))
    }

    /// The value that a structure of one member is, such as `kuid_t`; any other object as it is.
    fn only_member(&self, object: Object) -> Result<Object> {
        let mut inner = Object { shape: object.shape.clone(), location: object.location.clone(), ..object };
        for _ in 0..WRAPPERS_MAX {
            let Type::Composite { members, .. } = &inner.shape else { return Ok(inner) };
            let [only] = members.as_slice() else { break };
            let (ty, bit_width) = (only.ty, only.bit_width);
            let Some(bit_offset) = inner.bit_offset.checked_add(only.bit_offset) else { break };
            inner = Object { ty, shape: self.shape(ty)?, bit_offset, bit_width, ..inner };
        }
        Ok(object)
    }

    fn kind(&self, object: &Object) -> Result<Kind> {
        let (bytes, signed, is_pointer) = match &object.shape {
            Type::Number { bytes, signed, .. } | Type::Enumeration { bytes, signed, .. } => {
                (*bytes, *signed, false)
            }
            Type::Pointer { .. } => (8, false, true),
            Type::Composite { members, .. } => {
                let names = names_of(members, 5);
                return Err(LinesError::new("it is a structure, not a number").hint(if names.is_empty() {
                    "take one of its members".to_owned()
                } else {
                    format!("take a member: it has {names}")
                }));
            }
            other => {
                return Err(LinesError::new(format!(
                    "a probe cannot record a value of type `{}`",
                    self.shape_text(other)
                )));
            }
        };
        let bits = match object.bit_width {
            Some(bits) if bits > 0 && bits <= 64 => Some(bits),
            None if matches!(bytes, 1 | 2 | 4 | 8) => u8::try_from(bytes * 8).ok(),
            _ => None,
        };
        let bits = bits.ok_or_else(|| {
            LinesError::new(format!("it has {bytes} bytes, and a probe records 1, 2, 4 or 8"))
        })?;
        Ok(Kind { bits, signed, is_pointer })
    }

    /// The memory that a text is in.
    fn string(&self, object: Object) -> Result<String> {
        let is_character = |shape: &Type| matches!(shape, Type::Number { bytes: 1, .. });
        let refused =
            || LinesError::new("only an array of characters, or a pointer to characters, is a string");
        let text = match &object.shape {
            Type::Pointer { to } if is_character(&self.shape(*to)?) => self.pointee(&object)?,
            Type::Array { of, counts } if counts.len() == 1 && is_character(&self.shape(*of)?) => object,
            _ => return Err(refused()),
        };
        let Location::Memory(address) = &text.location else {
            return Err(LinesError::new("its characters are not in memory"));
        };
        self.at(address, text.bit_offset, false)
    }

    /// What reads memory that begins so many bits behind an address.
    fn at(&self, address: &Value, bit_offset: u64, user: bool) -> Result<String> {
        let source = memory(self.of.symbols(), &address.clone().plus(bit_offset / 8), user)?;
        source.ok_or_else(|| {
            LinesError::new("it is in memory whose address is computed, which the kernel cannot do")
        })
    }

    fn elements(
        &self,
        object: &Object,
        of: Option<TypeId>,
        counts: &[Option<u64>],
        name: &str,
        wanted: &Expression,
    ) -> Result<Fetch> {
        let shape = self.shape(of)?;
        let (bytes, letter) = match (&shape, counts) {
            (
                Type::Number { bytes: bytes @ (1 | 2 | 4 | 8), signed, .. }
                | Type::Enumeration { bytes: bytes @ (1 | 2 | 4 | 8), signed, .. },
                [_],
            ) => (*bytes, if *signed { 's' } else { 'u' }),
            (Type::Pointer { .. }, [_]) => (8, 'x'),
            _ => {
                return Err(LinesError::new("it is an array of values that a probe cannot record as one")
                    .hint("take an element: `[N]`"));
            }
        };
        let count = counts.first().copied().flatten().filter(|count| (1..=ELEMENTS_MAX).contains(count));
        let count = count.ok_or_else(|| {
            LinesError::new("a probe records arrays of 1 to 64 elements")
                .hint("take an element: `[N]`, or for characters `:string`")
        })?;
        if wanted.ty.is_some() {
            return Err(LinesError::new("a type is for one value, and this is an array")
                .hint("leave out the type, or take an element: `[N]`"));
        }
        let Location::Memory(address) = &object.location else {
            return Err(
                LinesError::new("it is an array that is not in memory").hint("take an element: `[N]`")
            );
        };
        let source = self.at(address, object.bit_offset, wanted.user)?;
        Ok(Fetch { name: name.to_owned(), source, ty: Some(format!("{letter}{}[{count}]", bytes * 8)) })
    }
}

/// The names of the first of some members.
fn names_of(members: &[Member], most: usize) -> String {
    let names = members.iter().filter_map(|member| member.name.as_deref()).take(most);
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The element of this index, of elements of so many bytes.
fn moved(object: Object, bytes: u64, index: u64) -> Result<Object> {
    let bits = bytes.checked_mul(8).and_then(|bits| bits.checked_mul(index));
    let bit_offset = bits.and_then(|bits| bits.checked_add(object.bit_offset));
    let bit_offset = bit_offset.ok_or_else(|| LinesError::new("the index leads out of memory"))?;
    Ok(Object { bit_offset, ..object })
}

/// A type that was asked for, if it shows no more bits than the value has.
fn accepted(wanted: &str, has: &str, is_field: bool) -> Result<String> {
    let bits = |ty: &str| ty.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse::<u32>().ok();
    let refused = |why: &str| LinesError::new(format!("the type `{wanted}` {why}"));
    let width = match wanted {
        "char" => Some(8),
        "symbol" | "symstr" => Some(64),
        "u8" | "u16" | "u32" | "u64" | "s8" | "s16" | "s32" | "s64" | "x8" | "x16" | "x32" | "x64" => {
            bits(wanted)
        }
        "u" | "s" | "x" => match bits(has).filter(|_| !is_field) {
            Some(bits) => return Ok(format!("{wanted}{bits}")),
            None => None,
        },
        _ => {
            return Err(refused(
                "is not one of `u8` to `x64`, `u`, `s`, `x`, `char`, `symbol`, `string` and `ustring`",
            ));
        }
    };
    match (width, bits(has)) {
        _ if is_field => Err(refused("does not fit a bit-field").hint("leave out the type")),
        (Some(width), Some(bits)) if width <= bits => Ok(wanted.to_owned()),
        _ => Err(refused(&format!("shows more bits than the value has, which is `{has}`"))),
    }
}
