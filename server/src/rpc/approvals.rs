//! `ApprovalService`: definitions that one principal signs off for others.
//!
//! Owns the messages, the limits of a request, and that an answer comes after the change is both durable
//! and in force. Never decides what an approval allows: [`kprobed_rights`] does.

use std::sync::Arc;
use std::time::SystemTime;

use kprobed_audit::{Action, Entry};
use kprobed_proto::v1;
use kprobed_proto::v1::approval_service_server::ApprovalService;
use kprobed_rights::{Approver, DefinitionDigest, RuleName};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tonic::{Request, Response, Status};

use super::access::{Access, caller};
use super::status;
use crate::auth::Caller;
use crate::control::{ControlError, Footprint};
use crate::messages;
use crate::store::{ApprovalChange, Store, StoredApproval};
use kprobed_trace::pipeline::Hub;
use kprobed_verdict::checker::{Checker, DefinitionText};

/// Definitions, or digests, in one request.
const MAX_DEFINITIONS: usize = 1000;

/// Bytes of a note.
const MAX_NOTE_BYTES: usize = 1024;

/// The service.
#[derive(Clone, Debug)]
pub struct ApprovalServer {
    /// The roles that the approvals are for, and the probes that exist.
    pub access: Access,
    /// Reads definitions.
    pub checker: Arc<Checker>,
    /// Keeps the approvals.
    pub store: Store,
    /// Held from the change in the database until it is in force, so that two changes come into force in
    /// the order in which they were stored.
    pub changing: Arc<Mutex<()>>,
    /// Has streams select anew when approvals change.
    pub hub: Arc<Hub>,
}

/// Who changes approvals, and by which rule.
struct Signer {
    caller: Caller,
    rule: Option<RuleName>,
}

impl Signer {
    fn entry(&self, change: &str, approval: &StoredApproval, reason: String) -> Entry {
        Entry {
            method: self.caller.method.map(|method| method.name().to_owned()).unwrap_or_default(),
            change: change.to_owned(),
            operation: self.caller.operation.to_string(),
            rule: self.rule.as_ref().map(ToString::to_string).unwrap_or_default(),
            definition: approval.definition.clone(),
            reason,
            ..Entry::new(Action::Changed, self.caller.principal.to_string())
        }
    }
}

impl ApprovalServer {
    fn signer<T>(&self, request: &Request<T>) -> Result<Signer, Status> {
        let caller = caller(request)?;
        let rule = self.access.rights.require(&caller, None).map_err(|denied| status::denied(&denied))?;
        Ok(Signer { caller, rule })
    }

    /// The approvals that a request asks for, each definition once.
    fn asked(
        &self,
        signer: &Signer,
        request: v1::ApproveDefinitionsRequest,
    ) -> Result<Vec<StoredApproval>, Status> {
        let time = SystemTime::now();
        let mut facts = self.checker.recent_facts();
        let mut asked: Vec<StoredApproval> = Vec::new();
        for one in request.definitions {
            let text = Arc::new(DefinitionText::new(one));
            let outcome = self.checker.check_text(&text, &mut facts).map_err(ControlError::from)?;
            // What could not be read is no part of the tree, and would be approved unseen.
            if !outcome.unread.is_empty() {
                let text = text.as_str().to_owned();
                return Err(ControlError::Definition { text, diagnostics: outcome.unread.clone() }.into());
            }
            let definition = outcome.unnamed_line();
            let digest = DefinitionDigest::of(&definition);
            if asked.iter().all(|other| other.digest != digest) {
                asked.push(StoredApproval {
                    digest,
                    definition,
                    by: Approver::of(&signer.caller.principal),
                    reads: Footprint::of(&outcome).reads.iter().map(|read| read.name().to_owned()).collect(),
                    note: request.note.clone(),
                    time,
                });
            }
        }
        Ok(asked)
    }

    async fn approve(self, signer: Signer, asked: Vec<StoredApproval>) -> Result<(), Status> {
        let entries: Vec<_> =
            asked.iter().map(|one| signer.entry("approve", one, one.note.clone())).collect();
        let _changing = self.changing.lock().await;
        match self.store.add_approvals(&asked, &entries).await.map_err(ControlError::from)? {
            ApprovalChange::Made(all) => {
                self.put_in_force(&all);
                Ok(())
            }
            ApprovalChange::TooMany(bytes) => Err(status::too_many_approvals(bytes)),
        }
    }

