//! `AccessService`: who a caller is, and what the roles allow.
//!
//! Owns the messages, and who may ask about whom. Never decides about a call itself:
//! [`kprobed_rights`] does.

use std::sync::Arc;

use kprobed_proto::v1;
use kprobed_proto::v1::access_service_server::AccessService;
use kprobed_proto::v1::check_access_request::Object as Asked;
use kprobed_rights::{Decision, Limit, METHODS, Method, Object, Principal, Question, Read, Reads};
use tonic::{Request, Response, Status};

use super::access::caller;
use super::messages;
use super::services::Services;
use super::verdict::Viewer;
use kprobed_control::auth::Caller;
use kprobed_control::error::Error;
use kprobed_control::{Footprint, Sight, permission};
use kprobed_lang::model::{Labels, ProbeName};
use kprobed_verdict::checker::{DefinitionText, Target, group_of};

/// What a question is about, as rules see it.
struct About {
    name: ProbeName,
    labels: Labels,
    footprint: Footprint,
    told: Told,
}

/// What the caller may know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// Whether it is allowed, and by which rule.
    Nothing,
    /// What it reads, too: that is in the text.
    Reads,
    /// Everything.
    All,
}

impl About {
    fn object(&self) -> Object<'_> {
        self.footprint.object(&self.name, &self.labels)
    }
}

impl Services {
    /// The probe that a definition would become. Its place need not be one that the kernel takes.
    fn would_be(&self, viewer: &Viewer, definition: &str, labels: Labels) -> Result<About, Error> {
        let text = Arc::new(DefinitionText::new(definition));
        if let Some(written) = self.checker.reading(&text).written() {
            permission::on_place(viewer.addresses, written)?;
        }
        let outcome = self.checker.check_text(&text, &mut self.checker.recent_facts());
        let outcome = outcome.map_err(Error::from)?;
        let event = outcome.definition.event.as_ref();
        // Rules have conditions on the group, and none on the event: any name does for one that the
        // daemon would choose.
        let event = event.map_or("unnamed", |event| event.text.as_str());
        let name = ProbeName::new(group_of(&outcome.definition), event)
            .map_err(|error| Error::bad_argument("definition", error.to_string()))?;
        // Where the kernel has a function, and by which names, is an answer about the kernel.
        let told = if viewer.sight.allows_method("CheckProbe") { Told::All } else { Told::Reads };
        Ok(About { name, labels, footprint: Footprint::of(&outcome), told })
    }

    /// A probe that exists, or else an event of the host.
    fn existing(&self, sight: &Sight, name: &str) -> Result<About, Error> {
        if let Ok(probe) = self.access.registry.find_among(name, |probe| sight.shows(probe)) {
            return Ok(About {
                name: probe.name.clone(),
                labels: probe.spec.labels.clone(),
                // With what its kernel filter tells.
                footprint: Footprint { reads: probe.object().reads, ..probe.footprint.clone() },
                told: if sight.shows(&probe) { Told::All } else { Told::Nothing },
            });
        }
        let name = messages::probe_name(name)?;
        let target = Target { whole: true, ..Target::default() };
        let reads = Reads::NONE.with(Read::HostEvents);
        let footprint = Footprint { target, reads, ..Footprint::default() };
        Ok(About { name, labels: Labels::default(), footprint, told: Told::All })
    }

    fn about(&self, viewer: &Viewer, request: &v1::CheckAccessRequest) -> Result<Option<About>, Error> {
        let labels = messages::labels(request.labels.clone())?;
        match &request.object {
            None => Ok(None),
            Some(Asked::Definition(text)) => self.would_be(viewer, text, labels).map(Some),
            Some(Asked::Name(name)) => self.existing(&viewer.sight, name).map(Some),
        }
    }

    /// A limit of a principal, and what it holds.
    fn limit(&self, principal: &Principal, limit: Limit) -> v1::CallerLimit {
        let rights = &self.access.rights;
        let bound = rights.bound(principal, limit);
        let account = principal.account();
        let held = match limit {
            Limit::Probes => self.access.registry.made_by(&account),
            _ => rights.holdings().held(&account, limit, bound.as_ref()),
        };
        let (most, rule) = bound.map(|bound| (bound.most, bound.rule)).unzip();
        let (role, line) = rule.map(|rule| (rule.role, rule.line)).unwrap_or_default();
        v1::CallerLimit {
            name: limit.name().to_owned(),
            most,
            held,
            role,
            line: u32::try_from(line).unwrap_or_default(),
        }
    }

