//! Units of DWARF, read whole: functions with their scopes, variables and copies, and the statements.

use std::cell::Cell;

use gimli::{
    AttributeValue, DebuggingInformationEntry, DwAt, LineProgramHeader, UnitOffset, constants as dw,
};
use hashbrown::HashMap;

use super::Dwarf;
use super::MAIN;
use super::expression::{CONSTANT_MAX, Meaning, meaning};
use super::space::{Entry, Place, Space};
use crate::error::{LinesError, Result};
use crate::image::Bytes;
use crate::model::{
    Declaration, Function, Inlined, Location, Places, Range, Row, Scope, ScopeKind, TypeId, Unit, Variable,
};
use crate::value::Value;

/// Scopes within each other, at most.
const DEPTH_MAX: usize = 100;

/// References from an entry to the one that describes it, at most.
const ORIGINS_MAX: usize = 8;

/// Ranges and places of variables in one unit, at most.
const ITEMS_MAX: usize = 1 << 20;

type Die<'a> = DebuggingInformationEntry<Bytes<'a>>;
type GimliUnit<'a> = gimli::Unit<Bytes<'a>>;

/// A path as the line table has it, without the directory that the compiler ran in.
pub(super) fn relative(path: &str, directory: Option<&str>) -> String {
    let inner =
        directory.and_then(|directory| path.strip_prefix(directory)).and_then(|path| path.strip_prefix('/'));
    let path = inner.unwrap_or(path);
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." if parts.last().is_some_and(|last| *last != ".." && !last.is_empty()) => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The files of a unit, each once.
#[derive(Default)]
struct Files {
    paths: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Files {
    fn number(&mut self, path: &str) -> u32 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        let number = u32::try_from(self.paths.len()).unwrap_or(u32::MAX);
        self.paths.push(path.to_owned());
        self.numbers.insert(path.to_owned(), number);
        number
    }
}

/// A scope that is being read.
struct Open {
    depth: isize,
    scope: Scope,
    /// The function that it is the body of.
    function: Option<(String, Declaration, Option<u64>)>,
}

/// One unit that is being read.
struct Reader<'r, 'a> {
    dwarf: &'r Dwarf<'a>,
    space: &'r Space<'a>,
    place: Place,
    unit: &'r GimliUnit<'a>,
    files: Files,
    /// The paths of the line tables, by the unit that has them.
    tables: HashMap<Place, Vec<Option<String>>>,
    frame_base: Option<Value>,
    /// Ranges and places so far.
    items: Cell<usize>,
}

impl<'a> Dwarf<'a> {
    pub(crate) fn read_unit(&self, number: usize) -> Result<Unit> {
        let place = self.whole(number)?;
        let space = self.space(place.space)?;
        let unit = space.unit(place.unit)?;
        let main = self.space(MAIN)?;
        let outer = main.unit(number)?;
        let mut reader = Reader {
            dwarf: self,
            space,
            place,
            unit: &unit,
            files: Files::default(),
            tables: HashMap::from([(place, paths(main, &outer)?)]),
            frame_base: None,
            items: Cell::new(0),
        };
        let mut read = Unit::default();
        reader.entries(&mut read)?;
        reader.rows(&outer, &mut read)?;
        read.files = reader.files.paths;
        Ok(read)
    }

    /// Calls with the name of each function that has code or copies in a unit.
    pub(super) fn each_function_name(&self, place: Place, found: &mut dyn FnMut(&str)) -> Result<()> {
        let space = self.space(place.space)?;
        let unit = space.unit(place.unit)?;
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs()? {
            let is_copy = entry.tag() == dw::DW_TAG_inlined_subroutine;
            let is_function = entry.tag() == dw::DW_TAG_subprogram && !entry.has_attr(dw::DW_AT_declaration);
            if !is_copy && !is_function {
                continue;
            }
            if let Some(name) = entry.attr_value(dw::DW_AT_name) {
                found(&space.dwarf.attr_string(&unit, name)?.to_string_lossy());
                continue;
            }
            // A copy of a function of this unit is found by the function's own entry.
            let origin = entry.attr_value(dw::DW_AT_abstract_origin);
            let is_elsewhere = !matches!(origin, None | Some(AttributeValue::UnitRef(_)));
            if (is_elsewhere || is_function)
                && let Some(name) = self.name(place, entry)?
            {
                found(&name);
            }
        }
        Ok(())
    }

    /// The name of an entry, or of the one that describes it.
    fn name(&self, place: Place, entry: &Die<'a>) -> Result<Option<String>> {
        let Some((value, at)) = self.attribute(place, entry, dw::DW_AT_name)? else { return Ok(None) };
        let space = self.space(at.space)?;
        Ok(Some(space.text(&*space.unit(at.unit)?, value)?))
    }

    /// An attribute of an entry, or of the one that describes it, with the unit that it is in.
    fn attribute(
        &self,
        place: Place,
        entry: &Die<'a>,
        name: DwAt,
    ) -> Result<Option<(AttributeValue<Bytes<'a>>, Place)>> {
        let mut place = place;
        let mut origin;
        let mut entry = entry;
        for _ in 0..ORIGINS_MAX {
            if let Some(value) = entry.attr_value(name) {
                return Ok(Some((value, place)));
            }
            let further = entry
                .attr_value(dw::DW_AT_abstract_origin)
                .or_else(|| entry.attr_value(dw::DW_AT_specification));
            let Some(further) = further else { return Ok(None) };
            let Some(target) = self.target(place, &further)? else { return Ok(None) };
            origin = self.space(target.place.space)?.entry(target)?;
            entry = &origin;
            place = target.place;
        }
        Err(LinesError::new("an entry of the debug information is described by itself"))
    }
}

/// The paths of a unit's line table, by their numbers in it.
pub(super) fn paths<'a>(space: &Space<'a>, unit: &GimliUnit<'a>) -> Result<Vec<Option<String>>> {
    let Some(program) = &unit.line_program else { return Ok(Vec::new()) };
    let header = program.header();
    // The tables of DWARF 5 begin with 0, those before with 1.
    let first = u64::from(header.version() < 5);
    let count = header.file_names().len() as u64 + first;
    (0..count).map(|number| path(space, unit, header, number)).collect()
}

