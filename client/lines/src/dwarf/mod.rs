//! DWARF as a source of the model.
//!
//! Owns the sections of one kernel or module with its supplementary and split files, and finds units: by
//! address, by function, by source file. Units are read when they are asked for.

mod expression;
mod frame;
mod space;
mod types;
mod unit;

use std::cell::OnceCell;
use std::rc::Rc;

use gimli::{DebugAranges, DwarfPackage, EndianSlice, LittleEndian, SectionId, UnitType};
use hashbrown::HashMap;

use crate::error::{LinesError, Result};
use crate::image::{Bytes, Image};
use crate::model::{Kept, Lookup, Range, Source, Type, TypeId, Unit, has_components, once};
use crate::symbols::Symbols;
use crate::value::Value;
use frame::Frames;
use space::{Entry, Place, Space};

/// Units of the model that are kept; a session looks at few.
const UNITS_KEPT: usize = 32;

/// The DWARF of a kernel or a module.
pub(crate) struct Dwarf<'a> {
    image: &'a Image<'a>,
    spaces: Vec<Space<'a>>,
    frames: Frames<'a>,
    /// Where the units of split files are, by the id that their skeletons have.
    split: HashMap<u64, Place>,
    by_address: OnceCell<Vec<(Range, usize)>>,
    by_name: OnceCell<Lookup>,
    kept: Kept<Unit, UNITS_KEPT>,
}

/// The numbers of spaces.
const MAIN: usize = 0;
const SUPPLEMENTARY: usize = 1;

fn loaded<'a>(image: &'a Image<'_>) -> gimli::Dwarf<Bytes<'a>> {
    let section = |id| Ok::<_, std::convert::Infallible>(image.section(id));
    let Ok(dwarf) = gimli::Dwarf::load(section);
    dwarf
}

