//! Fake probe service: one probe that records and one that is pending, whatever is defined or
//! changed.

use std::time::Duration;

use kprobed_client::api::probe_change::Change;
use kprobed_client::api::probe_service_server::ProbeService;
use kprobed_client::api::*;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, Streaming};

use super::services::{Answer, BoxedStream, Services};
use super::{Beginning, Ending, answers, calls};

/// A change, as in the log of changes.
fn told(change: &Change) -> String {
    match change {
        Change::Create(CreateProbeRequest { definition, enabled, filter, lease, .. }) => {
            let held = lease.as_ref().map_or("", |lease| &lease.holder);
            let filter = if filter.is_empty() { String::new() } else { format!(", filter: {filter}") };
            format!("create {definition}, enabled: {enabled}, held by: {held}{filter}")
        }
        Change::Update(UpdateProbeRequest { name, enabled, filter, .. }) => {
            let filter = filter.as_ref().map(|filter| format!(", filter: {filter}")).unwrap_or_default();
            format!("update {name}, enabled: {enabled:?}{filter}")
        }
        Change::Delete(DeleteProbeRequest { name, .. }) => format!("delete {name}"),
    }
}

/// Minutes from noon on, with their seconds that are known and their hits.
fn series(boot: &str, kernel: &str, first_minute: i64, points: &[(u32, u64)]) -> HitSeries {
    let point = |(minute, (covered_seconds, hits)): (i64, &(u32, u64))| HitRate {
        start_time: Some(answers::time(60 * minute)),
        covered_seconds: *covered_seconds,
        hits: *hits,
        nmissed: 0,
        hits_per_second: (*covered_seconds > 0).then(|| *hits as f64 / f64::from(*covered_seconds)),
    };
    HitSeries {
        probe: "kprobes/open".to_owned(),
        probe_uid: 1,
        boot_id: boot.to_owned(),
        kernel_release: kernel.to_owned(),
        points: (first_minute..).zip(points).map(point).collect(),
    }
}

/// Hits over time: two pages of one probe in two boots.
fn over_time(request: &ListHitsRequest) -> ListHitsResponse {
    if request.label_selector == "team=nobody" {
        return ListHitsResponse { step_seconds: 60, ..Default::default() };
    }
    let (series, next) = if request.page_token.is_empty() {
        (series("b0", "6.1.0", 0, &[(30, 60), (60, 0), (0, 0), (60, 30)]), "1")
    } else {
        (series("b1", "6.12.0", 5, &[(20, 10)]), "")
    };
    ListHitsResponse {
        profiles: Vec::new(),
        series: vec![series],
        step_seconds: request.step_seconds.next_multiple_of(60),
        next_page_token: next.to_owned(),
    }
}

#[tonic::async_trait]
impl ProbeService for Services {
    type CheckProbesStream = BoxedStream<CheckProbesResponse>;
    type WatchProbesStream = BoxedStream<WatchProbesResponse>;

