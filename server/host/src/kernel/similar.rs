//! Did-you-mean index of symbol names: the names within two edits of a misspelt one.
//!
//! Owns an index that finds them without comparing every name. Two edits leave one of three parts of
//! a name unchanged, and move it by two bytes at most, so names are found by their parts (Li, Deng,
//! Wang, Feng: Pass-Join, 2011). A transposition across two parts together with a second edit can
//! escape it: 6 to 10 of 1,000 misspelt names.
//!
//! Own code, because a stream of checks has misspelt names too (one in five of
//! `--bench checks`). On a kernel with 159,000 symbols the index answers in 12 us of processor time;
//! `strsim::osa_distance` over a prefilter of letters and lengths takes 1,100 us, and the bounded
//! distance of [`kprobed_filter::names`] over the same prefilter 290 us. The index takes 6.8 MiB and
//! 30 ms, once, at the first misspelt name (`--bench memory`).

use kprobed_filter::names::{MAX_EDITS, edits};

/// Two edits leave one of this many parts untouched.
const PARTS: usize = MAX_EDITS + 1;

/// A name in a bucket of the index.
#[derive(Clone, Copy, Debug)]
struct IndexedName {
    /// The number that the caller gave it.
    name: u32,
    /// The bytes in it, as [`letters`] of it.
    letters: u32,
}

/// Names by the hashes of their parts.
#[derive(Debug)]
pub(super) struct SimilarNames {
    /// For each bucket its begin in `entries`; one more for the end.
    starts: Vec<u32>,
    entries: Vec<IndexedName>,
}

