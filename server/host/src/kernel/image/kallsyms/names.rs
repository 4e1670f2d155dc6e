//! Compressed symbol names in the kallsyms table: the number of symbols, a length and bytes for
//! each, and markers at every 256th.
//!
//! Names lie before the tokens in every layout, not always right before. The number is found by
//! trying every candidate, and proven by the markers, which fit only the right beginning and
//! number.

use super::Tokens;
use crate::little_endian::u32_at;

/// Symbols between two markers.
const BETWEEN_MARKERS: usize = 256;

/// Numbers of symbols that kernels have.
const COUNTS: std::ops::RangeInclusive<usize> = 1000..=1 << 22;

/// Bytes that a packed name has, with its length: few names have more than half of the longest.
const PACKED_BYTES: (usize, usize) = (3, 128);

/// Longest name (include/linux/kallsyms.h, `KSYM_NAME_LEN`; 512 since 6.1), with the letter before
/// it.
const NAME_MAX_BYTES: usize = 513;

/// Where the names of all symbols are.
#[derive(Debug)]
pub(super) struct Names {
    /// Where the number of symbols stands.
    pub(super) start: usize,
    /// How many symbols there are.
    pub(super) count: usize,
    /// Alignment of every part of the table, in bytes.
    pub(super) alignment: usize,
    first: usize,
}

/// Possible alignments of parts, in bytes: 4 since 7.0.
const ALIGNMENTS: [usize; 2] = [8, 4];

impl Names {
    /// The names that lie before these tokens.
    pub(super) fn before(memory: &[u8], tokens: &Tokens) -> Option<Self> {
        let end = tokens.start & !3;
        let lowest = end.saturating_sub(PACKED_BYTES.1 * COUNTS.end());
        (lowest..end).rev().filter(|at| at % 4 == 0).find_map(|at| {
            let count = usize::try_from(u32_at(memory, at)?).ok()?;
            let bytes = tokens.start - at;
            let plausible =
                COUNTS.contains(&count) && (PACKED_BYTES.0 * count..=PACKED_BYTES.1 * count).contains(&bytes);
            if !plausible {
                return None;
            }
            let mut possible = ALIGNMENTS.into_iter().map(|alignment| Self {
                start: at,
                count,
                alignment,
                first: (at + 4).next_multiple_of(alignment),
            });
            possible.find(|names| names.is_proven(memory, tokens))
        })
    }

    /// Whether the markers are where the names end.
    fn is_proven(&self, memory: &[u8], tokens: &Tokens) -> bool {
        let walk = || {
            let (mut at, mut markers) = (self.first, Vec::new());
            for index in 0..self.count {
                if index % BETWEEN_MARKERS == 0 {
                    markers.push(at - self.first);
                }
                at = packed(memory, at)?.end;
                if at > tokens.start {
                    return None;
                }
            }
            Some((at.next_multiple_of(self.alignment), markers))
        };
        let Some((at, markers)) = walk() else { return false };
        let end = at + 4 * markers.len();
        let found = markers.iter().enumerate().all(|(index, marker)| {
            u32_at(memory, at + 4 * index).is_some_and(|found| usize::try_from(found) == Ok(*marker))
        });
        found && end <= tokens.start
    }

    /// All names in words.
    pub(super) fn expanded(&self, memory: &[u8], tokens: &Tokens) -> Option<Vec<String>> {
        let mut at = self.first;
        let mut texts = Vec::with_capacity(self.count);
        for _ in 0..self.count {
            let bytes = packed(memory, at)?;
            at = bytes.end;
            let mut text = Vec::new();
            for byte in memory.get(bytes)? {
                text.extend_from_slice(tokens.text(memory, *byte));
                if text.len() > NAME_MAX_BYTES {
                    return None;
                }
            }
            texts.push(String::from_utf8(text).ok()?);
        }
        Some(texts)
    }
}

/// The bytes of the packed name at `at`. One that is longer than 127 bytes has a length of two
/// bytes (since 6.1).
fn packed(memory: &[u8], at: usize) -> Option<std::ops::Range<usize>> {
    let low = usize::from(*memory.get(at)?);
    let (start, length) = if low & 0x80 == 0 {
        (at + 1, low)
    } else {
        (at + 2, low & 0x7f | usize::from(*memory.get(at + 1)?) << 7)
    };
    (length > 0).then_some(start..start + length)
}
