//! The services of the fake daemon.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kprobed_client::api::code_service_server::CodeService;
use kprobed_client::api::event_service_server::EventService;
use kprobed_client::api::host_service_server::HostService;
use kprobed_client::api::probe_service_server::ProbeService;
use kprobed_client::api::stream_events_response::Message;
use kprobed_client::api::stream_start::Start;
use kprobed_client::api::type_service_server::TypeService;
use kprobed_client::api::*;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

use super::Ending;
use super::answers;

pub(super) type Answer<T> = Result<Response<T>, Status>;
type BoxedStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone)]
pub(super) struct Services {
    pub(super) ending: Ending,
    /// What streams were asked for.
    pub(super) asked: Arc<Mutex<Vec<StreamEventsRequest>>>,
    /// How many probes each request for several deletions named.
    pub(super) deleted_at_once: Arc<Mutex<Vec<usize>>>,
}

/// Fields have to arrive as they are in the canned answers.
fn same_spec(spec: &ProbeSpec) -> Result<(), Status> {
    let same = *spec == answers::spec();
    if same { Ok(()) } else { Err(Status::invalid_argument(format!("other fields: {spec:?}"))) }
}

#[tonic::async_trait]
impl ProbeService for Services {
    type CheckProbesStream = BoxedStream<CheckProbesResponse>;

    async fn create_probe(&self, request: Request<CreateProbeRequest>) -> Answer<CreateProbeResponse> {
        let request = request.into_inner();
        if let Some(spec) = &request.spec {
            same_spec(spec)?;
        }
        if request.definition.contains("+3") {
            return Err(answers::refused(&request.definition));
        }
        if request.definition.contains("slow") {
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
        let name = if request.definition.contains("waiting") { "kprobes/waiting" } else { "kprobes/open" };
        let CreateProbeRequest { enabled, filter, labels, .. } = request;
        let probe = Probe { enabled, filter, labels, ..answers::probe(name) };
        Ok(Response::new(CreateProbeResponse { probe: Some(probe) }))
    }

    async fn get_probe(&self, request: Request<GetProbeRequest>) -> Answer<GetProbeResponse> {
        Ok(Response::new(GetProbeResponse { probe: Some(answers::existing(&request.into_inner().name)?) }))
    }

    /// Two pages of one probe each, or one page with the one that has labels.
    async fn list_probes(&self, request: Request<ListProbesRequest>) -> Answer<ListProbesResponse> {
        let request = request.into_inner();
        match request.label_selector.as_str() {
            _ if request.name_glob.contains("nothing") => {
                return Ok(Response::new(ListProbesResponse::default()));
            }
            "" => {}
            "team=storage" | "team in (storage,net),!reviewed" => {
                let probes = vec![answers::probe("kprobes/open")];
                return Ok(Response::new(ListProbesResponse { probes, ..Default::default() }));
            }
            "team=nobody" => return Ok(Response::new(ListProbesResponse::default())),
            other => return Err(answers::refused(other)),
        }
        let (name, next) =
            if request.page_token.is_empty() { ("kprobes/open", "2") } else { ("kprobes/waiting", "") };
        Ok(Response::new(ListProbesResponse {
            probes: vec![answers::probe(name)],
            next_page_token: next.to_owned(),
        }))
    }

    async fn update_probe(&self, request: Request<UpdateProbeRequest>) -> Answer<UpdateProbeResponse> {
        let request = request.into_inner();
        let mut probe = answers::existing(&request.name)?;
        if !request.etag.is_empty() && request.etag != probe.etag {
            return Err(Status::aborted("it has changed"));
        }
        probe.labels.retain(|key, _| !request.remove_labels.contains(key));
        probe.labels.extend(request.set_labels);
        if let Some(filter) = request.filter {
            if filter.contains("+3") {
                return Err(answers::refused(&filter));
            }
            probe.filter = filter;
        }
        if request.enabled == Some(false) {
            probe.state = ProbeState::Disabled.into();
        }
        Ok(Response::new(UpdateProbeResponse { probe: Some(probe) }))
    }

    async fn delete_probe(&self, request: Request<DeleteProbeRequest>) -> Answer<DeleteProbeResponse> {
        let probe = answers::existing(&request.into_inner().name)?;
        let profile = (probe.name == "kprobes/open").then(|| answers::profile(0, 7));
        Ok(Response::new(DeleteProbeResponse { profile }))
    }

    async fn delete_probes(&self, request: Request<DeleteProbesRequest>) -> Answer<DeleteProbesResponse> {
        let asked = request.into_inner().deletions;
        self.deleted_at_once.lock().unwrap().push(asked.len());
        let deletions = asked.iter().map(|one| ProbeDeletion { outcome: Some(answers::deletion(one)) });
        Ok(Response::new(DeleteProbesResponse { deletions: deletions.collect() }))
    }

    async fn apply_line(&self, request: Request<ApplyLineRequest>) -> Answer<ApplyLineResponse> {
        let line = request.into_inner().line;
        let name = line.strip_prefix("-:").ok_or_else(|| Status::invalid_argument("not a deletion"))?;
        Ok(Response::new(ApplyLineResponse { created: None, deleted: vec![name.to_owned()] }))
    }

    async fn check_probe(&self, request: Request<CheckProbeRequest>) -> Answer<CheckProbeResponse> {
        let request = request.into_inner();
        let Some(spec) = &request.spec else { return Ok(Response::new(answers::check(&request.definition))) };
        same_spec(spec)?;
        let line = "p:open do_sys_openat2+3";
        let mut answer = CheckProbeResponse { definition: line.to_owned(), ..answers::check(line) };
        for found in &mut answer.diagnostics {
            found.field.replace_range(.., "spec.place.symbol.offset");
        }
        Ok(Response::new(answer))
    }

    /// Answers when the whole text is there.
    async fn check_probes(
        &self,
        request: Request<Streaming<CheckProbesRequest>>,
    ) -> Answer<Self::CheckProbesStream> {
        let mut requests = request.into_inner();
        let mut text = Vec::new();
        while let Some(piece) = requests.message().await? {
            text.extend(piece.text);
        }
        let text = String::from_utf8(text).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(Box::pin(tokio_stream::iter(answers::checks(&text)).map(Ok))))
    }

