//! Host lists in short form: `web[001-480,500],db1`.
//!
//! Owns the notation; [`expand`] and [`fold`] are inverse to each other. It never resolves a name.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

/// Most names in one list: far above any fleet, and far below what would fill the memory.
pub const MAX_NAMES: usize = 100_000;

/// Numbers with more digits stay as they are: the largest of 18 digits fits into 64 bits.
const MAX_DIGITS: usize = 18;

/// Why a text is not a list of names.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NamesError {
    /// A bracket without its other half.
    #[error("`{0}` has a bracket without its other half: write ranges as in `web[001-480]`")]
    Bracket(String),
    /// Something in brackets that is not a number or a range of numbers.
    #[error(
        "`{range}` in `{name}` is not a number or a range of numbers: write ranges as in `web[001-480,500]`"
    )]
    Range {
        /// The whole name.
        name: String,
        /// The text in the brackets.
        range: String,
    },
    /// A range whose end is before its start, or is written with another number of digits.
    #[error(
        "the range `{range}` in `{name}` must go upward, with the same number of digits on both sides if it is padded with zeros"
    )]
    Order {
        /// The whole name.
        name: String,
        /// The range.
        range: String,
    },
    /// Too many names.
    #[error("`{0}` stands for more than {MAX_NAMES} names: split it")]
    TooMany(String),
}

/// Cuts a list at its commas, but not at those in brackets. Leaves empty parts out.
pub fn split(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_usize, 0, Vec::new());
    for (at, character) in list.char_indices() {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Expands the ranges of a name, in their order. A name without a range expands to itself. Brackets
/// around an address with colons (`[::1]:7443`) are not a range.
///
/// # Errors
/// When a range is malformed, or has too many names.
pub fn expand(name: &str) -> Result<Vec<String>, NamesError> {
    let Some(open) = name.find('[') else {
        return if name.contains(']') {
            Err(NamesError::Bracket(name.to_owned()))
        } else {
            Ok(vec![name.to_owned()])
        };
    };
    let close =
        name[open..].find(']').map(|at| open + at).ok_or_else(|| NamesError::Bracket(name.to_owned()))?;
    let (before, ranges, after) = (&name[..open], &name[open + 1..close], &name[close + 1..]);
    if before.contains(']') {
        return Err(NamesError::Bracket(name.to_owned()));
    }
    if ranges.contains(':') {
        return Ok(vec![name.to_owned()]);
    }
    let numbers = numbers(name, ranges)?;
    let ends = expand(after)?;
    if numbers.len().saturating_mul(ends.len()) > MAX_NAMES {
        return Err(NamesError::TooMany(name.to_owned()));
    }
    Ok(numbers
        .iter()
        .flat_map(|number| ends.iter().map(move |end| format!("{before}{number}{end}")))
        .collect())
}

/// The numbers of `001-480,500`, as they are written.
fn numbers(name: &str, ranges: &str) -> Result<Vec<String>, NamesError> {
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let wrong = || NamesError::Range { name: name.to_owned(), range: range.to_owned() };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let start = number(first).ok_or_else(wrong)?;
        let end = number(last).ok_or_else(wrong)?;
        if end < start || (is_padded(first) || is_padded(last)) && first.len() != last.len() {
            return Err(NamesError::Order { name: name.to_owned(), range: range.to_owned() });
        }
        if end - start >= MAX_NAMES as u64 || all.len() >= MAX_NAMES {
            return Err(NamesError::TooMany(name.to_owned()));
        }
        let width = if is_padded(first) { first.len() } else { 0 };
        all.extend((start..=end).map(|number| format!("{number:0width$}")));
    }
    Ok(all)
}

fn number(text: &str) -> Option<u64> {
    let is_number =
        !text.is_empty() && text.len() <= MAX_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

fn is_padded(digits: &str) -> bool {
    digits.len() > 1 && digits.starts_with('0')
}

/// The short form of a list: names that differ in one number are put together. Each name once,
/// sorted.
///
/// Names fold at the last number before the first dot, as in `web[001-480].example.org`; addresses
/// fold at their last part.
#[expect(single_use_lifetimes, reason = "`impl Trait` needs a name for it")]
pub fn fold<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut plain = BTreeSet::new();
    let mut families: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for name in names {
        match cut(name) {
            Some((before, digits, after)) => _ = families.entry((before, after)).or_default().insert(digits),
            None => _ = plain.insert(name.to_owned()),
        }
    }
    for ((before, after), digits) in families {
        let (open, close) = if digits.len() == 1 { ("", "") } else { ("[", "]") };
        plain.insert(format!("{before}{open}{}{close}{after}", fold_numbers(&digits)));
    }
    plain.into_iter().collect::<Vec<_>>().join(",")
}

