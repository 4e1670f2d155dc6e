//! The language of `log.level`.
//!
//! A word alone is a level. The filter's own parser takes any other word for the name of a module, of which nothing is ever logged.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Why a text is no level and no filter. `None` if it is one.
pub(super) fn judge(text: &str) -> Option<String> {
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
            assert_eq!(judge(good), None, "{good}");
        }
        for (bad, why) in [
            ("loud", "`loud` is not a level"),
            ("", "it is empty"),
            ("info,chatty", "`chatty` is not a level"),
            ("kprobed=verbose", "`verbose` is not a level"),
        ] {
            assert_eq!(judge(bad).as_deref(), Some(why));
        }
        assert!(judge("info,[task").is_some());
    }
}
