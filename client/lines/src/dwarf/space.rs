//! One `.debug_info` section, and its units.

use std::rc::Rc;

use gimli::{
    AbbreviationsCacheStrategy, AttributeValue, DebuggingInformationEntry, UnitHeader, UnitOffset, UnitType,
};

use crate::error::{LinesError, Result};
use crate::image::Bytes;
use crate::model::Kept;

/// Units whose abbreviations are kept. One of a split file was given addresses by its skeleton, which is read again
/// with it.
const UNITS_KEPT: usize = 128;

/// Units of a file, at most.
const UNITS_MAX: usize = 1 << 16;

/// The longest name or path, in bytes.
const TEXT_MAX: usize = 4096;

/// A unit of a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) space: usize,
    pub(super) unit: usize,
}

/// An entry of a unit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) place: Place,
    pub(super) offset: UnitOffset,
}

/// One `.debug_info` section with the sections that it reads.
pub(super) struct Space<'a> {
    pub(super) dwarf: gimli::Dwarf<Bytes<'a>>,
    headers: Vec<UnitHeader<Bytes<'a>>>,
    units: Kept<gimli::Unit<Bytes<'a>>, UNITS_KEPT>,
}

impl<'a> Space<'a> {
    pub(super) fn new(mut dwarf: gimli::Dwarf<Bytes<'a>>) -> Result<Self> {
        // Units can share abbreviations, which would be read again for each.
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let mut headers = Vec::new();
        let mut units = dwarf.debug_info.units();
        while let Some(header) = units.next()? {
            if header.format() == gimli::Format::Dwarf64 {
                return Err(LinesError::new(
                    "the file has debug information of the 64-bit form, which no kernel has",
                ));
            }
            headers.push(header);
            if headers.len() > UNITS_MAX {
                return Err(LinesError::new("the file has more units than any kernel"));
            }
        }
        Ok(Self { dwarf, headers, units: Kept::default() })
    }

    pub(super) fn len(&self) -> usize {
        self.headers.len()
    }

    pub(super) fn type_of(&self, number: usize) -> Option<UnitType<usize>> {
        self.headers.get(number).map(UnitHeader::type_)
    }

    pub(super) fn unit(&self, number: usize) -> Result<Rc<gimli::Unit<Bytes<'a>>>> {
        self.units.get(number, || self.read(number))
    }

    fn read(&self, number: usize) -> Result<gimli::Unit<Bytes<'a>>> {
        let header =
            self.headers.get(number).ok_or_else(|| LinesError::new("a reference leads to no unit"))?;
        Ok(self.dwarf.unit(*header)?)
    }

    /// Gives a unit of a split file what only its skeleton knows: where its addresses are.
    pub(super) fn adopt(&self, number: usize, skeleton: &gimli::Unit<Bytes<'a>>) -> Result<()> {
        let mut unit = self.read(number)?;
        unit.copy_relocated_attributes(skeleton);
        self.units.keep(number, unit);
        Ok(())
    }

    /// The unit in which this offset of the section lies.
    pub(super) fn number_at(&self, offset: usize) -> Option<usize> {
        let start =
            |header: &UnitHeader<Bytes<'a>>| header.debug_info_offset().map_or(usize::MAX, |offset| offset.0);
        self.headers.partition_point(|header| start(header) <= offset).checked_sub(1)
    }

    /// An offset of the section within its unit.
    pub(super) fn within(&self, unit: usize, offset: usize) -> Option<UnitOffset> {
        gimli::DebugInfoOffset(offset).to_unit_offset(self.headers.get(unit)?)
    }

    /// The offset of an entry in the section.
    pub(super) fn offset(&self, unit: usize, offset: UnitOffset) -> usize {
        let start = self.headers.get(unit).and_then(UnitHeader::debug_info_offset);
        start.map_or(0, |start| start.0).wrapping_add(offset.0)
    }

    pub(super) fn entry(&self, entry: Entry) -> Result<DebuggingInformationEntry<Bytes<'a>>> {
        Ok(self.unit(entry.place.unit)?.entry(entry.offset)?)
    }

    pub(super) fn text(
        &self,
        unit: &gimli::Unit<Bytes<'a>>,
        value: AttributeValue<Bytes<'a>>,
    ) -> Result<String> {
        let text = self.dwarf.attr_string(unit, value)?;
        if text.len() > TEXT_MAX {
            return Err(LinesError::new("the debug information has a name of more than 4 KiB"));
        }
        Ok(text.to_string_lossy().into_owned())
    }
}
