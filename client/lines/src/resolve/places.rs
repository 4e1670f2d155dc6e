//! Functions and lines, as addresses that a kernel knows by a symbol.

use std::collections::BTreeSet;

use super::scope::{copies, frames, outer};
use crate::error::{LinesError, Result};
use crate::grammar::{Target, Within, matches};
use crate::model::{Declaration, Source, Unit, contain, has_components};
use crate::written::Listing;

/// Places of one definition, at most.
const PLACES_MAX: usize = 4096;

/// A line of a source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLine {
    /// The path, relative to the tree of the kernel where the compiler had it so.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
}

/// An address that a probe can be put on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// `[MODULE:]SYMBOL+OFFSET`: what the kernel reads.
    pub text: String,
    /// The address in the file.
    pub address: u64,
    /// The function whose line it is.
    pub function: String,
    /// The line.
    pub source: SourceLine,
    /// The line within the function: 0 is the one that declares it.
    pub relative_line: Option<u32>,
    /// The function that has the code, if `function` is inlined there.
    pub inlined_into: Option<String>,
    /// Other lines that begin at the same address: a probe there is one for each of them.
    pub shares: Vec<SourceLine>,
    /// The probe is a return probe.
    pub is_return: bool,
    pub(crate) unit: usize,
    /// The declaration of the function; absent if debug information does not say that its code is at this
    /// address.
    pub(crate) declared: Option<Declaration>,
}

/// A function as it is declared in a unit.
pub(super) struct Found {
    pub(super) number: usize,
    pub(super) declared: Declaration,
}

/// The texts of sources, by their paths; `None` for one that is not there.
pub type Sources<'s> = &'s dyn Fn(&str) -> Option<String>;

pub(super) fn file(unit: &Unit, number: u32) -> &str {
    unit.files.get(number as usize).map_or("", String::as_str)
}

/// The places of a target.
pub(super) fn places(of: &dyn Source, target: &Target, sources: Sources<'_>) -> Result<Vec<Place>> {
    if of.symbols().is_empty() {
        return Err(LinesError::new("the file has no symbols, by which a kernel knows its functions")
            .hint("give the file with debug information that is not stripped"));
    }
    let mut found = match target {
        Target::Function { name, file, within } => of_function(of, name, file.as_deref(), within, sources)?,
        Target::Line { file, line } => of_lines(of, file, &[*line])?,
        Target::Pattern { file, pattern } => {
            let path = only_path(of, file)?;
            let lines = matching(&path, pattern, 1, u32::MAX, sources)?;
            of_lines(of, &path, &lines)?
        }
    };
    found.sort_by_key(|place| (place.inlined_into.is_some(), place.address));
    found.dedup_by_key(|place| place.address);
    if found.len() > PLACES_MAX {
        return Err(LinesError::new(format!(
            "the definition has {} places, more than {PLACES_MAX}",
            found.len()
        )));
    }
    Ok(found)
}

/// The places of all lines of a range.
pub(super) fn listing(of: &dyn Source, listing: &Listing) -> Result<Vec<Place>> {
    let mut found = match &listing.target {
        Target::Function { name, file, within } => {
            let first = if let Within::Line(line) = within { *line } else { 0 };
            let mut found = Vec::new();
            for Found { number, declared } in functions(of, name, file.as_deref())? {
                let unit = of.unit(number)?;
                let last = listing.last.map_or(u32::MAX, |last| declared.line.saturating_add(last));
                let end = next_function(&unit, declared).unwrap_or(u32::MAX).min(last.saturating_add(1));
                let lines = lines_with_code(&unit, declared.file, declared.line.saturating_add(first)..end);
                let site = Site { of, number, unit: &unit, name, declared };
                // A unit with no line of the range has a copy that begins elsewhere.
                found.extend(site.lines(&lines).unwrap_or_default());
            }
            found
        }
        Target::Line { file: wanted, line } => {
            let path = only_path(of, wanted)?;
            let mut lines = BTreeSet::new();
            for number in of.units_of_file(&path)? {
                let unit = of.unit(number)?;
                let files = (0..).zip(&unit.files).filter(|(_, has)| **has == path);
                for (file, _) in files {
                    let end = listing.last.unwrap_or(u32::MAX).saturating_add(1);
                    lines.extend(lines_with_code(&unit, file, *line..end));
                }
            }
            let lines: Vec<u32> = lines.into_iter().collect();
            if lines.is_empty() { Vec::new() } else { of_lines(of, &path, &lines)? }
        }
        Target::Pattern { .. } => Vec::new(),
    };
    found.sort_by(|a, b| {
        let key = |place: &Place| (place.source.line, place.inlined_into.is_some(), place.address);
        key(a).cmp(&key(b))
    });
    found.dedup_by_key(|place| (place.source.line, place.address));
    if found.is_empty() {
        return Err(LinesError::new("no line of the range has code"));
    }
    found.truncate(PLACES_MAX);
    Ok(found)
}

