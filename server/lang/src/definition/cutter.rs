//! Cutter: splits a text that arrives in pieces into definitions.
//!
//! Owns the rule: one definition a line; blank lines and comments (`#` to the end of the line) are
//! skipped; a `\` at the very end of a line, before any comment, joins the next line to it. Holds
//! at most one definition and the piece that was pushed last. Never parses a definition.

/// Most bytes of a definition that are kept: far more than the kernel accepts in a line, so that a
/// definition that was cut is refused all the same.
const KEPT_BYTES: usize = 64 << 10;

/// Bytes of an unfinished line that are held back, since they matter at its end: a backslash, and a
/// carriage return.
const DECIDING_BYTES: usize = 2;

/// One definition of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutDefinition {
    /// The line on which it starts, from 1.
    pub line: u64,
    /// Offset of its first byte in the whole text.
    pub offset: u64,
    /// Its text with joined lines as one, as long as in the whole text: blanks replace backslash
    /// and newline. Bytes that are not UTF-8 are replaced, and everything after 64 KiB is cut off.
    pub text: String,
}

/// Splits a text that arrives in pieces.
#[derive(Debug, Default)]
pub struct Cutter {
    /// Bytes that were pushed and are not processed yet, from `next` on.
    pushed: Vec<u8>,
    next: usize,
    /// Complete lines so far.
    lines: u64,
    /// Bytes of the text that were processed.
    offset: u64,
    /// The unfinished definition.
    open: Option<Open>,
}

/// A definition whose end was not pushed yet.
#[derive(Debug)]
struct Open {
    line: u64,
    offset: u64,
    text: Vec<u8>,
    /// Whether its last line, as far as it was processed, has a comment.
    comment: bool,
}

impl Open {
    fn push(&mut self, bytes: impl IntoIterator<Item = u8>) {
        let room = KEPT_BYTES.saturating_sub(self.text.len());
        self.text.extend(bytes.into_iter().take(room));
    }

    /// The definition, unless it consists of blanks and comments.
    fn close(self) -> Option<CutDefinition> {
        let mut content = self.text.iter().take_while(|byte| **byte != b'#');
        content.any(|byte| !byte.is_ascii_whitespace()).then(|| CutDefinition {
            line: self.line,
            offset: self.offset,
            text: String::from_utf8(self.text)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
        })
    }
}

impl Cutter {
    /// Takes the next piece. It may end anywhere.
    pub fn push(&mut self, piece: &[u8]) {
        self.pushed.drain(..self.next);
        self.next = 0;
        self.pushed.extend_from_slice(piece);
    }

    /// The next definition whose end was pushed.
    pub fn next_complete(&mut self) -> Option<CutDefinition> {
        while let Some(length) = self.rest().iter().position(|byte| *byte == b'\n') {
            if let Some(cut) = self.take_line(length + 1).and_then(Open::close) {
                return Some(cut);
            }
        }
        if self.rest().len() > KEPT_BYTES {
            self.take_part(self.rest().len() - DECIDING_BYTES);
        }
        None
    }

    /// The definition that the end of the text completes. Call it when [`Cutter::next_complete`]
    /// has no more.
    pub fn finish(mut self) -> Option<CutDefinition> {
        let length = self.rest().len();
        let last = if length > 0 { self.take_line(length) } else { None };
        last.or(self.open.take()).and_then(Open::close)
    }

    fn rest(&self) -> &[u8] {
        self.pushed.get(self.next..).unwrap_or_default()
    }

    /// Takes `length` bytes that end a line. Returns the definition that ends with it.
    fn take_line(&mut self, length: usize) -> Option<Open> {
        let mut open = self.opened();
        self.lines += 1;
        let line = self.rest().get(..length).unwrap_or_default();
        let content = without_end(line);
        if let Some(head) = content.strip_suffix(b"\\")
            && !open.comment
            && !head.contains(&b'#')
        {
            // Blanks instead of the backslash and the newline, so that positions stay.
            open.push(head.iter().copied().chain(std::iter::repeat_n(b' ', line.len() - head.len())));
            self.looked_at(length);
            self.open = Some(open);
            return None;
        }
        open.push(content.iter().copied());
        self.looked_at(length);
        Some(open)
    }

    /// Takes `length` bytes that do not end a line.
    fn take_part(&mut self, length: usize) {
        let mut open = self.opened();
        let part = self.rest().get(..length).unwrap_or_default();
        open.comment |= part.contains(&b'#');
        open.push(part.iter().copied());
        self.looked_at(length);
        self.open = Some(open);
    }

    fn opened(&mut self) -> Open {
        let (line, offset) = (self.lines + 1, self.offset);
        self.open.take().unwrap_or(Open { line, offset, text: Vec::new(), comment: false })
    }

    fn looked_at(&mut self, length: usize) {
        self.next += length;
        self.offset += length as u64;
    }
}

/// A line without the newline, and the carriage returns before it.
fn without_end(line: &[u8]) -> &[u8] {
    let end = line.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
    line.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is cut out of a text that comes in pieces of these sizes, again and again.
    fn cut(text: &[u8], sizes: &[usize]) -> Vec<CutDefinition> {
        let mut cutter = Cutter::default();
        let mut found = Vec::new();
        let (mut rest, mut sizes) = (text, sizes.iter().cycle());
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at((*sizes.next().unwrap()).clamp(1, rest.len()));
            cutter.push(piece);
            found.extend(std::iter::from_fn(|| cutter.next_complete()));
            rest = behind;
        }
        found.extend(cutter.finish());
        found
    }

    #[test]
    fn lines_are_definitions() {
        let shown = |text: &str| -> Vec<(u64, u64, String)> {
            cut(text.as_bytes(), &[7]).into_iter().map(|cut| (cut.line, cut.offset, cut.text)).collect()
        };
        assert_eq!(shown("p a\n\n# no\n p b # c"), [(1, 0, "p a".into()), (4, 10, " p b # c".into())]);
        assert_eq!(shown("p a \\\r\nx=%di\r\n"), [(1, 0, "p a    x=%di".into())]);
        assert_eq!(shown("# no \\\np b\\"), [(2, 7, "p b ".into())]);
        assert!(shown("").is_empty() && shown("\\").is_empty() && shown("\n\\\n").is_empty());
    }

    #[test]
    fn a_line_without_end_costs_no_memory() {
        let mut cutter = Cutter::default();
        for _ in 0..100 {
            cutter.push(&b"p".repeat(40_000));
            assert_eq!(cutter.next_complete(), None);
            assert!(cutter.pushed.len() <= KEPT_BYTES + 40_000);
        }
        cutter.push(b" \\\nq\np c\n");
        let long = cutter.next_complete().unwrap();
        assert_eq!((long.line, long.text.len()), (1, KEPT_BYTES));
        let after = cutter.next_complete().unwrap();
        assert_eq!((after.line, after.offset, after.text.as_str()), (3, 4_000_005, "p c"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

        #[test]
        fn pieces_do_not_matter(
            text in proptest::collection::vec(proptest::sample::select(b"p \n\r\\#x\xff".to_vec()), 0..60),
            sizes in proptest::collection::vec(1usize..9, 1..6),
        ) {
            prop_assert_eq!(cut(&text, &sizes), cut(&text, &[usize::MAX]));
        }
    }
}
