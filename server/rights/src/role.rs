//! Roles: who has them, and their rules.
//!
//! Owns when a rule matches. The decision over all roles is [`super::decision`].

use kprobed_lang::model::{Glob, LabelSelector, Labels, ProbeName};

use super::method::{Method, Verb};
use super::reads::Read;
use super::{Limits, Principal, PrincipalPattern, Reads};

/// What a request is about: a probe, resolved on the running kernel, or an event of the host.
#[derive(Clone, Debug)]
pub struct Object<'a> {
    /// Its name.
    pub name: &'a ProbeName,
    /// Its labels.
    pub labels: &'a Labels,
    /// Every name of the function that the place lies in, not only the one that is written: a place
    /// such as `first+0x400` can lie in another function, and functions have aliases. Empty for an
    /// event of the host.
    pub functions: &'a [String],
    /// The module of the function; `vmlinux` for the kernel itself. Absent for an event of the host.
    pub module: Option<&'a str>,
    /// What it reads.
    pub reads: Reads,
    /// How much of all this is known.
    pub known: Known,
}

/// How much of an object is known when rules are compared with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its name and its labels, which the request says itself. Conditions on the rest are asked once that is
    /// known.
    Text,
    /// Not every function that its place may lie in: it is not resolved, or its module is not loaded. A rule that
    /// forbids functions, or modules if the module is not known, is about it.
    Part,
    /// Everything.
    All,
}

/// All roles of a host. A principal without a role may do nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    pub(super) roles: Vec<Role>,
}

/// A role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Its name.
    pub name: String,
    /// Who has it.
    pub principals: Vec<PrincipalPattern>,
    /// What it allows.
    pub allow: Vec<Rule>,
    /// What it forbids, whatever any role allows.
    pub deny: Vec<Rule>,
    /// How much each principal that has it may hold.
    pub limits: Limits,
}

/// One rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Where it stands in its file, from 1. 0 for a built-in rule.
    pub line: usize,
    pub(super) methods: Vec<Methods>,
    pub(super) functions: Vec<Glob>,
    pub(super) modules: Vec<Glob>,
    pub(super) groups: Vec<Glob>,
    pub(super) labels: Option<LabelSelector>,
    pub(super) reads: Option<Reads>,
}

/// Methods that a rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Methods {
    All,
    Of(Verb),
    One(&'static Method),
}

/// A condition of a rule on the object of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// `functions`.
    Functions,
    /// `modules`.
    Modules,
    /// `groups`.
    Groups,
    /// `labels`.
    Labels,
    /// `reads`, and the classes that the rule does not allow.
    Reads(Reads),
}

impl Methods {
    fn include(self, method: &Method) -> bool {
        match self {
            Self::All => true,
            Self::Of(verb) => verb == method.verb,
            Self::One(one) => one.path == method.path,
        }
    }
}

impl Roles {
    /// The roles without a role file: root, and the members of a group, may do everything on this
    /// host's socket. No client over TCP may do anything.
    pub fn built_in(group: &str) -> Self {
        let pattern = |text: String| text.parse().ok();
        let everything = Rule { methods: vec![Methods::All], reads: Some(Reads::ALL), ..Rule::default() };
        let principals =
            ["uid:0".to_owned(), format!("group:{group}")].into_iter().filter_map(pattern).collect();
        let (name, allow) = ("administrators".to_owned(), vec![everything]);
        Self { roles: vec![Role { name, principals, allow, ..Role::default() }] }
    }

    /// The roles of a principal.
    pub fn of<'a>(&'a self, principal: &'a Principal) -> impl Iterator<Item = &'a Role> {
        self.roles.iter().filter(|role| role.principals.iter().any(|pattern| pattern.matches(principal)))
    }

    /// Whether a principal has the same rights by other roles, whatever their limits are, and in
    /// whichever lines they stand: limits count for what comes next, and rights for what was begun as
    /// well.
    pub fn grant_as(&self, other: &Self, principal: &Principal) -> bool {
        let anywhere = |rules: &[Rule]| rules.iter().map(|rule| Rule { line: 0, ..rule.clone() }).collect();
        let rights = |role: &Role| Role {
            allow: anywhere(&role.allow),
            deny: anywhere(&role.deny),
            limits: Limits::default(),
            ..role.clone()
        };
        self.of(principal).map(rights).eq(other.of(principal).map(rights))
    }

