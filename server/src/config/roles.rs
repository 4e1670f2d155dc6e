//! `[[role]]` sections: the roles of this host, beside the settings.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::problem::{Place, Problem, Severity};
use kprobed_rights::{RoleProblem, Roles};

/// That there are such sections. They are read apart from the settings, with the line of each rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleSections;

impl<'de> Deserialize<'de> for RoleSections {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

/// The roles of a configuration file; its problems if they cannot be read.
pub(super) fn read(text: &str) -> Result<Roles, Vec<Problem>> {
    Roles::parse(text).map_err(|error| error.0.into_iter().map(problem).collect())
}

fn problem(found: RoleProblem) -> Problem {
    let RoleProblem { line, column, message, hint } = found;
    let place = Some(Place { line, column });
    Problem { severity: Severity::Error, setting: "role".to_owned(), message, hint, place }
}
