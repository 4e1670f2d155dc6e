//! From definitions by source lines and variables to those that a kernel reads.

mod fetch;
mod object;
mod places;
mod scope;
mod types;
mod variable;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use kprobed_lang::definition::computed::{Computed, comment};

use crate::anchor::Extent;
use crate::dwarf::Dwarf;
use crate::error::{LinesError, Result};
use crate::grammar::{Definition, Target, Wanted, Within};
use crate::image::Image;
use crate::index::Index;
use crate::model::{Declaration, Function, Source};
use crate::written::Listing;
use places::{Found, file, functions, lines_with_code, next_function};
use variable::Scene;

pub use fetch::Fetch;
pub use places::{Place, SourceLine, Sources};
pub use variable::{Argument, Visible};

/// The debug information of one kernel or one module.
pub struct DebugInfo<'a> {
    source: Box<dyn Source + 'a>,
    /// A definition asks for the same function at each of its places.
    extents: RefCell<Extents>,
}

/// The lines of functions, by name and source.
type Extents = HashMap<(String, String), Result<Rc<Extent>>>;

/// A definition at one of its places.
#[derive(Debug, Clone)]
pub struct Line {
    /// What the kernel reads, and behind it the rules of computed fields as a comment.
    pub text: String,
    /// Its arguments from variables, in order, with how to read them.
    pub arguments: Vec<Argument>,
    /// Variables of `$vars` and `$params` that nothing fetches here, with the reasons.
    pub left_out: Vec<Visible>,
}

impl<'a> DebugInfo<'a> {
    /// Takes the DWARF of a file. `supplementary` is what [`Image::supplementary`] names, and `split` are the
    /// `.dwo` and `.dwp` files of a kernel that was built so.
    pub fn read(
        image: &'a Image<'a>,
        supplementary: Option<&'a Image<'a>>,
        split: &'a [Image<'a>],
    ) -> Result<Self> {
        Ok(Self { source: Box::new(Dwarf::new(image, supplementary, split)?), extents: RefCell::default() })
    }

    /// Whether bytes begin as an index does.
    pub fn is_index(bytes: &[u8]) -> bool {
        crate::index::is_index(bytes)
    }

    /// Takes an index that [`write_index`] has made.
    ///
    /// [`write_index`]: crate::write_index
    pub fn from_index(bytes: &'a [u8]) -> Result<Self> {
        Ok(Self { source: Box::new(Index::read(bytes)?), extents: RefCell::default() })
    }

    /// The build id of the kernel or the module; empty if the file has none.
    pub fn build_id(&self) -> &[u8] {
        self.source.build_id()
    }

    /// The name of the module; absent for a kernel.
    pub fn module(&self) -> Option<&str> {
        self.source.symbols().module()
    }

    /// The names of all functions with code, and of those that are inlined; in no order.
    pub fn functions(&self) -> Result<Vec<String>> {
        self.source.function_names()
    }

    /// The places of a target: first those in functions of their own, then those in copies.
    ///
    /// `sources` gives the texts that patterns need.
    pub fn places(&self, target: &Target, sources: Sources<'_>) -> Result<Vec<Place>> {
        places::places(self.source.as_ref(), target, sources)
    }

    /// The places of all lines of a range: line by line, and of each line first those in functions of their own.
    pub fn listing(&self, listing: &Listing) -> Result<Vec<Place>> {
        places::listing(self.source.as_ref(), listing)
    }

    /// The lines of a function in this source, or in the only one of this file name.
    pub(crate) fn extent(&self, function: &str, path: &str) -> Result<Rc<Extent>> {
        let found = || extent_of(self.source.as_ref(), function, path).map(Rc::new);
        let key = (function.to_owned(), path.to_owned());
        self.extents.borrow_mut().entry(key).or_insert_with(found).clone()
    }

    /// The variables in scope at a place.
    pub fn variables(&self, place: &Place) -> Result<Vec<Visible>> {
        let unit = self.source.unit(place.unit)?;
        Ok(Scene::new(self.source.as_ref(), place, &unit)?.visible(false))
    }

    /// The definition at one of its places, with the number that the place has among them.
    pub fn line(&self, definition: &Definition, place: &Place, number: usize) -> Result<Line> {
        let unit = self.source.unit(place.unit)?;
        let scene = Scene::new(self.source.as_ref(), place, &unit);
        let (mut texts, mut arguments, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        let mut take = |argument: Argument, texts: &mut Vec<String>| {
            texts.extend(argument.fetches.iter().map(Fetch::text));
            arguments.push(argument);
        };
        for wanted in &definition.arguments {
            match wanted {
                Wanted::Kernel(text) => texts.push(text.clone()),
                Wanted::Variable(expression) => {
                    take(scene.as_ref().map_err(Clone::clone)?.argument(expression)?, &mut texts);
                }
                Wanted::Variables | Wanted::Parameters => {
                    let scene = scene.as_ref().map_err(Clone::clone)?;
                    for visible in scene.visible(*wanted == Wanted::Parameters) {
                        let fetched = visible.argument.clone();
                        match fetched.and_then(|argument| argument.objection().map_or(Ok(argument), Err)) {
                            Ok(argument) => take(argument, &mut texts),
                            Err(error) => left_out.push(Visible { argument: Err(error), ..visible }),
                        }
                    }
                }
            }
        }
        let mut names = HashSet::new();
        let rules: Vec<_> = arguments.iter().filter_map(|argument| argument.rule.clone()).collect();
        let fetches =
            arguments.iter().flat_map(|argument| &argument.fetches).map(|fetch| fetch.name.as_str());
        let mut fields = fetches.chain(rules.iter().map(Computed::name));
        if let Some(name) = fields.find(|name| !names.insert(*name)) {
            return Err(LinesError::new(format!("two arguments are named `{name}`"))
                .hint("give one of them a name: `NAME=VARIABLE`"));
        }
        let kind = if place.is_return { 'r' } else { 'p' };
        let group = definition.group.as_ref().map_or_else(String::new, |group| format!("{group}/"));
        let event = definition.event.clone().unwrap_or_else(|| event_name(&definition.target, place));
        let number = if number == 0 { String::new() } else { format!("_{number}") };
        let mut text = format!("{kind}:{group}{event}{number} {}", place.text);
        for argument in &texts {
            text.push(' ');
            text += argument;
        }
        if !rules.is_empty() {
            text.push(' ');
            text += &comment(&rules);
        }
        Ok(Line { text, arguments, left_out })
    }
}