impl<'a> Dwarf<'a> {
    /// Takes the files together. `split` are `.dwo` and `.dwp` files.
    pub(crate) fn new(
        image: &'a Image<'a>,
        supplementary: Option<&'a Image<'a>>,
        split: &'a [Image<'a>],
    ) -> Result<Self> {
        if image.is_split {
            return Err(LinesError::new("the file is the split part of another one")
                .hint("give the file of the kernel or the module, and this one with it"));
        }
        let mut main = loaded(image);
        if main.debug_info.units().next()?.is_none() {
            return Err(LinesError::new("the file has no debug information")
                .hint("give the file of the package with debug information, such as linux-image-...-dbg"));
        }
        if let Some((path, id)) = image.supplementary() {
            let found = supplementary.ok_or_else(|| {
                LinesError::new(format!(
                    "part of the debug information is in the supplementary file `{path}`"
                ))
                .hint("give that file too")
            })?;
            if found.build_id() != id {
                return Err(LinesError::new(format!(
                    "the supplementary file is not `{path}`: its build id differs"
                )));
            }
        }
        // Without one, the space is empty.
        let extra = supplementary.map_or_else(gimli::Dwarf::default, loaded);
        if let Some(extra) = supplementary {
            main.set_sup(loaded(extra));
        }
        let mut parts = Vec::new();
        for file in split {
            parts.extend(split_parts(file, &main)?);
        }
        let mut spaces = vec![Space::new(main)?, Space::new(extra)?];
        let mut found = HashMap::new();
        for part in parts {
            let space = Space::new(part)?;
            for number in 0..space.len() {
                if let Some(id) = space.unit(number)?.dwo_id {
                    found.insert(id.0, Place { space: spaces.len(), unit: number });
                }
            }
            spaces.push(space);
        }
        Ok(Self {
            image,
            spaces,
            frames: Frames::new(image),
            split: found,
            by_address: OnceCell::new(),
            by_name: OnceCell::new(),
            kept: Kept::default(),
        })
    }

    fn space(&self, number: usize) -> Result<&Space<'a>> {
        self.spaces
            .get(number)
            .ok_or_else(|| LinesError::new("a reference leads to a file that is not given"))
    }

    /// How many units the main file has.
    pub(crate) fn units(&self) -> usize {
        self.spaces.first().map_or(0, Space::len)
    }

    /// Every rule of a frame, in the order of addresses.
    pub(crate) fn each_frame(&self, visit: impl FnMut(Range, Value)) {
        self.frames.each(visit);
    }

    /// Where the entries of a unit of the main file are: there, or in a split file.
    fn whole(&self, number: usize) -> Result<Place> {
        let unit = self.space(MAIN)?.unit(number)?;
        let (Some(id), Some(name)) = (unit.dwo_id, unit.dwo_name()?) else {
            return Ok(Place { space: MAIN, unit: number });
        };
        let place = self.split.get(&id.0).copied().ok_or_else(|| {
            let main = self.space(MAIN).and_then(|space| space.text(&unit, name));
            let name = main.unwrap_or_default();
            LinesError::new(format!("the debug information of this unit is in the split file `{name}`"))
                .hint("give that file, or the .dwp file that it is packed in")
        })?;
        self.space(place.space)?.adopt(place.unit, &unit)?;
        Ok(place)
    }

    /// The ranges of addresses of all units.
    fn ranges(&self) -> Result<&[(Range, usize)]> {
        Ok(once(&self.by_address, || {
            let main = self.space(MAIN)?;
            let mut found = Vec::new();
            let aranges = DebugAranges::from(self.image.section(SectionId::DebugAranges));
            let mut headers = aranges.headers();
            while let Some(header) = headers.next()? {
                let Some(unit) = main.number_at(header.debug_info_offset().0) else { continue };
                let mut entries = header.entries();
                while let Some(entry) = entries.next()? {
                    let range = entry.range();
                    found.push((Range { start: range.begin, end: range.end }, unit));
                }
            }
            if found.is_empty() {
                for number in 0..main.len() {
                    let unit = main.unit(number)?;
                    let ranges = unit::ranges(main, &unit, &unit.entry(unit.header.root_offset())?)?;
                    found.extend(ranges.into_iter().map(|range| (range, number)));
                }
            }
            found.sort_by_key(|(range, _)| range.start);
            Ok(found)
        })?)
    }

    /// The units of each function: those that have its code, or copies of it.
    fn names(&self) -> Result<&Lookup> {
        once(&self.by_name, || {
            let mut found = Lookup::default();
            for number in 0..self.units() {
                // A unit whose split file is missing has no names; a place in it says which file is missing.
                let Ok(place) = self.whole(number) else { continue };
                self.each_function_name(place, &mut |name| found.add(name, number))?;
            }
            Ok(found)
        })
    }

    /// The units of the symbols of a global function, if it is of a source that no other one includes: its
    /// copies are in its own unit then.
    fn units_by_symbol(&self, name: &str) -> Result<Option<Vec<usize>>> {
        // A static function may have a symbol with a suffix (`NAME.isra.0`) in one source, and none in others.
        let mut named = self.image.symbols.named(name).peekable();
        if named.peek().is_none() || named.any(|symbol| !symbol.is_global) {
            return Ok(None);
        }
        let mut units = Vec::new();
        for symbol in self.image.symbols.functions_and_parts(name) {
            let Some(number) = self.unit_at(symbol.address)? else { return Ok(None) };
            if units.contains(&number) {
                continue;
            }
            let unit = self.unit(number)?;
            let Some(function) = unit.functions.iter().find(|function| function.name == name) else {
                return Ok(None);
            };
            // A source that another one includes is seen by the name of its unit.
            let path = unit.files.get(function.declared.file as usize);
            if path.map(String::as_str) != self.unit_name(number)?.as_deref() {
                return Ok(None);
            }
            units.push(number);
        }
        Ok(Some(units).filter(|units| !units.is_empty()))
    }

    fn unit_at(&self, address: u64) -> Result<Option<usize>> {
        let ranges = self.ranges()?;
        let end = ranges.partition_point(|(range, _)| range.start <= address);
        let before = ranges.get(..end).unwrap_or_default().iter().rev().take(8);
        Ok(before.filter(|(range, _)| address < range.end).map(|(_, unit)| *unit).next())
    }

    fn unit_name(&self, number: usize) -> Result<Option<String>> {
        let space = self.space(MAIN)?;
        let unit = space.unit(number)?;
        let name = unit.name.map(|name| name.to_string_lossy().into_owned());
        Ok(name.map(|name| unit::relative(&name, unit.comp_dir.map(|dir| dir.to_string_lossy()).as_deref())))
    }

    /// The entry that an attribute refers to.
    fn target(&self, from: Place, value: &gimli::AttributeValue<Bytes<'a>>) -> Result<Option<Entry>> {
        let across = |number: usize, offset: usize| -> Result<Option<Entry>> {
            let space = self.space(number)?;
            Ok(space.number_at(offset).and_then(|unit| {
                let place = Place { space: number, unit };
                Some(Entry { place, offset: space.within(unit, offset)? })
            }))
        };
        match *value {
            gimli::AttributeValue::UnitRef(offset) => Ok(Some(Entry { place: from, offset })),
            gimli::AttributeValue::DebugInfoRef(offset) => across(from.space, offset.0),
            gimli::AttributeValue::DebugInfoRefSup(offset) => across(SUPPLEMENTARY, offset.0),
            _ => Ok(None),
        }
    }
}

