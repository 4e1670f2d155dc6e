//! Globs of probe and host names: `*` matches any number of bytes, `?` matches one.
//!
//! Kept, and not a crate: the daemon matches names in the same way, and these 20 lines are tested.

/// The glob of a pattern of probe names: a bare event name matches it in any group, and `*` matches
/// all.
pub(crate) fn of_names(pattern: &str) -> String {
    match pattern {
        "*" => String::new(),
        _ if pattern.is_empty() || pattern.contains('/') => pattern.to_owned(),
        _ => format!("*/{pattern}"),
    }
}

/// Whether a glob matches all of a text.
pub(crate) fn matches(glob: &[u8], text: &[u8]) -> bool {
    let (mut at, mut position) = (0, 0);
    // Where to retry if the part after the last star does not match: after the star, one byte
    // further in the text.
    let mut retry = None;
    while position < text.len() {
        match glob.get(at) {
            Some(b'*') => {
                retry = Some((at + 1, position));
                at += 1;
            }
            Some(&byte) if byte == b'?' || text.get(position) == Some(&byte) => {
                at += 1;
                position += 1;
            }
            _ => match &mut retry {
                Some((behind_star, start)) => {
                    *start += 1;
                    (at, position) = (*behind_star, *start);
                }
                None => return false,
            },
        }
    }
    glob.get(at..).is_some_and(|rest| rest.iter().all(|byte| *byte == b'*'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive(glob: &[u8], text: &[u8]) -> bool {
        match (glob, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|skip| naive(rest, &text[skip..])),
            ([b'?', rest @ ..], [_, tail @ ..]) => naive(rest, tail),
            ([byte, rest @ ..], [first, tail @ ..]) => byte == first && naive(rest, tail),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(glob in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(matches(glob.as_bytes(), text.as_bytes()), naive(glob.as_bytes(), text.as_bytes()));
        }
    }
}
