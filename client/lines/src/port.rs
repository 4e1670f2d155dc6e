//! A probe of a source line, offered anew on another build.
//!
//! The line is looked for in its function: by its text and the texts around it if both sources are known, else by its
//! number if the function has code at the same lines. What is in doubt is refused. Never compares instructions: that
//! does the daemon, which needs no debug information.

use std::rc::Rc;

use crate::anchor::{Anchor, Around, Extent, Near, PlaceNumber, fits, hash_of, lines_with_text};
use crate::error::{LinesError, Result};
use crate::grammar::{Definition, Target, Wanted, Within, of_module};
use crate::origin::Origin;
use crate::resolve::{DebugInfo, Place, Sources};

/// A definition that was made of a source line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeOfLine {
    /// The line.
    pub origin: Origin,
    /// The module that has the place, if it is in one.
    pub module: Option<String>,
    /// The probe is a return probe.
    pub is_return: bool,
}

/// The same on another build.
#[derive(Debug, Clone)]
pub struct Ported {
    /// The definition by source, without the names of the event.
    pub definition: Definition,
    /// The place of it that the probe had.
    pub place: Place,
    /// The places of the line.
    pub places: Vec<Place>,
    /// How the line was found.
    pub carried: Carried,
}

/// How a line was found on another build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Carried {
    /// It is the entry or the return of a function: by its name.
    Function,
    /// By its text and the lines around it.
    Text,
    /// By its number among lines of the same text: several have the same lines around them.
    Occurrence,
    /// By its number in the function, which has code at the same lines. No text was compared.
    RelativeLine,
}

impl Carried {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Function => "the name of the function",
            Self::Text => "the text of the line and of its neighbours",
            Self::Occurrence => "the text of the line, and its number among lines of this text",
            Self::RelativeLine => "the number of the line in the function; no text was compared",
        }
    }
}

impl MadeOfLine {
    /// Reads the kernel's line of a definition, with the comment behind it.
    pub fn read(definition: &str) -> Option<Self> {
        let origin = Origin::find(definition)?;
        let mut words = definition.split_ascii_whitespace();
        // A number behind the letter is not of a definition by source.
        let is_return = match words.next()?.split_once(':')? {
            ("p", _) => false,
            ("r", _) => true,
            _ => return None,
        };
        let (module, _) = of_module(words.next()?);
        Some(Self { origin, module, is_return })
    }
}

impl DebugInfo<'_> {
    /// The origin of a definition at one of its places.
    pub fn origin(
        &self,
        definition: &Definition,
        place: &Place,
        places: &[Place],
        build_id: &str,
        sources: Sources<'_>,
    ) -> Origin {
        let (file, line) = (&place.source.file, place.source.line);
        let source = sources(file);
        let index = usize::try_from(line).ok().and_then(|line| line.checked_sub(1));
        let text = source.as_deref().zip(index).and_then(|(source, index)| source.lines().nth(index));
        let within = (place.function.as_str(), place.relative_line);
        let mut origin = Origin::new(file, line, within, build_id, text.unwrap_or_default());
        // Bytes from the entry are not a line.
        let is_offset = matches!(definition.target, Target::Function { within: Within::Offset(_), .. });
        if let (Some(_), false) = (place.relative_line, is_offset) {
            let found = self.lines_of(&place.function, place.inlined_into.as_deref(), file);
            let extent = found.ok().map(|(_, extent)| extent);
            let around = extent.as_ref().zip(source.as_deref());
            let mut anchor = Anchor {
                place: number_of(place, places),
                around: around.and_then(|(extent, source)| Around::of(line, extent, source)),
                code: extent.map(|extent| hash_of(&extent.code)),
                arguments: None,
            };
            anchor.set_arguments(definition.arguments.iter().map(Wanted::to_string).collect());
            origin.anchor = anchor;
        }
        origin
    }

    /// A definition on this build, if it is certain which line and which place it has here.
    ///
    /// # Errors
    /// When it is not, with the reason.
    pub fn port(&self, made: &MadeOfLine, sources: Sources<'_>) -> Result<Ported> {
        let origin = &made.origin;
        let Anchor { place, arguments, .. } = &origin.anchor;
        let (Some(relative), Some(number), Some(arguments)) = (origin.relative_line, place, arguments) else {
            return Err(LinesError::new(
                "the probe does not keep what finds its line again: it is of an offset, of one of several functions \
                 with one name, or of a macro in another source",
            ));
        };
        let arguments = arguments.iter().map(|text| argument(text)).collect::<Result<Vec<_>>>()?;
        let (name, extent) = self.lines_of(&origin.function, number.inlined_into.as_deref(), &origin.file)?;
        let (relative, carried) = match relative {
            0 => (0, Carried::Function),
            relative => find(origin, relative, &extent, sources(&extent.file).as_deref())?,
        };
        let within = match relative {
            _ if made.is_return => Within::Return,
            0 => Within::Entry,
            relative => Within::Line(relative),
        };
        let target = Target::Function { name: name.to_owned(), file: Some(extent.file.clone()), within };
        let places = self.places(&target, &|_| None)?;
        let line = extent.first.saturating_add(relative);
        let is_of_line = |place: &Place| place.source.line == line && place.source.file == extent.file;
        let same = like(number.inlined_into.as_deref(), &places, is_of_line);
        let place = number.number.checked_sub(1).and_then(|index| same.get(index));
        let numbers_again = place.and_then(|place| number_of(place, &places));
        let Some((place, true)) = place.map(|place| (*place, numbers_again.as_ref() == Some(number))) else {
            let inside = number.inlined_into.as_ref().unwrap_or(&origin.function);
            return Err(LinesError::new(format!(
                "line {relative} of `{}` has {} places in `{inside}` and had {}: nothing says which is the probe's",
                origin.function,
                same.len(),
                number.of
            ))
            .hint("choose one of its places"));
        };
        let definition =
            Definition { group: None, event: None, module: made.module.clone(), target, arguments };
        Ok(Ported { definition, place: place.clone(), places, carried })
    }

    /// The lines of a function, and the name by which it has places: of functions that one line declares, as the macros
    /// of system calls do, the inner one is a part of the outer one.
    fn lines_of<'n>(
        &self,
        name: &'n str,
        inlined_into: Option<&'n str>,
        file: &str,
    ) -> Result<(&'n str, Rc<Extent>)> {
        let found = self.extent(name, file);
        if let (Err(_), Some(outer)) = (&found, inlined_into)
            && let Ok(extent) = self.extent(outer, file)
            && extent.declared.first().is_some_and(|names| names.iter().any(|one| one == name))
        {
            return Ok((outer, extent));
        }
        Ok((name, found?))
    }
}

