//! Comma-separated values (RFC 4180, with newlines as on Unix).
//!
//! Kept, and not the crate `csv`: it writes only, in ten lines.

/// The values of a line, in quotes where they would not come back otherwise.
pub(super) fn record(values: impl IntoIterator<Item = String>) -> String {
    values.into_iter().map(field).collect::<Vec<_>>().join(",")
}

fn field(value: String) -> String {
    if value.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", value.replace('"', "\"\""));
    }
    value
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
            assert_eq!(record([value.to_owned(), "x".to_owned()]), format!("{expected},x"));
        }
    }
}
