//! Comma-separated values (RFC 4180, with newlines as on Unix).
//!
//! Kept, and not the crate `csv`: it writes only, in ten lines.

use std::io;

use super::Output;
use crate::global::Format;

impl Output {
    /// Prints a line of headings and a line for each row, if that is requested, and says whether it
    /// did.
    pub(super) fn csv<const N: usize>(
        &mut self,
        headings: [&str; N],
        rows: impl IntoIterator<Item = [String; N]>,
    ) -> io::Result<bool> {
        if self.format != Format::Csv {
            return Ok(false);
        }
        self.line(&headings.join(","))?;
        for row in rows {
            self.line(&row.map(|value| field(&value)).join(","))?;
        }
        Ok(true)
    }
}

/// One value, in quotes if it would not come back otherwise.
fn field(value: &str) -> String {
    if value.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", value.replace('"', "\"\""));
    }
    value.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_where_they_have_to_be() {
        for (value, expected) in [
            ("kprobes/open", "kprobes/open"),
            ("", ""),
            ("a,b", "\"a,b\""),
            ("say \"no\"", "\"say \"\"no\"\"\""),
            ("two\nlines", "\"two\nlines\""),
        ] {
            assert_eq!(field(value), expected);
        }
    }
}
