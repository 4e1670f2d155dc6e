//! Client of the daemon: the connection, and how requests are sent over it.
//!
//! Owns the deadline of requests, the stream of verdicts, and holds: leases that last as long as a client is connected.
//! Its only state is the channel: clones are cheap and share it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::api::{
    CheckProbesRequest, CheckProbesResponse, CheckedDefinition, HoldProbesRequest, HoldProbesResponse, Lease,
    StreamEventsRequest,
};
use crate::connect::{ConnectOptions, connect};
use crate::error::Error;
use crate::event::{EventStream, StreamRequest};
use crate::target::Target;

/// A connection to the daemon.
///
/// It reconnects by itself: after a restart of the daemon the next request opens a new connection.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) channel: Channel,
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

    /// Checks every definition of a text that comes in pieces, which may end anywhere.
    /// `listings`: with the instructions around each place, which costs far more. The text is taken
    /// as fast as verdicts are read, and at most some megabytes ahead.
    pub async fn check_probes(
        &self,
        text: impl Stream<Item = Vec<u8>> + Send + 'static,
        listings: bool,
    ) -> Result<CheckStream, Error> {
        let requests = text.map(move |text| CheckProbesRequest { text, listings });
        let inner = self.begin(requests, async |requests| self.probes().check_probes(requests).await).await?;
        Ok(CheckStream { inner, ready: VecDeque::new() })
    }

    /// Begins a hold, over the connection of this client.
    ///
    /// # Errors
    /// [`Error::Rpc`] when this connection has as many as it can have.
    pub async fn hold(&self) -> Result<Hold, Error> {
        let (first, stream) = self
            .begin_with_first(HoldProbesRequest {}, async |request| self.leases().hold_probes(request).await)
            .await?;
        Ok(Hold { key: first.holder, _stream: stream })
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

    /// Sends a request that has one answer and changes nothing. The daemon gets the deadline too, and stops work after
    /// it.
    pub(crate) async fn call<Q, A>(
        &self,
        message: Q,
        send: impl AsyncFnOnce(Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        self.call_within(self.request_timeout, message, send).await
    }

    /// The same for a request that makes a change.
    pub(crate) async fn change_one<Q, A>(
        &self,
        message: Q,
        send: impl AsyncFnOnce(Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        self.change(1, message, send).await
    }

    /// The same for a request that makes so many changes, which has more time by their number.
    pub(crate) async fn change<Q, A>(
        &self,
        changes: usize,
        message: Q,
        send: impl AsyncFnOnce(Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        self.call_within(self.time_for(changes), message, send).await.map_err(Error::of_change)
    }

    /// How long a request for so many changes may take.
    pub(crate) fn time_for(&self, changes: usize) -> Duration {
        Self::time_for_changes(self.request_timeout, changes)
    }

    /// The same with a limit of its own.
    pub(crate) async fn call_within<Q, A>(
        &self,
        limit: Duration,
        message: Q,
        send: impl AsyncFnOnce(Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Error> {
        let mut request = self.request(message);
        request.set_timeout(limit);
        match within(limit, send(request)).await.map(Response::into_inner) {
            // Both sides watch the deadline, and the daemon may notice first.
            Err(Error::Rpc(error)) if matches!(error.code, Code::Cancelled | Code::DeadlineExceeded) => {
                Err(Error::timeout(limit))
            }
            Err(Error::Disconnected { status, .. }) if status.code() == Code::Cancelled => {
                Err(Error::timeout(limit))
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
        within(self.request_timeout, answer).await
    }
}

/// Verdicts in the order of the text.
#[derive(Debug)]
pub struct CheckStream {
    inner: Streaming<CheckProbesResponse>,
    ready: VecDeque<CheckedDefinition>,
}

impl CheckStream {
    /// The next verdict; `None` when the text has ended and all of it was judged.
    ///
    /// # Errors
    /// When the daemon cannot judge any more, or is gone. All verdicts that were given before it
    /// stay good.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<Option<CheckedDefinition>, Error> {
        while self.ready.is_empty() {
            let Some(response) = self.inner.message().await? else { return Ok(None) };
            self.ready = response.checked.into();
        }
        Ok(self.ready.pop_front())
    }

    /// Verdicts that have arrived: while there are any, [`CheckStream::next`] returns without
    /// waiting.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }
}

/// A hold: when it is dropped, or this program ends in any way, the daemon deletes all probes that
/// were created with its lease.
///
/// ```no_run
/// use kprobed_client::api::CreateProbeRequest;
/// use kprobed_client::{Client, ConnectOptions, Target};
///
/// # async fn example() -> Result<(), kprobed_client::Error> {
/// let client = Client::connect(Target::default(), ConnectOptions::default()).await?;
/// let hold = client.hold().await?;
/// let probe = CreateProbeRequest {
///     definition: "p:fork kernel_clone".to_owned(),
///     enabled: true,
///     lease: Some(hold.lease()),
///     ..CreateProbeRequest::default()
/// };
/// client.create_probe(probe).await?;
/// // ... and here it goes.
/// drop(hold);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Hold {
    key: String,
    /// The daemon deletes the probes when it ends.
    _stream: Streaming<HoldProbesResponse>,
}

impl Hold {
    /// The lease for probes that end with this hold.
    pub fn lease(&self) -> Lease {
        Lease { holder: self.key.clone(), ..Lease::default() }
    }
}

async fn within<A, E: Into<Error>>(
    limit: Duration,
    answer: impl Future<Output = Result<A, E>>,
) -> Result<A, Error> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_elapsed) => Err(Error::timeout(limit)),
    }
}
