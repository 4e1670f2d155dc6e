//! Bounds: the limit of a principal over all of its roles.
//!
//! Owns that the most generous role counts. Never counts what is held.

use super::Principal;
use super::decision::RuleName;
use super::limits::{Amount, Limit};
use super::role::Roles;

#[cfg(doc)]
use super::Limits;

/// A limit that holds for a principal, and the role that sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// What is limited.
    pub limit: Limit,
    /// How much, in the unit of the limit.
    pub most: u64,
    /// The role, and the line of the limit.
    pub rule: RuleName,
}

impl Roles {
    /// The limit of a principal: the most generous one of those that its roles state. Absent if none
    /// of them states one, or if one of them states that there is none. A role that states nothing
    /// does not lift the limit of another one ([`Limits`]): one that lets everybody look at probes
    /// would lift all.
    pub fn bound(&self, principal: &Principal, limit: Limit) -> Option<Bound> {
        let stated = self.of(principal).filter_map(|role| Some((role.limits.get(&limit).copied()?, role)));
        // Of equal ones the first counts.
        let ((amount, line), role) =
            stated.reduce(|most, other| if other.0.0 > most.0.0 { other } else { most })?;
        match amount {
            Amount::Unlimited => None,
            Amount::Most(most) => {
                Some(Bound { limit, most, rule: RuleName { role: role.name.clone(), line } })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[[role]]\nname = \"everybody\"\nprincipals = [\"user:*\"]\n\n\
        [[role]]\nname = \"team\"\nprincipals = [\"group:team\"]\n[role.limits]\nprobes = 10\nstreams = 2\n\n\
        [[role]]\nname = \"leads\"\nprincipals = [\"user:eve\"]\n[role.limits]\nprobes = 20\nstreams = \"unlimited\"\n";

    fn member(user: &str) -> Principal {
        Principal::of_names(&[format!("user:{user}"), "group:team".to_owned()]).unwrap()
    }

    #[test]
    fn the_most_generous_role_counts() {
        let roles = Roles::parse(FILE).unwrap();
        let shown = |user, limit| {
            roles.bound(&member(user), limit).map(|bound| (bound.most, bound.rule.role, bound.rule.line))
        };
        // The role of everybody states nothing, and lifts nothing.
        assert_eq!(shown("alice", Limit::Probes), Some((10, "team".to_owned(), 9)));
        assert_eq!(shown("alice", Limit::Streams), Some((2, "team".to_owned(), 10)));
        assert_eq!(shown("alice", Limit::Connections), None);
        assert_eq!(shown("eve", Limit::Probes), Some((20, "leads".to_owned(), 16)));
        assert_eq!(shown("eve", Limit::Streams), None);
        assert_eq!(roles.bound(&Principal::Daemon, Limit::Probes), None);
    }

    #[test]
    fn mistakes_in_limits_have_a_place() {
        let text = "[[role]]\nname = \"a\"\nprincipals = [\"uid:1\"]\n[role.limits]\nprobs = 1\nstreams = -1\n\
            connections = \"many\"\nqueue_bytes = 0\n";
        let found = Roles::parse(text).unwrap_err();
        let mut shown: Vec<_> =
            found.iter().map(|one| (one.line, one.column, one.message.as_str())).collect();
        shown.sort_unstable();
        assert_eq!(
            shown,
            [
                (5, 1, "there is no limit `probs`"),
                (6, 11, "the limit `streams` is not a number"),
                (7, 15, "the limit `connections` is not a number"),
            ]
        );
        assert!(found.iter().all(|one| !one.hint.is_empty()));
    }

    #[test]
    fn other_limits_are_the_same_rights() {
        let with = |limits: &str| {
            // Limits of the first role move the rules of the second one to other lines.
            Roles::parse(&format!(
                "[[role]]\nname = \"a\"\nprincipals = [\"user:eve\"]\n{limits}\n[[role]]\nname = \"b\"\n\
                 principals = [\"user:eve\"]\n[[role.allow]]\nmethods = [\"read\"]\n"
            ))
            .unwrap()
        };
        let (free, tight) = (with(""), with("[role.limits]\nprobes = 1\n"));
        assert!(free != tight && free.grant_as(&tight, &member("eve")));
        assert!(!free.grant_as(&with("[[role.deny]]\nmethods = [\"read\"]\n"), &member("eve")));
    }

    #[test]
    fn an_account_does_not_depend_on_the_user_database() {
        let names = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            Principal::of_names(&names).unwrap().account()
        };
        assert_eq!(names(&["user:eve", "uid:7"]), names(&["uid:7"]));
        assert_eq!(names(&["dns:a.example", "spiffe://x/y"]), "uri:spiffe://x/y");
        assert_eq!(Principal::Daemon.account(), "");
    }
}
