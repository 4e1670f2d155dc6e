//! Types of DWARF, read one by one when a variable needs them.

use gimli::{AttributeValue, DebuggingInformationEntry, DwAt, DwTag, UnitOffset, constants as dw};

use super::Dwarf;
use super::expression::NumberType;
use super::space::{Entry, Place};
use crate::error::{LinesError, Result};
use crate::image::Bytes;
use crate::model::{Member, Type, TypeId};

/// Bits of an id that hold the offset; those above hold the space.
const OFFSET_BITS: u32 = 44;

/// Members of a structure, at most.
const MEMBERS_MAX: usize = 1 << 16;

type Die<'a> = DebuggingInformationEntry<Bytes<'a>>;

fn number(entry: &Die<'_>, name: DwAt) -> Option<u64> {
    entry.attr(name)?.udata_value()
}

impl<'a> Dwarf<'a> {
    /// The id of an entry.
    pub(super) fn id(&self, entry: Entry) -> u64 {
        let offset = self
            .spaces
            .get(entry.place.space)
            .map_or(0, |space| space.offset(entry.place.unit, entry.offset));
        (entry.place.space as u64) << OFFSET_BITS | offset as u64
    }

    /// The entry of an id.
    fn entry_of(&self, id: u64) -> Result<Entry> {
        let missing = || LinesError::new("a reference to a type leads to no entry");
        let space = usize::try_from(id >> OFFSET_BITS).ok().ok_or_else(missing)?;
        let offset = usize::try_from(id & ((1 << OFFSET_BITS) - 1)).ok().ok_or_else(missing)?;
        let of = self.space(space)?;
        let unit = of.number_at(offset).ok_or_else(missing)?;
        let offset = of.within(unit, offset).ok_or_else(missing)?;
        Ok(Entry { place: Place { space, unit }, offset })
    }

    /// The id of the type of an entry.
    pub(super) fn type_of(&self, place: Place, entry: &Die<'a>) -> Result<Option<TypeId>> {
        let Some(value) = entry.attr_value(dw::DW_AT_type) else { return Ok(None) };
        let target = self.target(place, &value)?;
        // A type by its signature is in a unit of its own, which no kernel has.
        target
            .map(|entry| Some(TypeId(self.id(entry))))
            .ok_or_else(|| LinesError::new("a type is in a unit of types"))
    }

    fn name_of(&self, place: Place, entry: &Die<'a>) -> Result<Option<String>> {
        let Some(value) = entry.attr_value(dw::DW_AT_name) else { return Ok(None) };
        let space = self.space(place.space)?;
        Ok(Some(space.text(&*space.unit(place.unit)?, value)?))
    }

    pub(super) fn read_type(&self, id: TypeId) -> Result<Type> {
        let at = self.entry_of(id.0)?;
        let entry = self.space(at.place.space)?.entry(at)?;
        let name = self.name_of(at.place, &entry)?;
        let to = || self.type_of(at.place, &entry);
        let bytes = number(&entry, dw::DW_AT_byte_size);
        let prefix = |prefix: &str| Ok(Type::Alias { prefix: prefix.to_owned(), name: None, to: to()? });
        match entry.tag() {
            dw::DW_TAG_base_type => {
                let name = name.unwrap_or_default();
                let is_signed = match entry.attr_value(dw::DW_AT_encoding) {
                    Some(AttributeValue::Encoding(dw::DW_ATE_signed | dw::DW_ATE_signed_char)) => true,
                    Some(AttributeValue::Encoding(
                        dw::DW_ATE_unsigned | dw::DW_ATE_unsigned_char | dw::DW_ATE_boolean | dw::DW_ATE_UTF,
                    )) => false,
                    _ => return Ok(Type::Other(name)),
                };
                Ok(bytes.map_or_else(
                    || Type::Other(name.clone()),
                    |bytes| Type::Number { name: name.clone(), bytes, signed: is_signed },
                ))
            }
            dw::DW_TAG_typedef => Ok(Type::Alias { prefix: String::new(), name, to: to()? }),
            dw::DW_TAG_const_type => prefix("const"),
            dw::DW_TAG_volatile_type => prefix("volatile"),
            dw::DW_TAG_restrict_type | dw::DW_TAG_atomic_type => prefix(""),
            dw::DW_TAG_pointer_type => Ok(Type::Pointer { to: to()? }),
            dw::DW_TAG_structure_type => self.composite("struct", at, name, bytes),
            dw::DW_TAG_union_type => self.composite("union", at, name, bytes),
            dw::DW_TAG_enumeration_type => {
                let is_negative = || self.has_negative(at);
                let encoded = match entry.attr_value(dw::DW_AT_encoding) {
                    Some(AttributeValue::Encoding(encoding)) => Some(encoding == dw::DW_ATE_signed),
                    _ => None,
                };
                let signed = encoded.map_or_else(is_negative, Ok)?;
                Ok(Type::Enumeration { name, bytes: bytes.unwrap_or(4), signed })
            }
            dw::DW_TAG_array_type => self.array(at, to()?, &entry),
            dw::DW_TAG_subroutine_type => Ok(Type::Other("function".to_owned())),
            tag => Ok(Type::Other(name.unwrap_or_else(|| tag_name(tag)))),
        }
    }

