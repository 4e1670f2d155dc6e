//! Label selectors, in the language of kubectl's `-l`.
//!
//! Owns parsing and matching. Never lists a probe.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::word::{Part, check};
use super::{LabelError, Labels};

/// Longest selector, in bytes: limits the work of one request.
const MAX_BYTES: usize = 4096;

/// What to write as a selector, and as one with a set.
const ANY: &str = "write `key=value`, `key!=value`, `key`, `!key`, `key in (a,b)` or `key notin (a,b)`, with commas between";
const WITH_SET: &str = "write `key in (a,b)` or `key notin (a,b)`";

/// Requirements on labels, with commas between: a probe is selected when it meets all of them, so
/// an empty selector selects every probe.
///
/// As in kubectl, `key=value` (or `==`) wants that value and `key!=value` anything else, a missing
/// label included; `key` wants the label and `!key` its absence; `key in (a,b)` wants one of these
/// values and `key notin (a,b)` none of them. A value may be empty. [`FromStr`] and
/// [`fmt::Display`] are inverse to each other but for blanks, `==`, and sets of one value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    Present,
    Absent,
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
}

impl LabelSelector {
    /// Whether a probe with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.fits(|key| labels.get(key))
    }

    /// Whether something is selected whose labels have these values.
    pub fn fits<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|Requirement { key, wanted }| {
            let value = value(key);
            match wanted {
                Wanted::Present => value.is_some(),
                Wanted::Absent => value.is_none(),
                Wanted::In(values) => value.is_some_and(|value| values.contains(value)),
                Wanted::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            }
        })
    }

    /// Whether it selects every probe, whatever its labels.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }
}

impl FromStr for LabelSelector {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        if text.len() > MAX_BYTES {
            let bytes = text.len();
            let message = format!("the selector has {bytes} bytes; at most {MAX_BYTES} are allowed");
            return Err(LabelError::at(text, 0..bytes, (message, "")));
        }
        let mut cursor = Cursor { text, at: 0 };
        let mut requirements = Vec::new();
        if cursor.at_end() {
            return Ok(Self { requirements });
        }
        loop {
            requirements.push(cursor.requirement()?);
            if cursor.at_end() {
                return Ok(Self { requirements });
            }
            if !cursor.eat(",") {
                return Err(cursor.missing("expected a comma", ANY));
            }
        }
    }
}

/// A selector while it is parsed. Blanks between its parts mean nothing.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn requirement(&mut self) -> Result<Requirement, LabelError> {
        if self.eat("!") {
            return Ok(Requirement { key: self.key()?, wanted: Wanted::Absent });
        }
        let key = self.key()?;
        let wanted = if self.eat("!=") {
            Wanted::NotIn(BTreeSet::from([self.value()?]))
        } else if self.eat("==") || self.eat("=") {
            Wanted::In(BTreeSet::from([self.value()?]))
        } else if self.at_end() || self.rest().starts_with(',') {
            Wanted::Present
        } else {
            let before = self.at;
            match self.word().1 {
                "in" => Wanted::In(self.set()?),
                "notin" => Wanted::NotIn(self.set()?),
                _ => {
                    self.at = before;
                    let message = "a key is followed by `=`, `!=`, `in`, `notin`, a comma or the end";
                    return Err(self.missing(message, ANY));
                }
            }
        };
        Ok(Requirement { key, wanted })
    }

    fn key(&mut self) -> Result<String, LabelError> {
        let (range, word) = self.word();
        if word.is_empty() {
            return Err(self.missing("expected a key", ANY));
        }
        self.checked(Part::Key, range, word)
    }

    fn value(&mut self) -> Result<String, LabelError> {
        let (range, word) = self.word();
        self.checked(Part::Value, range, word)
    }

    fn set(&mut self) -> Result<BTreeSet<String>, LabelError> {
        if !self.eat("(") {
            return Err(self.missing("`in` and `notin` are followed by values in parentheses", WITH_SET));
        }
        let mut values = BTreeSet::new();
        loop {
            values.insert(self.value()?);
            if self.eat(")") {
                return Ok(values);
            }
            if !self.eat(",") {
                return Err(self.missing("expected a comma or `)`", WITH_SET));
            }
        }
    }

    fn checked(&self, part: Part, range: Range<usize>, word: &str) -> Result<String, LabelError> {
        check(part, word).map(|()| word.to_owned()).map_err(|(problem, within)| {
            let span = range.start.saturating_add(within.start)..range.start.saturating_add(within.end);
            LabelError::at(self.text, span, problem)
        })
    }

    /// Everything up to the next character that a key or a value cannot contain even by mistake: a
    /// blank or a character of the language.
    fn word(&mut self) -> (Range<usize>, &'a str) {
        self.skip_blanks();
        let rest = self.rest();
        let delimits = |c: char| c.is_whitespace() || ",=!()".contains(c);
        let word = rest.split(delimits).next().unwrap_or_default();
        let start = self.at;
        self.at = start.saturating_add(word.len());
        (start..self.at, word)
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip_blanks();
        let is_next = self.rest().starts_with(token);
        if is_next {
            self.at = self.at.saturating_add(token.len());
        }
        is_next
    }

    fn at_end(&mut self) -> bool {
        self.skip_blanks();
        self.rest().is_empty()
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at = self.at.saturating_add(rest.len().saturating_sub(rest.trim_start().len()));
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn missing(&mut self, message: &str, hint: &'static str) -> LabelError {
        self.skip_blanks();
        LabelError::at(self.text, self.at..self.at, (message.to_owned(), hint))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, wanted }) in self.requirements.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            match wanted {
                Wanted::Present => f.write_str(key)?,
                Wanted::Absent => write!(f, "!{key}")?,
                Wanted::In(values) => write_values(f, key, ("=", "in"), values)?,
                Wanted::NotIn(values) => write_values(f, key, ("!=", "notin"), values)?,
            }
        }
        Ok(())
    }
}

/// One value with an operator, several as a set.
fn write_values(
    f: &mut fmt::Formatter<'_>,
    key: &str,
    (operator, word): (&str, &str),
    values: &BTreeSet<String>,
) -> fmt::Result {
    let mut all = values.iter().map(String::as_str);
    if let (Some(only), None) = (all.next(), all.next()) {
        return write!(f, "{key}{operator}{only}");
    }
    let list: Vec<_> = values.iter().map(String::as_str).collect();
    write!(f, "{key} {word} ({})", list.join(","))
}
