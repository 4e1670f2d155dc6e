//! Expressions of bpftrace: predicates, keys and values, as text.
//!
//! Owns where their parts begin and end, and which of them an event has. What a value becomes at a place is in
//! `bpftrace`.

use super::super::names::{is_identifier, is_of_name};
use super::KnownParameter;

/// How a cast begins.
pub(super) const CASTS: [&str; 2] = ["((struct ", "((union "];

/// Casts of a number that changes nothing here: a number has its sign from its type.
const SIGNED: [&str; 3] = ["(int32)", "(int64)", "(int)"];

/// The parts before and after the first such sign that is in no string and in no brackets.
pub(super) fn split_outside(text: &str, sign: char) -> Option<(&str, &str)> {
    let (mut in_string, mut depth, mut is_escaped) = (false, 0_i32, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => {}
            '"' => in_string = !in_string,
            _ if in_string => {}
            _ if c == sign && depth == 0 => return Some((&text[..at], &text[at + c.len_utf8()..])),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    None
}

/// The text up to the bracket that closes the one before it, and what follows.
pub(super) fn to_closing(text: &str) -> Option<(&str, &str)> {
    ['}', ')', ']']
        .iter()
        .filter_map(|close| split_outside(text, *close))
        .min_by_key(|(before, _)| before.len())
}

/// The parts between signs that are in no string and in no brackets.
pub(super) fn parts(text: &str, sign: char) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some((part, further)) = split_outside(rest, sign) {
        parts.push(part.trim());
        rest = further;
    }
    parts.push(rest.trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// The inside of `NAME(...)`, if that is all.
pub(super) fn call<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (inside, behind) = to_closing(text.strip_prefix(name)?.strip_prefix('(')?)?;
    behind.is_empty().then(|| inside.trim())
}

/// With the names of parameters: without `args`, `str`, casts and numbers. What is in quotes stays.
pub(super) fn renamed(text: &str, known: &[KnownParameter]) -> String {
    let mut renamed = String::with_capacity(text.len());
    let mut rest = text;
    // For each bracket that is open, whether it goes.
    let mut open = Vec::new();
    // Whether the next word is the name of a field, whatever that word means elsewhere.
    let mut is_member = false;
    while let Some((word, further)) = first_token(rest) {
        let cast = CASTS.iter().find_map(|cast| rest.strip_prefix(cast)?.split_once(')'));
        if let Some((_, value)) = cast {
            open.push(true);
            rest = value;
            continue;
        }
        if let Some(value) = SIGNED.iter().find_map(|cast| rest.strip_prefix(cast)) {
            rest = value;
            continue;
        }
        rest = further;
        let number = word.strip_prefix("arg").and_then(|digits| digits.parse::<usize>().ok());
        let parameter = number.and_then(|number| known.get(number)).filter(|known| !known.name.is_empty());
        if is_member {
            renamed.push_str(word);
            is_member = false;
            continue;
        }
        is_member = word == "." || (word == ">" && renamed.ends_with('-'));
        match (word, parameter) {
            ("args", _) if rest.starts_with(['.', '-']) => {
                rest = rest.trim_start_matches(['.', '-', '>']);
                is_member = true;
            }
            ("str", _) if rest.starts_with('(') => {
                open.push(true);
                rest = &rest[1..];
            }
            ("(", _) => {
                open.push(false);
                renamed.push('(');
            }
            (")", _) => {
                let goes = open.pop().unwrap_or_default();
                if !goes {
                    renamed.push(')');
                }
            }
            ("pid", _) => renamed.push_str("tgid"),
            ("tid", _) => renamed.push_str("common_pid"),
            (_, Some(known)) => renamed.push_str(&known.name),
            _ => renamed.push_str(word),
        }
    }
    renamed
}

/// The bytes of the string in quotes that a text begins with: all, if it does not end.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == '"' && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// The name, the string in quotes or the other character that a text begins with, and what follows.
fn first_token(text: &str) -> Option<(&str, &str)> {
    let length = match text.chars().next()? {
        '"' => string_length(text),
        c if is_of_name(c) => text.find(|c| !is_of_name(c)).unwrap_or(text.len()),
        c => c.len_utf8(),
    };
    Some(text.split_at(length))
}

/// The names, the strings in quotes and the other characters of an expression, in their order.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (token, further) = first_token(rest)?;
        rest = further;
        Some(token)
    })
}

/// Whether an event has what an expression reads. A member may have any name.
pub(super) fn is_recorded(text: &str) -> bool {
    let tokens: Vec<_> = tokens(text).collect();
    tokens.iter().enumerate().all(|(at, token)| {
        let before = |back: usize| at.checked_sub(back).and_then(|at| tokens.get(at)).copied();
        let is_member = before(1) == Some(".") || (before(1) == Some(">") && before(2) == Some("-"));
        let is_call = is_identifier(token) && *token != "str" && tokens.get(at + 1) == Some(&"(");
        is_member || !(is_call || matches!(*token, "@" | "$") || NOT_RECORDED.contains(token))
    })
}

/// Whether an expression reads what a function takes, by its name.
pub(super) fn reads_arguments(text: &str) -> bool {
    tokens(text).any(|token| token == "args")
}

/// Whether a word of a definition begins with the return value.
pub(super) fn is_returned(word: &str) -> bool {
    word.trim_start_matches('$').split(|c: char| !is_of_name(c)).next() == Some("retval")
}

/// The number of `pid == NUMBER`, if that is all.
pub(super) fn process_of(part: &str) -> Option<&str> {
    let number = part.strip_prefix("pid")?.trim_start().strip_prefix("==")?.trim();
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(number)
}

/// What bpftrace knows of a task, a time or a probe, and no event has.
const NOT_RECORDED: [&str; 15] = [
    "uid", "gid", "username", "ustack", "kstack", "cgroup", "curtask", "rand", "jiffies", "nsecs", "elapsed",
    "func", "probe", "ncpus", "ppid",
];

pub(super) fn is_stack(value: &str) -> bool {
    matches!(value, "kstack" | "stack") || value.starts_with("kstack(")
}

/// Whether a part of a predicate asks only whether a map has a key.
fn is_of_map(part: &str) -> bool {
    let part = part.strip_suffix("!= 0").unwrap_or(part).trim_end();
    let Some(map) = part.strip_prefix('@') else { return false };
    match map.split_once('[') {
        Some((name, keys)) => {
            name.chars().all(is_of_name) && to_closing(keys).is_some_and(|(_, behind)| behind.is_empty())
        }
        None => map.chars().all(is_of_name),
    }
}

/// What a predicate joins by `&&`, without what asks for a key of a map: `latency` has only pairs.
pub(super) fn parts_of_predicate(predicate: &str) -> impl Iterator<Item = &str> {
    let (mut parts, mut begin, mut at) = (Vec::new(), 0, 0);
    loop {
        let rest = &predicate[at..];
        let joins = rest.starts_with("&&");
        if joins || rest.is_empty() {
            let part = predicate[begin..at].trim();
            parts.extend(Some(part).filter(|part| !part.is_empty() && !is_of_map(part)));
            begin = at + "&&".len();
        }
        at += match rest.chars().next() {
            None => return parts.into_iter(),
            Some('"') => string_length(rest),
            Some(_) if joins => "&&".len(),
            Some(c) => c.len_utf8(),
        };
    }
}
