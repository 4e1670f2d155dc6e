//! Names that differ from a given one by a slip of the finger.
//!
//! Owns an index that finds them without a look at every name. Whoever makes two edits leaves one of three parts of a name as it was, and
//! moves it by two bytes at most: so names are found by their parts (Li, Deng, Wang, Feng: Pass-Join, 2011). 160,000 names cost 5 MiB and
//! some 30 ms, when somebody first asks.

use kprobed_filter::names::{MAX_EDITS, edits};

/// Two edits leave one of this many parts untouched.
const PARTS: usize = MAX_EDITS + 1;

/// A name in a bucket of the index.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The number that whoever made the index knows it by.
    name: u32,
    /// Which bytes it has.
    letters: u32,
}

/// The index.
#[derive(Debug)]
pub(super) struct SimilarNames {
    /// Where the bucket of a hash begins in `entries`; one more for the end.
    starts: Vec<u32>,
    entries: Vec<Entry>,
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
        // Counts of all buckets, then the places behind them, then the entries, each before the last one.
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
        let mut entries = vec![Entry { name: 0, letters: 0 }; sum as usize];
        for (number, name) in names {
            for bucket in hashes(name) {
                let Some(end) = starts.get_mut(bucket) else { continue };
                *end -= 1;
                if let Some(entry) = entries.get_mut(*end as usize) {
                    *entry = Entry { name: *number, letters: letters(name.as_bytes()) };
                }
            }
        }
        Self { starts, entries }
    }

    /// Names at most [`MAX_EDITS`] away from `wanted`, as edits and number, the nearest and then the lowest first. `name_of` tells
    /// the name of a number.
    pub(super) fn find<'a>(&self, wanted: &str, name_of: impl Fn(u32) -> &'a str) -> Vec<(usize, u32)> {
        let wanted = wanted.as_bytes();
        let wanted_letters = letters(wanted);
        let mut found = Vec::new();
        for length in wanted.len().saturating_sub(MAX_EDITS)..=wanted.len() + MAX_EDITS {
            for part in 0..PARTS {
                for substring in where_part_may_be(wanted, length, part) {
                    for entry in self.bucket(bucket(length, part, substring, self.starts.len() - 1)) {
                        // An edit changes which bytes there are by two at most.
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

    fn bucket(&self, bucket: usize) -> &[Entry] {
        let bound = |index| self.starts.get(index).map_or(self.entries.len(), |start| *start as usize);
        self.entries.get(bound(bucket)..bound(bucket + 1)).unwrap_or_default()
    }
}

/// Beginning and length of a part of a name of that length.
fn part_of(length: usize, part: usize) -> (usize, usize) {
    let (start, end) = (length * part / PARTS, length * (part + 1) / PARTS);
    (start, end - start)
}

/// Where in `wanted` an untouched part of a name of that length can be: what was inserted or deleted before it moves it, and what was so
/// behind it makes up for the rest of the difference in length.
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
    // The lower bits of each step only know the lower bits before it.
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
            ("vfs_raed", "vfs_read", Some(2)),
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

    /// The distance by the book.
    fn slowly(a: &[u8], b: &[u8]) -> usize {
        let mut row: Vec<usize> = (0..=b.len()).collect();
        for (i, ca) in a.iter().enumerate() {
            let mut diagonal = i;
            row[0] = i + 1;
            for (j, cb) in b.iter().enumerate() {
                let replaced = diagonal + usize::from(ca != cb);
                diagonal = row[j + 1];
                row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
            }
        }
        row[b.len()]
    }

    proptest! {
        #[test]
        fn the_index_finds_what_a_look_at_every_name_finds(
            names in proptest::collection::vec("[ab_é]{0,12}", 0..40),
            wanted in "[ab_é]{0,12}",
        ) {
            let numbered: Vec<_> = (0..).zip(names.iter().map(String::as_str)).collect();
            let mut expected: Vec<_> = numbered
                .iter()
                .map(|(number, name)| (slowly(wanted.as_bytes(), name.as_bytes()), *number))
                .filter(|(edits, _)| *edits <= MAX_EDITS)
                .collect();
            expected.sort_unstable();
            let index = SimilarNames::new(&numbered);
            prop_assert_eq!(index.find(&wanted, |number| names[number as usize].as_str()), expected);
        }
    }
}
