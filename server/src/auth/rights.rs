//! The roles in force, and requests against them.
//!
//! Owns when the roles change: a request is decided by those that are in force when it is judged. What
//! they refuse goes to the audit log.

use std::fmt;
use std::sync::Arc;

use kprobed_audit::{Action, Entry};
use kprobed_lang::model::ProbeName;
use kprobed_rights::{Approvals, Decision, Object, Question, Roles, RuleName};
use thiserror::Error;
use tokio::sync::watch;

use super::{AuditQueue, Caller};

/// The roles of this host.
#[derive(Debug)]
pub struct Rights {
    roles: watch::Sender<Arc<Roles>>,
    approvals: watch::Sender<Arc<Approvals>>,
    audit: AuditQueue,
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
        Self { roles: watch::Sender::new(Arc::new(roles)), approvals: watch::Sender::default(), audit }
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

    /// The approved definitions.
    pub fn approvals(&self) -> Arc<Approvals> {
        Arc::clone(&self.approvals.borrow())
    }

    /// Puts other approvals in force, for all requests that are judged from now on.
    pub fn approve(&self, approvals: Approvals) {
        self.approvals.send_replace(Arc::new(approvals));
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

    /// The same for a caller that is not refused anything, but gets an answer without the object.
    ///
    /// # Errors
    /// [`Denied`] with the reason.
    pub fn decide(&self, caller: &Caller, object: Option<&Object<'_>>) -> Result<Option<RuleName>, Denied> {
        let Some(method) = caller.method else { return Ok(None) };
        let (principal, approvals) = (&*caller.principal, &*self.approvals());
        let decision = self.roles().decide(Question { principal, method, object, approvals });
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