    /// All roles.
    pub fn all(&self) -> &[Role] {
        &self.roles
    }

    /// Whether a principal may call a method on whatever there is, so that no object need be looked
    /// at.
    pub fn is_unconditional(&self, principal: &Principal, method: &Method) -> bool {
        matches!(principal, Principal::Daemon)
            || (self.of(principal).all(|role| !role.deny.iter().any(|rule| rule.forbids_some(method)))
                && self.of(principal).any(|role| role.allow.iter().any(|rule| rule.allows_all(method))))
    }
}

impl Roles {
    /// Whether answers to a principal may contain kernel addresses: a rule about the method has
    /// `addresses` in `reads`, and none that forbids has it. It is about the host and not about a probe:
    /// one address says where the whole kernel is.
    pub fn show_addresses(&self, principal: &Principal, method: &Method) -> bool {
        let has = |rules: &[Rule]| {
            let of_addresses = |rule: &Rule| rule.reads.is_some_and(|reads| reads.has(Read::Addresses));
            rules.iter().any(|rule| rule.names(method) && of_addresses(rule))
        };
        matches!(principal, Principal::Daemon)
            || (self.of(principal).any(|role| has(&role.allow))
                && !self.of(principal).any(|role| has(&role.deny)))
    }
}

impl Rule {
    /// Whether it is about a method.
    pub(super) fn names(&self, method: &Method) -> bool {
        self.methods.iter().any(|methods| methods.include(method))
    }

    /// Whether it has no condition on an object.
    pub(super) fn is_about_methods_alone(&self) -> bool {
        self.is_about_all_places() && self.reads.is_none()
    }

    fn is_about_all_places(&self) -> bool {
        self.functions.is_empty()
            && self.modules.is_empty()
            && self.groups.is_empty()
            && self.labels.is_none()
    }

    /// As a rule that allows: whether it allows a method on every object.
    fn allows_all(&self, method: &Method) -> bool {
        let allows_all_data = self.reads.is_none_or(|reads| reads == Reads::ALL);
        self.names(method) && self.is_about_all_places() && (allows_all_data || !method.is_about_data())
    }

    /// As a rule that forbids: whether it can forbid a method on an object.
    fn forbids_some(&self, method: &Method) -> bool {
        self.names(method) && (method.is_about_data() || self.reads.is_none())
    }

    /// As a rule that allows: the first condition that an object does not meet. An object without a
    /// function or module meets no condition on them.
    pub(super) fn unmet(&self, method: &Method, object: &Object<'_>) -> Option<Condition> {
        if !any(&self.groups, [object.name.group()]) {
            return Some(Condition::Groups);
        }
        if self.labels.as_ref().is_some_and(|selector| !selector.matches(object.labels)) {
            return Some(Condition::Labels);
        }
        if object.known == Known::Text {
            return None;
        }
        if !any(&self.modules, object.module) {
            return Some(Condition::Modules);
        }
        // With one name of a function it is allowed: all of its names are the same code.
        if !any(&self.functions, object.functions) {
            return Some(Condition::Functions);
        }
        if !method.is_about_data() {
            return None;
        }
        let beyond = object.reads.without(self.reads.unwrap_or(Reads::ALL));
        (!beyond.is_empty()).then_some(Condition::Reads(beyond))
    }

    /// As a rule that forbids: whether it is about an object. One class of data, or one of the names
    /// of a function, is enough; so is a name that is not known.
    pub(super) fn forbids(&self, method: &Method, object: &Object<'_>) -> bool {
        let is_of_text = self.forbids_some(method)
            && any(&self.groups, [object.name.group()])
            && self.labels.as_ref().is_none_or(|selector| selector.matches(object.labels));
        let is_in_part = object.known == Known::Part;
        is_of_text
            && match object.known {
                Known::Text => self.functions.is_empty() && self.modules.is_empty() && self.reads.is_none(),
                Known::Part | Known::All => {
                    (any(&self.modules, object.module) || (is_in_part && object.module.is_none()))
                        && (any(&self.functions, object.functions) || is_in_part)
                        && self.reads.is_none_or(|reads| object.reads.meets(reads))
                }
            }
    }
}

/// Whether one of some texts matches, if there is a condition.
fn any<T: AsRef<str>>(globs: &[Glob], texts: impl IntoIterator<Item = T>) -> bool {
    globs.is_empty() || texts.into_iter().any(|text| globs.iter().any(|glob| glob.matches(text.as_ref())))
}