/// The lines of a range that have statements, or call a function that is inlined there.
pub(super) fn lines_with_code(unit: &Unit, file: u32, range: std::ops::Range<u32>) -> Vec<u32> {
    let is_in = |at: &Declaration| at.file == file && at.line > 0 && range.contains(&at.line);
    let rows = unit.rows.iter().map(|row| Declaration { file: row.file, line: row.line });
    let mut lines: BTreeSet<u32> = rows.filter(is_in).map(|at| at.line).collect();
    let called = copies(unit).into_iter().filter(|copy| copy.entry.is_some() && is_in(&copy.called));
    lines.extend(called.map(|copy| copy.called.line));
    lines.into_iter().collect()
}

/// The lines from `first` up to, and without, `end` whose text matches.
fn matching(path: &str, pattern: &str, first: u32, end: u32, sources: Sources<'_>) -> Result<Vec<u32>> {
    let text = sources(path).ok_or_else(|| {
        LinesError::new(format!("the pattern `{pattern}` needs the text of `{path}`, which is not there"))
            .hint("give the directory of the sources, or write the number of the line")
    })?;
    let lines = (1..).zip(text.lines()).filter(|(number, _)| *number >= first && *number < end);
    let found: Vec<u32> =
        lines.filter(|(_, line)| matches(line, pattern)).map(|(number, _)| number).collect();
    if found.is_empty() {
        return Err(LinesError::new(format!("no line of `{path}` there matches `{pattern}`"))
            .hint("a pattern stands for the whole line: begin and end it with `*` for a part"));
    }
    Ok(found)
}

fn of_function(
    of: &dyn Source,
    name: &str,
    wanted: Option<&str>,
    within: &Within,
    sources: Sources<'_>,
) -> Result<Vec<Place>> {
    let functions = functions(of, name, wanted)?;
    let mut found = Vec::new();
    let mut refused = None;
    for Found { number, declared } in functions {
        let unit = of.unit(number)?;
        let site = Site { of, number, unit: &unit, name, declared };
        let outcome = match within {
            Within::Entry => site.entries(true),
            Within::Return => site.entries(false).and_then(|places| {
                let places: Vec<_> =
                    places.into_iter().map(|place| Place { is_return: true, ..place }).collect();
                if places.is_empty() { Err(site.only_inlined("it never returns")) } else { Ok(places) }
            }),
            Within::Offset(offset) => site.offset(*offset),
            Within::Line(line) => site.lines(&[declared.line.saturating_add(*line)]),
            Within::Pattern(pattern) => {
                let path = file(&unit, declared.file);
                let end = next_function(&unit, declared).unwrap_or(u32::MAX);
                matching(path, pattern, declared.line, end, sources).and_then(|lines| site.lines(&lines))
            }
        };
        match outcome {
            Ok(places) => found.extend(places),
            Err(error) => {
                refused.get_or_insert(error);
            }
        }
    }
    match refused {
        _ if !found.is_empty() => Ok(found),
        Some(error) => Err(error),
        None => Err(no_code(name)),
    }
}

fn no_code(name: &str) -> LinesError {
    LinesError::new(format!("the function `{name}` has no code: the compiler or the linker has removed it"))
        .hint("take a function that calls it")
}

