//! Client of the daemon: one method for each call of the API.
//!
//! Owns the deadline of requests and the walk through pages. Its only state is the channel: clones
//! are cheap and share it.

use std::collections::HashMap;
use std::time::Duration;

use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::api::event_service_client::EventServiceClient;
use crate::api::host_service_client::HostServiceClient;
use crate::api::probe_service_client::ProbeServiceClient;
use crate::api::{
    CheckProbeRequest, CheckProbeResponse, CheckProbesRequest, CreateProbeRequest, DeclarationProblem,
    GetHostRequest, GetHostResponse, GetLedgerRequest, GetLedgerResponse, GetProbeRequest, HostView,
    ListProbesRequest, ListProbesResponse, Probe, ProbeStateRecord, ReadClockRequest, ReadClockResponse,
    StreamEventsRequest, UpdateProbeRequest, WatchProbesRequest, WatchProbesResponse,
};
use crate::checks::CheckStream;
use crate::connect::{ConnectOptions, connect};
use crate::error::Error;
use crate::event::{EventStream, StreamRequest};
use crate::target::Target;

/// The largest message that is accepted: far above what the daemon puts into one.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// A connection to the daemon.
///
/// It reconnects by itself: after a restart of the daemon the next request opens a new connection.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    request_timeout: Duration,
    hosts: usize,
}

impl Client {
    /// Connects to the daemon.
    ///
    /// # Errors
    /// [`Error::Connect`] when the daemon cannot be reached.
    pub async fn connect(target: Target, options: ConnectOptions) -> Result<Self, Error> {
        let channel = connect(&target, &options).await?;
        Ok(Self { channel, request_timeout: options.request_timeout, hosts: options.hosts })
    }

    /// Defines a probe.
    pub async fn create_probe(&self, request: CreateProbeRequest) -> Result<Probe, Error> {
        let response = self.call(request, async |request| self.probes().create_probe(request).await).await?;
        response.probe.ok_or(Error::Incomplete("probe"))
    }

    /// Reads one probe by its name.
    pub async fn get_probe(&self, name: &str) -> Result<Probe, Error> {
        Ok(self.get(GetProbeRequest { name: name.to_owned(), with_states: false }).await?.0)
    }

    /// Reads one probe, and the states that it has had, the latest first.
    pub async fn get_probe_and_states(&self, name: &str) -> Result<(Probe, Vec<ProbeStateRecord>), Error> {
        self.get(GetProbeRequest { name: name.to_owned(), with_states: true }).await
    }

    async fn get(&self, request: GetProbeRequest) -> Result<(Probe, Vec<ProbeStateRecord>), Error> {
        let response = self.call(request, async |request| self.probes().get_probe(request).await).await?;
        Ok((response.probe.ok_or(Error::Incomplete("probe"))?, response.states))
    }

    /// Lists all probes whose names match a glob, page by page. An empty glob matches all.
    pub async fn list_probes(&self, name_glob: &str) -> Result<Vec<Probe>, Error> {
        let request = ListProbesRequest { name_glob: name_glob.to_owned(), ..Default::default() };
        self.select_probes(request).await
    }

    /// Lists all probes that a request selects, by name and by labels, page by page. Page size and
    /// token of the request are not used.
    pub async fn select_probes(&self, request: ListProbesRequest) -> Result<Vec<Probe>, Error> {
        Ok(self.select_probes_and_problems(request).await?.0)
    }

