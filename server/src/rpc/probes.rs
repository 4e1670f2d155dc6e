//! `ProbeService`: probes over gRPC.
//!
//! Owns pages and the answers to changes. Never judges a definition or touches the kernel.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use kprobed_proto::v1;
use kprobed_proto::v1::probe_outcome::Outcome;
use kprobed_proto::v1::probe_service_server::ProbeService;
use prost::Message;
use ring::digest::{Context, SHA256};
use tonic::{Request, Response, Status, Streaming};

use super::access::{self, Access};
use super::events::Responses;
use super::services::Services;
use super::verdict::{Viewer, answer, checked_cost, event_schema, hit_cost};
use super::{changes, checks, messages, spec, watch};
use crate::turns;
use kprobed_control::ProbeStates;
use kprobed_control::auth::Caller;
use kprobed_control::error::Error;
use kprobed_control::store::{KEPT_STATES, RequestKey};
use kprobed_control::{Applied, Changed, Probe, Sight, Unit, permission};
use kprobed_lang::definition::ProbeKind;
use kprobed_lang::model::{Glob, ProbeName, ProbeUid};
use kprobed_verdict::checker::{Checker, DefinitionText};
use kprobed_verdict::message::Detail;

/// Probes on a page, unless the client says otherwise, and at most.
pub(super) const PROBE_PAGE: (u32, u32) = (100, 1000);

/// Bytes after which a page of probes has no more: what is made at a time is bounded.
const PAGE_BYTES: usize = 1 << 20;

/// Longest id of a request, in bytes.
const MAX_REQUEST_ID: usize = 128;

pub(super) fn page_size(asked: u32, (default, most): (u32, u32)) -> u32 {
    if asked == 0 { default } else { asked.min(most) }
}

/// What makes a request of this principal safe to repeat: its id, and a digest of the message's bytes. The message
/// is without its `labels`, since the order of those is not that of the client: they are digested by their keys.
pub(super) fn request_key(
    caller: &Caller,
    id: &str,
    kind: &str,
    message: &impl Message,
    labels: &HashMap<String, String>,
) -> Result<Option<RequestKey>, Error> {
    if id.len() > MAX_REQUEST_ID {
        return Err(Error::bad_argument("request_id", "`request_id` must have at most 128 bytes"));
    }
    if id.is_empty() {
        return Ok(None);
    }
    let mut digest = Context::new(&SHA256);
    let mut add = |part: &[u8]| {
        // With its length: no two lists of parts have the same bytes.
        digest.update(&part.len().to_le_bytes());
        digest.update(part);
    };
    add(&message.encode_to_vec());
    let mut labels: Vec<_> = labels.iter().collect();
    labels.sort_unstable();
    for (key, value) in labels {
        add(key.as_bytes());
        add(value.as_bytes());
    }
    let mut fingerprint = format!("{kind} ");
    for byte in digest.finish().as_ref() {
        _ = write!(fingerprint, "{byte:02x}");
    }
    let principal = caller.principal.account();
    Ok(Some(RequestKey { principal, id: id.to_owned(), fingerprint }))
}

/// These probes with their states. Those that were deleted meanwhile are left out.
pub(super) async fn states_of(states: &ProbeStates, probes: &[Arc<Probe>]) -> Result<Vec<Arc<Probe>>, Error> {
    let observed = turns::blocking(|| states.observer.observe(probes));
    states.of(probes, &observed).await
}

pub(super) fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// A probe as a message, with its definition as fields.
pub(super) fn probe_message(checker: &Checker, probe: &Probe) -> v1::Probe {
    let fields = checker.probe(&probe.spec.definition).ok().map(|definition| v1::ProbeSpec {
        group: probe.name.group().to_owned(),
        event: probe.name.event().to_owned(),
        ..spec::write(&definition)
    });
    v1::Probe { spec: fields, ..messages::probe(probe) }
}

impl Services {
    /// What a caller may be told besides a verdict.
    pub(super) fn viewer(&self, caller: Caller) -> Viewer {
        let addresses = self.access.rights.show_addresses(&caller);
        let Access { rights, registry } = self.access.clone();
        Viewer { sight: Sight::new(&rights, caller), registry, addresses }
    }

    fn message(&self, probe: &Probe) -> v1::Probe {
        let is_counted = probe.kind != ProbeKind::Event;
        let cost = || hit_cost(self.costs.table(), probe.kind, probe.arming, &probe.kernel_definition);
        v1::Probe { hit_cost: is_counted.then(cost), ..probe_message(&self.checker, probe) }
    }

    fn declaration_problems(&self, sight: &Sight) -> Vec<v1::DeclarationProblem> {
        let state = self.declarations.state().unwrap_or_default();
        let shown = state.problems.iter().filter(|problem| self.shows_declaration(sight, problem));
        shown.cloned().collect()
    }

