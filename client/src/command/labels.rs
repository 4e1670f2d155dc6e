//! Labels and selectors, as they are given on a command line.
//!
//! What keys and values can be, and what a selector means, is for the daemon to say.

use std::collections::HashMap;

use super::Failure;

/// Reads a selector for a command that changes what it selects.
///
/// An empty one selects everything: that is more likely an empty variable of a script than meant.
pub(super) fn selector(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("an empty selector would select all probes".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// Reads `KEY=VALUE`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or_else(|| format!("`{text}` is not of the form KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Reads what a selector wants of labels where only values can be asked for, as for the selection of events: `KEY=VALUE` or `KEY==VALUE`,
/// with commas between.
pub(super) fn equalities(text: &str) -> Result<Vec<(String, String)>, String> {
    text.split(',').map(equality).collect()
}

fn equality(requirement: &str) -> Result<(String, String), String> {
    let refused = || {
        format!(
            "`{}` is not of the form KEY=VALUE: events can not be selected by labels in other ways (`kprobectl list -l` can)",
            requirement.trim()
        )
    };
    let (key, value) = requirement.split_once('=').ok_or_else(refused)?;
    let value = value.strip_prefix('=').unwrap_or(value);
    let (key, value) = (key.trim(), value.trim());
    // The rest of what a label can be is for the daemon to say; these would be other operators.
    let is_plain = |word: &str| !word.contains(['=', '!', '(', ')']) && !word.contains(char::is_whitespace);
    let is_equality = !key.is_empty() && is_plain(key) && is_plain(value);
    is_equality.then(|| (key.to_owned(), value.to_owned())).ok_or_else(refused)
}

/// The labels of a new probe.
pub(super) fn labels(pairs: &[(String, String)]) -> Result<HashMap<String, String>, Failure> {
    let mut labels = HashMap::with_capacity(pairs.len());
    for (key, value) in pairs {
        if labels.insert(key.clone(), value.clone()).is_some() {
            return Err(Failure::usage(format!("the label `{key}` is given twice"), None));
        }
    }
    Ok(labels)
}

/// What `kprobectl label` is asked to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Whose labels.
    pub(super) names: Vec<String>,
    /// `KEY=VALUE`.
    pub(super) set: HashMap<String, String>,
    /// `KEY-`.
    pub(super) remove: Vec<String>,
}

/// Sorts the words of `kprobectl label`. No name of a probe holds an `=` or ends with `-`.
pub(super) fn changes(words: &[String]) -> Result<Changes, Failure> {
    let mut changes = Changes::default();
    let mut set = Vec::new();
    for word in words {
        if let Ok(pair) = pair(word) {
            set.push(pair);
        } else if let Some(key) = word.strip_suffix('-') {
            changes.remove.push(key.to_owned());
        } else {
            changes.names.push(word.clone());
        }
    }
    changes.set = labels(&set)?;
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(words: &[&str]) -> Result<Changes, Failure> {
        changes(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_names_or_changes() {
        let found = sorted(&["open", "my-group/read", "team=a=b", "k-=", "tier-", "x--"]).unwrap();
        assert_eq!(found.names, ["open", "my-group/read"]);
        assert_eq!(found.remove, ["tier", "x-"]);
        let expected = [("team", "a=b"), ("k-", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(found.set, expected.into());
        assert!(sorted(&["a=1", "a=2"]).is_err());
    }

    #[test]
    fn events_are_selected_by_values() {
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(equalities("team=a"), Ok(pairs(&[("team", "a")])));
        assert_eq!(
            equalities("team = a, tier==2,empty="),
            Ok(pairs(&[("team", "a"), ("tier", "2"), ("empty", "")]))
        );
        for text in ["", "team", "!team", "team!=a", "team in (a,b)", "a=b,", "=a", "a===b", "a=b c"] {
            let problem = equalities(text).unwrap_err();
            assert!(problem.contains("KEY=VALUE"), "{text}: {problem}");
        }
    }

    #[test]
    fn a_selector_selects() {
        assert_eq!(selector("team"), Ok("team".to_owned()));
        assert!(selector("").is_err() && selector(" ").is_err());
    }
}