    async fn explain_probe(&self, request: Request<ExplainProbeRequest>) -> Answer<ExplainProbeResponse> {
        if let Some(spec) = &request.into_inner().spec {
            same_spec(spec)?;
        }
        Ok(Response::new(answers::explanation()))
    }

    async fn read_definitions(
        &self,
        request: Request<ReadDefinitionsRequest>,
    ) -> Answer<ReadDefinitionsResponse> {
        Ok(Response::new(answers::definitions(&request.into_inner().text)))
    }

    async fn get_hit_profiles(
        &self,
        request: Request<GetHitProfilesRequest>,
    ) -> Answer<GetHitProfilesResponse> {
        let selected = request.into_inner().label_selector != "team=nobody";
        let profiles = selected.then(|| answers::profile(0, 7)).into_iter().collect();
        Ok(Response::new(GetHitProfilesResponse { profiles }))
    }

    async fn list_hit_profile_samples(
        &self,
        request: Request<ListHitProfileSamplesRequest>,
    ) -> Answer<ListHitProfileSamplesResponse> {
        let first = request.into_inner().page_token.is_empty();
        let (sample, next) =
            if first { (answers::profile(0, 3), "2") } else { (answers::profile(60, 7), "") };
        Ok(Response::new(ListHitProfileSamplesResponse {
            samples: vec![sample],
            next_page_token: next.to_owned(),
        }))
    }
}

#[tonic::async_trait]
impl CodeService for Services {
    async fn disassemble_function(
        &self,
        request: Request<DisassembleFunctionRequest>,
    ) -> Answer<DisassembleFunctionResponse> {
        let request = request.into_inner();
        match request.function.as_str() {
            "absent" => Err(answers::refused(&request.function)),
            "twin" => Ok(Response::new(DisassembleFunctionResponse {
                candidates: vec![answers::function("twin", "_stext+128"), answers::function("twin", "")],
                ..Default::default()
            })),
            _ => Ok(Response::new(answers::disassembly(&request))),
        }
    }

