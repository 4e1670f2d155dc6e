//! The position at which an output file continues: after its last line that has the end of a chunk.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use serde::Deserialize;

use crate::export::read::place_of;
use kprobed_trace::spool::Cursor;

/// Bytes that are read at once, from the end of the file.
const BLOCK_BYTES: u64 = 64 << 10;

/// Bytes that are searched, from the end: more than the lines of one chunk can have.
const LOOKED_AT_BYTES: u64 = 256 << 20;

/// Longest line that is parsed: a report has some 200 bytes, and an event with the longest texts
/// less than this.
const LINE_BYTES: usize = 1 << 20;

/// The end of the lines that are whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Their end, in bytes from the beginning of the file.
    pub(super) offset: u64,
    /// Their end in the log.
    pub(super) place: Cursor,
}

#[derive(Deserialize)]
struct Line<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    cursor: Cow<'a, str>,
}

/// Looks for the end of the whole lines. Absent if the file has none, or they are too far from its
/// end.
pub(super) fn find(file: &File, bytes: u64) -> io::Result<Option<End>> {
    let mut tail = Vec::new();
    let mut begin = bytes;
    while begin > 0 && bytes - begin < LOOKED_AT_BYTES {
        let size = BLOCK_BYTES.min(begin);
        begin -= size;
        let mut block = vec![0; usize::try_from(size).unwrap_or_default()];
        file.read_exact_at(&mut block, begin)?;
        block.extend_from_slice(&tail);
        tail = block;
        // Whole lines only: the first one may begin in an earlier block.
        let first = match tail.iter().position(|byte| *byte == b'\n') {
            _ if begin == 0 => 0,
            Some(at) => at + 1,
            // Not a file of lines.
            None if tail.len() > LINE_BYTES => return Ok(None),
            None => continue,
        };
        let mut offset = begin + tail.len() as u64;
        for line in tail[first..].split_inclusive(|byte| *byte == b'\n').rev() {
            if let Some(place) = line.strip_suffix(b"\n").and_then(place) {
                return Ok(Some(End { offset, place }));
            }
            offset -= line.len() as u64;
        }
        tail.truncate(first);
    }
    Ok(None)
}

/// The cursor in a line.
fn place(line: &[u8]) -> Option<Cursor> {
    if !line.starts_with(br#"{"type":"progress""#) {
        return None;
    }
    let line: Line<'_> = serde_json::from_slice(line).ok()?;
    place_of(&line.cursor).filter(|_| line.r#type == "progress")
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use kprobed_event::format::{JsonLines, Progress};
    use proptest::prelude::*;

    use super::*;
    use crate::export::read::cursor_of;
    use kprobed_trace::spool::BootId;

    fn at(sequence: u64) -> Cursor {
        Cursor { boot_id: BootId([7; 16]), epoch: 3, sequence }
    }

    fn progress(sequence: u64) -> Vec<u8> {
        let mut line = Vec::new();
        JsonLines::of_host("here").push_progress(&mut line, &cursor_of(&at(sequence)), Progress::default());
        line
    }

    fn found(bytes: &[u8]) -> Option<End> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        find(&file, bytes.len() as u64).unwrap()
    }

    #[test]
    fn the_last_whole_report_counts() {
        assert_eq!(found(b""), None);
        assert_eq!(found(b"{\"type\":\"event\"}\n"), None);
        let line = progress(5);
        assert_eq!(found(&line), Some(End { offset: line.len() as u64, place: at(5) }));
        // One without its end is none.
        assert_eq!(found(&line[..line.len() - 1]), None);
        let both = [&line[..], b"{}\n", &progress(9)[..40]].concat();
        assert_eq!(found(&both), Some(End { offset: line.len() as u64, place: at(5) }));
    }

    #[test]
    fn a_file_that_is_no_lines_is_left_alone() {
        let large = vec![b'x'; 3 * LINE_BYTES];
        assert_eq!(found(&[progress(5), large].concat()), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]
        #[test]
        fn it_is_found_wherever_it_is(before in 0..200_000_usize, width in 1..3000_usize, after in 0..200_000_usize, torn in 0..100_usize) {
            let filler = |bytes: usize| -> Vec<u8> {
                (0..bytes).map(|at| if at % width == width - 1 { b'\n' } else { b'x' }).chain([b'\n']).collect()
            };
            let whole = [filler(before), progress(1), filler(before / 2), progress(7)].concat();
            let torn = vec![b'y'; torn];
            let bytes = [whole.clone(), filler(after), torn].concat();
            prop_assert_eq!(found(&bytes), Some(End { offset: whole.len() as u64, place: at(7) }));
        }

        #[test]
        fn no_bytes_can_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), text in "[{}\":a-z\n]{0,80}") {
            let _ = found(&bytes);
            let line = format!("{{\"type\":\"progress\"{text}\n");
            let _ = found(line.as_bytes());
        }
    }
}