    async fn revoke(
        self,
        signer: Signer,
        digests: Vec<DefinitionDigest>,
    ) -> Result<v1::RevokeApprovalsResponse, Status> {
        let changing = self.changing.lock().await;
        let entry = |one: &StoredApproval| {
            signer.entry("revoke", one, format!("the approval by {} has ended", one.by.name))
        };
        let (removed, left) =
            self.store.remove_approvals(&digests, entry).await.map_err(ControlError::from)?;
        self.put_in_force(&left);
        drop(changing);
        let probes = self.access.registry.all();
        let has_one = |digest: &DefinitionDigest| removed.iter().any(|one| one.digest == *digest);
        let probes = probes.iter().filter(|probe| probe.footprint.digest.as_ref().is_some_and(has_one));
        Ok(v1::RevokeApprovalsResponse {
            probes: probes.map(|probe| probe.name.to_string()).collect(),
            approvals: removed.iter().map(message).collect(),
        })
    }

    fn put_in_force(&self, all: &[StoredApproval]) {
        self.access.rights.approve(StoredApproval::in_force(all));
        // Streams are judged anew.
        self.hub.selections_changed();
    }
}

/// Runs a change to its end, whether or not its client waits for it.
async fn to_its_end<T: Send + 'static>(
    change: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    let change = Handle::current().spawn(change);
    change.await.map_err(|error| status::internal(&error.to_string()))?
}

fn bounded(field: &'static str, count: usize) -> Result<(), Status> {
    if (1..=MAX_DEFINITIONS).contains(&count) {
        return Ok(());
    }
    Err(status::invalid(
        field,
        &format!("`{field}` must have 1 to {MAX_DEFINITIONS} entries, and has {count}"),
    ))
}

fn message(approval: &StoredApproval) -> v1::Approval {
    v1::Approval {
        digest: approval.digest.to_string(),
        definition: approval.definition.clone(),
        principal: approval.by.name.clone(),
        time: Some(messages::timestamp(approval.time)),
        note: approval.note.clone(),
        reads: approval.reads.clone(),
    }
}

#[tonic::async_trait]
impl ApprovalService for ApprovalServer {
    async fn approve_definitions(
        &self,
        request: Request<v1::ApproveDefinitionsRequest>,
    ) -> Result<Response<v1::ApproveDefinitionsResponse>, Status> {
        let signer = self.signer(&request)?;
        let request = request.into_inner();
        bounded("definitions", request.definitions.len())?;
        if request.note.len() > MAX_NOTE_BYTES {
            let message = format!("`note` must have at most {MAX_NOTE_BYTES} bytes: shorten it");
            return Err(status::invalid("note", &message));
        }
        let validate_only = request.validate_only;
        // Resolves definitions, which can read the symbol table.
        let asked = tokio::task::block_in_place(|| self.asked(&signer, request))?;
        let approvals = asked.iter().map(message).collect();
        if !validate_only {
            to_its_end(self.clone().approve(signer, asked)).await?;
        }
        Ok(Response::new(v1::ApproveDefinitionsResponse { approvals }))
    }

    async fn list_approvals(
        &self,
        _request: Request<v1::ListApprovalsRequest>,
    ) -> Result<Response<v1::ListApprovalsResponse>, Status> {
        let all = self.store.approvals().await.map_err(ControlError::from)?;
        Ok(Response::new(v1::ListApprovalsResponse { approvals: all.iter().map(message).collect() }))
    }

    async fn revoke_approvals(
        &self,
        request: Request<v1::RevokeApprovalsRequest>,
    ) -> Result<Response<v1::RevokeApprovalsResponse>, Status> {
        let signer = self.signer(&request)?;
        let digests = request.into_inner().digests;
        bounded("digests", digests.len())?;
        let digests = digests.iter().map(|digest| digest.parse());
        let digests = digests
            .collect::<Result<Vec<DefinitionDigest>, _>>()
            .map_err(|error| status::invalid("digests", &error.to_string()))?;
        to_its_end(self.clone().revoke(signer, digests)).await.map(Response::new)
    }
}