    /// Whether a problem of a declaration may be shown.
    pub(super) fn shows_declaration(&self, sight: &Sight, problem: &v1::DeclarationProblem) -> bool {
        let probe = problem.probe.parse::<ProbeName>().ok();
        sight.shows_declaration(&self.access.registry, probe.as_ref())
    }

    /// The states that a probe has had, the latest first.
    async fn past_states(&self, uid: ProbeUid) -> Result<Vec<v1::ProbeStateRecord>, Error> {
        let unsaved = self.access.registry.log().unsaved_of(uid);
        let stored = self.storage.store.states_of(uid).await?;
        // The database has got some of them meanwhile.
        let stored = stored.iter().filter(|state| !unsaved.contains(state));
        let states = unsaved.iter().rev().chain(stored).take(KEPT_STATES as usize);
        Ok(states.map(messages::state_record).collect())
    }

    /// The outcome of one of several changes.
    fn outcome(&self, changed: Result<Changed, Error>) -> v1::ProbeOutcome {
        let outcome = match changed {
            Err(error) => return changes::failed(&error),
            Ok(Changed::Probe(probe)) => Outcome::Probe(Box::new(self.message(&probe))),
            Ok(Changed::Removed(removed)) => Outcome::Deleted(changes::deleted(removed)),
        };
        v1::ProbeOutcome { outcome: Some(outcome) }
    }

    fn check(
        &self,
        request: v1::CheckProbeRequest,
        viewer: &Viewer,
    ) -> Result<v1::CheckProbeResponse, Error> {
        let name = changes::name(request.name)?;
        let definition = Arc::new(DefinitionText::new(request.definition));
        let (mut facts, detail) = (self.checker.recent_facts(), (Detail::Listing, viewer));
        let mut response = answer(&self.checker, &definition, name.as_ref(), &mut facts, detail)?;
        response.hit_cost = checked_cost(self.costs.table(), &response);
        response.schema = event_schema(&self.states.observer.tracefs, &self.checker, &response);
        let reading = self.checker.reading(&definition);
        let is_allowed = |written| permission::on_place(viewer.addresses, written).is_ok();
        if request.explain && reading.written().is_none_or(is_allowed) {
            // What cannot be read has no explanation; the verdict says why.
            response.explanation = self.checker.explain(&definition).unwrap_or_default();
        }
        Ok(response)
    }
}

#[tonic::async_trait]
impl ProbeService for Services {
    type CheckProbesStream = Responses<v1::CheckProbesResponse>;
    type WatchProbesStream = Responses<v1::WatchProbesResponse>;

    async fn create_probe(
        &self,
        request: Request<v1::CreateProbeRequest>,
    ) -> Result<Response<v1::CreateProbeResponse>, Status> {
        let caller = access::caller(&request)?;
        // Its definition is judged, and the answer tells the verdict.
        self.access.rights.check(&caller)?;
        let probe = self.control.create(&caller, changes::creation(&caller, request.into_inner())?).await?;
        Ok(Response::new(v1::CreateProbeResponse { probe: Some(self.message(&probe)) }))
    }

    async fn get_probe(
        &self,
        request: Request<v1::GetProbeRequest>,
    ) -> Result<Response<v1::GetProbeResponse>, Status> {
        let sight = self.sight(&request)?;
        let v1::GetProbeRequest { name, with_states } = request.into_inner();
        let probe = self.access.registry.find_among(&name, |probe| sight.shows(probe))?;
        sight.require(&probe)?;
        let probe = states_of(&self.states, &[probe]).await?.pop().ok_or_else(|| Error::no_probe(&name))?;
        // It can have other labels by now.
        sight.require(&probe)?;
        let states = if with_states { self.past_states(probe.uid).await? } else { Vec::new() };
        Ok(Response::new(v1::GetProbeResponse { probe: Some(self.message(&probe)), states }))
    }