/// The declarations of a function, with the units of its code.
pub(super) fn functions(of: &dyn Source, name: &str, wanted: Option<&str>) -> Result<Vec<Found>> {
    let (mut found, mut paths) = declarations(of, name, wanted, false)?;
    if found.is_empty() {
        (found, paths) = declarations(of, name, wanted, true)?;
    }
    if !found.is_empty() {
        return Ok(found);
    }
    let has_path = |wanted: &str| paths.iter().any(|path| has_components(path, wanted));
    Err(match wanted {
        _ if paths.is_empty() => unknown_function(of, name)?,
        Some(wanted) if !has_path(wanted) => {
            let paths: Vec<_> = paths.into_iter().take(5).collect();
            LinesError::new(format!("no source that ends with `{wanted}` has a function `{name}`"))
                .hint(format!("it is in {}", paths.join(", ")))
        }
        _ => no_code(name),
    })
}

/// The declarations of a function in sources whose path ends as wanted, and the paths of all that declare it.
fn declarations(
    of: &dyn Source,
    name: &str,
    wanted: Option<&str>,
    all: bool,
) -> Result<(Vec<Found>, BTreeSet<String>)> {
    let (mut found, mut paths) = (Vec::new(), BTreeSet::new());
    for number in of.units_of_function(name, all)? {
        let unit = of.unit(number)?;
        let functions = unit.functions.iter().filter(|function| function.name == name);
        let of_code = functions.clone().filter(|function| function.entry.is_some());
        paths.extend(functions.map(|function| file(&unit, function.declared.file).to_owned()));
        let mut declared: Vec<Declaration> = of_code.map(|function| function.declared).collect();
        let of_name = copies(&unit).into_iter().filter(|copy| copy.name == name);
        declared.extend(of_name.map(|copy| copy.declared));
        declared.sort_by_key(|declared| (declared.file, declared.line));
        declared.dedup();
        for declared in declared {
            let path = file(&unit, declared.file);
            paths.insert(path.to_owned());
            if wanted.is_none_or(|wanted| has_components(path, wanted)) {
                found.push(Found { number, declared });
            }
        }
    }
    Ok((found, paths))
}

fn unknown_function(of: &dyn Source, name: &str) -> Result<LinesError> {
    let error = LinesError::new(format!("the debug information has no function `{name}`"));
    let mut similar: Vec<(usize, String)> = Vec::new();
    for known in of.function_names()? {
        let distance = strsim::damerau_levenshtein(&known, name);
        if distance <= 1 + name.len() / 6 {
            similar.push((distance, known));
        }
    }
    similar.sort();
    similar.truncate(3);
    let names: Vec<_> = similar.into_iter().map(|(_, name)| format!("`{name}`")).collect();
    Ok(if names.is_empty() {
        error.hint("a function of a module is in the file of the module; one without code here was removed by the compiler")
    } else {
        error.hint(format!("there is {}", names.join(", ")))
    })
}

/// The line at which the next function of the same source is declared.
pub(super) fn next_function(unit: &Unit, declared: Declaration) -> Option<u32> {
    let same =
        unit.functions.iter().map(|function| function.declared).filter(|other| other.file == declared.file);
    same.map(|other| other.line).filter(|line| *line > declared.line).min()
}

/// A function of a unit, whose places are looked for.
struct Site<'s> {
    of: &'s dyn Source,
    number: usize,
    unit: &'s Unit,
    name: &'s str,
    declared: Declaration,
}

