//! From the words of a line to tokens: a run of letters, digits and `_`, or one other character.

use super::super::diagnostic::Diagnostic;
use super::super::line::{self, Word};

/// The tokens of the only prototype in `text`, comments left out. Never empty.
pub(super) fn tokens(text: &str) -> Result<Vec<Word<'_>>, Diagnostic> {
    let mut tokens = Vec::new();
    for word in line::single(text)? {
        let mut rest = word;
        while let Some(first) = rest.text.chars().next() {
            let run = rest.text.bytes().take_while(|b| is_name_byte(*b)).count();
            let length = if run > 0 { run } else { first.len_utf8() };
            tokens.push(rest.head(length));
            rest = rest.tail(length);
        }
    }
    Ok(tokens)
}

/// Whether this byte can stand in a name or a number.
pub(super) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}
