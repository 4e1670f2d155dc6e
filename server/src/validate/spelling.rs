//! Names that may have been meant.

use crate::kernel::KernelFacts;

/// Names of functions that were renamed and that everybody still has in mind.
const RENAMED: [(&str, &str); 4] = [
    ("_do_fork", "kernel_clone"),
    ("do_fork", "kernel_clone"),
    ("do_sys_open", "do_sys_openat2"),
    ("sys_open", "__x64_sys_open"),
];

/// Where to look when no name is close.
const ELSEWHERE: &str = "a function of a module that is not loaded is named `MODULE:FUNCTION`; a static function may have been inlined";

/// What to say to somebody who asks for a symbol that does not exist.
pub(super) fn suggestion(name: &str, facts: &KernelFacts) -> String {
    let exists = |candidate: &str| facts.symbols.named(candidate, None).next().is_some();
    if let Some((_, today)) = RENAMED.iter().find(|(old, today)| *old == name && exists(today)) {
        return format!("it is called `{today}` today");
    }
    let best = nearest(name, facts.symbols.code_names());
    best.map_or_else(|| ELSEWHERE.to_owned(), |candidate| format!("did you mean `{candidate}`?"))
}

/// The one of these names that was most probably meant.
pub(super) fn nearest<'n>(name: &str, candidates: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    candidates
        .filter(|candidate| candidate.len().abs_diff(name.len()) <= MAX_DISTANCE)
        .filter_map(|candidate| Some((distance(name, candidate)?, candidate)))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Names further apart than this are not a slip of the finger.
const MAX_DISTANCE: usize = 2;

/// Edits between two names (insertions, deletions, replacements), if there are at most [`MAX_DISTANCE`].
fn distance(a: &str, b: &str) -> Option<usize> {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, cb) in row.iter_mut().skip(1).zip(b.bytes()) {
            let replaced = diagonal + usize::from(ca != cb);
            diagonal = *cell;
            left = replaced.min(left + 1).min(diagonal + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
        if row.iter().all(|edits| *edits > MAX_DISTANCE) {
            return None;
        }
    }
    row.last().copied().filter(|edits| *edits <= MAX_DISTANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_edits() {
        for (a, b, expected) in [
            ("vfs_read", "vfs_read", Some(0)),
            ("vfs_raed", "vfs_read", Some(2)),
            ("vfs_rea", "vfs_read", Some(1)),
            ("kitten", "sitting", None),
            ("", "ab", Some(2)),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }
}