/// The text before, in and after the number at which a name folds.
fn cut(name: &str) -> Option<(&str, &str, &str)> {
    if name.contains(['[', ']', ',']) {
        return None;
    }
    let host = match name.rsplit_once(':') {
        Some((host, _port)) => host,
        None => name,
    };
    let is_address = host.parse::<std::net::Ipv4Addr>().is_ok();
    let label = if is_address { host } else { host.split('.').next().unwrap_or_default() };
    let end = label.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = label[..end]
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |at| at + label[at..].chars().next().map_or(1, char::len_utf8));
    (end - start <= MAX_DIGITS).then(|| (&name[..start], &name[start..end], &name[end..]))
}

/// The short form of numbers. Those of as many digits as a padded one belong to it: `099,100` is
/// `099-100`.
fn fold_numbers(digits: &BTreeSet<&str>) -> String {
    let padded: BTreeSet<usize> =
        digits.iter().filter(|digits| is_padded(digits)).map(|digits| digits.len()).collect();
    let mut classes: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
    for digits in digits {
        let width = if padded.contains(&digits.len()) { digits.len() } else { 0 };
        classes.entry(width).or_default().extend(number(digits));
    }
    let mut parts = Vec::new();
    for (width, numbers) in classes {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for number in numbers {
            match runs.last_mut() {
                Some((_, end)) if *end + 1 == number => *end = number,
                _ => runs.push((number, number)),
            }
        }
        for (start, end) in runs {
            let last = if start == end { String::new() } else { format!("-{end:0width$}") };
            parts.push(format!("{start:0width$}{last}"));
        }
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(list: &str) -> Result<BTreeSet<String>, NamesError> {
        let mut names = BTreeSet::new();
        for name in split(list) {
            names.extend(expand(name)?);
        }
        Ok(names)
    }

    #[test]
    fn ranges() {
        assert_eq!(expand("web[008-010].a").unwrap(), ["web008.a", "web009.a", "web010.a"]);
        assert_eq!(expand("r[1-2]n[9,10]").unwrap(), ["r1n9", "r1n10", "r2n9", "r2n10"]);
        assert_eq!(expand("[::1]:80").unwrap(), ["[::1]:80"]);
        assert_eq!(split("web[1,2],db1, ,x"), ["web[1,2]", "db1", "x"]);
        assert_eq!(fold(["web8", "web10", "web9", "db1", "web9"]), "db1,web[8-10]");
        assert_eq!(fold(["web099", "web100", "web7"]), "web[7,099-100]");
        assert_eq!(fold(["10.0.0.1:74", "10.0.0.2:74", "node1.b9"]), "10.0.0.[1-2]:74,node1.b9");
    }

    #[test]
    fn mistakes_are_named() {
        assert!(matches!(expand("web[1-3"), Err(NamesError::Bracket(_))));
        assert!(matches!(expand("web1-3]"), Err(NamesError::Bracket(_))));
        assert!(matches!(expand("web[]"), Err(NamesError::Range { .. })));
        assert!(matches!(expand("web[1-b]"), Err(NamesError::Range { .. })));
        assert!(matches!(expand("web[3-1]"), Err(NamesError::Order { .. })));
        assert!(matches!(expand("web[01-100]"), Err(NamesError::Order { .. })));
        assert!(matches!(expand("web[0-999999999]"), Err(NamesError::TooMany(_))));
        assert!(matches!(expand("a[1-1000]b[1-1000]"), Err(NamesError::TooMany(_))));
    }

    proptest! {
        #[test]
        fn fold_and_expand_are_inverse(names in proptest::collection::btree_set("[ab]{0,2}[0-9]{1,3}(|-x|[.]d[0-9]|:7443)|[1-2][.]0[.]0[.][0-9]{1,2}|plain", 0..40)) {
            let folded = fold(names.iter().map(String::as_str));
            prop_assert_eq!(all(&folded).unwrap(), names, "{}", folded);
        }

        #[test]
        fn no_text_is_too_odd(text in "[a\\[\\]0-9,:é-]{0,20}") {
            all(&text).ok();
            fold([text.as_str()]);
        }
    }
}