impl Site<'_> {
    fn only_inlined(&self, why: &str) -> LinesError {
        LinesError::new(format!("the function `{}` is only inlined: {why}", self.name))
            .hint("take its entry, which is the place of each copy, or a function that contains it")
    }

    /// Where the function begins: its own code, and with `copies` those within others.
    fn entries(&self, with_copies: bool) -> Result<Vec<Place>> {
        let addresses = begins(self.unit, self.name, self.declared, with_copies);
        addresses.into_iter().map(|address| self.place(address, self.declared)).collect()
    }

    fn offset(&self, offset: u64) -> Result<Vec<Place>> {
        let entries = self.entries(false)?;
        let mut found = Vec::new();
        for entry in &entries {
            let symbol = self.of.symbols().function_at(entry.address);
            let bytes = symbol.map_or(0, |symbol| symbol.bytes);
            if offset >= bytes {
                return Err(LinesError::new(format!(
                    "the function `{}` has {bytes} bytes, and +{offset:#x} is beyond its end",
                    self.name
                )));
            }
            let address = entry.address.wrapping_add(offset);
            let rows = self.unit.rows.iter().filter(|row| row.line > 0 && row.address <= address);
            let row = rows.max_by_key(|row| row.address);
            let line = row.map_or(self.declared, |row| Declaration { file: row.file, line: row.line });
            found.push(self.place(address, line)?);
        }
        if found.is_empty() { Err(self.only_inlined("an offset needs code of its own")) } else { Ok(found) }
    }

    /// The places of lines of the source that declares the function.
    fn lines(&self, lines: &[u32]) -> Result<Vec<Place>> {
        let end = next_function(self.unit, self.declared);
        let mut found = Vec::new();
        for line in lines {
            if end.is_some_and(|end| *line >= end) {
                let last = end.map_or(0, |end| end - self.declared.line);
                return Err(LinesError::new(format!(
                    "line {} of `{}` is beyond its end",
                    line - self.declared.line,
                    self.name
                ))
                .hint(format!("the next function of the source begins {last} lines after it")));
            }
            let at = Declaration { file: self.declared.file, line: *line };
            for address in addresses_within(self.unit, self.name, self.declared, at) {
                found.push(self.place(address, at)?);
            }
        }
        if found.is_empty() {
            let Declaration { file, line: first } = self.declared;
            let line = lines.first().copied().unwrap_or(first);
            let near: BTreeSet<u32> = stated(self.unit, file, first..end.unwrap_or(u32::MAX)).collect();
            let name = |line: &u32| format!("`{}:{}`", self.name, line - first);
            let why = format!("line {} of `{}` has no code of its own", line - first, self.name);
            return Err(LinesError::new(why).hint_if_known(nearest(&near, line, name)));
        }
        Ok(found)
    }

    fn place(&self, address: u64, line: Declaration) -> Result<Place> {
        place(self.of, self.number, self.unit, address, line, Some((self.name, self.declared)))
    }
}

/// The addresses at which a function begins: of its own code, and with `copies` of those within others.
fn begins(unit: &Unit, name: &str, declared: Declaration, with_copies: bool) -> Vec<u64> {
    let is_it = |has: &str, at: Declaration| has == name && at == declared;
    let whole = unit.functions.iter().filter(|function| is_it(&function.name, function.declared));
    let mut addresses: Vec<u64> = whole.filter_map(|function| function.entry).collect();
    if with_copies {
        let found = copies(unit).into_iter().filter(|copy| is_it(&copy.name, copy.declared));
        addresses.extend(found.filter_map(|copy| copy.entry));
    }
    addresses
}

/// The addresses at which a line begins in a function.
///
/// The line that declares the function, if it has statements, is the entry, as in a definition: its statements can be
/// anywhere, such as where a part begins that the compiler has split off and put back.
fn addresses_within(unit: &Unit, name: &str, declared: Declaration, at: Declaration) -> BTreeSet<u64> {
    let mut addresses = addresses_of(unit, at);
    if at == declared && !addresses.is_empty() {
        return begins(unit, name, declared, true).into_iter().collect();
    }
    // A macro can declare several functions on one line, as those of system calls do: without the addresses that are
    // only in another one, if some are in this one.
    let names = |address: &u64| {
        let frames = frames(unit, *address).into_iter();
        frames.filter(|frame| frame.declared == declared).map(|frame| frame.name).collect::<Vec<_>>()
    };
    if addresses.iter().any(|address| names(address).contains(&name)) {
        addresses.retain(|address| {
            let names = names(address);
            names.is_empty() || names.contains(&name)
        });
    }
    addresses
}

/// The lines of a range that have statements.
fn stated(unit: &Unit, file: u32, range: std::ops::Range<u32>) -> impl Iterator<Item = u32> {
    let lines = unit.rows.iter().filter(move |row| row.file == file && row.line > 0).map(|row| row.line);
    lines.filter(move |line| range.contains(line))
}

