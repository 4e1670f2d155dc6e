//! What the comment of an origin has to find the line again in another build.
//!
//! Words of that comment, each absent if it is not known: `at:1/2/CALLER` is the place among those of the line in the
//! function that has the code, `args:count,file->f_mode` are the arguments as they were written, `near:1/3/1/HASH/...`
//! is the line among those of the function with the same text (how many have the same lines around them, and the hashes
//! of these), and `code:HASH` stands for the numbers of the lines of the function that have code. A hash is FNV-1a of
//! 32 bits.

use std::collections::BTreeSet;
use std::fmt;

use crate::origin::kept;

/// Lines above, and below, whose texts are compared.
const NEAR: usize = 2;

/// What is known of a line, of its place and of what was wanted there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub(crate) place: Option<PlaceNumber>,
    pub(crate) arguments: Option<Vec<String>>,
    pub(crate) around: Option<Around>,
    /// A hash of the numbers of the lines with code.
    pub(crate) code: Option<u32>,
}

/// A place among those of a line in one function with code of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlaceNumber {
    /// From 1.
    pub(crate) number: usize,
    pub(crate) of: usize,
    /// The function that has the code, if it is another one.
    pub(crate) inlined_into: Option<String>,
}

/// A line among those of its function with the same text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Around {
    /// From 1.
    pub(crate) number: usize,
    pub(crate) of: usize,
    /// How many of them have the same lines around them: 1 if it is the only one.
    pub(crate) alike: usize,
    pub(crate) near: Near,
}

/// Hashes of the lines above, the nearest first, and of those below. Lines without a letter or a digit do not count:
/// they are like others.
pub(crate) type Near = [u32; 2 * NEAR];

/// The lines of a function in its source.
#[derive(Debug, Clone)]
pub(crate) struct Extent {
    /// The path of the source.
    pub(crate) file: String,
    /// The line that declares it.
    pub(crate) first: u32,
    /// The line at which the next function is declared.
    pub(crate) end: u32,
    /// Those of its lines that have code, counted from the first.
    pub(crate) code: BTreeSet<u32>,
    /// The functions that the first line declares, and those that the line of the end does.
    pub(crate) declared: [Vec<String>; 2],
}

impl Anchor {
    /// Takes arguments, if a word of a comment can have them.
    pub(crate) fn set_arguments(&mut self, arguments: Vec<String>) {
        let is_word = |c: char| !(c.is_whitespace() || c.is_control() || matches!(c, ',' | '#' | '\\'));
        let fits = |argument: &String| !argument.is_empty() && argument.chars().all(is_word);
        self.arguments = Some(arguments).filter(|arguments| arguments.iter().all(fits));
    }

    /// Takes what a word of the comment says.
    pub(crate) fn read(&mut self, word: &str) {
        match word.split_once(':') {
            Some(("at", rest)) => self.place = PlaceNumber::read(rest),
            Some(("args", "")) => self.arguments = Some(Vec::new()),
            Some(("args", rest)) => self.set_arguments(rest.split(',').map(str::to_owned).collect()),
            Some(("near", rest)) => self.around = Around::read(rest),
            Some(("code", rest)) => self.code = u32::from_str_radix(rest, 16).ok(),
            _ => {}
        }
    }
}

/// Its words, each with a blank before it.
impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(PlaceNumber { number, of, inlined_into }) = &self.place {
            write!(f, " at:{number}/{of}")?;
            inlined_into.iter().try_for_each(|function| write!(f, "/{function}"))?;
        }
        self.arguments.iter().try_for_each(|arguments| write!(f, " args:{}", arguments.join(",")))?;
        if let Some(Around { number, of, alike, near }) = &self.around {
            write!(f, " near:{number}/{of}/{alike}")?;
            near.iter().try_for_each(|hash| write!(f, "/{hash:08x}"))?;
        }
        self.code.iter().try_for_each(|code| write!(f, " code:{code:08x}"))
    }
}

impl PlaceNumber {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '/');
        let (number, of) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let inlined_into = parts.next().filter(|function| !function.is_empty()).map(str::to_owned);
        Some(Self { number, of, inlined_into })
    }
}

impl Around {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let mut number = || parts.next()?.parse().ok();
        let (number, of, alike) = (number()?, number()?, number()?);
        let mut near = Near::default();
        for hash in &mut near {
            *hash = u32::from_str_radix(parts.next()?, 16).ok()?;
        }
        parts.next().is_none().then_some(Self { number, of, alike, near })
    }

    /// A line of a function, from 1 in its source. `None` if the source has no text there, or is of another build.
    pub(crate) fn of(line: u32, extent: &Extent, source: &str) -> Option<Self> {
        let lines: Vec<&str> = source.lines().collect();
        if !fits(extent, &lines) {
            return None;
        }
        let text = kept(lines.get(usize::try_from(line).ok()?.checked_sub(1)?)?);
        let same = lines_with_text(&text, extent, &lines);
        let number = same.iter().position(|(other, _)| *other == line)?;
        let near = same.get(number)?.1;
        let alike = same.iter().filter(|(_, other)| *other == near).count();
        (!text.is_empty()).then_some(Self { number: number + 1, of: same.len(), alike, near })
    }
}