impl SimilarNames {
    /// Makes an index of numbered names.
    pub(super) fn new<'a>(names: &[(u32, &'a str)]) -> Self {
        let buckets = (names.len() * PARTS).next_power_of_two();
        let hashes = |name: &'a str| {
            let name = name.as_bytes();
            (0..PARTS).map(move |part| {
                let (start, length) = part_of(name.len(), part);
                bucket(name.len(), part, name.get(start..start + length).unwrap_or_default(), buckets)
            })
        };
        // A counting sort: the size of each bucket, then the end of each, then the entries, filled
        // from the end.
        let mut starts = vec![0_u32; buckets + 1];
        for bucket in names.iter().flat_map(|(_, name)| hashes(name)) {
            if let Some(count) = starts.get_mut(bucket) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut entries = vec![IndexedName { name: 0, letters: 0 }; sum as usize];
        for (number, name) in names {
            for bucket in hashes(name) {
                let Some(end) = starts.get_mut(bucket) else { continue };
                *end -= 1;
                if let Some(entry) = entries.get_mut(*end as usize) {
                    *entry = IndexedName { name: *number, letters: letters(name.as_bytes()) };
                }
            }
        }
        Self { starts, entries }
    }

    /// Names at most [`MAX_EDITS`] away from `wanted`, as edits and number, the nearest and then
    /// the lowest first. `name_of` returns the name of a number.
    pub(super) fn find<'a>(&self, wanted: &str, name_of: impl Fn(u32) -> &'a str) -> Vec<(usize, u32)> {
        let wanted = wanted.as_bytes();
        let wanted_letters = letters(wanted);
        let mut found = Vec::new();
        for length in wanted.len().saturating_sub(MAX_EDITS)..=wanted.len() + MAX_EDITS {
            for part in 0..PARTS {
                for substring in where_part_may_be(wanted, length, part) {
                    for entry in self.bucket(bucket(length, part, substring, self.starts.len() - 1)) {
                        // An edit adds or removes at most two kinds of bytes.
                        if (entry.letters ^ wanted_letters).count_ones() as usize > 2 * MAX_EDITS {
                            continue;
                        }
                        let edits = edits(wanted, name_of(entry.name).as_bytes(), MAX_EDITS);
                        found.extend(edits.map(|edits| (edits, entry.name)));
                    }
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn bucket(&self, bucket: usize) -> &[IndexedName] {
        let bound = |index| self.starts.get(index).map_or(self.entries.len(), |start| *start as usize);
        self.entries.get(bound(bucket)..bound(bucket + 1)).unwrap_or_default()
    }
}

/// Beginning and length of a part of a name of that length.
fn part_of(length: usize, part: usize) -> (usize, usize) {
    let (start, end) = (length * part / PARTS, length * (part + 1) / PARTS);
    (start, end - start)
}

/// The places in `wanted` at which an unchanged part of a name of that length can be: insertions and
/// deletions before the part move it, and those after it are the rest of the difference in length.
fn where_part_may_be(wanted: &[u8], length: usize, part: usize) -> impl Iterator<Item = &[u8]> {
    let (start, part_length) = part_of(length, part);
    let longer = wanted.len().cast_signed() - length.cast_signed();
    let most = MAX_EDITS.cast_signed();
    let shifts = (-most..=most).filter(move |shift| shift.abs() + (longer - shift).abs() <= most);
    shifts.filter_map(move |shift| {
        let start = start.checked_add_signed(shift)?;
        wanted.get(start..start.checked_add(part_length)?)
    })
}

fn bucket(length: usize, part: usize, text: &[u8], buckets: usize) -> usize {
    // FNV-1a.
    const PRIME: u64 = 0x100_0000_01b3;
    let seed = 0xcbf2_9ce4_8422_2325 ^ (length * PARTS + part) as u64;
    let hash = text
        .iter()
        .fold(seed.wrapping_mul(PRIME), |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
    // The lower bits of a step depend only on the lower bits of the step before.
    usize::try_from((hash ^ (hash >> 32)) & (buckets as u64 - 1)).unwrap_or_default()
}

/// One bit for every kind of byte that a name has.
fn letters(name: &[u8]) -> u32 {
    name.iter().fold(0, |letters, byte| letters | 1 << (byte & 31))
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

    #[test]
    fn the_nearest_and_then_the_first_comes_first() {
        let names = [(0, "vfs_readf"), (1, "vfs_reads"), (2, "vfs_write"), (3, "vfs_rea")];
        let found = SimilarNames::new(&names).find("vfs_read", |number| names[number as usize].1);
        assert_eq!(found, [(1, 0), (1, 1), (1, 3)]);
        assert!(SimilarNames::new(&[]).find("vfs_read", |_| "").is_empty());
    }

    /// The distance by the table of the textbook; with or without transpositions.
    fn slowly(a: &[u8], b: &[u8], transpositions: bool) -> usize {
        let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
        for i in 0..=a.len() {
            for j in 0..=b.len() {
                table[i][j] = if i == 0 || j == 0 {
                    i.max(j)
                } else {
                    let replaced = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let shorter = table[i - 1][j].min(table[i][j - 1]) + 1;
                    let is_swap =
                        transpositions && i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
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
            let distance = slowly(a.as_bytes(), b.as_bytes(), true);
            prop_assert_eq!(edits(a.as_bytes(), b.as_bytes(), most), (distance <= most).then_some(distance));
        }

        /// All names within the limit by the distance without transpositions, and none beyond it by
        /// the distance with them.
        #[test]
        fn the_index_finds_what_comparing_every_name_finds(
            names in proptest::collection::vec("[ab_é]{0,12}", 0..40),
            wanted in "[ab_é]{0,12}",
        ) {
            let numbered: Vec<_> = (0..).zip(names.iter().map(String::as_str)).collect();
            let found = SimilarNames::new(&numbered).find(&wanted, |number| names[number as usize].as_str());
            prop_assert!(found.is_sorted());
            for (number, name) in &numbered {
                let [least, plain] =
                    [true, false].map(|swaps| slowly(wanted.as_bytes(), name.as_bytes(), swaps));
                let entry = found.iter().find(|(_, of)| of == number);
                prop_assert!(entry.is_some() || plain > MAX_EDITS, "{} was not found", name);
                prop_assert!(entry.is_none_or(|(edits, _)| *edits == least), "{} {:?}", name, entry);
            }
        }
    }
}
