//! The roles in force, and requests against them.
//!
//! Owns when the roles change: a request is decided by those that are in force when it is judged. What
//! they refuse goes to the audit log, by a queue whose bound is owned here too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kprobed_audit::{Action, Entry};
use kprobed_lang::model::ProbeName;
use kprobed_rights::{Bound, Decision, Limit, Method, Object, Principal, Question, Roles, RuleName};
use tokio::sync::{mpsc, watch};

use super::holdings::{Asked, remedy, what};
use super::{Caller, Holdings, Share};
use crate::error::{Error, Reason};

/// The roles of this host, and what principals hold of the limits in them.
#[derive(Debug)]
pub struct Rights {
    roles: watch::Sender<Arc<Roles>>,
    audit: AuditQueue,
    holdings: Arc<Holdings>,
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
    /// The refusal, with the rule that decided.
    pub fn require(&self, caller: &Caller, object: Option<&Object<'_>>) -> Result<Option<RuleName>, Error> {
        match self.decide(caller, object) {
            Decision::Allowed(rule) => Ok(rule),
            refusal => {
                let name = object.map(|object| object.name);
                self.note_refusal(caller, name, refusal.rule(), refusal.to_string());
                let on = name.map(|name| format!(" on `{name}`")).unwrap_or_default();
                let error = refused(caller, &on, &refusal.to_string(), refusal.rule());
                Err(if let Some(name) = name { error.with("probe", name) } else { error })
            }
        }
    }

    /// The same about an object that the caller may not look at and did not name: `on` is what it asked for. The
    /// refusal says neither the name of the object nor what it reads; the audit log has them.
    ///
    /// # Errors
    /// The refusal, with the rule that decided.
    pub(crate) fn require_hidden(
        &self,
        caller: &Caller,
        object: &Object<'_>,
        on: &str,
    ) -> Result<Option<RuleName>, Error> {
        let refusal = match self.decide(caller, Some(object)) {
            Decision::Allowed(rule) => return Ok(rule),
            refusal => refusal,
        };
        self.note_refusal(caller, Some(object.name), refusal.rule(), refusal.to_string());
        let told = refusal.without_reads();
        Err(refused(caller, &format!(" on {on}"), &told.to_string(), told.rule()))
    }

    /// The refusal of what only another principal, or who administers the daemon, may do with `on`.
    pub(crate) fn not_of(&self, caller: &Caller, on: &str) -> Error {
        let why = "only who made it may, and who may administer the daemon";
        self.note_refusal(caller, None, None, format!("{on}: {why}"));
        refused(caller, &format!(" on {on}"), why, None)
    }

    fn note_refusal(
        &self,
        caller: &Caller,
        probe: Option<&ProbeName>,
        rule: Option<&RuleName>,
        reason: String,
    ) {
        self.audit.note(Entry {
            rule: rule.map(ToString::to_string).unwrap_or_default(),
            probe: probe.map(ToString::to_string).unwrap_or_default(),
            reason,
            ..caller.entry(Action::Refused)
        });
    }

    /// Whether a caller may change how the daemon works for all clients, and ask about the rights of others.
    pub fn administers(&self, caller: &Caller) -> bool {
        self.decide(&administering(caller), None).is_allowed()
    }

