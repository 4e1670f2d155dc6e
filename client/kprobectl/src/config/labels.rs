//! Label selectors of hosts, in the grammar of kubectl.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::ConfigError;

/// Requirements that all must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    /// Empty: any value.
    values: Vec<String>,
    negated: bool,
}

impl LabelSelector {
    /// Whether labels fit. As in kubectl, `key!=value` holds for a host without the key too.
    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|wanted| {
            let holds = labels
                .get(&wanted.key)
                .is_some_and(|value| wanted.values.is_empty() || wanted.values.contains(value));
            holds != wanted.negated
        })
    }
}

impl FromStr for LabelSelector {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = |why| ConfigError::Selector(text.to_owned(), why);
        let (mut depth, mut parts) = (0_usize, vec![String::new()]);
        for character in text.chars() {
            match character {
                '(' if depth > 0 => return Err(wrong("a list is in another list")),
                '(' => depth += 1,
                ')' if depth == 0 => return Err(wrong("a list is not opened")),
                ')' => depth -= 1,
                _ => {}
            }
            match parts.last_mut() {
                Some(part) if character != ',' || depth > 0 => part.push(character),
                _ => parts.push(String::new()),
            }
        }
        if depth > 0 {
            return Err(wrong("a list is not closed"));
        }
        parts.iter().map(|part| requirement(part.trim()).map_err(wrong)).collect::<Result<_, _>>().map(Self)
    }
}

fn requirement(part: &str) -> Result<Requirement, &'static str> {
    let one = |key: &str, values: Vec<String>, negated| {
        let key = key.trim();
        if !is_word(key) || key.is_empty() || !values.iter().all(|value| is_word(value)) {
            return Err(
                "keys and values have letters, digits, `.`, `_`, `/` and `-`, and a key is not empty",
            );
        }
        Ok(Requirement { key: key.to_owned(), values, negated })
    };
    if let Some(list) = part.strip_suffix(')') {
        let (head, list) = list.split_once('(').ok_or("a list is not opened")?;
        let values = list.split(',').map(|value| value.trim().to_owned()).collect();
        return match head.split_whitespace().collect::<Vec<_>>().as_slice() {
            [key, "in"] => one(key, values, false),
            [key, "notin"] => one(key, values, true),
            _ => Err("before a list stands a key with `in` or `notin`"),
        };
    }
    let value = |value: &str| vec![value.trim().to_owned()];
    if let Some((key, text)) = part.split_once("!=") {
        return one(key, value(text), true);
    }
    if let Some((key, text)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return one(key, value(text), false);
    }
    match part.strip_prefix('!') {
        Some(key) => one(key, Vec::new(), true),
        None => one(part, Vec::new(), false),
    }
}

fn is_word(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "._/-".contains(c))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requirements() {
        let labels: BTreeMap<_, _> =
            [("role", "web"), ("rack", "7")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let fits = |text: &str| text.parse::<LabelSelector>().unwrap().matches(&labels);
        for yes in [
            "role=web",
            "role==web,rack",
            "!gone",
            "rack!=8",
            "x!=1",
            "role in (db, web)",
            "rack notin (1,2)",
        ] {
            assert!(fits(yes), "{yes}");
        }
        for no in ["role=db", "role=web,gone", "!rack", "rack!=7", "role in (db)", "role notin (web)"] {
            assert!(!fits(no), "{no}");
        }
        for wrong in ["", "a,", "=b", "a in b", "a in (b", "a (b)", "a)b", "a=b c", "a in ((b))"] {
            assert!(wrong.parse::<LabelSelector>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in "[a-c!=,() é]{0,20}") {
            text.parse::<LabelSelector>().ok();
        }
    }
}
