//! The roles in force, and requests against them.
//!
//! Owns when the roles change: a request is decided by those that are in force when it is judged.

use std::fmt;
use std::sync::Arc;

use kprobed_lang::model::ProbeName;
use kprobed_rights::{Decision, Object, Question, Roles};
use thiserror::Error;
use tokio::sync::watch;

use super::Caller;

/// The roles of this host.
#[derive(Debug)]
pub struct Rights(watch::Sender<Arc<Roles>>);

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
    /// Rights by these roles.
    pub fn new(roles: Roles) -> Self {
        Self(watch::Sender::new(Arc::new(roles)))
    }

    /// The roles in force now.
    pub fn roles(&self) -> Arc<Roles> {
        Arc::clone(&self.0.borrow())
    }

    /// Puts other roles in force, for all requests that are judged from now on.
    pub fn replace(&self, roles: Roles) {
        self.0.send_replace(Arc::new(roles));
    }

    /// Follows changes of the roles.
    pub fn follow(&self) -> watch::Receiver<Arc<Roles>> {
        self.0.subscribe()
    }

    /// Asks whether a caller may go on. Without an object: whether it may call the method at all.
    ///
    /// # Errors
    /// [`Denied`] with the reason.
    pub fn require(&self, caller: &Caller, object: Option<&Object<'_>>) -> Result<(), Denied> {
        let Some(method) = caller.method else { return Ok(()) };
        let decision = self.roles().decide(Question { principal: &caller.principal, method, object });
        if decision.is_allowed() {
            return Ok(());
        }
        Err(Denied {
            principal: caller.principal.to_string(),
            method: method.name(),
            object: object.map(|object| object.name.clone()),
            decision,
        })
    }
}