    /// Refuses a caller that does not administer the daemon.
    ///
    /// # Errors
    /// The refusal.
    pub fn require_administration(&self, caller: &Caller) -> Result<(), Error> {
        self.require(&administering(caller), None).map(drop)
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
    /// The refusal, if the principal would hold more than its roles allow.
    pub fn take(&self, caller: &Caller, limit: Limit, amount: u64) -> Result<Share, Error> {
        let principal = &caller.principal;
        let bound = self.bound(principal, limit);
        self.holdings
            .take(principal.account(), limit, amount, bound)
            .map_err(|(bound, held)| self.reached(caller, None, &bound, Asked { held, more: amount }))
    }

    /// Counts a check of a caller. A refusal is audited.
    ///
    /// # Errors
    /// The refusal, if it has had its checks of this second.
    pub fn check(&self, caller: &Caller) -> Result<(), Error> {
        let principal = &caller.principal;
        let Some(bound) = self.bound(principal, Limit::ChecksPerSecond) else { return Ok(()) };
        let counted = self.holdings.check(principal.account(), bound.most, Instant::now());
        counted.map_err(|held| self.reached(caller, None, &bound, Asked { held, more: 1 }))
    }

    /// Accepts a command that its client sends to so many hosts. A refusal is audited.
    ///
    /// # Errors
    /// The refusal, if these are too many.
    pub fn command_for(&self, caller: &Caller, hosts: u64) -> Result<(), Error> {
        match self.bound(&caller.principal, Limit::HostsPerCommand) {
            Some(bound) if hosts > bound.most => {
                Err(self.reached(caller, None, &bound, Asked { held: 0, more: hosts }))
            }
            _ => Ok(()),
        }
    }

    /// A refusal by a limit, with its entry in the audit log.
    pub(crate) fn reached(
        &self,
        caller: &Caller,
        probe: Option<&ProbeName>,
        bound: &Bound,
        asked: Asked,
    ) -> Error {
        let (Bound { limit, most, rule }, principal) = (bound, caller.principal.to_string());
        let message =
            format!("`{principal}` {}: the limit `{limit}` of {rule} is {most}", what(*limit, asked));
        self.note_refusal(caller, probe, Some(rule), message.clone());
        Error::new(Reason::ROLE_LIMIT, message)
            .with("principal", &principal)
            .with("limit", limit.name())
            .with("most", most)
            .with("held", &asked.held)
            .with("role", &rule.role)
            .with("line", &rule.line)
            .fix(remedy(*limit))
    }

    /// Counts checks that were made in a stream. Returns how long the stream has to wait.
    pub fn pace(&self, principal: &Principal, count: u64) -> Duration {
        self.bound(principal, Limit::ChecksPerSecond).map_or(Duration::ZERO, |bound| {
            self.holdings.pace(principal.account(), count, bound.most, Instant::now())
        })
    }

    /// The same for a caller that is not refused anything, but gets an answer without the object.
    pub fn allows(&self, caller: &Caller, object: Option<&Object<'_>>) -> bool {
        self.decide(caller, object).is_allowed()
    }

    /// The daemon itself, which calls no method, may do everything.
    fn decide(&self, caller: &Caller, object: Option<&Object<'_>>) -> Decision {
        let Some(method) = caller.method else { return Decision::Allowed(None) };
        self.roles().decide(Question { principal: &caller.principal, method, object })
    }
}

/// The same caller, as one that administers the daemon.
fn administering(caller: &Caller) -> Caller {
    Caller { method: caller.method.and(Method::named("ReconcileProbes")), ..caller.clone() }
}

fn refused(caller: &Caller, on: &str, why: &str, rule: Option<&RuleName>) -> Error {
    let (principal, method) = (caller.principal.to_string(), caller.method.map_or("", Method::name));
    let message = format!("`{principal}` may not call `{method}`{on}: {why}");
    let error = Error::new(Reason::NOT_ALLOWED, message)
        .with("principal", &principal)
        .with("method", method)
        .fix("`kprobectl auth whoami` lists your roles; ask the administrator of this host");
    match rule {
        Some(rule) => error.with("role", &rule.role).with("line", &rule.line),
        None => error,
    }
}

/// Entries that may wait to be written.
const QUEUE: usize = 1024;

/// The queue of audit entries about requests that change nothing, which are refusals and reads: the side of requests. A
/// request never waits for the audit log: what finds the queue full is counted, and the log says how many there were.
/// Changes do not go through it: see [`crate::store::Store::begin`].
#[derive(Clone, Debug)]
pub struct AuditQueue {
    entries: mpsc::Sender<Entry>,
    omitted: Arc<AtomicU64>,
}

/// The side of the log.
#[derive(Debug)]
pub struct AuditInbox {
    /// The entries, in their order.
    pub entries: mpsc::Receiver<Entry>,
    omitted: Arc<AtomicU64>,
}

impl AuditQueue {
    /// A queue, and its end.
    pub fn new() -> (Self, AuditInbox) {
        let (sender, entries) = mpsc::channel(QUEUE);
        let omitted = Arc::default();
        (Self { entries: sender, omitted: Arc::clone(&omitted) }, AuditInbox { entries, omitted })
    }

    /// Adds an entry. Its texts are cut before it waits: clients write some of them.
    pub fn note(&self, entry: Entry) {
        if self.entries.try_send(entry.bounded()).is_err() {
            self.omitted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl AuditInbox {
    /// How many entries found no place since the last call.
    pub fn take_omitted(&self) -> u64 {
        self.omitted.swap(0, Ordering::Relaxed)
    }
}
