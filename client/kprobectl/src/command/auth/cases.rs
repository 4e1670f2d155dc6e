//! Tables of cases for `kprobectl auth test`.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use kprobed_client::api::check_access_request::Object;
use serde::Deserialize;

use crate::command::Failure;

/// What a principal should or should not be allowed.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) names: Vec<String>,
    pub(super) method: String,
    pub(super) object: Option<Object>,
    pub(super) labels: HashMap<String, String>,
    pub(super) allowed: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseText {
    #[serde(rename = "as")]
    names: Vec<String>,
    method: String,
    definition: Option<String>,
    name: Option<String>,
    #[serde(default)]
    labels: HashMap<String, String>,
    allowed: bool,
}

/// Reads the cases of a file.
pub(super) fn read(path: &Path, text: &str) -> Result<Vec<Case>, Failure> {
    let wrong = |problem: String| {
        let hint = "`kprobectl auth test --help` shows a file of cases".to_owned();
        Failure::usage(format!("cannot use `{}`: {problem}", path.display()), Some(hint))
    };
    let cases: Vec<CaseText> = serde_yaml_ng::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if cases.is_empty() {
        return Err(wrong("it has no cases".to_owned()));
    }
    cases
        .into_iter()
        .enumerate()
        .map(|(index, case)| case.read().map_err(|problem| wrong(format!("case {}: {problem}", index + 1))))
        .collect()
}

impl CaseText {
    fn read(self) -> Result<Case, String> {
        let Self { names, method, definition, name, labels, allowed } = self;
        if names.is_empty() {
            return Err("`as` has no name".to_owned());
        }
        let object = match (definition, name) {
            (Some(_), Some(_)) => return Err("it has a `definition` and a `name`".to_owned()),
            (Some(definition), None) => Some(Object::Definition(definition)),
            (None, Some(name)) => Some(Object::Name(name)),
            (None, None) => None,
        };
        Ok(Case { names, method, object, labels, allowed })
    }
}

/// As the first column of a table.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.names.join("+"), self.method)?;
        match &self.object {
            Some(Object::Definition(text) | Object::Name(text)) => write!(f, " {text}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Case>, String> {
        read(Path::new("cases.yaml"), text).map_err(|failure| failure.to_string())
    }

    #[test]
    fn cases_say_who_what_and_whether() {
        let cases = read_text(
            "- {as: [user:alice, group:a], method: CreateProbe, definition: 'p:a/b f', labels: {team: a}, allowed: true}\n\
             - {as: [loopback], method: GetHost, allowed: false}\n",
        )
        .unwrap();
        assert_eq!(cases[0].to_string(), "user:alice+group:a CreateProbe p:a/b f");
        assert_eq!((cases[0].labels["team"].as_str(), cases[0].allowed), ("a", true));
        assert_eq!((cases[1].to_string().as_str(), cases[1].allowed), ("loopback GetHost", false));
    }

    #[test]
    fn mistakes_are_refused() {
        for (text, expected) in [
            ("[]", "it has no cases"),
            ("- {as: [], method: GetHost, allowed: true}", "case 1: `as` has no name"),
            (
                "- {as: [loopback], method: X, name: a/b, definition: p f, allowed: true}",
                "a `definition` and a `name`",
            ),
            ("- {as: [loopback], method: X, alowed: true}", "unknown field `alowed`"),
        ] {
            let problem = read_text(text).unwrap_err();
            assert!(
                problem.contains(expected) && problem.starts_with("cannot use `cases.yaml`: "),
                "{problem}"
            );
        }
    }
}
