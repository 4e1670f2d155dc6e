//! Labels and label selectors as command-line arguments.
//!
//! Owns their notation. It never checks keys, values or the meaning of a selector: the daemon does.

use std::collections::HashMap;

use super::{Exit, Failure};

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
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The labels of a new probe.
pub(super) fn labels(pairs: &[(String, String)]) -> Result<HashMap<String, String>, Failure> {
    let mut labels = HashMap::with_capacity(pairs.len());
    for (key, value) in pairs {
        if labels.insert(key.clone(), value.clone()).is_some() {
            return Err(Failure::new(Exit::Usage, format!("the label `{key}` is given twice"), []));
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
    fn a_selector_selects() {
        assert_eq!(selector("team"), Ok("team".to_owned()));
        assert!(selector("").is_err() && selector(" ").is_err());
    }
}
