//! Variables at a place: what a name means there, and where its value is.

use std::collections::BTreeSet;

use kprobed_lang::definition::computed::{Computed, comment};

use super::fetch::{Fetch, Kind, fetched};
use super::places::Place;
use super::scope::{Frame, frame, outer};
use crate::error::{LinesError, Result};
use crate::grammar::Expression;
use crate::model::{Location, Places, Range, Row, Source, Unit, Variable, contain};
use crate::value::Value;

/// A variable at a place, as arguments of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// What is recorded, such as `file->f_mode`.
    pub expression: String,
    /// Its type in C.
    pub ty: String,
    /// What the kernel fetches. Without a rule, the first is the value.
    pub fetches: Vec<Fetch>,
    /// How the daemon computes the value of what was fetched, if the kernel cannot fetch the value itself.
    pub rule: Option<Computed>,
    /// A symbol of the module that must not be the name of another symbol of the host, or the kernel reads
    /// that one.
    pub only_symbol: Option<String>,
}

impl Argument {
    /// Why a probe may not record the value, with what to do instead.
    pub fn objection(&self) -> Option<LinesError> {
        let symbol = self.only_symbol.as_ref()?;
        let why = format!(
            "`{}` is a static variable of a module, and the kernel takes the first symbol `{symbol}` of all",
            self.expression
        );
        Some(LinesError::new(why).hint("record what the function reads from it: a local variable"))
    }

    /// What the kernel fetches, and the rule of the daemon as a comment behind it.
    pub fn text(&self) -> String {
        let mut texts: Vec<_> = self.fetches.iter().map(Fetch::text).collect();
        texts.extend(self.rule.as_ref().map(|rule| comment(std::slice::from_ref(rule))));
        texts.join(" ")
    }
}

/// A variable that is in scope at a place.
#[derive(Debug, Clone)]
pub struct Visible {
    /// Its name.
    pub name: String,
    /// Its type in C.
    pub ty: String,
    /// A parameter of its function.
    pub is_parameter: bool,
    /// What fetches it, or why nothing does.
    pub argument: Result<Argument>,
}

/// A place whose variables are read.
pub(super) struct Scene<'s> {
    pub(super) of: &'s dyn Source,
    place: &'s Place,
    pub(super) unit: &'s Unit,
    frame: Frame<'s>,
}

impl<'s> Scene<'s> {
    pub(super) fn new(of: &'s dyn Source, place: &'s Place, unit: &'s Unit) -> Result<Self> {
        if place.is_return {
            return Err(LinesError::new("no variable of a function is in scope after it has returned")
                .hint("record `$retval`, or put a probe on a line before the return"));
        }
        let missing = || {
            let name = &place.function;
            LinesError::new(format!(
                "the debug information does not say which variables of `{name}` are at this address"
            ))
            .hint("take another line or another of its places")
        };
        let declared = place.declared.ok_or_else(missing)?;
        let function = (place.function.as_str(), declared);
        let frame = frame(unit, place.address, function, place.source.line).ok_or_else(missing)?;
        Ok(Self { of, place, unit, frame })
    }

    /// All variables in scope, or only the parameters, with what fetches them.
    pub(super) fn visible(&self, only_parameters: bool) -> Vec<Visible> {
        let variables = self.frame.visible().into_iter();
        variables
            .filter(|variable| variable.is_parameter || !only_parameters)
            .map(|variable| Visible {
                name: variable.name.clone(),
                ty: self.type_text(variable.ty),
                is_parameter: variable.is_parameter,
                argument: self.argument(&Expression::of(&variable.name)),
            })
            .collect()
    }

    /// What fetches an expression here.
    pub(super) fn argument(&self, wanted: &Expression) -> Result<Argument> {
        let variable = self.variable(&wanted.variable)?;
        let mut object = self.object(variable)?;
        for step in &wanted.steps {
            object = self.step(object, step, wanted)?;
        }
        self.finished(object, wanted).map_err(|error| named(&error, &wanted.path()))
    }