    /// Calls with each child of an entry.
    fn children(&self, at: Entry, mut visit: impl FnMut(&Die<'a>) -> Result<()>) -> Result<()> {
        let unit = self.space(at.place.space)?.unit(at.place.unit)?;
        let mut tree = unit.entries_tree(Some(at.offset))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            visit(child.entry())?;
        }
        Ok(())
    }

    fn has_negative(&self, at: Entry) -> Result<bool> {
        let mut found = false;
        self.children(at, |child| {
            let value = child.attr(dw::DW_AT_const_value);
            // GCC writes signed constants for enumerations with a negative one only.
            found |= value
                .is_some_and(|value| matches!(value.value(), AttributeValue::Sdata(number) if number < 0));
            Ok(())
        })?;
        Ok(found)
    }

    fn composite(&self, keyword: &str, at: Entry, name: Option<String>, bytes: Option<u64>) -> Result<Type> {
        let mut members = Vec::new();
        self.children(at, |child| {
            if child.tag() == dw::DW_TAG_member {
                if members.len() >= MEMBERS_MAX {
                    return Err(LinesError::new("a structure has more members than any of C"));
                }
                members.push(self.member(at.place, child)?);
            }
            Ok(())
        })?;
        Ok(Type::Composite { keyword: keyword.to_owned(), name, bytes, members })
    }

    fn member(&self, place: Place, entry: &Die<'a>) -> Result<Member> {
        let bytes = match entry.attr_value(dw::DW_AT_data_member_location) {
            None => 0,
            Some(value) => {
                value.udata_value().ok_or_else(|| LinesError::new("a member has no fixed offset"))?
            }
        };
        let ty = self.type_of(place, entry)?;
        let width = number(entry, dw::DW_AT_bit_size);
        let bit_offset = if let Some(bits) = number(entry, dw::DW_AT_data_bit_offset) {
            Some(bits)
        } else if let (Some(from_top), Some(width)) = (number(entry, dw::DW_AT_bit_offset), width) {
            // DWARF 3: counted from the most significant bit of the unit that holds the field.
            let unit = match number(entry, dw::DW_AT_byte_size) {
                Some(bytes) => Some(bytes),
                None => ty.map(|ty| self.size(ty, 0)).transpose()?.flatten(),
            };
            unit.and_then(|unit| {
                let bits = unit.checked_mul(8)?.checked_sub(from_top)?.checked_sub(width)?;
                bytes.checked_mul(8)?.checked_add(bits)
            })
        } else {
            bytes.checked_mul(8)
        };
        let bit_offset =
            bit_offset.ok_or_else(|| LinesError::new("a member has an offset outside of its structure"))?;
        Ok(Member {
            name: self.name_of(place, entry)?,
            ty,
            bit_offset,
            bit_width: width.map(|width| u8::try_from(width).unwrap_or(u8::MAX)),
        })
    }

    /// The size of a number or of a name for one.
    fn size(&self, id: TypeId, depth: usize) -> Result<Option<u64>> {
        if depth > 16 {
            return Err(LinesError::new("a type is named by itself"));
        }
        match self.read_type(id)? {
            Type::Number { bytes, .. } | Type::Enumeration { bytes, .. } => Ok(Some(bytes)),
            Type::Alias { to: Some(to), .. } => self.size(to, depth + 1),
            _ => Ok(None),
        }
    }

    fn array(&self, at: Entry, of: Option<TypeId>, entry: &Die<'a>) -> Result<Type> {
        if entry.has_attr(dw::DW_AT_GNU_vector) {
            return Ok(Type::Other("vector".to_owned()));
        }
        let mut counts = Vec::new();
        self.children(at, |child| {
            if child.tag() == dw::DW_TAG_subrange_type {
                let bound = || number(child, dw::DW_AT_upper_bound).and_then(|bound| bound.checked_add(1));
                counts.push(number(child, dw::DW_AT_count).or_else(bound));
            }
            Ok(())
        })?;
        Ok(Type::Array { of, counts })
    }

    /// The type that an expression computes with.
    pub(super) fn number_type(&self, place: Place, offset: UnitOffset) -> Option<NumberType> {
        match self.read_type(TypeId(self.id(Entry { place, offset }))).ok()? {
            Type::Number { bytes, signed, .. } if matches!(bytes, 1 | 2 | 4 | 8) => {
                Some(NumberType { bits: u8::try_from(bytes * 8).ok()?, signed })
            }
            _ => None,
        }
    }
}

fn tag_name(tag: DwTag) -> String {
    tag.static_string().unwrap_or("unknown type").trim_start_matches("DW_TAG_").replace('_', " ")
}
