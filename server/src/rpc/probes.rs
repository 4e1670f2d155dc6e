//! `ProbeService`: probes over gRPC.
//!
//! Owns pages and the answers to changes. Never judges a definition or touches the kernel.

use std::sync::Arc;

use kprobed_proto::v1;
use kprobed_proto::v1::probe_outcome::Outcome;
use kprobed_proto::v1::probe_service_server::ProbeService;
use tonic::{Request, Response, Status, Streaming};

use super::access;
use super::checks::{self, CheckStream};
use super::costs::{self, checked_cost, hit_cost};
use super::events::Responses;
use super::sight::Sight;
use super::spec::{self, Given, GivenError, Unwritable};
use super::verdict::{Detail, answer, unreadable};
use super::{changes, convert, labels, status, watch};
use crate::auth::{Caller, Pace, Rights};
use crate::control::{
    Applied, Change, Changed, ControlError, ControlHandle, Costs, Declarations, Probe, ProbeStates, Registry,
    RemoveRequest, TrialRequest, Unit,
};
use crate::messages;
use crate::store::{Fingerprint, KEPT_STATES, RequestKey, SamplePosition, SampleQuery, Store};
use kprobed_lang::definition::Definition;
use kprobed_lang::model::{Glob, HitProfile, ProbeName};
use kprobed_verdict::checker::Checker;

/// The service.
#[derive(Debug)]
pub struct ProbeServer {
    /// Carries out changes.
    pub control: ControlHandle,
    /// The probes in memory.
    pub registry: Arc<Registry>,
    /// Reads their states.
    pub states: ProbeStates,
    /// Judges definitions.
    pub checker: Arc<Checker>,
    /// Reads the history of hits and states.
    pub store: Store,
    /// The state of the files that declare probes.
    pub declarations: Arc<Declarations>,
    /// What a hit takes.
    pub costs: Arc<Costs>,
    /// Who may see probes, and addresses.
    pub rights: Arc<Rights>,
}

/// Probes on a page, unless the client says otherwise, and at most.
pub(super) const PROBE_PAGE: (u32, u32) = (100, 1000);

/// Samples on a page, unless the client says otherwise, and at most.
const SAMPLE_PAGE: (u32, u32) = (1000, 10_000);

/// Longest id of a request, in bytes.
const MAX_REQUEST_ID: usize = 128;

pub(super) fn page_size(asked: u32, (default, most): (u32, u32)) -> u32 {
    if asked == 0 { default } else { asked.min(most) }
}