    /// The variable that a name means here.
    fn variable(&self, name: &str) -> Result<&'s Variable> {
        let found = self.frame.variable(name);
        // The compiler moves code out of the block that it belongs to: the line may mean the variable of that
        // block.
        let line = self.place.source.line;
        let others = self.frame.other_blocks(name);
        let near = others.iter().find(|(block, other)| {
            let file = self.frame.declared.file;
            let is_in = |row: &&Row| row.file == file && contain(&block.ranges, row.address);
            let rows = self.unit.rows.iter().filter(is_in);
            let last = rows.map(|row| row.line).max().unwrap_or(0);
            (other.declared.line..=last).contains(&line)
        });
        match (found, near) {
            (Some(found), Some((_, other))) if found.declared.line < other.declared.line => {
                let (first, second) = (found.declared.line, other.declared.line);
                return Err(LinesError::new(format!(
                    "`{name}` on this line may be that of line {first} or that of line {second}"
                ))
                .hint("take another line of the block"));
            }
            (Some(found), _) => return Ok(found),
            // Its list of places holds for all code; a single place is that of the block only.
            (None, Some((_, other))) if matches!(other.places, Places::At(_)) => return Ok(other),
            (None, _) => {}
        }
        if let Some((block, other)) = others.first() {
            let error = LinesError::new(format!(
                "`{name}` is not in scope on this line: it is declared on line {} in a block",
                other.declared.line
            ));
            return Err(error.hint_if_known(self.near(&block.ranges)));
        }
        // Those of a function inlined here would hide a variable of the source only inside of it.
        let mut globals = self.unit.globals.iter().filter(|variable| variable.name == name);
        let known = globals
            .clone()
            .find(|variable| !matches!(variable.places, Places::Nowhere))
            .or_else(|| globals.next());
        known.ok_or_else(|| {
            let visible: Vec<_> =
                self.frame.visible().iter().take(12).map(|variable| format!("`{}`", variable.name)).collect();
            let error = LinesError::new(format!("`{}` has no variable `{name}`", self.frame.name));
            let hint = (!visible.is_empty()).then(|| format!("in scope are {}", visible.join(", ")));
            error.hint_if_known(hint)
        })
    }

    /// Where a variable is at this address, in terms of what a probe sees there.
    pub(super) fn location(&self, variable: &Variable) -> Result<Location> {
        let address = self.place.address;
        let location = match &variable.places {
            Places::Nowhere => return Err(LinesError::new("the compiler has removed it: it is nowhere")),
            Places::Always(location) => location,
            Places::At(places) => {
                let here = places.iter().find(|(range, _)| range.has(address));
                &here.ok_or_else(|| self.elsewhere(places))?.1
            }
        };
        self.seen(location).map_err(|error| match &variable.places {
            Places::At(places) if error.hint_text().is_none() => {
                error.hint_if_known(self.near(&fetchable(places)))
            }
            _ => error,
        })
    }

    fn elsewhere(&self, places: &[(Range, Location)]) -> LinesError {
        let error =
            LinesError::new("it is nowhere at this instruction: the compiler no longer keeps it, or not yet");
        let of_entry = || places.iter().find_map(|(_, location)| self.entry_hint(location));
        error.hint_if_known(self.near(&fetchable(places)).or_else(of_entry))
    }

    /// The lines of the function nearest to this one that have code in these ranges.
    fn near(&self, ranges: &[Range]) -> Option<String> {
        let here = i64::from(self.place.source.line);
        let file = self.frame.declared.file;
        let mut lines = BTreeSet::new();
        for row in
            self.unit.rows.iter().filter(|row| row.file == file && row.line >= self.frame.declared.line)
        {
            if contain(ranges, row.address) && contain(&self.frame.scope.ranges, row.address) {
                lines.insert(((i64::from(row.line) - here).abs(), row.line));
            }
        }
        let mut nearest: Vec<u32> = lines.into_iter().take(4).map(|(_, line)| line).collect();
        nearest.sort_unstable();
        let first = self.frame.declared.line;
        let names: Vec<_> =
            nearest.iter().map(|line| format!("`{}:{}`", self.frame.name, line - first)).collect();
        (!names.is_empty()).then(|| format!("it lives at {}", names.join(", ")))
    }

    /// What to write to read a value that is only known at the entry.
    fn entry_hint(&self, location: &Location) -> Option<String> {
        let (Location::Memory(value) | Location::Value(value)) = location else { return None };
        let outer = outer(self.unit, self.place.address)?;
        let of = value.at_entry()?.clone();
        let kind = Kind { bits: 64, signed: false, is_pointer: false };
        let fetched = fetched(self.of.symbols(), "", of, kind).ok()?;
        let source = fetched.fetches.first().filter(|_| fetched.rule.is_none())?.source.clone();
        Some(format!("put the probe on `{}`, where it is `{source}`", outer.name))
    }

    /// A location with the frame address and the values at the entry replaced by what a probe can see.
    pub(super) fn seen(&self, location: &Location) -> Result<Location> {
        let entry = outer(self.unit, self.place.address).and_then(|outer| outer.entry);
        let is_entry = entry == Some(self.place.address);
        let value = |value: &Value| {
            value.clone().map(&mut |value| match value {
                Value::FrameAddress => self.of.frame_address(self.place.unit, self.place.address),
                Value::AtEntry(of) if is_entry => Ok(*of),
                Value::AtEntry(_) => {
                    let error = LinesError::new("its value is known at the entry of the function only");
                    Err(error.hint_if_known(self.entry_hint(location)))
                }
                value => Ok(value),
            })
        };
        Ok(match location {
            Location::Memory(address) => Location::Memory(value(address)?),
            Location::Value(of) => Location::Value(value(of)?),
            Location::Unknown(why) => return Err(LinesError::new(why.clone())),
            other => other.clone(),
        })
    }
}

/// The ranges in which a variable is more than a value of the entry.
fn fetchable(places: &[(Range, Location)]) -> Vec<Range> {
    let is_there = |location: &Location| match location {
        Location::Memory(value) | Location::Value(value) => value.at_entry().is_none(),
        Location::Unknown(_) => false,
        _ => true,
    };
    places.iter().filter(|(_, location)| is_there(location)).map(|(range, _)| *range).collect()
}

/// An error with the variable that it is about.
pub(super) fn named(error: &LinesError, name: &str) -> LinesError {
    LinesError::new(format!("`{name}`: {}", error.message()))
        .hint_if_known(error.hint_text().map(str::to_owned))
}
