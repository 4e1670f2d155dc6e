//! Globs of probe names, as commands take them.

/// The glob of a pattern of probe names: a bare event name matches it in any group, and `*` matches
/// all.
pub(crate) fn of_names(pattern: &str) -> String {
    match pattern {
        "*" => String::new(),
        _ if pattern.is_empty() || pattern.contains('/') => pattern.to_owned(),
        _ => format!("*/{pattern}"),
    }
}