    async fn list_probes(
        &self,
        request: Request<v1::ListProbesRequest>,
    ) -> Result<Response<v1::ListProbesResponse>, Status> {
        let sight = self.sight(&request)?;
        let request = request.into_inner();
        let limit = page_size(request.page_size, PROBE_PAGE) as usize;
        let glob = non_empty(request.name_glob).map(Glob::new);
        let selector = messages::selector("label_selector", &request.label_selector)?;
        // The token is the last name of the page before: it stays good whatever is added or deleted
        // in between.
        let after = non_empty(request.page_token).map(|token| token.parse::<ProbeName>()).transpose();
        let after = after.map_err(|_error| Error::page_token())?;
        let mut page = self.access.registry.page(after.as_ref(), limit + 1, |probe| {
            glob.as_ref().is_none_or(|glob| glob.matches_name(&probe.name))
                && selector.matches(&probe.spec.labels)
                && sight.shows(probe)
        });
        let more = page.len() > limit;
        page.truncate(limit);
        let mut next = page.last().filter(|_| more).map(|probe| probe.name.to_string()).unwrap_or_default();
        // They can have other labels by now.
        let mut page = states_of(&self.states, &page).await?;
        page.retain(|probe| sight.shows(probe));
        let (mut probes, mut bytes) = (Vec::new(), 0);
        for (at, probe) in page.iter().enumerate() {
            let message = self.message(probe);
            bytes += message.encoded_len();
            probes.push(message);
            // A page ends early if its probes are long.
            if bytes >= PAGE_BYTES && at + 1 < page.len() {
                next = probe.name.to_string();
                break;
            }
        }
        let is_first = after.is_none();
        let declaration_problems = if is_first { self.declaration_problems(&sight) } else { Vec::new() };
        Ok(Response::new(v1::ListProbesResponse { declaration_problems, next_page_token: next, probes }))
    }

    async fn update_probe(
        &self,
        request: Request<v1::UpdateProbeRequest>,
    ) -> Result<Response<v1::UpdateProbeResponse>, Status> {
        let caller = access::caller(&request)?;
        let request = request.into_inner();
        if request.definition.is_some() {
            self.access.rights.check(&caller)?;
        }
        let probe = self.control.update(&caller, changes::update(&caller, request)?).await?;
        Ok(Response::new(v1::UpdateProbeResponse { probe: Some(self.message(&probe)) }))
    }

    async fn delete_probe(
        &self,
        request: Request<v1::DeleteProbeRequest>,
    ) -> Result<Response<v1::DeleteProbeResponse>, Status> {
        let caller = access::caller(&request)?;
        let removed = self.control.remove(&caller, changes::deletion(&caller, request.into_inner())?).await?;
        let v1::DeletedProbe { profile, note, .. } = changes::deleted(removed);
        Ok(Response::new(v1::DeleteProbeResponse { profile, note }))
    }

    async fn apply_probes(
        &self,
        request: Request<v1::ApplyProbesRequest>,
    ) -> Result<Response<v1::ApplyProbesResponse>, Status> {
        let caller = access::caller(&request)?;
        let v1::ApplyProbesRequest { changes, all_or_nothing } = request.into_inner();
        let unit = if all_or_nothing { Unit::All } else { Unit::Each };
        let changes = changes::all(&caller, changes, unit)?;
        // Many at once are slowed down, where a call with one would be refused.
        let definitions = changes.iter().filter(|change| change.has_definition()).count() as u64;
        if definitions > 0 {
            tokio::time::sleep(self.access.rights.pace(&caller.principal, definitions)).await;
        }
        let Applied { outcomes, plan } = self.control.apply(&caller, changes, unit).await?;
        Ok(Response::new(v1::ApplyProbesResponse {
            outcomes: outcomes.into_iter().map(|changed| self.outcome(changed)).collect(),
            plan: messages::plan(&plan),
        }))
    }

    async fn check_probe(
        &self,
        request: Request<v1::CheckProbeRequest>,
    ) -> Result<Response<v1::CheckProbeResponse>, Status> {
        let viewer = self.viewer(access::caller(&request)?);
        let request = request.into_inner();
        // Reads kernel memory, and the symbol table when modules have changed.
        Ok(Response::new(tokio::task::block_in_place(|| self.check(request, &viewer))?))
    }

    async fn check_probes(
        &self,
        requests: Request<Streaming<v1::CheckProbesRequest>>,
    ) -> Result<Response<Self::CheckProbesStream>, Status> {
        let caller = access::caller(&requests)?;
        let paced = (Arc::clone(&self.access.rights), Arc::clone(&caller.principal));
        let (checker, requests) = (Arc::clone(&self.checker), requests.into_inner());
        let tracefs = self.states.observer.tracefs.clone();
        Ok(Response::new(checks::stream((checker, tracefs), paced, requests, self.viewer(caller))))
    }

    async fn watch_probes(
        &self,
        request: Request<v1::WatchProbesRequest>,
    ) -> Result<Response<Self::WatchProbesStream>, Status> {
        let sight = self.sight(&request)?;
        Ok(Response::new(watch::stream(&self.access.registry, sight, request.into_inner())?))
    }

    async fn list_hits(
        &self,
        request: Request<v1::ListHitsRequest>,
    ) -> Result<Response<v1::ListHitsResponse>, Status> {
        let sight = self.sight(&request)?;
        Ok(Response::new(self.hits(request.into_inner(), &sight).await?))
    }
}