/// The number of a place among all places of a definition. `None` if functions of one name, each in a unit of
/// its own, have some of them: nothing tells these functions apart in another build.
fn number_of(place: &Place, places: &[Place]) -> Option<PlaceNumber> {
    let like = like(place.inlined_into.as_deref(), places, |other| other.source == place.source);
    let number = like.iter().position(|other| other.address == place.address)? + 1;
    let is_one_unit = like.iter().all(|other| other.unit == place.unit);
    is_one_unit.then(|| PlaceNumber { number, of: like.len(), inlined_into: place.inlined_into.clone() })
}

/// The places in the same function, in order.
fn like<'p>(
    inlined_into: Option<&str>,
    places: &'p [Place],
    is_of_line: impl Fn(&Place) -> bool,
) -> Vec<&'p Place> {
    places.iter().filter(|place| place.inlined_into.as_deref() == inlined_into && is_of_line(place)).collect()
}

/// An argument that means the same on another build.
fn argument(text: &str) -> Result<Wanted> {
    let wanted = Wanted::parse(text)?;
    if let Wanted::Kernel(text) = &wanted {
        let body = text.split_once('=').map_or(text.as_str(), |(_, body)| body);
        if !["$retval", "$comm", "$COMM", "\\"].iter().any(|fixed| body.starts_with(fixed)) {
            return Err(LinesError::new(format!(
                "nothing says what `{text}` has on another build: it is of the kernel's language, not a variable"
            )));
        }
    }
    Ok(wanted)
}

/// The line within the function on this build, and what found it.
fn find(origin: &Origin, relative: u32, extent: &Extent, source: Option<&str>) -> Result<(u32, Carried)> {
    let here = format!("`{}`", origin.function);
    let (Some(old), Some(source)) = (&origin.anchor.around, source) else {
        if extent.code.contains(&relative) && origin.anchor.code == Some(hash_of(&extent.code)) {
            return Ok((relative, Carried::RelativeLine));
        }
        let error = LinesError::new(format!(
            "the lines of {here} that have code are others now, and without the texts nothing says which is \
             line {relative}"
        ));
        return Err(match &origin.anchor.around {
            Some(_) => error.hint("give the sources of the running kernel: `--source DIR`"),
            None => {
                error.hint("the probe was made without `--source`, and does not keep the text of its line")
            }
        });
    };
    let text = origin.text();
    let lines: Vec<&str> = source.lines().collect();
    if !fits(extent, &lines) {
        return Err(LinesError::new(format!(
            "the source `{}` is not that of the running kernel: its line {} does not declare `{}`, or the next \
             function begins elsewhere",
            extent.file, extent.first, origin.function
        )).hint("give the sources of the running kernel: `--source DIR`"));
    }
    let same = lines_with_text(text, extent, &lines);
    let scored: Vec<(u32, usize)> =
        same.iter().map(|(line, near)| (*line, agreement(&old.near, near))).collect();
    let best = scored.iter().map(|(_, score)| *score).max();
    let Some(best) = best else {
        return Err(LinesError::new(format!("no line of {here} has the text `{text}` now")));
    };
    // A text that is there as often as before has kept its order, as far as the lines around it do not object.
    let needed = if old.of == 1 { 1 } else { old.near.len() - 1 };
    let nth = old.number.checked_sub(1).and_then(|index| scored.get(index));
    let nth = nth.filter(|(_, score)| scored.len() == old.of && *score == best && *score >= needed);
    let mut whole = scored.iter().filter(|(_, score)| *score == old.near.len() && old.alike == 1);
    let found = match (nth, whole.next(), whole.next()) {
        (Some((line, _)), ..) => {
            let is_only = scored.iter().filter(|(_, score)| *score == best).count() == 1;
            Some((line, if is_only { Carried::Text } else { Carried::Occurrence }))
        }
        (None, Some((line, _)), None) => Some((line, Carried::Text)),
        _ => None,
    };
    match found {
        Some((line, carried)) => Ok((line.saturating_sub(extent.first), carried)),
        None => Err(LinesError::new(format!(
            "it is in doubt which line of {here} is `{text}` now: there were {} lines of this text, there are {}, \
             and {best} of {} lines around the likeliest are as they were",
            old.of,
            scored.len(),
            old.near.len()
        ))),
    }
}

/// How many of the lines around are the same.
fn agreement(old: &Near, new: &Near) -> usize {
    old.iter().zip(new).filter(|(old, new)| old == new).count()
}
