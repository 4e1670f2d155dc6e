//! The roles in force, and requests against them.
//!
//! Owns when the roles change: a request is decided by those that are in force when it is judged. What
//! they refuse goes to the audit log.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kprobed_audit::{Action, Entry};
use kprobed_lang::model::ProbeName;
use kprobed_rights::{Bound, Decision, Limit, Object, Principal, Question, Roles, RuleName};
use thiserror::Error;
use tokio::sync::watch;

use super::{Asked, AuditQueue, Caller, Holdings, LimitReached, Share};

/// The roles of this host, and what principals hold of the limits in them.
#[derive(Debug)]
pub struct Rights {
    roles: watch::Sender<Arc<Roles>>,
    audit: AuditQueue,
    holdings: Arc<Holdings>,
}

/// A request that no rule allows, or that one forbids.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{principal}` may not call `{method}`{}: {decision}", on(object.as_ref()))]
pub struct Denied {
    /// Who asked.
    pub principal: String,
    /// The method that was called.
    pub method: &'static str,
    /// The probe or event that it is about. Absent if the method alone is refused.
    pub object: Option<ProbeName>,
    /// Why.
    pub decision: Decision,
}

fn on(object: Option<&ProbeName>) -> impl fmt::Display {
    object.map_or_else(String::new, |name| format!(" on `{name}`"))
}

impl Rights {
    /// Rights by these roles. What they refuse goes into `audit`.
    pub fn new(roles: Roles, audit: AuditQueue) -> Self {
        Self { roles: watch::Sender::new(Arc::new(roles)), audit, holdings: Arc::default() }
    }

    /// What requests that change nothing add to the audit log.
    pub const fn audit(&self) -> &AuditQueue {
        &self.audit
    }

    /// The roles in force now.
    pub fn roles(&self) -> Arc<Roles> {
        Arc::clone(&self.roles.borrow())
    }

    /// Puts other roles in force, for all requests that are judged from now on.
    pub fn replace(&self, roles: Roles) {
        self.roles.send_replace(Arc::new(roles));
    }

    /// Whether the answer to a caller may contain kernel addresses.
    pub fn show_addresses(&self, caller: &Caller) -> bool {
        caller.method.is_none_or(|method| self.roles().show_addresses(&caller.principal, method))
    }

    /// Follows changes of the roles.
    pub fn follow(&self) -> watch::Receiver<Arc<Roles>> {
        self.roles.subscribe()
    }

    /// Asks whether a caller may go on, and by which rule; none is needed for what everybody may do.
    /// Without an object: whether it may call the method at all. A refusal is audited.
    ///
    /// # Errors
    /// [`Denied`] with the reason.
    pub fn require(&self, caller: &Caller, object: Option<&Object<'_>>) -> Result<Option<RuleName>, Denied> {
        self.decide(caller, object).inspect_err(|denied| {
            self.audit.note(Entry {
                method: denied.method.to_owned(),
                rule: denied.decision.rule().map(ToString::to_string).unwrap_or_default(),
                probe: denied.object.as_ref().map(ToString::to_string).unwrap_or_default(),
                reason: denied.decision.to_string(),
                ..Entry::new(Action::Refused, denied.principal.clone())
            });
        })
    }

    /// The limit of a principal by the roles in force. Absent if there is none.
    pub fn bound(&self, principal: &Principal, limit: Limit) -> Option<Bound> {
        self.roles().bound(principal, limit)
    }

    /// What principals hold.
    pub fn holdings(&self) -> &Holdings {
        &self.holdings
    }

    /// Takes a part of a limit that is counted in memory: connections, streams, bytes of queues. A
    /// refusal is audited.
    ///
    /// # Errors
    /// [`LimitReached`] if the principal would hold more than its roles allow.
    pub fn take(&self, caller: &Caller, limit: Limit, amount: u64) -> Result<Share, LimitReached> {
        let principal = &caller.principal;
        let bound = self.bound(principal, limit);
        self.holdings
            .take(principal.account(), limit, amount, bound)
            .map_err(|(bound, held)| self.reached(caller, None, bound, Asked { held, more: amount }))
    }

    /// Counts a check of a caller. A refusal is audited.
    ///
    /// # Errors
    /// [`LimitReached`] if it has had its checks of this second.
    pub fn check(&self, caller: &Caller) -> Result<(), LimitReached> {
        let principal = &caller.principal;
        let Some(bound) = self.bound(principal, Limit::ChecksPerSecond) else { return Ok(()) };
        let counted = self.holdings.check(principal.account(), bound.most, Instant::now());
        counted.map_err(|held| self.reached(caller, None, bound, Asked { held, more: 1 }))
    }

    /// Accepts a command that its client sends to so many hosts. A refusal is audited.
    ///
    /// # Errors
    /// [`LimitReached`] if these are too many.
    pub fn command_for(&self, caller: &Caller, hosts: u64) -> Result<(), LimitReached> {
        match self.bound(&caller.principal, Limit::HostsPerCommand) {
            Some(bound) if hosts > bound.most => {
                Err(self.reached(caller, None, bound, Asked { held: 0, more: hosts }))
            }
            _ => Ok(()),
        }
    }

    /// A refusal by a limit, with its entry in the audit log.
    pub(crate) fn reached(
        &self,
        caller: &Caller,
        probe: Option<&ProbeName>,
        bound: Bound,
        asked: Asked,
    ) -> LimitReached {
        let reached = LimitReached { principal: caller.principal.to_string(), bound, asked };
        self.audit.note(Entry {
            method: caller.method.map(|method| method.name().to_owned()).unwrap_or_default(),
            rule: reached.bound.rule.to_string(),
            probe: probe.map(ToString::to_string).unwrap_or_default(),
            reason: reached.to_string(),
            ..Entry::new(Action::Refused, reached.principal.clone())
        });
        reached
    }

    /// Counts checks that were made in a stream. Returns how long the stream has to wait.
    pub fn pace(&self, principal: &Principal, count: u64) -> Duration {
        self.bound(principal, Limit::ChecksPerSecond).map_or(Duration::ZERO, |bound| {
            self.holdings.pace(principal.account(), count, bound.most, Instant::now())
        })
    }

    /// The same for a caller that is not refused anything, but gets an answer without the object.
    ///
    /// # Errors
    /// [`Denied`] with the reason.
    pub fn decide(&self, caller: &Caller, object: Option<&Object<'_>>) -> Result<Option<RuleName>, Denied> {
        let Some(method) = caller.method else { return Ok(None) };
        let decision = self.roles().decide(Question { principal: &caller.principal, method, object });
        if let Decision::Allowed(rule) = decision {
            return Ok(rule);
        }
        Err(Denied {
            principal: caller.principal.to_string(),
            method: method.name(),
            object: object.map(|object| object.name.clone()),
            decision,
        })
    }
}
