//! Reading the TOML text of the configuration, and the line and column of a setting in it.
//!
//! Owns finding all mistakes in one run: a setting that cannot be read is noted and taken out, and
//! the rest is read again.

use std::ops::Range;

use serde::Deserialize as _;
use toml::de::{DeTable, DeValue, Deserializer};

use super::Config;
use super::problem::{Place, Problem};

/// Longest value that is repeated in a message, in bytes.
const SHOWN_BYTES: usize = 60;

/// The settings, with the default for each that cannot be read, and why those cannot. Without
/// settings the text is not TOML at all.
pub(super) fn read(text: &str) -> (Option<Config>, Vec<Problem>) {
    let (mut root, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let problems = errors.iter().map(|error| syntax(text, error)).collect();
        return (None, problems);
    }
    let mut problems = Vec::new();
    loop {
        let error = match Config::deserialize(Deserializer::from(root.clone())) {
            Ok(config) => return (Some(config), problems),
            Err(error) => error,
        };
        let found = error.span().and_then(|span| take(root.get_mut(), &span, ""));
        let Some((setting, value)) = found else {
            // Nothing that could be taken out: it would come again.
            problems.push(syntax(text, &error));
            return (None, problems);
        };
        let shown = value.and_then(|span| text.get(span)).map(cut);
        let place = error.span().map(|span| place(text, span.start));
        // What was taken out before, since it cannot be read, is not missing.
        let is_taken_out = |name: &str| {
            let missing = format!("{setting}.{}", name.trim_matches('`'));
            problems.iter().any(|problem: &Problem| problem.setting == missing)
        };
        if error.message().strip_prefix("missing field ").is_some_and(is_taken_out) {
            continue;
        }
        problems.push(Problem { place, ..unread(&setting, shown.as_deref(), error.message()) });
    }
}

/// Gives every problem the place of its setting.
pub(super) fn locate(text: &str, problems: &mut [Problem]) {
    let Ok(root) = DeTable::parse(text) else { return };
    for problem in problems {
        problem.place = span_of(root.get_ref(), &problem.setting).map(|span| place(text, span.start));
    }
}

/// Where a setting is; or the section it is missing from.
fn span_of(table: &DeTable<'_>, setting: &str) -> Option<Range<usize>> {
    let (first, rest) = setting.split_once('.').map_or((setting, None), |(first, rest)| (first, Some(rest)));
    let (key, value) = table.iter().find(|(key, _)| key.get_ref().as_ref() == first)?;
    match (rest, value.get_ref()) {
        (Some(rest), DeValue::Table(inner)) => span_of(inner, rest).or_else(|| Some(key.span())),
        _ => Some(key.span()),
    }
}

/// Takes the innermost entry out that a span lies in. Gives its name, and where its value was
/// unless it is a table.
fn take(
    table: &mut DeTable<'_>,
    span: &Range<usize>,
    section: &str,
) -> Option<(String, Option<Range<usize>>)> {
    let contains = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    let mut found = None;
    for (key, value) in table.iter_mut() {
        let name = format!("{section}{}", key.get_ref());
        // A missing setting is reported for its table.
        let is_it = value.span() == *span || key.span() == *span;
        if let (false, DeValue::Table(inner)) = (is_it, value.get_mut()) {
            if let Some(inner) = take(inner, span, &format!("{name}.")) {
                return Some(inner);
            }
        } else if is_it || contains(value.span()) || contains(key.span()) {
            let shown = (!value.get_ref().is_table()).then(|| value.span());
            found = Some((key.get_ref().to_string(), name, shown));
        }
    }
    let (key, name, value) = found?;
    table.remove(key.as_str());
    Some((name, value))
}

fn place(text: &str, at: usize) -> Place {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
    Place { line, column }
}

fn cut(value: &str) -> String {
    let value = value.trim_matches(['"', '\'']);
    if value.len() <= SHOWN_BYTES {
        return value.to_owned();
    }
    format!("{}...", &value[..value.floor_char_boundary(SHOWN_BYTES)])
}

fn syntax(text: &str, error: &toml::de::Error) -> Problem {
    let message = format!("this is not TOML: {}", error.message().replace('\n', ", "));
    let place = error.span().map(|span| place(text, span.start));
    Problem { place, ..Problem::error("", message, "") }
}

/// Serde's words in ours.
fn unread(setting: &str, value: Option<&str>, message: &str) -> Problem {
    let expected = message.split_once("expected ").map_or("", |(_, expected)| expected).trim_end();
    let expected = expected.strip_prefix("one of ").unwrap_or(expected);
    if message.starts_with("unknown field") {
        let section = setting.rsplit_once('.').map_or("", |(section, _)| section);
        let kind =
            if section.is_empty() { "the sections are".to_owned() } else { format!("`{section}` has") };
        let message = format!("`{setting}` is not a setting");
        return Problem::error(setting, message, format!("{kind} {expected}"));
    }
    if let Some(missing) = message.strip_prefix("missing field ") {
        let message = format!("`{setting}` has no {missing}");
        return Problem::error(setting, message, format!("add {missing} to `[{setting}]`"));
    }
    let value = value.unwrap_or("a section");
    if message.starts_with("unknown variant") {
        let why = "there is no such choice";
        return Problem::value(setting, value, why, format!("use {expected}"));
    }
    let (why, hint) = match expected {
        "u64" => ("it must be a whole number", "use a number without quotes, 0 or larger"),
        "a boolean" => ("it must be true or false", "use `true` or `false`, without quotes"),
        "a sequence" => ("it must be a list", "put brackets around it: `[\"...\"]`"),
        "a string" | "path string" => ("it must be a string", "put it into quotes"),
        _ if message.contains("socket address") => {
            ("it is not an address with a port", "use for example `127.0.0.1:7443` or `[::1]:7443`")
        }
        _ => (message, ""),
    };
    Problem::value(setting, value, why, hint.to_owned())
}
