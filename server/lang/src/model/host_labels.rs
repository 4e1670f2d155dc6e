//! Host labels, as the downward API of Kubernetes writes them into a file: `key="escaped value"` in
//! each line.
//!
//! Owns the format of such a file. Never reads a file.

use std::collections::BTreeMap;

use thiserror::Error;

/// Most labels of a host.
pub const MAX_HOST_LABELS: usize = 256;

/// Longest key, in bytes: a domain of 253, `/`, and a name of 63, as in Kubernetes.
const MAX_KEY: usize = 317;

/// Longest value, in bytes.
const MAX_VALUE: usize = 1024;

/// Labels of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostLabels(BTreeMap<String, String>);

/// The problem of a line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {problem}")]
pub struct HostLabelError {
    /// The line, from 1 on.
    pub line: usize,
    /// The problem.
    pub problem: String,
}

/// What a line must be.
const FORM: &str = "it must be `KEY=\"VALUE\"`";

impl HostLabels {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// [`HostLabelError`] for the first line with a problem.
    pub fn parse(text: &str) -> Result<Self, HostLabelError> {
        let mut labels = BTreeMap::new();
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            let wrong = |problem: String| HostLabelError { line, problem };
            let (key, value) = label(text.trim()).map_err(wrong)?;
            if labels.len() == MAX_HOST_LABELS {
                return Err(wrong(format!("a host has at most {MAX_HOST_LABELS} labels")));
            }
            if labels.insert(key.to_owned(), value).is_some() {
                return Err(wrong(format!("`{key}` is in an earlier line too")));
            }
        }
        Ok(Self(labels))
    }

    /// Keys and values, in the order of keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn label(line: &str) -> Result<(&str, String), String> {
    let (key, quoted) = line.split_once('=').ok_or(FORM)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
    if key.is_empty() || key.len() > MAX_KEY || !key.bytes().all(is_plain) {
        return Err(format!("a key has 1 to {MAX_KEY} letters, digits, `.`, `_`, `/` and `-`"));
    }
    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let value = unescape(inner.ok_or(FORM)?)?;
    if value.len() > MAX_VALUE {
        return Err(format!("a value has at most {MAX_VALUE} bytes"));
    }
    Ok((key, value))
}

/// The text between the quotes, as Go writes it (`%q`).
fn unescape(text: &str) -> Result<String, String> {
    let mut value = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        match character {
            '\\' => value.push(escape(&mut rest)?),
            // The closing quote is after the text, and not here.
            '"' => return Err(FORM.to_owned()),
            other => value.push(other),
        }
    }
    Ok(value)
}

/// The character for the escape after a backslash.
fn escape(rest: &mut std::str::Chars<'_>) -> Result<char, String> {
    let unknown = |escape: String| {
        format!(
            "`\\{escape}` is none of the escapes `\\\"`, `\\\\`, `\\n`, `\\t`, `\\xNN`, `\\uNNNN` and their like"
        )
    };
    let kind = rest.next().ok_or(FORM)?;
    let digits = match kind {
        'a' => return Ok('\u{7}'),
        'b' => return Ok('\u{8}'),
        'f' => return Ok('\u{c}'),
        'n' => return Ok('\n'),
        'r' => return Ok('\r'),
        't' => return Ok('\t'),
        'v' => return Ok('\u{b}'),
        '\\' | '"' | '\'' => return Ok(kind),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => return Err(unknown(kind.to_string())),
    };
    let code: String = rest.by_ref().take(digits).collect();
    let is_hex = code.len() == digits && code.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u32::from_str_radix(&code, 16).ok().filter(|_| is_hex);
    // `\x80` and above are single bytes, which are not text.
    let found = number.filter(|number| kind != 'x' || *number < 0x80).and_then(char::from_u32);
    found.ok_or_else(|| unknown(format!("{kind}{code}")))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let labels = HostLabels::parse(text).unwrap();
        labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn lines_are_labels() {
        let text = "app.kubernetes.io/name=\"kprobed\"\nzone=\"eu-1a\"\n\nnote=\"a \\\"b\\\" \\\\ \\n\\u00e4\\x7f\"\n";
        let expected =
            [("app.kubernetes.io/name", "kprobed"), ("note", "a \"b\" \\ \n\u{e4}\u{7f}"), ("zone", "eu-1a")];
        assert_eq!(pairs(text), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert!(HostLabels::parse("").unwrap().is_empty());
    }

    #[test]
    fn each_mistake_has_its_line_and_its_name() {
        let error = |text: &str| HostLabels::parse(text).unwrap_err().to_string();
        assert_eq!(error("a=\"b\"\nzone"), "line 2: it must be `KEY=\"VALUE\"`");
        assert_eq!(error("zone=eu"), "line 1: it must be `KEY=\"VALUE\"`");
        assert_eq!(error("zone=\"a\"b\""), "line 1: it must be `KEY=\"VALUE\"`");
        assert_eq!(error("zone=\"a\\\""), "line 1: it must be `KEY=\"VALUE\"`");
        assert!(error("a b=\"c\"").starts_with("line 1: a key has 1 to 317"));
        assert!(error("=\"c\"").starts_with("line 1: a key has"));
        assert_eq!(error("a=\"b\"\na=\"c\""), "line 2: `a` is in an earlier line too");
        assert!(error("a=\"\\q\"").starts_with("line 1: `\\q` is none of the escapes"));
        assert!(error("a=\"\\xff\"").starts_with("line 1: `\\xff` is none"));
        assert!(error("a=\"\\ud800\"").starts_with("line 1: `\\ud800` is none"));
        assert_eq!(error(&format!("a=\"{}\"", "b".repeat(1025))), "line 1: a value has at most 1024 bytes");
        let many = (0..257).fold(String::new(), |mut text, number| {
            writeln!(text, "k{number}=\"\"").unwrap();
            text
        });
        assert_eq!(error(&many), "line 257: a host has at most 256 labels");
    }

    /// As Go's `%q` does.
    fn quoted(value: &str) -> String {
        let mut text = String::from("\"");
        for character in value.chars() {
            match character {
                '"' | '\\' => text.extend(['\\', character]),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                c if c.is_ascii_control() => write!(text, "\\x{:02x}", u32::from(c)).unwrap(),
                c if c.is_control() || c.is_whitespace() && c != ' ' => {
                    write!(text, "\\u{:04x}", u32::from(c)).unwrap();
                }
                c => text.push(c),
            }
        }
        text + "\""
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]
        #[test]
        fn what_is_written_is_read(
            labels in proptest::collection::btree_map("[a-zA-Z0-9._/-]{1,30}", any::<String>().prop_filter("short", |value| value.len() <= 1024), 0..20),
        ) {
            let lines: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={}", quoted(value))).collect();
            let text = lines.join("\n");
            prop_assert_eq!(pairs(&text), labels.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn no_text_can_panic(text in "[a=\"\\\\xuU0-9\n\u{e4}]{0,60}") {
            if let Ok(labels) = HostLabels::parse(&text) {
                prop_assert!(labels.len() <= MAX_HOST_LABELS);
            }
        }
    }
}
