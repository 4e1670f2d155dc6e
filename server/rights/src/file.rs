//! Role files: reading and validating the `[[role]]` sections of a TOML text.
//!
//! Owns the syntax of these sections, with a line for every rule and a place for every mistake. Never
//! reads a file: the caller gives the text.

use std::collections::BTreeMap;
use std::ops::Range;

use kprobed_lang::model::{Glob, LabelSelector};
use serde::Deserialize;
use toml::Spanned;

use super::limits::{Amount, Limit, Limits, UNLIMITED};
use super::method::{Method, Scope, Verb};
use super::reads::{Read, Reads};
use super::role::{Methods, Role, Roles, Rule};

/// One mistake in a role file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleProblem {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to write instead; empty if the message says it.
    pub hint: String,
}

/// What else is in the file, such as the settings of the daemon, is left to others.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    role: Vec<RoleText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoleText {
    name: Spanned<String>,
    principals: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    allow: Vec<Spanned<RuleText>>,
    #[serde(default)]
    deny: Vec<Spanned<RuleText>>,
    /// Any names and values: each mistake gets its own place.
    #[serde(default)]
    limits: BTreeMap<Spanned<String>, Spanned<toml::Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    methods: Option<Vec<Spanned<String>>>,
    functions: Option<Vec<String>>,
    modules: Option<Vec<String>>,
    groups: Option<Vec<String>>,
    labels: Option<Spanned<String>>,
    reads: Option<Vec<Spanned<String>>>,
}

impl Roles {
    /// Reads a role file.
    ///
    /// # Errors
    /// All mistakes that can be found in one run; at least one.
    pub fn parse(text: &str) -> Result<Self, Vec<RoleProblem>> {
        let file: File = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            vec![problem(text, &span, error.message().replace('\n', ", "), "")]
        })?;
        let mut reader = Reader { text, problems: Vec::new() };
        let mut roles: Vec<Role> = Vec::new();
        for role in file.role {
            let span = role.name.span();
            let role = reader.role(role);
            if roles.iter().any(|other| other.name == role.name) {
                let message = format!("there are two roles `{}`", role.name);
                reader.note(&span, message, "give every role a name of its own");
            }
            roles.push(role);
        }
        if reader.problems.is_empty() { Ok(Self { roles }) } else { Err(reader.problems) }
    }
}

struct Reader<'a> {
    text: &'a str,
    problems: Vec<RoleProblem>,
}

