//! Did-you-mean: the edit distance of two names, and the nearest of a few names.
//!
//! The distance is that of Levenshtein with transpositions (optimal string alignment), up to a
//! limit. Own code, because the limit lets it stop early: `strsim::osa_distance` fills a table for
//! each pair and takes four times as long over the symbols of a kernel.

/// Largest distance of a name that is suggested: a name further away is not a typing mistake.
pub const MAX_EDITS: usize = 2;

/// The nearest of some names: the alphabetically first of those with the least edits, at most
/// [`MAX_EDITS`]. Compares all of them.
pub fn nearest_name<'n>(name: &str, candidates: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let edits = |candidate: &&'n str| edits(name.as_bytes(), candidate.as_bytes(), MAX_EDITS);
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
    use proptest::prelude::*;

    #[test]
    fn distances_are_edits() {
        for (a, b, expected) in [
            ("vfs_read", "vfs_read", Some(0)),
            ("vfs_raed", "vfs_read", Some(1)),
            ("fvs_raed", "vfs_read", Some(2)),
            ("vfs_rea", "vfs_read", Some(1)),
            ("kitten", "sitting", None),
            ("", "ab", Some(2)),
        ] {
            assert_eq!(edits(a.as_bytes(), b.as_bytes(), MAX_EDITS), expected, "{a} {b}");
        }
    }

    /// The distance by the table of the textbook.
    fn slowly(a: &[u8], b: &[u8]) -> usize {
        let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
        for i in 0..=a.len() {
            for j in 0..=b.len() {
                table[i][j] = if i == 0 || j == 0 {
                    i.max(j)
                } else {
                    let replaced = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let shorter = table[i - 1][j].min(table[i][j - 1]) + 1;
                    let is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    let swapped = if is_swap { table[i - 2][j - 2] + 1 } else { usize::MAX };
                    replaced.min(shorter).min(swapped)
                };
            }
        }
        table[a.len()][b.len()]
    }

    proptest! {
        #[test]
        fn the_bounded_distance_is_that_of_the_table(a in "[abc]{0,8}", b in "[abc]{0,8}", most in 0_usize..4) {
            let distance = slowly(a.as_bytes(), b.as_bytes());
            prop_assert_eq!(edits(a.as_bytes(), b.as_bytes(), most), (distance <= most).then_some(distance));
        }
    }
}