/// Which of some lines with code are the nearest to one, before and after it.
fn nearest(lines: &BTreeSet<u32>, line: u32, name: impl Fn(&u32) -> String) -> Option<String> {
    let before = lines.range(..line).next_back().into_iter();
    let names: Vec<_> = before.chain(lines.range(line..).next()).map(name).collect();
    (!names.is_empty()).then(|| format!("the nearest lines with code are {}", names.join(" and ")))
}

/// The addresses at which a line begins: those of its statements, and the copies of functions that it calls.
fn addresses_of(unit: &Unit, line: Declaration) -> BTreeSet<u64> {
    let rows = unit.rows.iter().filter(|row| row.file == line.file && row.line == line.line);
    let mut found: BTreeSet<u64> = rows.map(|row| row.address).collect();
    found.extend(copies(unit).into_iter().filter(|copy| copy.called == line).filter_map(|copy| copy.entry));
    found.retain(|address| unit.functions.iter().any(|function| contain(&function.scope.ranges, *address)));
    found
}

/// The one source that a path means.
fn only_path(of: &dyn Source, path: &str) -> Result<String> {
    let mut paths = BTreeSet::new();
    for number in of.units_of_file(path)? {
        let unit = of.unit(number)?;
        paths.extend(unit.files.iter().filter(|has| has_components(has, path)).cloned());
    }
    let mut paths = paths.into_iter();
    match (paths.next(), paths.next()) {
        (Some(only), None) => Ok(only),
        (Some(first), Some(second)) => {
            let rest: Vec<_> = [first, second].into_iter().chain(paths.take(3)).collect();
            Err(LinesError::new(format!("several sources end with `{path}`"))
                .hint(format!("write more of the path: {}", rest.join(", "))))
        }
        _ => Err(LinesError::new(format!("the debug information has no source `{path}`"))
            .hint("write the end of its path, such as `fs/read_write.c`; a source of a module is in the file of the module")),
    }
}

/// The places of lines of a source, in all units that have it.
fn of_lines(of: &dyn Source, wanted: &str, lines: &[u32]) -> Result<Vec<Place>> {
    let path = only_path(of, wanted)?;
    let (mut found, mut near) = (Vec::new(), BTreeSet::new());
    for number in of.units_of_file(&path)? {
        let unit = of.unit(number)?;
        let files = (0..).zip(&unit.files).filter(|(_, has)| **has == path);
        for (file, _) in files {
            for line in lines {
                let at = Declaration { file, line: *line };
                for address in addresses_of(&unit, at) {
                    // The function of the line is the one that is declared nearest above it.
                    let frames = frames(&unit, address);
                    let of_line = frames
                        .iter()
                        .filter(|frame| frame.declared.file == file && frame.declared.line <= *line);
                    let function = of_line.max_by_key(|frame| frame.declared.line).or(frames.first());
                    let function = function.map(|frame| (frame.name, frame.declared));
                    found.push(place(of, number, &unit, address, at, function)?);
                }
            }
            if found.is_empty() {
                near.extend(stated(&unit, file, 1..u32::MAX));
            }
        }
    }
    if found.is_empty() {
        let line = lines.first().copied().unwrap_or(0);
        let hint = nearest(&near, line, |line| format!("`{wanted}:{line}`"));
        let error = LinesError::new(format!("line {line} of `{path}` has no code of its own"));
        return Err(error.hint_if_known(hint));
    }
    Ok(found)
}