    /// Lists the probes that a request selects, and the problems of files that declare probes on
    /// the daemon's host.
    pub async fn select_probes_and_problems(
        &self,
        mut request: ListProbesRequest,
    ) -> Result<(Vec<Probe>, Vec<DeclarationProblem>), Error> {
        request.page_size = 1000;
        request.page_token.clear();
        let (mut probes, mut problems) = (Vec::new(), Vec::new());
        loop {
            let page = self.list_probes_page(request.clone()).await?;
            probes.extend(page.probes);
            problems.extend(page.declaration_problems);
            if page.next_page_token.is_empty() {
                return Ok((probes, problems));
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Lists one page of probes.
    pub async fn list_probes_page(&self, request: ListProbesRequest) -> Result<ListProbesResponse, Error> {
        self.call(request, async |request| self.probes().list_probes(request).await).await
    }

    /// Enables, disables, filters or labels a probe.
    pub async fn update_probe(&self, request: UpdateProbeRequest) -> Result<Probe, Error> {
        let response = self.call(request, async |request| self.probes().update_probe(request).await).await?;
        response.probe.ok_or(Error::Incomplete("probe"))
    }

    /// Switches recording on or off.
    pub async fn set_enabled(&self, name: &str, enabled: bool) -> Result<Probe, Error> {
        self.update_probe(UpdateProbeRequest {
            name: name.to_owned(),
            enabled: Some(enabled),
            ..Default::default()
        })
        .await
    }

    /// Replaces the kernel filter. An empty one removes it.
    pub async fn set_filter(&self, name: &str, filter: &str) -> Result<Probe, Error> {
        let request = UpdateProbeRequest {
            name: name.to_owned(),
            filter: Some(filter.to_owned()),
            ..Default::default()
        };
        self.update_probe(request).await
    }

    /// Sets some labels and removes others.
    pub async fn change_labels(
        &self,
        name: &str,
        set: HashMap<String, String>,
        remove: Vec<String>,
    ) -> Result<Probe, Error> {
        let request = UpdateProbeRequest {
            name: name.to_owned(),
            set_labels: set,
            remove_labels: remove,
            ..Default::default()
        };
        self.update_probe(request).await
    }

    /// Asks whether the running kernel would accept a probe. Changes nothing.
    pub async fn check_probe(&self, definition: impl Into<String>) -> Result<CheckProbeResponse, Error> {
        self.check(CheckProbeRequest { definition: definition.into(), explain: false }).await
    }

    /// Asks the same, and for the definition in words.
    pub async fn explain_probe(&self, definition: impl Into<String>) -> Result<CheckProbeResponse, Error> {
        self.check(CheckProbeRequest { definition: definition.into(), explain: true }).await
    }

    async fn check(&self, request: CheckProbeRequest) -> Result<CheckProbeResponse, Error> {
        self.call(request, async |request| self.probes().check_probe(request).await).await
    }

    /// Asks the same about every definition of a text that comes in pieces, which may end anywhere.
    /// `listings`: with the instructions around each place, which costs far more. The text is taken
    /// as fast as verdicts are read, and at most some megabytes ahead.
    pub async fn check_probes(
        &self,
        text: impl Stream<Item = Vec<u8>> + Send + 'static,
        listings: bool,
    ) -> Result<CheckStream, Error> {
        let requests = text.map(move |text| CheckProbesRequest { text, listings });
        let streaming =
            self.begin(requests, async |requests| self.probes().check_probes(requests).await).await?;
        Ok(CheckStream::new(streaming))
    }

    /// Begins a watch.
    pub(crate) async fn begin_watch(
        &self,
        request: WatchProbesRequest,
    ) -> Result<Streaming<WatchProbesResponse>, Error> {
        self.begin(request, async |request| self.probes().watch_probes(request).await).await
    }

    /// Describes the host. The daemon looks at all of it: [`Client::host_basics`] is for names,
    /// versions and what the daemon itself costs.
    pub async fn host(&self) -> Result<GetHostResponse, Error> {
        self.host_in(HostView::Full).await
    }

    /// What the daemon holds of its host: names, kernel, boot, versions, and its own processor
    /// time. The daemon reads nothing for it, and returns neither checks nor features.
    pub async fn host_basics(&self) -> Result<GetHostResponse, Error> {
        self.host_in(HostView::Basic).await
    }

    async fn host_in(&self, view: HostView) -> Result<GetHostResponse, Error> {
        let service = || HostServiceClient::new(self.channel.clone());
        let request = GetHostRequest { view: view.into() };
        self.call(request, async |request| service().get_host(request).await).await
    }

    /// Reads the clocks of the host.
    pub async fn read_clock(&self) -> Result<ReadClockResponse, Error> {
        let service = || HostServiceClient::new(self.channel.clone());
        self.call(ReadClockRequest {}, async |request| service().read_clock(request).await).await
    }

    /// Reads the ledger: the account of every event, and the state of exporters.
    pub async fn ledger(&self) -> Result<GetLedgerResponse, Error> {
        self.call(GetLedgerRequest {}, async |request| self.events().get_ledger(request).await).await
    }

    /// Opens a stream of events, and waits until it has begun: every event that is recorded after
    /// this returns is in the stream, or is reported as lost there.
    /// [`ResumingStream`](crate::event::ResumingStream) is one that survives the connection.
    ///
    /// # Errors
    /// [`Error::Rpc`] when the daemon refuses the request; what is wrong with a filter is in its
    /// diagnostics. [`Error::Timeout`] when the stream has not begun in time.
    pub async fn stream_events(&self, request: StreamRequest) -> Result<EventStream, Error> {
        let request = StreamEventsRequest::from(request);
        let (first, rest) = self
            .begin_with_first(request, async |request| self.events().stream_events(request).await)
            .await?;
        EventStream::new(first, rest)
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn probes(&self) -> ProbeServiceClient<Channel> {
        ProbeServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    fn events(&self) -> EventServiceClient<Channel> {
        EventServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Sends a request that has one answer. The daemon gets the deadline too, and stops work after
    /// it.
    pub(crate) async fn call<Q, A>(
        &self,
        message: Q,
        send: impl AsyncFnOnce(Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        let mut request = self.request(message);
        request.set_timeout(self.request_timeout);
        match self.within_timeout(send(request)).await.map(Response::into_inner) {
            // Both sides watch the deadline, and the daemon may notice first.
            Err(Error::Rpc(error)) if matches!(error.code, Code::Cancelled | Code::DeadlineExceeded) => {
                Err(Error::Timeout(self.request_timeout))
            }
            Err(Error::Disconnected(status)) if status.code() == Code::Cancelled => {
                Err(Error::Timeout(self.request_timeout))
            }
            result => result,
        }
    }

    /// Sends a request that is answered by a stream: only its beginning has a deadline.
    pub(crate) async fn begin<Q, A>(
        &self,
        message: Q,
        send: impl AsyncFnOnce(Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        self.within_timeout(send(self.request(message))).await.map(Response::into_inner)
    }

    /// Sends a request that is answered by a stream, and reads its first message. Only the rest of
    /// the stream has no deadline.
    pub(crate) async fn begin_with_first<Q, A>(
        &self,
        message: Q,
        send: impl AsyncFnOnce(Request<Q>) -> Result<Response<Streaming<A>>, Status>,
    ) -> Result<(A, Streaming<A>), Error> {
        let begun = async {
            let mut rest = send(self.request(message)).await?.into_inner();
            let first = rest.message().await?.ok_or(Error::Incomplete("first message"))?;
            Ok::<_, Error>((first, rest))
        };
        self.within_timeout(begun).await
    }

    fn request<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        if self.hosts != 1 {
            request.metadata_mut().insert(kprobed_proto::HOSTS_HEADER, self.hosts.into());
        }
        request
    }

    pub(crate) async fn within_timeout<A, E: Into<Error>>(
        &self,
        answer: impl Future<Output = Result<A, E>>,
    ) -> Result<A, Error> {
        match tokio::time::timeout(self.request_timeout, answer).await {
            Ok(answer) => answer.map_err(Into::into),
            Err(_elapsed) => Err(Error::Timeout(self.request_timeout)),
        }
    }
}