    fn decide(
        &self,
        caller: &Caller,
        request: &v1::CheckAccessRequest,
    ) -> Result<v1::CheckAccessResponse, Error> {
        let method = Method::named(&request.method).ok_or_else(|| no_method(&request.method))?;
        let other = principal(&request.names)?;
        if other.is_some() {
            // It would tell what others may do. Changing that is the same right.
            self.access.rights.require_administration(caller)?;
        }
        let roles = self.access.rights.roles();
        let principal = other.as_ref().unwrap_or(&caller.principal);
        // A client without a role learns nothing of the kernel, and causes no work.
        let has_role = roles.of(principal).next().is_some();
        let about = if has_role { self.about(&self.viewer(caller.clone()), request)? } else { None };
        let object = about.as_ref().map(About::object);
        let decision = roles.decide(Question { principal, method, object: object.as_ref() });
        Ok(response(decision, about))
    }
}

/// The refusal of a name that no method has: people type the verb alone.
fn no_method(name: &str) -> Error {
    let verb = name.to_lowercase();
    let mut like: Vec<_> = METHODS.iter().map(Method::name).collect();
    like.sort_unstable();
    let close = like.iter().copied().filter(|method| method.to_lowercase().starts_with(&verb));
    let close: Vec<_> = close.collect();
    let known = if close.is_empty() || verb.is_empty() { like } else { close };
    Error::bad_argument("method", format!("the API has no method `{name}`: there are {}", known.join(", ")))
}

fn response(decision: Decision, about: Option<About>) -> v1::CheckAccessResponse {
    let told = about.as_ref().map_or(Told::All, |about| about.told);
    let decision = if told == Told::Nothing { decision.without_reads() } else { decision };
    let rule = decision.rule();
    let footprint = about.map(|about| about.footprint);
    let reads = footprint.as_ref().filter(|_| told != Told::Nothing);
    let reads = reads.map_or(Reads::NONE, |footprint| footprint.reads);
    let target = footprint.filter(|_| told == Told::All).map(|footprint| footprint.target);
    let target = target.unwrap_or_default();
    v1::CheckAccessResponse {
        allowed: decision.is_allowed(),
        reason: decision.to_string(),
        role: rule.map(|rule| rule.role.clone()).unwrap_or_default(),
        line: rule.and_then(|rule| u32::try_from(rule.line).ok()).unwrap_or_default(),
        reads: reads.iter().map(|read| read.name().to_owned()).collect(),
        functions: target.functions,
        module: target.module.unwrap_or_default(),
    }
}

/// The principal with these names. None if there are no names.
fn principal(names: &[String]) -> Result<Option<Principal>, Error> {
    if names.is_empty() {
        return Ok(None);
    }
    Principal::of_names(names).map(Some).map_err(|error| Error::bad_argument("names", error.to_string()))
}

#[tonic::async_trait]
impl AccessService for Services {
    async fn get_caller(
        &self,
        request: Request<v1::GetCallerRequest>,
    ) -> Result<Response<v1::GetCallerResponse>, Status> {
        let Caller { principal, .. } = caller(&request)?;
        let roles = self.access.rights.roles();
        let is_allowed = |method: &&Method| {
            roles.decide(Question { principal: &principal, method, object: None }).is_allowed()
        };
        Ok(Response::new(v1::GetCallerResponse {
            principal: principal.to_string(),
            names: principal.names(),
            roles: roles.of(&principal).map(|role| role.name.clone()).collect(),
            methods: METHODS.iter().filter(is_allowed).map(|method| method.name().to_owned()).collect(),
            limits: Limit::ALL.iter().map(|limit| self.limit(&principal, *limit)).collect(),
        }))
    }

    async fn check_access(
        &self,
        request: Request<v1::CheckAccessRequest>,
    ) -> Result<Response<v1::CheckAccessResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        // Resolves a definition, which can read the symbol table.
        Ok(Response::new(tokio::task::block_in_place(|| self.decide(&caller, &request))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_alone_is_refused_with_its_methods() {
        let of = |name: &str| no_method(name).to_string();
        assert!(of("delete").contains("there are DeleteAggregation, DeleteProbe"), "{}", of("delete"));
        assert!(of("edit").contains("CheckProbe, "), "{}", of("edit"));
    }
}
