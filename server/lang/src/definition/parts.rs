//! The parts of a line that the kernel looks at before it comes to where it cannot read on.
//!
//! Owns that order, for lines that have a mistake of reading: a name before it that does not exist is what the kernel reports. Whether names
//! exist is for others to say.

use super::line::{Word, single};
use super::names::is_identifier;

/// What of an argument cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// A member, or what should be the name of a parameter.
    Name,
    /// The type does not fit the expression, which the kernel has read by then.
    Fit,
    /// The name that the kernel makes for it.
    OwnName,
    /// Anything else.
    Word,
}

/// When the kernel looks at words that are `$argN` and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumbersAre {
    /// With all others, in their order (before 6.5).
    InOrder,
    /// Before all others it asks whether there can be any (from 6.5 on).
    AskedFirst,
    /// Before all others it puts the names of parameters there.
    NamedFirst,
}

/// A part of a line that the kernel looks at before it comes to where it cannot read on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadPart {
    /// The line with blanks for the rest, so that positions stay.
    pub text: String,
    /// Whether it looks names up by then, or only whether there can be any.
    pub looks_names_up: bool,
    /// Where the words begin that it has only looked at for what they are.
    pub read_end: usize,
}

/// What the kernel looks at before it finds out at `end` that it cannot read a line, in its order: where it looks at words that are
/// `$arg...` and nothing else first, those; the arguments before that which `end` is in; and the same with as much of that one as it has
/// read by then.
pub fn parts_before<'a>(text: &'a str, end: usize, unread: Unread, numbers: NumbersAre) -> Vec<ReadPart> {
    let Ok(words) = single(text) else { return Vec::new() };
    let Some((head, arguments)) = words.split_at_checked(2) else { return Vec::new() };
    let part = |kept: &[Word<'_>], last: Option<(usize, String)>, after: &[Word<'_>], looks_names_up| {
        let mut line = String::with_capacity(text.len());
        let mut put = |start: usize, word: &str| {
            let blanks = start.saturating_sub(line.len()).max(usize::from(!line.is_empty()));
            line.extend(std::iter::repeat_n(' ', blanks));
            line.push_str(word);
        };
        for word in head.iter().chain(kept) {
            put(word.start, word.text);
        }
        if let Some((start, last)) = &last {
            put(*start, last);
        }
        for word in after {
            put(word.start, word.text);
        }
        let read_end = after.first().map_or(usize::MAX, |word| word.start);
        ReadPart { text: line, looks_names_up, read_end }
    };
    let after_arg =
        |word: &Word<'a>| word.text.strip_prefix("$arg").filter(|_| numbers != NumbersAre::InOrder);
    let without_tail = |word: &Word<'a>| {
        let digits = after_arg(word)?.bytes().take_while(u8::is_ascii_digit).count();
        Some(match numbers {
            // Whether the number is good is not asked yet.
            NumbersAre::AskedFirst if digits > 0 => Word { text: "$arg1", ..*word },
            _ => word.head(word.text.find(':').unwrap_or(word.text.len())),
        })
    };
    let looked_at_first: Vec<Word<'_>> = arguments.iter().filter_map(without_tail).collect();
    let count = arguments.iter().take_while(|word| word.end() < end).count();
    let (before, last) = (arguments.get(..count).unwrap_or_default(), arguments.get(count));
    let read = |last: &Word<'a>| last.text.get(..end.saturating_sub(last.start)).unwrap_or(last.text);
    let is_read_first = |word: &Word<'a>| {
        let is_digit = |after: &str| after.starts_with(|c: char| c.is_ascii_digit());
        after_arg(word).is_some_and(|after| numbers == NumbersAre::NamedFirst || !is_digit(after))
    };
    if last.is_some_and(|last| unread != Unread::OwnName && is_read_first(last) && !read(last).contains(':'))
    {
        // One of those words is bad itself: whether there can be any is asked of the first.
        let first = looked_at_first.first().map(|word| (word.start, "$arg1".to_owned()));
        return vec![part(&[], first, &[], false)];
    }
    // What it has looked at before stays looked at.
    let numbers_from = |start: usize| {
        let first = looked_at_first.partition_point(|word| word.start < start);
        looked_at_first.get(first..).unwrap_or_default()
    };
    let after_before = numbers_from(last.map_or(end, |last| last.start));
    let after = numbers_from(end + 1);
    let mut parts = vec![part(&looked_at_first, None, &[], true), part(before, None, after_before, true)];
    if let Some(last) = last {
        let read = read(last);
        match unread {
            Unread::Name => {
                let (root, has_members) = root_of(*last, end);
                parts.push(part(before, Some(root), after, has_members));
            }
            Unread::Fit => {
                let fetch = read.rfind(':').map(|colon| last.head(colon));
                parts.extend(fetch.map(|fetch| part(&[before, &[fetch]].concat(), None, after, true)));
            }
            Unread::OwnName | Unread::Word => {}
        }
    }
    parts
}