/// The code of an entry. gimli's function of this purpose adds without a check.
pub(super) fn ranges<'a>(space: &Space<'a>, unit: &GimliUnit<'a>, entry: &Die<'a>) -> Result<Vec<Range>> {
    let list =
        entry.attr_value(dw::DW_AT_ranges).map(|value| space.dwarf.attr_ranges(unit, value)).transpose()?;
    let mut found = Vec::new();
    if let Some(mut list) = list.flatten() {
        while let Some(range) = list.next()? {
            found.push(Range { start: range.begin, end: range.end });
            if found.len() > ITEMS_MAX {
                return Err(LinesError::new("an entry has more ranges of addresses than any of C"));
            }
        }
    } else if let (Some(low), Some(high)) =
        (entry.attr_value(dw::DW_AT_low_pc), entry.attr_value(dw::DW_AT_high_pc))
        && let Some(start) = space.dwarf.attr_address(unit, low)?
    {
        let end = match high {
            AttributeValue::Udata(bytes) => start.checked_add(bytes),
            high => space.dwarf.attr_address(unit, high)?,
        };
        found.extend(end.map(|end| Range { start, end }));
    }
    found.retain(|range| range.start < range.end);
    Ok(found)
}

/// The path of a file of a line table, by its number in it.
fn path<'a>(
    space: &Space<'a>,
    unit: &GimliUnit<'a>,
    header: &LineProgramHeader<Bytes<'a>>,
    number: u64,
) -> Result<Option<String>> {
    let Some(file) = header.file(number) else { return Ok(None) };
    let directory = unit.comp_dir.map(|directory| directory.to_string_lossy().into_owned());
    let name = space.text(unit, file.path_name())?;
    let path = match file.directory(header) {
        Some(value) if !name.starts_with('/') && file.directory_index() != 0 => {
            format!("{}/{name}", space.text(unit, value)?)
        }
        _ => name,
    };
    Ok(Some(relative(&path, directory.as_deref())))
}