fn place(
    of: &dyn Source,
    number: usize,
    unit: &Unit,
    address: u64,
    line: Declaration,
    function: Option<(&str, Declaration)>,
) -> Result<Place> {
    let outer = outer(unit, address);
    let frames = frames(unit, address);
    let is_there = |(name, declared): (&str, Declaration)| {
        frames.iter().any(|frame| frame.name == name && frame.declared == declared)
    };
    // Of functions that one line declares, the innermost has the lines after it.
    let function = function.map(|(name, declared)| {
        let inner = frames.iter().rev().find(|frame| frame.declared == declared);
        let is_body = line != declared || !is_there((name, declared));
        inner.filter(|_| is_body).map_or((name, declared), |inner| (inner.name, declared))
    });
    let (name, declared) = function.unwrap_or(("", line));
    let code = outer.map_or(name, |outer| outer.name.as_str());
    let named = of.symbols().code(address, code)?;
    let module = of.symbols().module().map_or_else(String::new, |module| format!("{module}:"));
    let others = unit.rows.iter().filter(|row| row.address == address && row.line > 0);
    let shares: BTreeSet<SourceLine> = others
        .filter(|row| row.line != line.line || row.file != line.file)
        .map(|row| SourceLine { file: file(unit, row.file).to_owned(), line: row.line })
        .collect();
    let is_copy = outer.is_some_and(|outer| outer.name != name || outer.declared != declared);
    Ok(Place {
        text: format!("{module}{named}"),
        address,
        function: name.to_owned(),
        source: SourceLine { file: file(unit, line.file).to_owned(), line: line.line },
        relative_line: line.line.checked_sub(declared.line).filter(|_| line.file == declared.file),
        inlined_into: outer.filter(|_| is_copy).map(|outer| outer.name.clone()),
        shares: shares.into_iter().collect(),
        is_return: false,
        unit: number,
        declared: function.filter(|function| is_there(*function)).map(|(_, declared)| declared),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Function, Inlined, Range, Row, Scope, ScopeKind};

    #[test]
    fn the_nearest_lines_are_one_before_and_one_after() {
        let lines = BTreeSet::from([3, 7, 9]);
        let said = |line| nearest(&lines, line, |line| format!("`f:{line}`")).unwrap();
        assert_eq!(said(1), "the nearest lines with code are `f:3`");
        assert_eq!(said(5), "the nearest lines with code are `f:3` and `f:7`");
        assert_eq!(said(9), "the nearest lines with code are `f:7` and `f:9`");
        assert_eq!(said(10), "the nearest lines with code are `f:9`");
        assert_eq!(nearest(&BTreeSet::new(), 5, u32::to_string), None);
    }

    #[test]
    fn the_line_that_declares_a_function_is_its_entry() {
        let line = |line| Declaration { file: 0, line };
        let scope = |kind, start, end, scopes| {
            let ranges = vec![Range { start, end }];
            Scope { kind, ranges, variables: Vec::new(), scopes }
        };
        // The part is called where the function is declared, and a statement of that line begins it.
        let (declared, called, entry) = (line(10), line(10), Some(0x30));
        let part = ScopeKind::Inlined(Inlined { name: "walk".to_owned(), declared, called, entry });
        let scope = scope(ScopeKind::Body, 0x10, 0x40, vec![scope(part, 0x30, 0x40, Vec::new())]);
        let rows = [(0x10, 11), (0x20, 12), (0x30, 10), (0x30, 13)];
        let unit = Unit {
            functions: vec![Function { name: "walk".to_owned(), declared, entry: Some(0x10), scope }],
            rows: rows.map(|(address, line)| Row { address, file: 0, line }).to_vec(),
            ..Unit::default()
        };
        let begins = |number| addresses_within(&unit, "walk", declared, line(number)).into_iter().collect();
        let found: Vec<Vec<u64>> = vec![begins(10), begins(11), begins(13)];
        assert_eq!(found, [[0x10], [0x10], [0x30]]);
    }

    #[test]
    fn the_nearest_lines_are_those_before_and_after() {
        let rows = [(1, 11), (0, 14), (0, 9), (0, 0), (0, 12), (0, 20)];
        let unit = Unit {
            rows: rows.map(|(file, line)| Row { address: 0, file, line }).to_vec(),
            ..Unit::default()
        };
        let hint =
            |range, line| nearest(&stated(&unit, 0, range).collect(), line, |line| format!("`f:{line}`"));
        let both = "the nearest lines with code are `f:12` and `f:14`";
        assert_eq!(hint(10..20, 13).as_deref(), Some(both));
        assert_eq!(hint(10..20, 15).as_deref(), Some("the nearest lines with code are `f:14`"));
        assert_eq!(hint(10..20, 10).as_deref(), Some("the nearest lines with code are `f:12`"));
        assert_eq!(hint(0..9, 5), None);
    }
}
