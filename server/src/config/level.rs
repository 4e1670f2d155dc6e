//! The syntax of `log.level`.
//!
//! One word is a level. The parser of the filter crate takes any other word for the name of a
//! module, of which nothing is ever logged; here that is an error.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Why a text is neither a level nor a filter. `None` if it is one.
pub(super) fn problem(text: &str) -> Option<String> {
    if text.trim().is_empty() {
        return Some("it is empty".to_owned());
    }
    for directive in text.split(',').map(str::trim) {
        // Fields of a span may hold anything.
        let level = match (directive.rsplit_once('='), directive.contains('[')) {
            (_, true) => continue,
            (Some((_, level)), false) => level,
            (None, false) => directive,
        };
        if level.parse::<LevelFilter>().is_err() {
            return Some(format!("`{level}` is not a level"));
        }
    }
    EnvFilter::try_new(text).err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters() {
        for good in ["info", "WARN", "off", "kprobed=debug", "info,kprobed::store=trace", "info,[task]=debug"]
        {
            assert_eq!(problem(good), None, "{good}");
        }
        for (bad, why) in [
            ("loud", "`loud` is not a level"),
            ("", "it is empty"),
            ("info,chatty", "`chatty` is not a level"),
            ("kprobed=verbose", "`verbose` is not a level"),
        ] {
            assert_eq!(problem(bad).as_deref(), Some(why));
        }
        assert!(problem("info,[task").is_some());
    }
}
