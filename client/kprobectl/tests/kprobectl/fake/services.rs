//! Services of the fake daemon other than those of probes and aggregations.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use kprobed_client::api::event_service_server::EventService;
use kprobed_client::api::host_service_server::HostService;
use kprobed_client::api::kernel_service_server::KernelService;
use kprobed_client::api::stream_events_response::Message;
use kprobed_client::api::stream_start::Start;
use kprobed_client::api::*;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use super::keeping::Kept;
use super::{Beginning, Ending};
use super::{answers, calls};

pub(super) type Answer<T> = Result<Response<T>, Status>;
pub(super) type BoxedStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[derive(Clone, Default)]
pub(super) struct Services {
    pub(super) beginning: Beginning,
    pub(super) ending: Ending,
    /// What streams were requested.
    pub(super) asked: Arc<Mutex<Vec<StreamEventsRequest>>>,
    /// How many probes each request for several deletions named.
    pub(super) changed_at_once: Arc<Mutex<Vec<usize>>>,
    /// Holds, and the changes of requests for several, in order.
    pub(super) log: Arc<Mutex<Vec<String>>>,
    /// How much of the host was requested.
    pub(super) views: Arc<Mutex<Vec<HostView>>>,
    /// Probes, if it keeps them.
    pub(super) kept: Option<Kept>,
}

#[tonic::async_trait]
impl KernelService for Services {
    async fn describe_function(
        &self,
        request: Request<DescribeFunctionRequest>,
    ) -> Answer<DescribeFunctionResponse> {
        let name = request.into_inner().function;
        let prototype = format!("void {name}(void)");
        let function = FunctionDescription { name, prototype, ..Default::default() };
        Ok(Response::new(DescribeFunctionResponse { function: Some(function), structure: None }))
    }

    async fn disassemble_function(
        &self,
        _: Request<DisassembleFunctionRequest>,
    ) -> Answer<DisassembleFunctionResponse> {
        Err(Status::unimplemented("code"))
    }

    async fn list_functions(&self, request: Request<ListFunctionsRequest>) -> Answer<ListFunctionsResponse> {
        let named = |name: &str| Function { name: name.to_owned(), ..Default::default() };
        let is_twin = request.into_inner().pattern.contains("twin");
        let functions = if is_twin { ["twin_a", "twin_b"].map(named).to_vec() } else { Vec::new() };
        Ok(Response::new(ListFunctionsResponse { functions, ..Default::default() }))
    }
}

#[tonic::async_trait]
impl EventService for Services {
    type StreamEventsStream = BoxedStream<StreamEventsResponse>;

    async fn stream_events(&self, request: Request<StreamEventsRequest>) -> Answer<Self::StreamEventsStream> {
        let request = request.into_inner();
        let selection = request.selection.clone().unwrap_or_default();
        let in_time = request.delivery.as_ref().is_some_and(|delivery| delivery.order() == EventOrder::Time);
        let ends = request.start.as_ref().is_some_and(|start| start.until_now);
        let is_restarted =
            request.start.as_ref().is_some_and(|start| start.start == Some(Start::LastEvents(77)));
        let oldest = request.start.as_ref().is_some_and(|start| start.start == Some(Start::Oldest(true)));
        let is_first = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(request);
            asked.len() == 1
        };
        if self.ending == Ending::Gone && !is_first {
            return Err(Status::unavailable("shutting down"));
        }
        let canned = [
            Message::Started(StreamStarted {
                filters: answers::checked_filter(&selection),
                ..answers::started()
            }),
            // The run before, if it was requested, did not end in order.
            Message::Epoch(EpochStarted { may_miss: oldest, ..answers::epoch(0) }),
        ];
        let events = if selection.probes.iter().any(|probe| probe == calls::ENTRY) {
            calls::events()
        } else {
            vec![
                Message::Schema(answers::schema()),
                Message::Loss(answers::loss()),
                Message::Batch(answers::batch(0)),
            ]
        };
        let message = |message| Ok(StreamEventsResponse { message: Some(message) });
        let watermark = Watermark { watermark_ns: 10_000_000, late_events: 0 };
        let watermark = in_time.then_some(Message::Watermark(watermark));
        // Ten seconds after noon.
        let restart = is_restarted.then(|| {
            let cursor = Cursor { epoch: 1_769_860_810_000_000_000, ..answers::cursor(0) };
            Message::Epoch(EpochStarted { cursor: Some(cursor), may_miss: false })
        });
        let beginning = self.beginning;
        let canned = tokio_stream::iter(canned.into_iter().chain(events).chain(watermark).chain(restart))
            .map(message)
            .then(move |message: Result<StreamEventsResponse, Status>| async move {
                if matches!(message, Ok(StreamEventsResponse { message: Some(Message::Started(_)) })) {
                    beginning.wait().await;
                }
                message
            });
        if ends {
            let caught_up = answers::cursor(5);
            return Ok(Response::new(Box::pin(
                canned.chain(tokio_stream::once(message(Message::CaughtUp(caught_up)))),
            )));
        }
        let batch = move |number: u64| message(Message::Batch(answers::batch(3 * number)));
        // As much as the ledger says.
        let losses = [(LossCause::SubscriberQueue, 1), (LossCause::RateLimit, 2)].map(|(cause, count)| {
            message(Message::Loss(Loss { cause: cause.into(), count: Some(count), ..answers::loss() }))
        });
        Ok(Response::new(match self.ending {
            Ending::Ended => Box::pin(canned),
            Ending::BrokenOnce if !is_first => Box::pin(canned.chain(tokio_stream::pending())),
            Ending::Open => Box::pin(canned.chain(tokio_stream::pending())),
            Ending::Broken | Ending::BrokenOnce | Ending::Gone => {
                Box::pin(canned.chain(tokio_stream::once(Err(Status::unavailable("shutting down")))))
            }
            Ending::Endless => Box::pin(
                canned
                    .chain(tokio_stream::iter([batch(1)].into_iter().chain(losses).chain((2..).map(batch)))),
            ),
            Ending::LateLosses => {
                let late = tokio_stream::iter(losses).then(|loss| async move {
                    Beginning::Late.wait().await;
                    loss
                });
                Box::pin(
                    canned.chain(tokio_stream::once(batch(1))).chain(late).chain(tokio_stream::pending()),
                )
            }
        }))
    }

    async fn get_ledger(&self, _: Request<GetLedgerRequest>) -> Answer<GetLedgerResponse> {
        Ok(Response::new(self.kept.as_ref().map_or_else(answers::ledger, Kept::ledger)))
    }
}

#[tonic::async_trait]
impl HostService for Services {
    async fn read_clock(&self, _: Request<ReadClockRequest>) -> Answer<ReadClockResponse> {
        Ok(Response::new(answers::clock_reading()))
    }

    async fn get_host(&self, request: Request<GetHostRequest>) -> Answer<GetHostResponse> {
        let view = request.into_inner().view();
        self.views.lock().unwrap().push(view);
        let host = self.kept.as_ref().map_or_else(answers::host, Kept::answer);
        Ok(Response::new(if view == HostView::Basic { answers::basics(host) } else { host }))
    }
}