impl Line {
    /// Why the kernel's line alone may not record what was asked for, if that is so.
    pub fn objection(&self) -> Option<LinesError> {
        self.arguments.iter().find_map(Argument::objection)
    }
}

/// The lines of a function in a source: the one of this path, or the only one of this file name. No source is read.
fn extent_of(of: &dyn Source, name: &str, path: &str) -> Result<Extent> {
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut found: Vec<Extent> = Vec::new();
    for Found { number, declared } in functions(of, name, Some(&file_name(path)))? {
        let unit = of.unit(number)?;
        let end = next_function(&unit, declared).unwrap_or(u32::MAX);
        let lines = lines_with_code(&unit, declared.file, declared.line.saturating_add(1)..end);
        let code: BTreeSet<u32> = lines.into_iter().map(|line| line - declared.line).collect();
        let names = [declared.line, end].map(|line| {
            let is_there = |function: &&Function| function.declared == Declaration { line, ..declared };
            unit.functions.iter().filter(is_there).map(|function| function.name.clone()).collect()
        });
        let (file, first) = (file(&unit, declared.file), declared.line);
        match found.iter_mut().find(|has| has.file == file && has.first == first) {
            Some(has) => {
                has.code.extend(code);
                if end < has.end {
                    (has.end, has.declared) = (end, names);
                }
            }
            None => found.push(Extent { file: file.to_owned(), first, end, code, declared: names }),
        }
    }
    if found.iter().any(|has| has.file == path) {
        found.retain(|has| has.file == path);
    }
    match found.pop() {
        Some(only) if found.is_empty() => Ok(only),
        _ => Err(LinesError::new(format!("several sources or lines declare the function `{name}`"))),
    }
}

/// The name that an event gets if none is given.
fn event_name(target: &Target, place: &Place) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = if let Target::Function { name, .. } = target { name } else { &place.function };
    let function: String = name.chars().map(|c| if is_part(c) { c } else { '_' }).collect();
    match target {
        Target::Function { within: Within::Return, .. } => format!("{function}__return"),
        Target::Function { within: Within::Entry | Within::Offset(_), .. } => function,
        _ => format!("{function}_L{}", place.relative_line.unwrap_or(place.source.line)),
    }
}