    async fn create_probe(&self, request: Request<CreateProbeRequest>) -> Answer<CreateProbeResponse> {
        let request = request.into_inner();
        if request.definition.contains("+3") {
            return Err(answers::refused(&request.definition));
        }
        if request.definition.contains("slow") {
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
        if let Some(end) = calls::named(&request.definition) {
            return Ok(Response::new(CreateProbeResponse { probe: Some(calls::probe(end)) }));
        }
        let CreateProbeRequest { definition, enabled, filter, .. } = request;
        let name = if definition.contains("waiting") { "kprobes/waiting" } else { "kprobes/open" };
        let probe = Probe { enabled, filter, ..answers::probe(name) };
        Ok(Response::new(CreateProbeResponse { probe: Some(probe) }))
    }

    async fn get_probe(&self, request: Request<GetProbeRequest>) -> Answer<GetProbeResponse> {
        let probe = answers::existing(&request.into_inner().name)?;
        Ok(Response::new(GetProbeResponse { probe: Some(probe), states: Vec::new() }))
    }

    /// Two pages of one probe each, or one page with the one that has labels.
    async fn list_probes(&self, request: Request<ListProbesRequest>) -> Answer<ListProbesResponse> {
        if let Some(kept) = &self.kept {
            let probes = kept.probes();
            return Ok(Response::new(ListProbesResponse { probes, ..Default::default() }));
        }
        let request = request.into_inner();
        match request.label_selector.as_str() {
            _ if request.name_glob.contains("raw_syscalls") => {
                let probes = vec![answers::host_event()];
                return Ok(Response::new(ListProbesResponse { probes, ..Default::default() }));
            }
            _ if request.name_glob.contains("nothing") => {
                return Ok(Response::new(ListProbesResponse::default()));
            }
            "" => {}
            "team=storage" | "team in (storage,net),!reviewed" => {
                let probes = vec![answers::probe("kprobes/open")];
                return Ok(Response::new(ListProbesResponse { probes, ..Default::default() }));
            }
            _ => return Ok(Response::new(ListProbesResponse::default())),
        }
        let (name, next) =
            if request.page_token.is_empty() { ("kprobes/open", "2") } else { ("kprobes/waiting", "") };
        Ok(Response::new(ListProbesResponse {
            probes: vec![answers::probe(name)],
            next_page_token: next.to_owned(),
            ..Default::default()
        }))
    }

    async fn update_probe(&self, request: Request<UpdateProbeRequest>) -> Answer<UpdateProbeResponse> {
        let request = request.into_inner();
        let mut probe = answers::existing(&request.name)?;
        if let Some(filter) = request.filter {
            if filter.contains("too large for the kernel") {
                return Err(answers::refused(&filter));
            }
            probe.filter = filter;
        }
        Ok(Response::new(UpdateProbeResponse { probe: Some(probe) }))
    }

    async fn delete_probe(&self, request: Request<DeleteProbeRequest>) -> Answer<DeleteProbeResponse> {
        let probe = answers::existing(&request.into_inner().name)?;
        let profile = (probe.name == "kprobes/open").then(|| answers::profile(7));
        Ok(Response::new(DeleteProbeResponse { profile, ..Default::default() }))
    }

    async fn apply_probes(&self, request: Request<ApplyProbesRequest>) -> Answer<ApplyProbesResponse> {
        let ApplyProbesRequest { changes: asked, all_or_nothing } = request.into_inner();
        if let Some(kept) = &self.kept {
            let changes: Vec<_> = asked.into_iter().filter_map(|one| one.change).collect();
            self.log.lock().unwrap().extend(changes.iter().map(told));
            let outcomes = kept.apply(changes, all_or_nothing);
            // Only changes, which come as a whole: what is checked is answered.
            if all_or_nothing && kept.habits().never_answers {
                std::future::pending::<()>().await;
            }
            return Ok(Response::new(ApplyProbesResponse { outcomes, plan: Vec::new() }));
        }
        self.changed_at_once.lock().unwrap().push(asked.len());
        if self.beginning == Beginning::Late {
            // The kernel takes its time for each change.
            tokio::time::sleep(Duration::from_millis(2) * u32::try_from(asked.len()).unwrap()).await;
        }
        let (mut outcomes, mut plan) = (Vec::new(), Vec::new());
        for one in asked {
            let change = one.change.unwrap();
            plan.extend(answers::plan(&change));
            self.log.lock().unwrap().push(told(&change));
            let outcome = match change {
                Change::Delete(deletion) => answers::deletion(&deletion),
                Change::Update(update) => answers::outcome(
                    self.update_probe(Request::new(update))
                        .await
                        .map(|done| done.into_inner().probe.unwrap()),
                ),
                // Another client was faster: what could be made when it was checked cannot be made
                // now.
                Change::Create(creation)
                    if creation.definition.contains("late") && !creation.validate_only =>
                {
                    answers::outcome(Err(answers::refused(&creation.definition)))
                }
                Change::Create(creation) => answers::outcome(
                    self.create_probe(Request::new(creation))
                        .await
                        .map(|done| done.into_inner().probe.unwrap()),
                ),
            };
            outcomes.push(ProbeOutcome { outcome: Some(outcome) });
        }
        if all_or_nothing {
            answers::all_or_nothing(&mut outcomes);
        }
        Ok(Response::new(ApplyProbesResponse { outcomes, plan }))
    }

    async fn check_probe(&self, request: Request<CheckProbeRequest>) -> Answer<CheckProbeResponse> {
        let request = request.into_inner();
        let mut answer = answers::check(&request.definition);
        if let Some(kept) = &self.kept {
            answer.meaning = kept.habits().meaning;
        }
        if request.explain {
            answer.explanation = "p:functions/f f a=$arg1:s32\nassumed\n  all is well\n".to_owned();
        }
        Ok(Response::new(answer))
    }

    /// Two probes and a change; then the stream ends, unless it is endless. A watch that resumes is refused, with
    /// its token in the message.
    async fn watch_probes(&self, request: Request<WatchProbesRequest>) -> Answer<Self::WatchProbesStream> {
        let request = request.into_inner();
        if !request.resume_token.is_empty() {
            let message = format!("resumed behind {}", request.resume_token);
            return Err(Status::failed_precondition(message));
        }
        let watched = tokio_stream::iter(answers::watched()).map(Ok);
        if self.ending == Ending::Endless {
            return Ok(Response::new(Box::pin(watched.chain(tokio_stream::pending()))));
        }
        Ok(Response::new(Box::pin(watched)))
    }

    /// Answers when the whole text is there.
    async fn check_probes(
        &self,
        request: Request<Streaming<CheckProbesRequest>>,
    ) -> Answer<Self::CheckProbesStream> {
        let mut requests = request.into_inner();
        let (mut text, mut listings) = (Vec::new(), false);
        while let Some(piece) = requests.message().await? {
            text.extend(piece.text);
            listings |= piece.listings;
        }
        let text = String::from_utf8(text).map_err(|error| Status::internal(error.to_string()))?;
        let mut checks = answers::checks(&text);
        if listings {
            let checked = checks.iter_mut().flat_map(|answer| &mut answer.checked);
            let events = checked.filter(|checked| checked.definition.starts_with("sched/"));
            events
                .flat_map(|event| &mut event.check)
                .for_each(|check| check.schema = Some(answers::schema()));
        }
        Ok(Response::new(Box::pin(tokio_stream::iter(checks).map(Ok))))
    }

    async fn list_hits(&self, request: Request<ListHitsRequest>) -> Answer<ListHitsResponse> {
        let request = request.into_inner();
        if request.start_time.is_some() {
            return Ok(Response::new(over_time(&request)));
        }
        let profiles = if let Some(kept) = &self.kept {
            kept.profiles()
        } else {
            let open = HitProfile { own: request.with_own.then_some(2), ..answers::profile(7) };
            let filtered = (request.label_selector == "team=net").then(|| HitProfile {
                probe: "kprobes/filtered".to_owned(),
                own_unknown: "the probe has a filter".to_owned(),
                ..answers::profile(4)
            });
            [open].into_iter().chain(filtered).collect()
        };
        Ok(Response::new(ListHitsResponse { profiles, ..Default::default() }))
    }
}