/// The units of a split file, each with the sections that it reads.
fn split_parts<'a>(
    file: &'a Image<'_>,
    main: &gimli::Dwarf<Bytes<'a>>,
) -> Result<Vec<gimli::Dwarf<Bytes<'a>>>> {
    if !file.is_split {
        return Err(LinesError::new("the file is not a split one (.dwo or .dwp)"));
    }
    if file.section(SectionId::DebugCuIndex).is_empty() {
        let mut part = loaded(file);
        part.make_dwo(main);
        return Ok(vec![part]);
    }
    let section = |id| Ok::<_, gimli::Error>(file.section(id));
    let package = DwarfPackage::load(section, EndianSlice::new(&[], LittleEndian))?;
    let units = 1..=package.cu_index.unit_count();
    units.map(|number| Ok(package.cu_sections(number, main)?)).collect()
}

impl Source for Dwarf<'_> {
    fn build_id(&self) -> &[u8] {
        self.image.build_id()
    }

    fn symbols(&self) -> &Symbols {
        &self.image.symbols
    }

    fn unit(&self, number: usize) -> Result<Rc<Unit>> {
        self.kept.get(number, || self.read_unit(number))
    }

    fn units_of_function(&self, name: &str, all: bool) -> Result<Vec<usize>> {
        if !all && let Some(units) = self.units_by_symbol(name)? {
            return Ok(units);
        }
        let numbers = self.names()?.units.get(name);
        Ok(numbers.into_iter().flatten().map(|number| *number as usize).collect())
    }

    fn units_of_file(&self, path: &str) -> Result<Vec<usize>> {
        let space = self.space(MAIN)?;
        let mut found = Vec::new();
        for number in 0..space.len() {
            let unit = space.unit(number)?;
            let is_skipped = matches!(space.type_of(number), Some(UnitType::Partial | UnitType::Type { .. }));
            if !is_skipped && unit::paths(space, &unit)?.iter().flatten().any(|has| has_components(has, path))
            {
                found.push(number);
            }
        }
        Ok(found)
    }

    fn ty(&self, id: TypeId) -> Result<Type> {
        self.read_type(id)
    }

    fn frame_address(&self, _unit: usize, address: u64) -> Result<Value> {
        self.frames.address(address)
    }

    fn function_names(&self) -> Result<Vec<String>> {
        Ok(self.names()?.units.keys().cloned().collect())
    }
}
