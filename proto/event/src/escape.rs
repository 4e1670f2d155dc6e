//! Escaping of byte strings in events, for terminals.
//!
//! Owns the escaped form. It loses nothing (the text determines every byte), and never lets a
//! control sequence through that a terminal would obey.

use std::fmt::{self, Write as _};

/// Bytes, shown as text. Printable UTF-8 is shown as it is; a backslash doubled; `\n`, `\t` and
/// `\r` so; every other byte as `\xNN`. The alternate form (`{:#}`) is in double quotes, with
/// quotes inside escaped.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = f.alternate();
        if quoted {
            f.write_char('"')?;
        }
        for chunk in self.0.utf8_chunks() {
            write_text(f, chunk.valid(), quoted)?;
            write_hex(f, chunk.invalid())?;
        }
        if quoted {
            f.write_char('"')?;
        }
        Ok(())
    }
}

/// Writes text in as few pieces as possible: nearly all of it needs no escaping.
fn write_text(f: &mut fmt::Formatter<'_>, text: &str, quoted: bool) -> fmt::Result {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'\\' && byte != b'"') {
        return f.write_str(text);
    }
    let mut plain = 0;
    for (start, c) in text.char_indices() {
        let escape = match c {
            '\\' => Some("\\\\"),
            '"' if quoted => Some("\\\""),
            '\n' => Some("\\n"),
            '\t' => Some("\\t"),
            '\r' => Some("\\r"),
            c if is_unprintable(c) => None,
            _ => continue,
        };
        let end = start + c.len_utf8();
        f.write_str(&text[plain..start])?;
        match escape {
            Some(escape) => f.write_str(escape)?,
            None => write_hex(f, &text.as_bytes()[start..end])?,
        }
        plain = end;
    }
    f.write_str(&text[plain..])
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))
}

/// Whether a terminal obeys it, or it changes what others look like: control characters, and format characters that
/// reorder or hide the characters around them.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quoted(bytes: &[u8]) -> String {
        format!("{:#}", Escaped(bytes))
    }

    /// The inverse, to prove that the escaping loses nothing.
    fn unescape(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = text.as_bytes();
        while let [first, tail @ ..] = rest {
            let (byte, used) = match (first, tail) {
                (b'\\', [b'x', high, low, ..]) => {
                    (u8::from_str_radix(std::str::from_utf8(&[*high, *low]).unwrap(), 16).unwrap(), 4)
                }
                (b'\\', [b'n', ..]) => (b'\n', 2),
                (b'\\', [b't', ..]) => (b'\t', 2),
                (b'\\', [b'r', ..]) => (b'\r', 2),
                (b'\\', [other, ..]) => (*other, 2),
                (other, _) => (*other, 1),
            };
            bytes.push(byte);
            rest = &rest[used..];
        }
        bytes
    }

    #[test]
    fn hostile_text_is_tamed() {
        assert_eq!(quoted(b"/etc/passwd"), r#""/etc/passwd""#);
        assert_eq!(quoted("Grüße".as_bytes()), r#""Grüße""#);
        assert_eq!(quoted(b"a\"b\\c\nd"), r#""a\"b\\c\nd""#);
        assert_eq!(quoted(b"\x1b[2J\xff\0"), r#""\x1b[2J\xff\x00""#);
        assert_eq!(quoted("\u{202e}gpj".as_bytes()), r#""\xe2\x80\xaegpj""#);
        assert_eq!(
            Escaped(b"a \"b\"").to_string(),
            "a \"b\"",
            "without quotes around, quotes need no escape"
        );
    }

    proptest! {
        #[test]
        fn escaping_loses_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(unescape(&Escaped(&bytes).to_string()), bytes.clone());
            let quoted = quoted(&bytes);
            prop_assert_eq!(unescape(&quoted[1..quoted.len() - 1]), bytes);
        }

        #[test]
        fn escaped_text_has_no_control_characters(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(!quoted(&bytes).chars().any(is_unprintable));
        }
    }
}