impl<'a> Reader<'_, 'a> {
    fn rows(&mut self, unit: &GimliUnit<'a>, read: &mut Unit) -> Result<()> {
        let Some(program) = unit.line_program.clone() else { return Ok(()) };
        let table = self.tables.get(&self.place).cloned().unwrap_or_default();
        let numbers: Vec<Option<u32>> =
            table.iter().map(|path| path.as_ref().map(|path| self.files.number(path))).collect();
        let mut rows = program.rows();
        while let Some((_, row)) = rows.next_row()? {
            let file = usize::try_from(row.file_index())
                .ok()
                .and_then(|index| numbers.get(index).copied().flatten());
            let line = row.line().and_then(|line| u32::try_from(line.get()).ok());
            if row.end_sequence() {
                read.rows.push(Row { address: row.address(), file: 0, line: 0 });
            } else if let (Some(file), Some(line), true) = (file, line, row.is_stmt()) {
                read.rows.push(Row { address: row.address(), file, line });
            }
        }
        Ok(())
    }

    fn entries(&mut self, read: &mut Unit) -> Result<()> {
        let unit = self.unit;
        let mut entries = unit.entries();
        let mut open: Vec<Open> = Vec::new();
        while let Some(entry) = entries.next_dfs()? {
            let depth = entry.depth();
            while let Some(done) = open.pop_if(|open| open.depth >= depth) {
                close(done, &mut open, read);
            }
            let is_inside = open.last().is_some_and(|open| open.depth == depth - 1);
            match entry.tag() {
                dw::DW_TAG_subprogram if !entry.has_attr(dw::DW_AT_declaration) => {
                    if let Some(function) = self.function(entry)? {
                        open.push(Open { depth, ..function });
                    }
                }
                dw::DW_TAG_lexical_block if is_inside => {
                    let scope = self.scope(entry, ScopeKind::Block)?;
                    open.push(Open { depth, scope, function: None });
                }
                dw::DW_TAG_inlined_subroutine if is_inside => {
                    let kind = self.inlined(entry)?;
                    let scope = self.scope(entry, kind)?;
                    open.push(Open { depth, scope, function: None });
                }
                dw::DW_TAG_formal_parameter | dw::DW_TAG_variable if is_inside || depth == 1 => {
                    let Some(variable) = self.variable(entry)? else { continue };
                    match open.last_mut() {
                        Some(open) => open.scope.variables.push(variable),
                        None => read.globals.push(variable),
                    }
                }
                _ => {}
            }
            if open.len() > DEPTH_MAX {
                return Err(LinesError::new(
                    "the debug information has more scopes within each other than any C has",
                ));
            }
        }
        while let Some(done) = open.pop() {
            close(done, &mut open, read);
        }
        Ok(())
    }

    /// Counts a range or a place: entries can share long lists.
    fn count(&self) -> Result<()> {
        self.items.set(self.items.get() + 1);
        if self.items.get() > ITEMS_MAX {
            return Err(LinesError::new("a unit has more ranges and places of variables than any C has"));
        }
        Ok(())
    }

    fn file(&mut self, at: Place, number: u64) -> Result<u32> {
        if !self.tables.contains_key(&at) {
            let space = self.dwarf.space(at.space)?;
            let paths = paths(space, &*space.unit(at.unit)?)?;
            self.tables.insert(at, paths);
        }
        let table = self.tables.get(&at);
        let path = usize::try_from(number).ok().and_then(|number| table?.get(number)?.clone());
        Ok(self.files.number(path.as_deref().unwrap_or("")))
    }

    fn declaration(&mut self, entry: &Die<'a>, file: DwAt, line: DwAt) -> Result<Declaration> {
        let number = |value: Option<(AttributeValue<Bytes<'a>>, Place)>| match value {
            Some((AttributeValue::FileIndex(number), at)) => Some((number, at)),
            Some((value, at)) => Some((value.udata_value()?, at)),
            None => None,
        };
        let line = number(self.dwarf.attribute(self.place, entry, line)?);
        let line = line.and_then(|(line, _)| u32::try_from(line).ok()).unwrap_or(0);
        let file = match number(self.dwarf.attribute(self.place, entry, file)?) {
            Some((number, at)) => self.file(at, number)?,
            None => self.files.number(""),
        };
        Ok(Declaration { file, line })
    }

    fn ranges(&self, entry: &Die<'a>) -> Result<Vec<Range>> {
        let ranges = ranges(self.space, self.unit, entry)?;
        ranges.iter().try_for_each(|_| self.count())?;
        Ok(ranges)
    }

    fn address(&self, entry: &Die<'a>, name: DwAt) -> Result<Option<u64>> {
        let Some(value) = entry.attr_value(name) else { return Ok(None) };
        Ok(self.space.dwarf.attr_address(self.unit, value)?)
    }

    /// Where the code of an entry begins.
    fn entry_address(&self, entry: &Die<'a>, ranges: &[Range]) -> Result<Option<u64>> {
        let first = || ranges.first().map(|range| range.start);
        // DWARF 5 allows an offset from the base of the entry here.
        let given = match entry.attr_value(dw::DW_AT_entry_pc) {
            Some(AttributeValue::Udata(offset)) => first().and_then(|first| first.checked_add(offset)),
            Some(_) => self.address(entry, dw::DW_AT_entry_pc)?,
            None => None,
        };
        Ok(given.or(self.address(entry, dw::DW_AT_low_pc)?.filter(|_| !ranges.is_empty())).or_else(first))
    }

    fn function(&mut self, entry: &Die<'a>) -> Result<Option<Open>> {
        let Some(name) = self.dwarf.name(self.place, entry)? else { return Ok(None) };
        let declared = self.declaration(entry, dw::DW_AT_decl_file, dw::DW_AT_decl_line)?;
        let base = entry.attr_value(dw::DW_AT_frame_base).and_then(|value| value.exprloc_value());
        self.frame_base = match base.map(|base| meaning(&Meaning::of_unit(self.unit.encoding(), None), base))
        {
            // A register as the frame base: its value.
            Some(Location::Memory(value) | Location::Value(value)) => Some(value),
            _ => None,
        };
        let scope = self.scope(entry, ScopeKind::Body)?;
        let address = self.entry_address(entry, &scope.ranges)?;
        Ok(Some(Open { depth: 0, scope, function: Some((name, declared, address)) }))
    }

    fn scope(&self, entry: &Die<'a>, kind: ScopeKind) -> Result<Scope> {
        Ok(Scope { kind, ranges: self.ranges(entry)?, variables: Vec::new(), scopes: Vec::new() })
    }

    fn inlined(&mut self, entry: &Die<'a>) -> Result<ScopeKind> {
        let ranges = self.ranges(entry)?;
        Ok(ScopeKind::Inlined(Inlined {
            name: self.dwarf.name(self.place, entry)?.unwrap_or_default(),
            declared: self.declaration(entry, dw::DW_AT_decl_file, dw::DW_AT_decl_line)?,
            called: self.declaration(entry, dw::DW_AT_call_file, dw::DW_AT_call_line)?,
            entry: self.entry_address(entry, &ranges)?,
        }))
    }

    fn variable(&mut self, entry: &Die<'a>) -> Result<Option<Variable>> {
        // A parameter without a name is one that nothing can refer to.
        let Some(name) = self.dwarf.name(self.place, entry)? else { return Ok(None) };
        let ty: Option<TypeId> = match self.dwarf.attribute(self.place, entry, dw::DW_AT_type)? {
            Some((value, at)) => self.dwarf.target(at, &value)?.map(|entry| TypeId(self.dwarf.id(entry))),
            None => None,
        };
        let declared = self.declaration(entry, dw::DW_AT_decl_file, dw::DW_AT_decl_line)?;
        let places = self.places(entry)?;
        if entry.has_attr(dw::DW_AT_declaration) && matches!(places, Places::Nowhere) {
            return Ok(None);
        }
        Ok(Some(Variable {
            id: self.dwarf.id(Entry { place: self.place, offset: entry.offset() }),
            name,
            is_parameter: entry.tag() == dw::DW_TAG_formal_parameter,
            declared,
            ty,
            places,
        }))
    }

    fn places(&self, entry: &Die<'a>) -> Result<Places> {
        if let Some(value) = entry.attr_value(dw::DW_AT_location) {
            if let AttributeValue::Exprloc(expression) = value {
                return Ok(Places::Always(self.meaning(expression)));
            }
            let Some(mut list) = self.space.dwarf.attr_locations(self.unit, value)? else {
                return Ok(Places::Always(Location::Unknown("its location has an unknown form".to_owned())));
            };
            let mut found = Vec::new();
            while let Some(entry) = list.next()? {
                let range = Range { start: entry.range.begin, end: entry.range.end };
                if range.start < range.end {
                    found.push((range, self.meaning(entry.data)));
                }
                self.count()?;
            }
            return Ok(Places::At(found));
        }
        let constant = self.dwarf.attribute(self.place, entry, dw::DW_AT_const_value)?;
        Ok(match constant {
            None => Places::Nowhere,
            Some((AttributeValue::Block(bytes), _)) if bytes.len() <= CONSTANT_MAX => {
                Places::Always(Location::Bytes(bytes.slice().to_vec()))
            }
            Some((AttributeValue::Data16(bytes), _)) => {
                Places::Always(Location::Bytes(bytes.to_le_bytes().to_vec()))
            }
            Some((AttributeValue::Sdata(number), _)) => {
                Places::Always(Location::Value(Value::Constant(number.cast_unsigned())))
            }
            Some((value, at)) => {
                let number = value.udata_value().map(|number| Location::Value(Value::Constant(number)));
                let text = || {
                    let space = self.dwarf.space(at.space).ok()?;
                    let text = space.dwarf.attr_string(&*space.unit(at.unit).ok()?, value).ok()?;
                    Some(Location::Bytes([text.slice(), &[0]].concat()))
                };
                let unknown = || Location::Unknown("its constant has an unknown form".to_owned());
                Places::Always(number.or_else(text).unwrap_or_else(unknown))
            }
        })
    }

    fn meaning(&self, expression: gimli::Expression<Bytes<'a>>) -> Location {
        let number_type = |offset: UnitOffset| self.dwarf.number_type(self.place, offset);
        let indexed = |index| self.space.dwarf.address(self.unit, index).ok();
        let variable = |offset: gimli::DebugInfoOffset| {
            let unit = self.space.number_at(offset.0);
            let found = unit.and_then(|unit| Some((unit, self.space.within(unit, offset.0)?)));
            found.map_or(u64::MAX, |(unit, offset)| {
                self.dwarf.id(Entry { place: Place { unit, ..self.place }, offset })
            })
        };
        let context = Meaning {
            number_type: &number_type,
            indexed: &indexed,
            variable: &variable,
            ..Meaning::of_unit(self.unit.encoding(), self.frame_base.as_ref())
        };
        meaning(&context, expression)
    }
}

/// Puts a scope that has been read where it belongs.
fn close(done: Open, open: &mut [Open], read: &mut Unit) {
    match (done.function, open.last_mut()) {
        (Some((name, declared, entry)), _) => {
            read.functions.push(Function { name, declared, entry, scope: done.scope });
        }
        (None, Some(outer)) => outer.scope.scopes.push(done.scope),
        (None, None) => {}
    }
}