impl Reader<'_> {
    fn note(&mut self, span: &Range<usize>, message: String, hint: &str) {
        self.problems.push(problem(self.text, span, message, hint));
    }

    fn role(&mut self, role: RoleText) -> Role {
        let RoleText { name, principals, allow, deny, limits } = role;
        if name.get_ref().is_empty() {
            self.note(&name.span(), "the name of a role is empty".to_owned(), "");
        }
        if principals.get_ref().is_empty() {
            let message = format!("the role `{}` has no principals", name.get_ref());
            self.note(&principals.span(), message, "name some, or remove the role");
        }
        let mut patterns = Vec::new();
        for pattern in principals.into_inner() {
            match pattern.get_ref().parse() {
                Ok(pattern) => patterns.push(pattern),
                Err(error) => {
                    let error: super::PatternError = error;
                    self.note(&pattern.span(), error.to_string(), error.hint());
                }
            }
        }
        Role {
            name: name.into_inner(),
            principals: patterns,
            allow: allow.into_iter().map(|rule| self.rule(rule, true)).collect(),
            deny: deny.into_iter().map(|rule| self.rule(rule, false)).collect(),
            limits: self.limits(&limits),
        }
    }

    fn limits(&mut self, texts: &BTreeMap<Spanned<String>, Spanned<toml::Value>>) -> Limits {
        let mut limits = Limits::default();
        for (name, value) in texts {
            let Some(limit) = Limit::named(name.get_ref()) else {
                let message = format!("there is no limit `{}`", name.get_ref());
                let known = Limit::ALL.map(|limit| format!("`{limit}`")).join(", ");
                self.note(&name.span(), message, &format!("use {known}"));
                continue;
            };
            let amount = match value.get_ref() {
                toml::Value::Integer(most) => u64::try_from(*most).ok().map(Amount::Most),
                toml::Value::String(word) if word == UNLIMITED => Some(Amount::Unlimited),
                _ => None,
            };
            let Some(amount) = amount else {
                let message = format!("the limit `{limit}` is not a number");
                self.note(&value.span(), message, "use a whole number from 0 on, or \"unlimited\"");
                continue;
            };
            limits.insert(limit, (amount, place(self.text, name.span().start).0));
        }
        limits
    }

    fn rule(&mut self, rule: Spanned<RuleText>, allows: bool) -> Rule {
        let span = rule.span();
        let line = place(self.text, span.start).0;
        let RuleText { methods, functions, modules, groups, labels, reads } = rule.into_inner();
        let methods = match methods {
            Some(methods) => methods.iter().filter_map(|method| self.methods(method)).collect(),
            None if allows => {
                let message = "a rule that allows must say which methods".to_owned();
                let hint = format!("write `methods = [...]` with {}", verbs());
                self.note(&span, message, &hint);
                Vec::new()
            }
            None => vec![Methods::All],
        };
        // What a probe may read is the heart of a right: never granted by leaving it out.
        let changes = |methods: &Methods| {
            matches!(methods, Methods::All | Methods::Of(Verb::Change | Verb::Observe))
                || matches!(methods, Methods::One(method) if matches!(method.verb, Verb::Change | Verb::Observe) && method.scope == Scope::Object)
        };
        if allows && reads.is_none() && methods.iter().any(changes) {
            let message = "a rule that allows `change` or `observe` must say what the probes may read";
            let hint = format!("write `reads = [...]` with `all` or {}; `[]` for calls alone", classes());
            self.note(&span, message.to_owned(), &hint);
        }
        let labels = labels.and_then(|labels| match labels.get_ref().parse::<LabelSelector>() {
            Ok(selector) => Some(selector),
            Err(error) => {
                self.note(&labels.span(), error.to_string(), error.hint);
                None
            }
        });
        let globs = |texts: Option<Vec<String>>| texts.into_iter().flatten().map(Glob::new).collect();
        Rule {
            line,
            methods,
            functions: globs(functions),
            modules: globs(modules),
            groups: globs(groups),
            labels,
            reads: reads.map(|reads| reads.iter().fold(Reads::NONE, |all, read| all.and(self.reads(read)))),
        }
    }

    fn methods(&mut self, text: &Spanned<String>) -> Option<Methods> {
        let name = text.get_ref().as_str();
        let found = match name {
            "all" => Some(Methods::All),
            name => Verb::named(name).map(Methods::Of).or_else(|| Method::named(name).map(Methods::One)),
        };
        if found.is_none() {
            let message = format!("`{name}` is neither a verb nor a method of the API");
            let hint = format!("use `all`, {}, or the name of a method such as `CreateProbe`", verbs());
            self.note(&text.span(), message, &hint);
        }
        found
    }

    fn reads(&mut self, text: &Spanned<String>) -> Reads {
        match text.get_ref().as_str() {
            "all" => Reads::ALL,
            name => Read::named(name).map_or_else(
                || {
                    let message = format!("`{name}` is not a class of data");
                    self.note(&text.span(), message, &format!("use `all` or {}", classes()));
                    Reads::NONE
                },
                |read| Reads::NONE.with(read),
            ),
        }
    }
}

fn verbs() -> String {
    Verb::ALL.map(|verb| format!("`{}`", verb.name())).join(", ")
}

fn classes() -> String {
    Read::ALL.map(|read| format!("`{}`", read.name())).join(", ")
}

fn problem(text: &str, span: &Range<usize>, message: String, hint: &str) -> RoleProblem {
    let (line, column) = place(text, span.start);
    RoleProblem { line, column, message, hint: hint.to_owned() }
}

/// Line and column of a byte.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..text.floor_char_boundary(at)).unwrap_or(text);
    let line = before.matches('\n').count().saturating_add(1);
    let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()).saturating_add(1);
    (line, column)
}