/// Whether a source is that of the build, as far as can be seen: it declares the function and the next one on the lines
/// on which debug information says so.
pub(crate) fn fits(extent: &Extent, lines: &[&str]) -> bool {
    [extent.first, extent.end].iter().zip(&extent.declared).all(|(line, names)| {
        let text = usize::try_from(*line).ok().and_then(|line| lines.get(line.checked_sub(1)?));
        names.is_empty() || text.is_some_and(|text| names.iter().any(|name| declares(text, name)))
    })
}

/// Whether a line may declare a function; a macro has a part of the name.
fn declares(text: &str, name: &str) -> bool {
    let before = text.split_once('(').map_or("", |(before, _)| before.trim());
    let is_macro = !before.is_empty()
        && before.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    text.contains(name) || is_macro && name.split('_').any(|part| part.len() > 2 && text.contains(part))
}

/// The lines of a function with a text, in order, and what is around each.
pub(crate) fn lines_with_text(text: &str, extent: &Extent, lines: &[&str]) -> Vec<(u32, Near)> {
    let numbered = (1..).zip(lines).filter(|(number, _)| (extent.first..extent.end).contains(number));
    let same = numbered.filter(|(_, line)| kept(line) == text);
    same.map(|(number, _)| (number, near(number, lines))).collect()
}

/// The hashes of the lines around a line.
fn near(line: u32, lines: &[&str]) -> Near {
    let at = usize::try_from(line).unwrap_or(usize::MAX).min(lines.len());
    let (above, below) = lines.split_at(at);
    let above = above.iter().rev().skip(1).filter(|line| has_words(line)).take(NEAR);
    let below = below.iter().filter(|line| has_words(line)).take(NEAR);
    let mut near = Near::default();
    let (of_above, of_below) = near.split_at_mut(NEAR);
    for (hash, line) in of_above.iter_mut().zip(above).chain(of_below.iter_mut().zip(below)) {
        *hash = fnv(&kept(line));
    }
    near
}

fn has_words(line: &str) -> bool {
    line.contains(char::is_alphanumeric)
}

/// A hash of the numbers of lines.
pub(crate) fn hash_of(lines: &BTreeSet<u32>) -> u32 {
    let texts: Vec<_> = lines.iter().map(u32::to_string).collect();
    fnv(&texts.join(","))
}

/// FNV-1a of 32 bits.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "int f(void)\n{\n\tif (a)\n\t\tgoto out;\n\n\tb = c();\n\tif (b)\n\t\tgoto  out;\n\
                          out:\n\treturn 0;\n}\n";

    #[test]
    fn the_hash_is_that_of_the_world() {
        assert_eq!([fnv(""), fnv("a"), fnv("foobar")], [0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968]);
    }

    #[test]
    fn a_line_is_counted_among_those_of_its_text() {
        let names = [vec!["f".to_owned()], Vec::new()];
        let file = "a.c".to_owned();
        let extent = Extent { file, first: 1, end: u32::MAX, code: BTreeSet::new(), declared: names };
        let second = Around::of(8, &extent, SOURCE).unwrap();
        assert_eq!((second.number, second.of, second.alike), (2, 2, 1), "blanks do not count");
        assert_eq!(second.near, ["if (b)", "b = c();", "out:", "return 0;"].map(fnv));
        let third = Around::of(3, &extent, SOURCE).unwrap();
        assert_eq!(third.near[..2], [fnv("int f(void)"), 0], "a brace is no neighbour");
        assert_eq!(Around::of(1, &extent, SOURCE).unwrap().near[..2], [0, 0]);
        assert_eq!(Around::of(4, &Extent { end: 8, ..extent.clone() }, SOURCE).unwrap().of, 1);
        for line in [0, 5, 12, u32::MAX] {
            assert_eq!(Around::of(line, &extent, SOURCE), None, "{line}");
        }
        let shifted = format!("\n{SOURCE}");
        assert_eq!(Around::of(9, &extent, &shifted), None, "it declares nothing on the first line");
    }

    #[test]
    fn macros_declare_with_a_part_of_the_name() {
        assert!(
            declares("static int vfs_open(int a)", "vfs_open") && !declares("\tvfs_close();", "vfs_open")
        );
        assert!(declares("SYSCALL_DEFINE3(openat2, int, dfd)", "__do_sys_openat2"));
        assert!(!declares("static int openat2(int dfd)", "__do_sys_openat2"));
    }
}
