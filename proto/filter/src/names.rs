//! Edit distance of names, for "did you mean" hints.

/// Names that differ more are not typing mistakes.
pub const MAX_EDITS: usize = 2;

/// The most similar of a few names: it compares with all of them.
pub fn nearest_name<'n>(name: &str, candidates: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let edits = |candidate: &&'n str| edits(name.as_bytes(), candidate.as_bytes(), MAX_EDITS);
    candidates
        .filter_map(|candidate| Some((edits(&candidate)?, candidate)))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edits between two names (insertions, deletions, replacements), if there are at most `most`.
pub fn edits(a: &[u8], b: &[u8], most: usize) -> Option<usize> {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (a.get(same..)?, b.get(same..)?);
    if a.is_empty() || b.is_empty() {
        return Some(a.len().max(b.len())).filter(|edits| *edits <= most);
    }
    let left = most.checked_sub(1)?;
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    let (shorter_a, shorter_b) = (a.get(1..)?, b.get(1..)?);
    let ways = [(shorter_a, shorter_b), (shorter_a, b), (a, shorter_b)];
    ways.into_iter().filter_map(|(a, b)| edits(a, b, left)).min().map(|edits| edits + 1)
}
