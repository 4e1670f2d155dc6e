//! The source line that a probe was made from, as a comment behind its definition.
//!
//! ` # source: FILE:LINE FUNC:LINE build:ID at:... args:... near:... code:... text: ...`. A comment means nothing to
//! the kernel, and goes wherever the definition goes: to the daemon, into documents, to other hosts.

use std::fmt;

use crate::anchor::Anchor;

/// What a comment of an origin begins with.
const MARK: &str = "# source: ";

/// The longest text of a line that is kept, in characters.
const TEXT_MAX: usize = 120;

/// The source line of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The path of the source.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The function whose line it is.
    pub function: String,
    /// The line within the function.
    pub relative_line: Option<u32>,
    /// The build id of the kernel or the module, in hexadecimal; empty if it has none.
    pub build_id: String,
    /// What finds the line again in another build.
    pub(crate) anchor: Anchor,
    /// The text of the line; empty if no source was found.
    text: String,
}

/// The text of a line as far as it fits a comment: blanks are one, and nothing ends or continues the comment.
pub(crate) fn kept(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '#' | '\\'));
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let text: String = words.join(" ").chars().take(TEXT_MAX).collect();
    text.trim_end().to_owned()
}

impl Origin {
    /// A line, with its text as far as it fits a comment.
    pub fn new(
        file: &str,
        line: u32,
        (function, relative_line): (&str, Option<u32>),
        build_id: &str,
        text: &str,
    ) -> Self {
        let word = |text: &str| text.replace(|c: char| c.is_whitespace() || c.is_control() || c == '#', "_");
        Self {
            file: word(file),
            line,
            function: word(function),
            relative_line,
            build_id: word(build_id),
            anchor: Anchor::default(),
            text: kept(text),
        }
    }

    /// The text of the line; empty if no source was found.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line in words: where it is, and its text.
    pub fn in_words(&self) -> String {
        let within =
            self.relative_line.map_or_else(String::new, |line| format!(" ({}:{line})", self.function));
        let text = if self.text.is_empty() { String::new() } else { format!(": {}", self.text) };
        format!("{}:{}{within}{text}", self.file, self.line)
    }

    /// The origin that follows a definition.
    pub fn find(definition: &str) -> Option<Self> {
        let (_, comment) = definition.split_once(MARK)?;
        let (facts, text) = comment.split_once(" text: ").unwrap_or((comment, ""));
        let mut words = facts.split(' ');
        let (file, line) = words.next()?.rsplit_once(':')?;
        let place = words.next()?;
        let build_id = words.next()?.strip_prefix("build:")?;
        let (function, relative_line) = match place.rsplit_once(':') {
            Some((function, line)) => (function, Some(line.parse().ok()?)),
            None => (place, None),
        };
        let mut read = Self::new(file, line.parse().ok()?, (function, relative_line), build_id, text);
        words.for_each(|word| read.anchor.read(word));
        Some(read)
    }
}

/// The comment, with the mark before it.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}{}:{} {}", self.file, self.line, self.function)?;
        self.relative_line.iter().try_for_each(|line| write!(f, ":{line}"))?;
        write!(f, " build:{}{}", self.build_id, self.anchor)?;
        if self.text.is_empty() { Ok(()) } else { write!(f, " text: {}", self.text) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::anchor::{Around, PlaceNumber};

    #[test]
    fn an_origin_is_a_comment_of_one_line() {
        let origin = Origin::new(
            "fs/read_write.c",
            479,
            ("vfs_read", Some(11)),
            "0a1b",
            "\tret = # dialect: 2009 \\\n",
        );
        assert_eq!(
            origin.to_string(),
            "# source: fs/read_write.c:479 vfs_read:11 build:0a1b text: ret = dialect: 2009"
        );
        // It would continue the line.
        let mut continued = origin.clone();
        continued.anchor.set_arguments(vec!["count\\".to_owned()]);
        assert_eq!(continued, origin);
        let definition = format!("p:a vfs_read+156 count=%bx:u64 {origin}");
        assert_eq!(Origin::find(&definition), Some(origin));
        for other in ["p:a vfs_read", "p:a f # why", "p:a f # source: a.c", "# source: a.c:x f build:"] {
            assert_eq!(Origin::find(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn an_origin_is_found_as_it_was_written(
            file in r"\PC{1,20}", line: u32, function in r"\PC{1,12}", within: Option<u32>, id in "[0-9a-f]{0,40}",
            text in r"(?s).{0,200}", arguments in prop::collection::vec(r"\PC{0,9}", 0..4),
            place: Option<(usize, usize)>, caller in prop::option::of("[a-z_]{1,9}"),
            around: Option<(usize, usize, usize, [u32; 4])>, code: Option<u32>,
        ) {
            // No function of C has a colon in its name.
            prop_assume!(!function.contains(':'));
            let mut origin = Origin::new(&file, line, (&function, within), &id, &text);
            origin.anchor = Anchor {
                place: place.map(|(number, of)| PlaceNumber { number, of, inlined_into: caller }),
                around: around.map(|(number, of, alike, near)| Around { number, of, alike, near }),
                code,
                arguments: None,
            };
            origin.anchor.set_arguments(arguments);
            let written = format!("p:a f {origin}");
            prop_assert!(!written.contains('\n') && !written.ends_with('\\'));
            prop_assert_eq!(written.matches('#').count(), 1);
            prop_assert_eq!(Origin::find(&written), Some(origin));
        }
    }
}