    /// Two pages of one function each.
    async fn list_functions(&self, request: Request<ListFunctionsRequest>) -> Answer<ListFunctionsResponse> {
        let request = request.into_inner();
        if request.pattern == "vfs_raed" {
            let suggestions = vec!["vfs_read".to_owned(), "vfs_readf".to_owned()];
            return Ok(Response::new(ListFunctionsResponse { suggestions, ..Default::default() }));
        }
        let first = request.page_token.is_empty();
        let (function, next) = if first {
            (answers::function("vfs_read", "vfs_read"), "vfs_read")
        } else {
            let untraceable = Function { traceable: false, blacklisted: true, ..Default::default() };
            (
                Function {
                    name: "vfs_readf".to_owned(),
                    module: request.module,
                    same_name: 2,
                    ..untraceable
                },
                "",
            )
        };
        Ok(Response::new(ListFunctionsResponse {
            functions: vec![function],
            next_page_token: next.to_owned(),
            suggestions: Vec::new(),
        }))
    }
}

#[tonic::async_trait]
impl EventService for Services {
    type StreamEventsStream = BoxedStream<StreamEventsResponse>;
    type StreamEventRowsStream = BoxedStream<StreamEventRowsResponse>;

    async fn stream_events(&self, request: Request<StreamEventsRequest>) -> Answer<Self::StreamEventsStream> {
        let request = request.into_inner();
        let selection = request.selection.clone().unwrap_or_default();
        for text in [&selection.filter, &selection.label_selector] {
            if text.contains("+3") {
                return Err(answers::refused(text));
            }
        }
        let in_time = request.delivery.as_ref().is_some_and(|delivery| delivery.order() == EventOrder::Time);
        let ends = request.start.as_ref().is_some_and(|start| start.until_now);
        let oldest = request.start.as_ref().is_some_and(|start| start.start == Some(Start::Oldest(true)));
        self.asked.lock().unwrap().push(request);
        let canned = [
            Message::Started(answers::started()),
            // The run before, if it was asked for, did not end in order.
            Message::Epoch(EpochStarted { may_miss: oldest, ..answers::epoch(0) }),
            Message::Schema(answers::schema()),
            Message::Loss(answers::loss()),
            Message::Batch(answers::batch(0)),
        ];
        let message = |message| Ok(StreamEventsResponse { message: Some(message) });
        let watermark = Watermark { watermark_ns: 10_000_000, late_events: 0 };
        let watermark = in_time.then_some(Message::Watermark(watermark));
        let canned = tokio_stream::iter(canned.into_iter().chain(watermark)).map(message);
        if ends {
            let caught_up = CaughtUp { cursor: Some(answers::cursor(5)) };
            return Ok(Response::new(Box::pin(
                canned.chain(tokio_stream::once(message(Message::CaughtUp(caught_up)))),
            )));
        }
        Ok(Response::new(match self.ending {
            Ending::Ended => Box::pin(canned),
            Ending::Open => Box::pin(canned.chain(tokio_stream::pending())),
            Ending::Broken => {
                Box::pin(canned.chain(tokio_stream::once(Err(Status::unavailable("shutting down")))))
            }
            Ending::Endless => Box::pin(
                canned.chain(
                    tokio_stream::iter(1..)
                        .map(move |number| message(Message::Batch(answers::batch(3 * number)))),
                ),
            ),
        }))
    }

    async fn stream_event_rows(
        &self,
        _: Request<StreamEventRowsRequest>,
    ) -> Answer<Self::StreamEventRowsStream> {
        let row = EventRow { probe: "kprobes/open".to_owned(), ..Default::default() };
        let cursor = Some(answers::cursor(3));
        let message = StreamEventRowsResponse { events: vec![row], losses: Vec::new(), cursor };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(message)))))
    }

    async fn check_filter(&self, request: Request<CheckFilterRequest>) -> Answer<CheckFilterResponse> {
        let selection = request.into_inner().selection.unwrap_or_default();
        if selection.filter.contains("+3") {
            return Err(answers::refused(&selection.filter));
        }
        Ok(Response::new(answers::checked_filter(&selection)))
    }

    async fn get_ledger(&self, _: Request<GetLedgerRequest>) -> Answer<GetLedgerResponse> {
        Ok(Response::new(answers::ledger()))
    }
}

#[tonic::async_trait]
impl HostService for Services {
    async fn get_host(&self, _: Request<GetHostRequest>) -> Answer<GetHostResponse> {
        Ok(Response::new(answers::host()))
    }
}

#[tonic::async_trait]
impl TypeService for Services {
    async fn describe_function(
        &self,
        request: Request<DescribeFunctionRequest>,
    ) -> Answer<DescribeFunctionResponse> {
        let request = request.into_inner();
        if request.path.contains("+3") {
            return Err(answers::refused(&request.path));
        }
        Ok(Response::new(answers::description(&request)))
    }
}