/// The argument `word` with nothing in it but the variable that it starts from, or as many of its members as are read before `end`, at
/// offsets of 0: offsets are looked at when what they stand before has been read. And whether the kernel looks at more than the first sign
/// behind the variable.
fn root_of(word: Word<'_>, end: usize) -> ((usize, String), bool) {
    let name = word.text.find('=').map_or(0, |equals| equals + 1);
    let (mut start, mut depth) = (name, 0);
    let mut path = word.text.get(name..).and_then(|fetch| fetch.split(':').next()).unwrap_or_default();
    while let Some((offset, inner)) = path.split_once('(').filter(|_| path.starts_with(['+', '-'])) {
        start += offset.len() + 1;
        depth += 1;
        path = inner.rfind(')').and_then(|close| inner.get(..close)).unwrap_or(inner);
    }
    let (root, signs) = path.split_at(path.find(['-', '.']).unwrap_or(path.len()));
    let is_name = is_identifier(root);
    let read = path.get(..end.saturating_sub(word.start + start)).unwrap_or_default();
    let is_first_sign = read.len() == root.len() + 1;
    let at_member =
        (is_name || root == "$retval") && (read.ends_with("->") || read.ends_with('.') && !is_first_sign);
    // Any name does that no parameter and no member has: it is where the kernel stumbles.
    let shown = match root {
        _ if at_member => format!("{read}__"),
        number if number.starts_with("$arg") => "$arg1".to_owned(),
        _ if is_name => root.to_owned(),
        _ => "__".to_owned(),
    };
    let stumbles = signs.starts_with('.') || signs.starts_with('-') && !signs.starts_with("->");
    let (name, offsets) = word.text.get(..start).unwrap_or_default().split_at(name);
    let offsets = offsets.replace(|c: char| c.is_ascii_alphanumeric() && c != 'u', "0");
    let closing = ")".repeat(depth);
    ((word.start, format!("{name}{offsets}{shown}{closing}")), at_member || !stumbles)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The parts without their blanks, up to the text `until` of the line.
    fn parts(line: &str, until: &str, unread: Unread, numbers: NumbersAre) -> Vec<String> {
        let parts = parts_before(line, line.find(until).unwrap(), unread, numbers);
        let text = |part: ReadPart| part.text.split_whitespace().collect::<Vec<_>>().join(" ");
        parts.into_iter().map(text).collect()
    }

    #[test]
    fn words_that_are_numbers_come_first() {
        let line = "p f a=file %bad $arg2:u8";
        let expected = ["p f $arg2", "p f a=file $arg2"];
        assert_eq!(parts(line, "%bad", Unread::Word, NumbersAre::NamedFirst), expected);
        assert_eq!(parts(line, "%bad", Unread::Word, NumbersAre::InOrder), ["p f", "p f a=file"]);
        // Which number it is matters only where a parameter is looked for.
        let expected = ["p f $arg1", "p f a=file $arg1"];
        assert_eq!(parts(line, "%bad", Unread::Word, NumbersAre::AskedFirst), expected);
        // One that is bad itself: only whether there can be any.
        assert_eq!(parts("p f a=file $argx", "$argx", Unread::Word, NumbersAre::NamedFirst), ["p f $arg1"]);
    }

    #[test]
    fn members_are_read_up_to_the_bad_one() {
        let last =
            |line: &str, until: &str| parts(line, until, Unread::Name, NumbersAre::InOrder).pop().unwrap();
        assert_eq!(last("p f a=+8(-0x10(file->f_inode->x))))", "x)"), "p f a=+0(-0000(file->f_inode->__))");
        assert_eq!(last("r f a=$retval->x)", "x)"), "r f a=$retval->__");
        assert_eq!(last("p f a=file.x)", "x)"), "p f a=file", "a parameter has no member after a dot");
        assert_eq!(last("p f a=b)c", "b)"), "p f a=__");
    }

    #[test]
    fn positions_stay() {
        let line = "p   f  a=file   %bad";
        let part =
            parts_before(line, line.find("%bad").unwrap(), Unread::Word, NumbersAre::InOrder).pop().unwrap();
        assert_eq!(part.text.find("a=file"), line.find("a=file"));
    }

    proptest! {
        #[test]
        fn every_part_begins_with_the_place(line in "[pr] f( [$arg0-9a-z=+(:.>-]{1,12}){0,4}", other in ".*", end in 0_usize..80) {
            for unread in [Unread::Name, Unread::Fit, Unread::OwnName, Unread::Word] {
                for numbers in [NumbersAre::InOrder, NumbersAre::AskedFirst, NumbersAre::NamedFirst] {
                    for part in parts_before(&line, end, unread, numbers) {
                        prop_assert_eq!(part.text.get(..3), line.get(..3));
                    }
                    let _survived = parts_before(&other, end, unread, numbers);
                }
            }
        }
    }
}
