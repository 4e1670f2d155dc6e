//! The token table of kallsyms: the text for each byte of a compressed name, and an index.
//!
//! The table is found by the digits, which stand for themselves in every kernel (each occurs alone
//! in some name, so scripts/kallsyms.c:insert_real_symbols_in_table keeps its place), and proven by
//! the index, which has the offset of each text.

/// The ten digits as tokens, in a row.
const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";

/// How many tokens there are: one for each byte.
const TOKENS: usize = 256;

/// Possible alignments of the index, in bytes.
const ALIGNMENTS: [usize; 2] = [8, 4];

/// A table of tokens.
#[derive(Debug)]
pub(super) struct Tokens {
    /// Where the first text begins.
    pub(super) start: usize,
    /// Where the index ends.
    pub(super) end: usize,
    /// Where each text begins and ends.
    texts: Vec<(usize, usize)>,
}

/// All tables in some memory that prove themselves: one, in a kernel.
pub(super) fn all(memory: &[u8]) -> impl Iterator<Item = Tokens> {
    let places = memory.windows(DIGITS.len()).enumerate().filter(|(_, bytes)| *bytes == DIGITS);
    places.filter_map(|(at, _)| ALIGNMENTS.iter().find_map(|alignment| proven(memory, at, *alignment)))
}

/// The table whose digits are at `digits`.
fn proven(memory: &[u8], digits: usize, alignment: usize) -> Option<Tokens> {
    let zero = usize::from(b'0');
    let mut ends = memory.iter().enumerate().skip(digits).filter(|(_, byte)| **byte == 0);
    let (last_end, _) = ends.nth(TOKENS - zero - 1)?;
    let index_at = (last_end + 1).next_multiple_of(alignment);
    let index: Vec<usize> = memory
        .get(index_at..)?
        .get(..2 * TOKENS)?
        .chunks_exact(2)
        .filter_map(|bytes| Some(usize::from(u16::from_le_bytes(*bytes.first_chunk()?))))
        .collect();
    let start = digits.checked_sub(*index.get(zero)?)?;
    let mut texts = Vec::with_capacity(TOKENS);
    let mut at = start;
    for begins in index {
        let end = at + memory.get(at..)?.iter().position(|byte| *byte == 0)?;
        if begins != at - start {
            return None;
        }
        texts.push((at, end));
        at = end + 1;
    }
    (at == last_end + 1).then_some(Tokens { start, end: index_at + 2 * TOKENS, texts })
}

impl Tokens {
    /// The text of one byte of a compressed name.
    pub(super) fn text<'a>(&self, memory: &'a [u8], byte: u8) -> &'a [u8] {
        let range = self.texts.get(usize::from(byte)).map(|(start, end)| *start..*end);
        range.and_then(|range| memory.get(range)).unwrap_or_default()
    }
}
