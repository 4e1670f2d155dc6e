//! Patterns for text in filters.
//!
//! Owns what `==`, `!=` and `~` mean for text, as in the kernel
//! (kernel/trace/trace_events_filter.c:filter_parse_regex, lib/glob.c:glob_match).

/// Requirement on a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pattern {
    /// This.
    Equal(Box<[u8]>),
    /// It begins like this.
    Prefix(Box<[u8]>),
    /// It ends like this.
    Suffix(Box<[u8]>),
    /// This is somewhere in it.
    Contains(Box<[u8]>),
    /// With `*`, `?`, `[...]` and `\` anywhere.
    Glob(Box<[u8]>),
}

impl Pattern {
    /// The operand of `~`: the pattern, and whether a leading `!` inverts it.
    pub(super) fn of_glob(text: &str) -> (Self, bool) {
        let (inverted, text) = match text.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let is_plain = |part: &str| !part.contains(['*', '?', '[', '\\']);
        let bytes = |part: &str| part.as_bytes().into();
        let inner = text.strip_prefix('*');
        let pattern = match (inner, inner.unwrap_or(text).strip_suffix('*')) {
            _ if is_plain(text) => Self::Equal(bytes(text)),
            (Some(_), Some(middle)) if is_plain(middle) => Self::Contains(bytes(middle)),
            (Some(end), None) if is_plain(end) => Self::Suffix(bytes(end)),
            (None, Some(begin)) if is_plain(begin) => Self::Prefix(bytes(begin)),
            _ => Self::Glob(bytes(text)),
        };
        (pattern, inverted)
    }

    /// Whether a text is like this.
    pub(super) fn matches(&self, text: &[u8]) -> bool {
        match self {
            Self::Equal(whole) => text == &**whole,
            Self::Prefix(begin) => text.starts_with(begin),
            Self::Suffix(end) => text.ends_with(end),
            Self::Contains(middle) => {
                middle.is_empty() || text.windows(middle.len()).any(|part| part == &**middle)
            }
            Self::Glob(pattern) => glob_matches(pattern, text),
        }
    }
}

/// Whether a text matches a pattern as a whole. As in the kernel from 6.12 on, no class matches the
/// end of a text; before, `[!a]` did. Takes at most as many steps as both have bytes, multiplied.
fn glob_matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // Behind the last `*`, and where its remainder was tried last.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let matched = match (pattern.get(at), text.get(place)) {
            (Some(b'*'), _) => {
                at += 1;
                retry = Some((at, place));
                continue;
            }
            (None, byte) => byte.is_none().then_some(0),
            (Some(_), None) => return ends_here(pattern.get(at..).unwrap_or_default()),
            (Some(b'?'), Some(_)) => Some(1),
            (Some(b'['), Some(byte)) => match class(pattern.get(at + 1..).unwrap_or_default(), *byte) {
                Some((true, length)) => Some(1 + length),
                Some((false, _)) => None,
                // An open bracket without an end is just that.
                None => (*byte == b'[').then_some(1),
            },
            (Some(b'\\'), Some(byte)) => (pattern.get(at + 1) == Some(byte)).then_some(2),
            (Some(literal), Some(byte)) => (literal == byte).then_some(1),
        };
        match (matched, &mut retry) {
            (Some(0), _) => return true,
            (Some(length), _) => {
                at += length;
                place += 1;
            }
            (None, Some((behind, tried))) => {
                *tried += 1;
                if *tried > text.len() {
                    return false;
                }
                (at, place) = (*behind, *tried);
            }
            (None, None) => return false,
        }
    }
}

/// Whether the rest of a pattern matches the end of a text. A lone `\` at the end matches the end.
fn ends_here(rest: &[u8]) -> bool {
    rest.is_empty() || rest == b"\\"
}

/// Whether a byte is in a class, and the length of the class without its `[`. Absent when it has no end.
fn class(rest: &[u8], byte: u8) -> Option<(bool, usize)> {
    let inverted = rest.first() == Some(&b'!');
    let mut at = usize::from(inverted);
    let mut found = false;
    let mut first = *rest.get(at)?;
    loop {
        at += 1;
        let mut last = first;
        if rest.get(at) == Some(&b'-') && rest.get(at + 1) != Some(&b']') {
            last = *rest.get(at + 1)?;
            at += 2;
        }
        found |= (first..=last).contains(&byte);
        first = *rest.get(at)?;
        if first == b']' {
            return Some((found != inverted, at + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        let (pattern, inverted) = Pattern::of_glob(pattern);
        pattern.matches(text.as_bytes()) != inverted
    }

    #[test]
    fn patterns_are_told_apart() {
        let kind = |text: &str| Pattern::of_glob(text).0;
        assert_eq!(kind("abc"), Pattern::Equal(b"abc".as_slice().into()));
        assert_eq!(kind("abc*"), Pattern::Prefix(b"abc".as_slice().into()));
        assert_eq!(kind("*abc"), Pattern::Suffix(b"abc".as_slice().into()));
        assert_eq!(kind("!*abc*"), Pattern::Contains(b"abc".as_slice().into()));
        assert_eq!(kind("*"), Pattern::Suffix(b"".as_slice().into()));
        assert_eq!(kind("**"), Pattern::Contains(b"".as_slice().into()));
        assert_eq!(kind("a*c"), Pattern::Glob(b"a*c".as_slice().into()));
        assert_eq!(kind("*a?"), Pattern::Glob(b"*a?".as_slice().into()));
    }

    #[test]
    fn texts_match_as_in_the_kernel() {
        for (pattern, text, expected) in [
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("*.[ch]", "glob.c", true),
            ("*.[!ch]", "glob.c", false),
            ("*.[!ch]", "glob.", false),
            ("?", "", false),
            ("??", "ab", true),
            ("[a-c]x", "bx", true),
            ("[]]", "]", true),
            ("[!]]", "]", false),
            ("[a-]", "-", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("!a*", "ba", true),
            ("!a*", "ab", false),
            ("*aaaaa", "aaaaaaaaaa", true),
            ("*a*b*c*", "xaxbxcx", true),
            ("*", "", true),
            ("!", "", false),
            ("[1]*", "12", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    /// The meaning of `*`, `?` and letters by trying everything.
    fn slowly(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some((b'*', rest)), _) => (0..=text.len()).any(|skip| slowly(rest, &text[skip..])),
            (Some((b'?', rest)), Some((_, after))) => slowly(rest, after),
            (Some((literal, rest)), Some((byte, after))) => literal == byte && slowly(rest, after),
            (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn stars_and_question_marks(pattern in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            prop_assert_eq!(matches(&pattern, &text), slowly(pattern.as_bytes(), text.as_bytes()));
            prop_assert_eq!(glob_matches(pattern.as_bytes(), text.as_bytes()), slowly(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn any_pattern_and_any_bytes(pattern in "[]!a\\\\*?-]{0,12}|\\PC{0,12}", text in prop::collection::vec(any::<u8>(), 0..12)) {
            let (plain, _) = Pattern::of_glob(&pattern);
            let _ = plain.matches(&text);
            let (inverse, inverted) = Pattern::of_glob(&format!("!{pattern}"));
            prop_assert!(inverted);
            if !pattern.starts_with('!') {
                prop_assert_eq!(inverse, plain);
            }
        }
    }
}