/// What makes a request safe to repeat: its id, and everything that it asks for.
pub(super) fn request_key(id: String, fingerprint: String) -> Result<Option<RequestKey>, Status> {
    if id.len() > MAX_REQUEST_ID {
        return Err(status::invalid("request_id", "`request_id` must have at most 128 bytes"));
    }
    Ok(non_empty(id).map(|id| RequestKey { id, fingerprint: Fingerprint(fingerprint) }))
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

/// A position among samples, as a page token contains it.
fn position(token: &str) -> Option<SamplePosition> {
    let (tick, series) = token.split_once('.')?;
    Some(SamplePosition { tick: tick.parse().ok()?, series: series.parse().ok()? })
}

impl ProbeServer {
    /// The definition of a request, as text or as fields.
    fn given(&self, definition: String, spec: Option<&v1::ProbeSpec>) -> Result<Given, Status> {
        Given::of(definition, spec, &self.checker).map_err(status::not_given)
    }

    /// What the caller of a request may look at.
    fn sight<T>(&self, request: &Request<T>) -> Result<Sight, Status> {
        Ok(Sight::new(&self.rights, access::caller(request)?))
    }

    fn message(&self, probe: &Probe) -> v1::Probe {
        let cost = hit_cost(&self.costs.table(), probe.kind, probe.arming, &probe.kernel_definition);
        v1::Probe { hit_cost: Some(cost), ..probe_message(&self.checker, probe) }
    }

    fn declaration_problems(&self) -> Vec<v1::DeclarationProblem> {
        let state = self.declarations.state().unwrap_or_default();
        state.problems.iter().map(convert::declaration_problem).collect()
    }

    async fn create(&self, caller: &Caller, request: v1::CreateProbeRequest) -> Result<v1::Probe, Status> {
        let given = self.given(request.definition.clone(), request.spec.as_ref())?;
        let create = changes::creation(request, &given)?;
        let probe =
            self.control.create(caller, create).await.map_err(|error| status::located(&error, &given))?;
        let mut message = self.message(&probe);
        given.locate(probe.spec.definition.as_str(), &mut message.warnings);
        Ok(message)
    }

    /// The outcome of one of several changes. `given` is what it defines.
    fn outcome(&self, changed: Result<Changed, ControlError>, given: Option<&Given>) -> v1::ProbeOutcome {
        let failed = |error: ControlError| match given {
            Some(given) => status::located(&error, given),
            None => error.into(),
        };
        let outcome = match changed.map_err(failed) {
            Err(status) => return changes::failed(&status),
            Ok(Changed::Probe(probe)) => {
                let mut message = self.message(&probe);
                if let Some(given) = given {
                    given.locate(probe.spec.definition.as_str(), &mut message.warnings);
                }
                Outcome::Probe(Box::new(message))
            }
            Ok(Changed::Removed(removed)) => Outcome::Deleted(changes::deleted(removed)),
        };
        v1::ProbeOutcome { outcome: Some(outcome) }
    }

    fn check(
        &self,
        request: v1::CheckProbeRequest,
        shows_addresses: bool,
    ) -> Result<v1::CheckProbeResponse, Status> {
        let given = match Given::of(request.definition, request.spec.as_ref(), &self.checker) {
            Ok(given) => given,
            Err(GivenError::Fields(Unwritable { field, problem, text })) => {
                let mut response = unreadable(std::slice::from_ref(&problem));
                response.diagnostics.iter_mut().for_each(|found| found.field.clone_from(&field));
                return Ok(v1::CheckProbeResponse { definition: text, ..response });
            }
            Err(error) => return Err(status::not_given(error)),
        };
        let (definition, detail) = (&given.definition, (Detail::Listing, shows_addresses));
        let mut response = answer(&self.checker, definition, &mut self.checker.recent_facts(), detail)
            .map_err(|error| status::located(&error.into(), &given))?;
        given.locate(given.text(), &mut response.diagnostics);
        response.hit_cost = checked_cost(&self.costs.table(), &response);
        Ok(v1::CheckProbeResponse { definition: given.text().to_owned(), ..response })
    }
}

#[tonic::async_trait]
impl ProbeService for ProbeServer {
    type CheckProbesStream = CheckStream;
    type WatchProbesStream = Responses<v1::WatchProbesResponse>;

    async fn create_probe(
        &self,
        request: Request<v1::CreateProbeRequest>,
    ) -> Result<Response<v1::CreateProbeResponse>, Status> {
        let caller = access::caller(&request)?;
        let probe = self.create(&caller, request.into_inner()).await?;
        Ok(Response::new(v1::CreateProbeResponse { probe: Some(probe) }))
    }

    async fn get_probe(
        &self,
        request: Request<v1::GetProbeRequest>,
    ) -> Result<Response<v1::GetProbeResponse>, Status> {
        let sight = self.sight(&request)?;
        let name = request.into_inner().name;
        let gone = || ControlError::NotFound { name: name.clone(), foreign: false };
        let probe = self.registry.find(&name)?;
        sight.require(&probe)?;
        let probe = self.states.of_one(probe).await?.ok_or_else(gone)?;
        Ok(Response::new(v1::GetProbeResponse { probe: Some(self.message(&probe)) }))
    }

    async fn list_probes(
        &self,
        request: Request<v1::ListProbesRequest>,
    ) -> Result<Response<v1::ListProbesResponse>, Status> {
        let sight = self.sight(&request)?;
        let request = request.into_inner();
        let limit = page_size(request.page_size, PROBE_PAGE) as usize;
        let glob = non_empty(request.name_glob).map(Glob::new);
        let selector = labels::selector("label_selector", &request.label_selector)?;
        // The token is the last name of the page before: it stays good whatever is added or deleted
        // in between.
        let after = non_empty(request.page_token).map(|token| token.parse::<ProbeName>()).transpose();
        let after = after.map_err(|_error| status::page_token())?;
        let mut page = self.registry.page(after.as_ref(), limit + 1, |probe| {
            glob.as_ref().is_none_or(|glob| glob.matches_name(&probe.name))
                && selector.matches(&probe.spec.labels)
                && sight.shows(probe)
        });
        let more = page.len() > limit;
        page.truncate(limit);
        Ok(Response::new(v1::ListProbesResponse {
            declaration_problems: if after.is_none() { self.declaration_problems() } else { Vec::new() },
            next_page_token: page
                .last()
                .filter(|_| more)
                .map(|probe| probe.name.to_string())
                .unwrap_or_default(),
            probes: self.states.of(page).await?.iter().map(|probe| self.message(probe)).collect(),
        }))
    }

    async fn update_probe(
        &self,
        request: Request<v1::UpdateProbeRequest>,
    ) -> Result<Response<v1::UpdateProbeResponse>, Status> {
        let caller = access::caller(&request)?;
        let request = request.into_inner();
        let given = request.definition.clone().map(|definition| self.given(definition, None)).transpose()?;
        let probe = self.control.update(&caller, changes::update(request, given.as_ref())?).await;
        let probe = probe.map_err(|error| match &given {
            Some(given) => status::located(&error, given),
            None => error.into(),
        })?;
        Ok(Response::new(v1::UpdateProbeResponse { probe: Some(self.message(&probe)) }))
    }

    async fn accept_probe(
        &self,
        request: Request<v1::AcceptProbeRequest>,
    ) -> Result<Response<v1::AcceptProbeResponse>, Status> {
        let caller = access::caller(&request)?;
        let probe = self.control.accept(&caller, changes::acceptance(request.into_inner())?).await?;
        Ok(Response::new(v1::AcceptProbeResponse { probe: Some(self.message(&probe)) }))
    }

    async fn delete_probe(
        &self,
        request: Request<v1::DeleteProbeRequest>,
    ) -> Result<Response<v1::DeleteProbeResponse>, Status> {
        let caller = access::caller(&request)?;
        let removed = self.control.remove(&caller, changes::deletion(request.into_inner())?).await?;
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
        let asked = changes::all(changes, |definition, spec| self.given(definition.to_owned(), spec))?;
        let (asked, given): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
        let Applied { outcomes, plan } = self.control.apply(&caller, asked, unit).await?;
        let outcomes =
            outcomes.into_iter().zip(&given).map(|(changed, given)| self.outcome(changed, given.as_ref()));
        Ok(Response::new(v1::ApplyProbesResponse {
            outcomes: outcomes.collect(),
            plan: convert::plan(&plan),
        }))
    }

    async fn apply_line(
        &self,
        request: Request<v1::ApplyLineRequest>,
    ) -> Result<Response<v1::ApplyLineResponse>, Status> {
        let caller = access::caller(&request)?;
        let request = request.into_inner();
        let mut response = v1::ApplyLineResponse::default();
        match self.checker.parse(&request.line).map_err(ControlError::from)? {
            Definition::Probe(_) => {
                let create = v1::CreateProbeRequest {
                    definition: request.line,
                    enabled: request.enabled,
                    request_id: request.request_id,
                    validate_only: request.validate_only,
                    ..Default::default()
                };
                response.created = Some(self.create(&caller, create).await?);
            }
            Definition::Delete(delete) => {
                // All at once: then other requests are delayed by one deletion only.
                let named = self.checker.deleted_by(&request.line, &delete).map_err(ControlError::from)?;
                let deletions = named.iter().map(|name| {
                    Change::Remove(RemoveRequest {
                        name: name.to_string(),
                        take_over: false,
                        etag: None,
                        request: None,
                        validate_only: request.validate_only,
                    })
                });
                for deleted in self.control.apply(&caller, deletions.collect(), Unit::Each).await?.outcomes {
                    response.deleted.push(deleted?.removed()?.name.to_string());
                }
            }
        }
        Ok(Response::new(response))
    }

    async fn check_probe(
        &self,
        request: Request<v1::CheckProbeRequest>,
    ) -> Result<Response<v1::CheckProbeResponse>, Status> {
        let shows_addresses = self.rights.show_addresses(&access::caller(&request)?);
        let request = request.into_inner();
        // Reads kernel memory, and the symbol table when modules have changed.
        tokio::task::block_in_place(|| self.check(request, shows_addresses)).map(Response::new)
    }

    async fn check_probes(
        &self,
        requests: Request<Streaming<v1::CheckProbesRequest>>,
    ) -> Result<Response<Self::CheckProbesStream>, Status> {
        let shows_addresses = self.rights.show_addresses(&access::caller(&requests)?);
        let pace = requests.extensions().get::<Pace>().cloned();
        let (checker, requests) = (Arc::clone(&self.checker), requests.into_inner());
        Ok(Response::new(checks::stream(checker, pace, requests, shows_addresses)))
    }

    async fn try_probe(
        &self,
        request: Request<v1::TryProbeRequest>,
    ) -> Result<Response<v1::TryProbeResponse>, Status> {
        let caller = access::caller(&request)?;
        let v1::TryProbeRequest { definition, spec, duration_ms } = request.into_inner();
        let duration = costs::trial_time(duration_ms)?;
        let given = self.given(definition, spec.as_ref())?;
        let definition = Arc::clone(&given.definition);
        let tried = self.control.try_probe(&caller, TrialRequest { definition, duration }).await;
        let trial = tried.map_err(|error| status::located(&error, &given))?;
        Ok(Response::new(costs::tried(&trial, self.costs.table().is_calibrated)))
    }

    async fn watch_probes(
        &self,
        request: Request<v1::WatchProbesRequest>,
    ) -> Result<Response<Self::WatchProbesStream>, Status> {
        let sight = self.sight(&request)?;
        Ok(Response::new(watch::stream(&self.registry, sight, request.into_inner())?))
    }

    async fn list_probe_states(
        &self,
        request: Request<v1::ListProbeStatesRequest>,
    ) -> Result<Response<v1::ListProbeStatesResponse>, Status> {
        let sight = self.sight(&request)?;
        let probe = self.registry.find(&request.into_inner().name)?;
        sight.require(&probe)?;
        let uid = probe.uid;
        let unsaved = self.registry.log().unsaved_of(uid);
        let stored = self.store.states_of(uid).await.map_err(ControlError::from)?;
        // The database has got some of them meanwhile.
        let stored = stored.iter().filter(|state| !unsaved.contains(state));
        let states = unsaved.iter().rev().chain(stored).take(KEPT_STATES as usize);
        Ok(Response::new(v1::ListProbeStatesResponse { states: states.map(convert::state_record).collect() }))
    }

    async fn get_hit_profiles(
        &self,
        request: Request<v1::GetHitProfilesRequest>,
    ) -> Result<Response<v1::GetHitProfilesResponse>, Status> {
        let sight = self.sight(&request)?;
        let request = request.into_inner();
        let glob = non_empty(request.name_glob).map(Glob::new);
        let selector = labels::selector("label_selector", &request.label_selector)?;
        let selected = |name: &ProbeName| {
            selector.is_empty()
                || self.registry.get(name).is_some_and(|probe| selector.matches(&probe.spec.labels))
        };
        let is_wanted = |profile: &HitProfile| {
            glob.as_ref().is_none_or(|glob| glob.matches_name(&profile.name))
                && selected(&profile.name)
                && sight.shows_uid(&self.registry, profile.uid)
        };
        let profiles = if request.with_own {
            let counted = self.control.counted_hits().await?;
            counted.iter().filter(|one| is_wanted(&one.profile)).map(messages::counted_hits).collect()
        } else {
            let profiles = self.control.hit_profiles().await?;
            profiles.iter().filter(|profile| is_wanted(profile)).map(messages::profile).collect()
        };
        Ok(Response::new(v1::GetHitProfilesResponse { profiles }))
    }

    async fn explain_probe(
        &self,
        request: Request<v1::ExplainProbeRequest>,
    ) -> Result<Response<v1::ExplainProbeResponse>, Status> {
        let request = request.into_inner();
        let given = self.given(request.definition, request.spec.as_ref())?;
        let explained = self.checker.explain_text(&given.definition);
        let (definition, explanation) = explained.map_err(|error| status::located(&error.into(), &given))?;
        let mut response = convert::explanation(explanation, &definition.warnings);
        given.locate(given.text(), &mut response.warnings);
        response.spec = Some(spec::write(&definition));
        given.text().clone_into(&mut response.definition);
        Ok(Response::new(response))
    }

    async fn read_definitions(
        &self,
        request: Request<v1::ReadDefinitionsRequest>,
    ) -> Result<Response<v1::ReadDefinitionsResponse>, Status> {
        let entries = self.checker.parse_file(&request.into_inner().text);
        let definitions = entries.into_iter().map(convert::file_definition).collect();
        Ok(Response::new(v1::ReadDefinitionsResponse { definitions }))
    }

    async fn list_hit_profile_samples(
        &self,
        request: Request<v1::ListHitProfileSamplesRequest>,
    ) -> Result<Response<v1::ListHitProfileSamplesResponse>, Status> {
        let sight = self.sight(&request)?;
        let request = request.into_inner();
        let name = non_empty(request.probe).map(|name| name.parse::<ProbeName>()).transpose();
        let after = non_empty(request.page_token).map(|token| position(&token).ok_or(token)).transpose();
        let query = SampleQuery {
            name: name.map_err(|error| status::invalid("probe", &error.to_string()))?,
            start: request.start_time.and_then(convert::time),
            end: request.end_time.and_then(convert::time),
            after: after.map_err(|_token| status::page_token())?.unwrap_or_default(),
            limit: page_size(request.page_size, SAMPLE_PAGE),
        };
        let page =
            self.store.samples(&query).await.map_err(|error| Status::from(ControlError::from(error)))?;
        // A page may have fewer than asked for. Only its token says whether there is another one.
        let shown = page.samples.iter().filter(|sample| sight.shows_uid(&self.registry, sample.uid));
        Ok(Response::new(v1::ListHitProfileSamplesResponse {
            samples: shown.map(messages::profile).collect(),
            next_page_token: page
                .next
                .map(|next| format!("{}.{}", next.tick, next.series))
                .unwrap_or_default(),
        }))
    }
}
