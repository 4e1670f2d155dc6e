//! Ports probes of lines that are drawn by chance from one build of a kernel to another, and judges them by the texts.
//!
//! OLD and NEW are files with debug information, or indexes of them; the sources are directories. A function is drawn,
//! then one of the places of its lines, then a variable that can be read there. The port sees the comment behind the
//! kernel's line and the new build only, once with the sources and once without. A port is wrong if the new line has
//! another text than the old one. If all lines around it are others, the line is printed for eyes to judge. LIST is a
//! file for all of them: what carried it, the lines and the places; or why not. With `changed`, only lines are drawn of
//! which the new source has no copy with the same five lines above and below.
//!
//! ```text
//! cargo run --release -p kprobed-lines --example port -- OLD NEW OLD_SOURCE NEW_SOURCE [LINES [SEED [LIST [changed]]]]
//! ```
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

#[path = "support/chance.rs"]
mod chance;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use kprobed_lines::{
    DebugInfo, Definition, Image, LinesError, Listing, MadeOfLine, Place, Target, Wanted, Within,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [old, new, old_source, new_source, rest @ ..] = arguments.as_slice() else {
        return Err("usage: port OLD NEW OLD_SOURCE NEW_SOURCE [LINES [SEED [LIST [changed]]]]".into());
    };
    let lines = rest.first().map_or(Ok(200), |text| text.parse())?;
    let seed = rest.get(1).map_or(Ok(1), |text| text.parse())?;
    let (old, new) = (std::fs::read(old)?, std::fs::read(new)?);
    let image = |bytes| if DebugInfo::is_index(bytes) { Ok(None) } else { Image::read(bytes).map(Some) };
    let (old_image, new_image) = (image(&old)?, image(&new)?);
    let old = Build { info: info(&old, old_image.as_ref())?, source: Tree::of(old_source) };
    let new = Build { info: info(&new, new_image.as_ref())?, source: Tree::of(new_source) };
    let changed = rest.get(3).map(|_| &new.source);
    let drawn = draw(&old, lines, seed, changed)?;
    for (title, with_sources) in [("with both sources", true), ("without sources", false)] {
        let mut list = String::new();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (definition, place, places) in &drawn {
            let made = made(&old, definition, place, places, with_sources)?;
            let found = match ported(&new, &made, with_sources) {
                Ok(found) => found,
                Err(error) => {
                    writeln!(list, "no: {error}\t{}:{}", place.source.file, place.source.line)?;
                    *counts.entry(format!("no: {}", without_names(&error.to_string()))).or_default() += 1;
                    continue;
                }
            };
            let judged = judge((&old, place), (&new, &found.1));
            let (from, to) = (&place.source, &found.1.source);
            if judged != "right" {
                println!("{judged}: {}:{} -> {}:{}, {}", from.file, from.line, to.file, to.line, found.0);
            }
            let texts = [&place.text, &found.1.text];
            writeln!(
                list,
                "{}\t{}:{}\t{}:{}\t{}\t{}",
                found.0, from.file, from.line, to.file, to.line, texts[0], texts[1]
            )?;
            *counts.entry(format!("carried by {}; {judged}", found.0)).or_default() += 1;
        }
        println!("{title}: {} probes", drawn.len());
        for (outcome, count) in &counts {
            println!("{count:7} {outcome}");
        }
        if let (Some(path), true) = (rest.get(2), with_sources) {
            std::fs::write(path, list)?;
        }
    }
    Ok(())
}

/// The debug information of an image, or that of an index.
fn info<'b>(bytes: &'b [u8], image: Option<&'b Image<'b>>) -> Result<DebugInfo<'b>, LinesError> {
    image.map_or_else(|| DebugInfo::from_index(bytes), |image| DebugInfo::read(image, None, &[]))
}

/// The debug information of a build, and its sources.
struct Build<'i> {
    info: DebugInfo<'i>,
    source: Tree,
}

/// A directory with sources.
struct Tree {
    directory: PathBuf,
    read: RefCell<HashMap<String, Option<String>>>,
}

impl Tree {
    fn of(directory: &str) -> Self {
        Self { directory: directory.into(), read: RefCell::default() }
    }

    fn text(&self, path: &str) -> Option<String> {
        let read = |path: &str| std::fs::read(self.directory.join(path)).ok();
        let text = |path: &str| read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        self.read.borrow_mut().entry(path.to_owned()).or_insert_with(|| text(path)).clone()
    }

    /// Whether another tree has the same lines around a line, or one of them does not have the file.
    fn is_copied(&self, other: &Self, path: &str, line: u32) -> bool {
        let (Some(old), Some(new)) = (self.text(path), other.text(path)) else { return true };
        let line = usize::try_from(line).unwrap_or(0);
        let around: Vec<_> = old.lines().skip(line.saturating_sub(6)).take(11).collect();
        old == new || new.contains(&around.join("\n"))
    }

