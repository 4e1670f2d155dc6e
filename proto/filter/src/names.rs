//! Did-you-mean: the edit distance of two names, and the nearest of a few names.
//!
//! The distance is that of Levenshtein with transpositions (optimal string alignment), up to a
//! limit. Own code, because the limit lets it stop early: `strsim::osa_distance` fills a table for
//! each pair and takes four times as long over the symbols of a kernel.

/// Largest distance of a name that is suggested: a name further away is not a typing mistake.
pub const MAX_EDITS: usize = 2;

/// Largest distance of a name that is suggested for this one: something of it is kept. Two edits make any name of
/// two letters of one letter.
pub fn most_edits(name: &str) -> usize {
    MAX_EDITS.min(name.len().saturating_sub(1))
}

/// The nearest of some names: the alphabetically first of those with the least edits, at most
/// [`most_edits`]. Compares all of them.
pub fn nearest_name<'n>(name: &str, candidates: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let edits = |candidate: &&'n str| edits(name.as_bytes(), candidate.as_bytes(), most_edits(name));
    candidates
        .filter_map(|candidate| Some((edits(&candidate)?, candidate)))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edits between two names, if there are at most `most`: insertions, deletions, replacements, and
/// transpositions of two neighbours.
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
    let swapped = match (a, b) {
        ([first, second, rest_a @ ..], [head, next, rest_b @ ..]) if (first, second) == (next, head) => {
            Some((rest_a, rest_b))
        }
        _ => None,
    };
    let ways = [(shorter_a, shorter_b), (shorter_a, b), (a, shorter_b)];
    ways.into_iter().chain(swapped).filter_map(|(a, b)| edits(a, b, left)).min().map(|edits| edits + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_other_letters_is_not_suggested() {
        let nearest = |name: &str| nearest_name(name, ["dfd", "lf", "buf"].into_iter());
        for (name, expected) in [
            ("fd", Some("dfd")),
            ("bfu", Some("buf")),
            ("if", Some("lf")),
            ("of", Some("lf")),
            ("lf", Some("lf")),
        ] {
            assert_eq!(nearest(name), expected, "{name}");
        }
        for name in ["", "P", "f", "go"] {
            assert_eq!(nearest(name), None, "{name}");
        }
    }
}
