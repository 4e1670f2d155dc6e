//! The decision: whether a principal may call a method on an object, and by which rule.
//!
//! Owns default deny, and that a rule that forbids has the last word. A pure function.

use std::fmt;

use super::method::{Method, Scope};
use super::role::{Condition, Object, Role, Roles, Rule};
use super::{Principal, Reads};

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Who asks.
    pub principal: &'a Principal,
    /// For what.
    pub method: &'a Method,
    /// On what. Absent: on anything at all. A method that is about probes is allowed then if a rule
    /// allows it for some; the service asks again for each.
    pub object: Option<&'a Object<'a>>,
}

/// A rule, as messages and audit rows name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleName {
    /// Its role.
    pub role: String,
    /// Its line in the role file; 0 for a built-in role.
    pub line: usize,
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { role, line: 0 } => write!(f, "built-in role `{role}`"),
            Self { role, line } => write!(f, "role `{role}`, line {line}"),
        }
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed by this rule. Absent for the daemon itself, and for what every client may do.
    Allowed(Option<RuleName>),
    /// Forbidden by this rule.
    Forbidden(RuleName),
    /// The principal has no role.
    NoRole,
    /// No rule of its roles allows the method.
    NoMethod,
    /// The rule that comes closest allows it, apart from this condition.
    Unmet(RuleName, Condition),
}

impl Decision {
    /// Whether the request may go on.
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    /// The same for one who may not look at the object: without what it reads.
    #[must_use]
    pub fn without_reads(self) -> Self {
        match self {
            Self::Unmet(rule, Condition::Reads(_)) => Self::Unmet(rule, Condition::Reads(Reads::NONE)),
            other => other,
        }
    }

    /// The rule that decides, if one does.
    pub const fn rule(&self) -> Option<&RuleName> {
        match self {
            Self::Allowed(rule) => rule.as_ref(),
            Self::Forbidden(rule) | Self::Unmet(rule, _) => Some(rule),
            Self::NoRole | Self::NoMethod => None,
        }
    }
}

/// The reason, as the second half of a sentence: `uid:1000 may not call CreateProbe: ...`.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed(Some(rule)) => write!(f, "{rule} allows it"),
            Self::Allowed(None) => f.write_str("no rule is needed"),
            Self::Forbidden(rule) => write!(f, "{rule} forbids it"),
            Self::NoRole => f.write_str("it has no role"),
            Self::NoMethod => f.write_str("none of its roles allows the method"),
            Self::Unmet(rule, condition) => {
                write!(f, "{rule} does not allow ")?;
                match condition {
                    Condition::Functions => f.write_str("the function"),
                    Condition::Modules => f.write_str("the module"),
                    Condition::Groups => f.write_str("the group"),
                    Condition::Labels => f.write_str("the labels"),
                    Condition::Reads(Reads::NONE) => f.write_str("what it reads"),
                    Condition::Reads(reads) => write!(f, "to read {reads}"),
                }
            }
        }
    }
}

impl Roles {
    /// Decides. Takes time by the number of roles and rules; see `benches/decision.rs`.
    pub fn decide(&self, question: Question<'_>) -> Decision {
        let Question { principal, method, object } = question;
        if matches!(principal, Principal::Daemon) || method.scope == Scope::Everybody {
            return Decision::Allowed(None);
        }
        let mut has_role = false;
        for role in self.of(principal) {
            has_role = true;
            let about = |rule: &&Rule| rule.names(method);
            let forbids = |rule: &&Rule| match object {
                Some(object) => rule.forbids(method, object),
                None => rule.is_about_methods_alone(),
            };
            if let Some(rule) = role.deny.iter().filter(about).find(forbids) {
                return Decision::Forbidden(name(role, rule));
            }
        }
        let mut closest: Option<(usize, Decision)> = None;
        for role in self.of(principal) {
            for rule in role.allow.iter().filter(|rule| rule.names(method)) {
                let Some(condition) = object.and_then(|object| rule.unmet(method, object)) else {
                    return Decision::Allowed(Some(name(role, rule)));
                };
                let rank = rank(condition);
                if closest.as_ref().is_none_or(|(least, _)| rank > *least) {
                    closest = Some((rank, Decision::Unmet(name(role, rule), condition)));
                }
            }
        }
        match closest {
            Some((_, unmet)) => unmet,
            None if has_role => Decision::NoMethod,
            None => Decision::NoRole,
        }
    }
}

fn name(role: &Role, rule: &Rule) -> RuleName {
    RuleName { role: role.name.clone(), line: rule.line }
}

/// How close a rule comes to allowing: conditions are looked at in this order.
const fn rank(condition: Condition) -> usize {
    match condition {
        Condition::Groups => 0,
        Condition::Labels => 1,
        Condition::Modules => 2,
        Condition::Functions => 3,
        Condition::Reads(_) => 4,
    }
}