    /// A line without its blanks; empty beyond the ends.
    fn line(&self, path: &str, number: u32) -> String {
        let text = self.text(path).unwrap_or_default();
        let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        let line = index.and_then(|index| text.lines().nth(index)).unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// A definition, one of its places, and all of them.
type Drawn = (Definition, Place, Vec<Place>);

/// Probes of lines by chance: each with a variable, if one can be read there.
fn draw(old: &Build<'_>, lines: usize, seed: u64, changed_in: Option<&Tree>) -> Outcome<Vec<Drawn>> {
    let mut functions = old.info.functions()?;
    functions.sort_unstable();
    let mut chance = chance::Chance(seed);
    let mut drawn = Vec::new();
    let mut without_code = 0;
    while drawn.len() < lines {
        let name = functions.get(chance.below(functions.len())).ok_or("the file has no functions")?;
        // Most are inlined in no code, or declared only.
        let Ok(listed) = old.info.listing(&Listing::parse(name)?) else {
            without_code += 1;
            if without_code > 1000 * (lines + 1) {
                return Err("too few functions of the file have code".into());
            }
            continue;
        };
        let Some(place) = listed.get(chance.below(listed.len())) else { continue };
        let Some(line) = place.relative_line else { continue };
        if changed_in.is_some_and(|new| old.source.is_copied(new, &place.source.file, place.source.line)) {
            continue;
        }
        let (name, file) = (name.clone(), Some(place.source.file.clone()));
        let within = if line == 0 { Within::Entry } else { Within::Line(line) };
        let target = Target::Function { name, file, within };
        let places = old.info.places(&target, &|_| None)?;
        let Some(place) = places.iter().find(|other| other.address == place.address) else { continue };
        let visible = old.info.variables(place).unwrap_or_default();
        let readable: Vec<_> = visible
            .iter()
            .filter(|one| one.argument.as_ref().is_ok_and(|argument| argument.objection().is_none()))
            .collect();
        let argument = readable.get(chance.below(readable.len())).map(|one| Wanted::parse(&one.name));
        let arguments = argument.into_iter().collect::<Result<Vec<_>, _>>()?;
        let definition = Definition { group: None, event: None, module: None, target, arguments };
        drawn.push((definition, place.clone(), places.clone()));
    }
    Ok(drawn)
}

/// What the daemon would keep of a probe.
fn made(
    build: &Build<'_>,
    definition: &Definition,
    place: &Place,
    places: &[Place],
    with_sources: bool,
) -> Outcome<MadeOfLine> {
    let line = build.info.line(definition, place, 0)?;
    let sources = |path: &str| build.source.text(path).filter(|_| with_sources);
    let origin = build.info.origin(definition, place, places, "0", &sources);
    Ok(MadeOfLine::read(&format!("{} {origin}", line.text)).ok_or("the comment is not read")?)
}

/// What carried a probe, and its place.
fn ported(build: &Build<'_>, made: &MadeOfLine, with_sources: bool) -> Outcome<(&'static str, Place)> {
    let ported = build.info.port(made, &|path| build.source.text(path).filter(|_| with_sources))?;
    let line = build.info.line(&ported.definition, &ported.place, 0)?;
    match line.objection() {
        Some(error) => Err(error.into()),
        None => Ok((ported.carried.text(), ported.place)),
    }
}

/// Judges a port by the texts of both sources.
fn judge((old, from): (&Build<'_>, &Place), (new, to): (&Build<'_>, &Place)) -> &'static str {
    let texts = |build: &Build<'_>, place: &Place, distance: i64| {
        let line = u32::try_from(i64::from(place.source.line) + distance).unwrap_or(0);
        build.source.line(&place.source.file, line)
    };
    let is_same = |distance: i64| texts(old, from, distance) == texts(new, to, distance);
    match (old.source.text(&from.source.file), is_same(0)) {
        (None, _) => "the sources do not have the file",
        (_, false) if from.relative_line == Some(0) => "right, and the function is declared otherwise",
        (_, false) => "WRONG TEXT",
        _ if [-2, -1, 1, 2].into_iter().any(is_same) => "right",
        _ => "all four lines around it are others",
    }
}

/// A message without the names in it, which differ each time.
fn without_names(message: &str) -> String {
    let parts = message.split('`').enumerate();
    let text: String = parts.map(|(number, part)| if number % 2 == 0 { part } else { ".." }).collect();
    text.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect::<String>().replace("99", "9")
}
