//! `AggregationService`: aggregations over gRPC, and streams of their snapshots.
//!
//! Owns the timing of a stream, and the deletion of an aggregation that is bound to one. Never
//! counts anything.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use kprobed_proto::v1;
use kprobed_proto::v1::aggregation_key::Key;
use kprobed_proto::v1::aggregation_service_server::AggregationService;
use kprobed_proto::v1::aggregation_spec::Aggregation as Spec;
use kprobed_proto::v1::stream_aggregation_request::Source;
use kprobed_proto::v1::stream_aggregation_response::Message;
use tokio::runtime::Handle;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use kprobed_lang::model::ProbeName;
use kprobed_rights::Read;

use super::access::{self, Access};
use super::hidden;
use crate::auth::Caller;
use crate::control::{ControlHandle, CreateAggregation, grown_since, no_aggregation};
use crate::error::Error;

/// The service.
#[derive(Clone, Debug)]
pub struct AggregationServer {
    /// Carries out all requests.
    pub control: ControlHandle,
    /// Which probes a caller may observe.
    pub access: Access,
}

/// Time between two snapshots unless the client says otherwise.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest interval: each snapshot reads all of the kernel's tables.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

impl AggregationServer {
    /// An aggregation of probes that the caller may observe.
    async fn find(&self, caller: &Caller, name: &str) -> Result<Arc<v1::Aggregation>, Error> {
        let all = self.control.aggregations().await?;
        let found = all.into_iter().find(|aggregation| aggregation.name == name);
        let found = found.ok_or_else(|| no_aggregation(name))?;
        self.require(caller, spec_of(found.spec.as_ref())?)?;
        Ok(found)
    }

    /// The probes and events that an aggregation counts.
    fn counted(&self, spec: &Spec) -> Result<Vec<ProbeName>, Error> {
        let of = |name: &str| match name.parse::<ProbeName>() {
            Ok(name) => Ok(name),
            // The event alone.
            Err(_) => Ok(self.access.registry.find(name)?.name.clone()),
        };
        probes(spec).into_iter().map(of).collect()
    }

    /// Refuses an aggregation of a probe that the caller may not observe.
    fn require(&self, caller: &Caller, spec: &Spec) -> Result<(), Error> {
        for name in self.counted(spec)? {
            self.access.require(caller, &name, also(spec))?;
        }
        Ok(())
    }

    /// Whether the caller may observe all of its probes.
    fn allows(&self, caller: &Caller, spec: &Spec) -> bool {
        let allowed = |name: &ProbeName| self.access.allows(caller, name, also(spec));
        self.counted(spec).is_ok_and(|names| names.iter().all(allowed))
    }

    fn sight(&self, caller: &Caller) -> Sight {
        Sight { addresses: self.access.rights.show_addresses(caller) }
    }

    /// Has the audit log say that the caller begins to receive the counts.
    fn note_read(&self, caller: &Caller, spec: &Spec) {
        let names = self.counted(spec).unwrap_or_default();
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        let what = if has_stacks(spec) { "counts by call stack" } else { "counts" };
        self.access.note_read(caller, &names, what);
    }

    async fn create(
        &self,
        caller: &Caller,
        name: String,
        spec: Option<v1::AggregationSpec>,
        ttl: Option<Duration>,
        bound_to_stream: bool,
    ) -> Result<Arc<v1::Aggregation>, Error> {
        let spec = spec_of(spec.as_ref())?.clone();
        self.require(caller, &spec)?;
        self.note_read(caller, &spec);
        self.control.create_aggregation(CreateAggregation { name, spec, ttl, bound_to_stream }).await
    }
}

/// What is counted.
fn spec_of(spec: Option<&v1::AggregationSpec>) -> Result<&Spec, Error> {
    let spec = spec.and_then(|spec| spec.aggregation.as_ref());
    spec.ok_or_else(|| Error::bad_argument("spec", "`spec` must be a histogram or a latency"))
}

/// The names of the probes whose events are counted, as the client wrote them.
fn probes(spec: &Spec) -> Vec<&str> {
    match spec {
        Spec::Histogram(spec) => vec![&spec.probe],
        Spec::Latency(spec) => vec![&spec.start_probe, &spec.end_probe],
    }
}

/// Whether call stacks are among its keys.
fn has_stacks(spec: &Spec) -> bool {
    let stack = v1::ContextKey::Stack;
    match spec {
        Spec::Histogram(spec) => spec.keys.iter().any(|key| key.key == Some(Key::Context(stack.into()))),
        Spec::Latency(spec) => spec.keys().any(|key| key == stack),
    }
}

/// A duration in a request.
fn duration(field: &'static str, given: Option<prost_types::Duration>) -> Result<Option<Duration>, Error> {
    let read = |duration| {
        Duration::try_from(duration)
            .map_err(|_negative| Error::bad_argument(field, "the duration must not be negative"))
    };
    given.map(read).transpose()
}

/// What is read besides the fields of the probes.
fn also(spec: &Spec) -> Option<Read> {
    has_stacks(spec).then_some(Read::StackTraces)
}

/// Deletes the aggregation of a stream when the stream ends, for whatever reason.
struct Bound {
    control: ControlHandle,
    name: String,
    runtime: Handle,
}

impl Drop for Bound {
    fn drop(&mut self) {
        let (control, name) = (self.control.clone(), std::mem::take(&mut self.name));
        self.runtime.spawn(async move {
            if let Err(error) = control.delete_aggregation(name.clone()).await {
                tracing::debug!(aggregation = name, %error, "cannot delete the aggregation of a stream");
            }
        });
    }
}

/// What a caller may see of counts.
struct Sight {
    addresses: bool,
}

impl Sight {
    fn of(&self, mut snapshot: v1::AggregationSnapshot) -> v1::AggregationSnapshot {
        if !self.addresses {
            hidden::rows(&mut snapshot.rows);
        }
        snapshot
    }
}

/// A stream under way.
struct Snapshots {
    name: String,
    interval: Interval,
    deltas: bool,
    /// The snapshot that the next delta is computed against.
    before: Option<v1::AggregationSnapshot>,
    sight: Sight,
    /// Who counts what: a right can end while counts are read.
    server: AggregationServer,
    caller: Caller,
    spec: Spec,
    _bound: Option<Bound>,
}

impl Snapshots {
    async fn next(&mut self) -> Result<v1::AggregationSnapshot, Status> {
        self.interval.tick().await;
        self.server.require(&self.caller, &self.spec)?;
        let snapshot = self.server.control.read_aggregation(self.name.clone()).await?;
        let message = match &self.before {
            Some(before) if self.deltas => self.sight.of(grown_since(&snapshot, before)),
            _ => self.sight.of(snapshot.clone()),
        };
        self.before = Some(snapshot);
        Ok(message)
    }
}

#[tonic::async_trait]
impl AggregationService for AggregationServer {
    type StreamAggregationStream =
        Pin<Box<dyn Stream<Item = Result<v1::StreamAggregationResponse, Status>> + Send>>;

    async fn create_aggregation(
        &self,
        request: Request<v1::CreateAggregationRequest>,
    ) -> Result<Response<v1::CreateAggregationResponse>, Status> {
        let caller = access::caller(&request)?;
        let request = request.into_inner();
        let ttl = duration("ttl", request.ttl)?;
        let made = self.create(&caller, request.name, request.spec, ttl, false).await?;
        Ok(Response::new(v1::CreateAggregationResponse { aggregation: Some(Arc::unwrap_or_clone(made)) }))
    }

    async fn list_aggregations(
        &self,
        request: Request<v1::ListAggregationsRequest>,
    ) -> Result<Response<v1::ListAggregationsResponse>, Status> {
        let caller = access::caller(&request)?;
        let all = self.control.aggregations().await?;
        let is_permitted = |aggregation: &Arc<v1::Aggregation>| {
            spec_of(aggregation.spec.as_ref()).is_ok_and(|spec| self.allows(&caller, spec))
        };
        let aggregations = all.into_iter().filter(is_permitted).map(Arc::unwrap_or_clone).collect();
        Ok(Response::new(v1::ListAggregationsResponse { aggregations }))
    }

    async fn delete_aggregation(
        &self,
        request: Request<v1::DeleteAggregationRequest>,
    ) -> Result<Response<v1::DeleteAggregationResponse>, Status> {
        let caller = access::caller(&request)?;
        let name = self.find(&caller, &request.into_inner().name).await?.name.clone();
        let last = self.control.delete_aggregation(name).await?;
        let sight = self.sight(&caller);
        Ok(Response::new(v1::DeleteAggregationResponse { snapshot: last.map(|last| sight.of(last)) }))
    }

    async fn stream_aggregation(
        &self,
        request: Request<v1::StreamAggregationRequest>,
    ) -> Result<Response<Self::StreamAggregationStream>, Status> {
        let caller = access::caller(&request)?;
        let sight = self.sight(&caller);
        let request = request.into_inner();
        let interval = duration("interval", request.interval)?.unwrap_or(DEFAULT_INTERVAL);
        if interval < MIN_INTERVAL {
            return Err(Error::bad_argument("interval", "`interval` must be 100 ms or more").into());
        }
        let (aggregation, bound) = match request.source {
            Some(Source::Name(name)) => {
                let found = self.find(&caller, &name).await?;
                self.note_read(&caller, spec_of(found.spec.as_ref())?);
                (found, None)
            }
            Some(Source::Spec(spec)) => {
                let (server, caller) = (self.clone(), caller.clone());
                // If a client leaves while the aggregation is being created, this call is cancelled
                // and the task goes on: it then deletes the aggregation at once.
                let made = Handle::current().spawn(async move {
                    let made = server.create(&caller, String::new(), Some(spec), None, true).await?;
                    let bound = Bound {
                        control: server.control,
                        name: made.name.clone(),
                        runtime: Handle::current(),
                    };
                    Ok::<_, Error>((made, Some(bound)))
                });
                made.await.map_err(Error::internal)??
            }
            None => return Err(Error::bad_argument("source", "`name` or `spec` is required").into()),
        };
        // Deltas begin with the present counts, and a single reading has no others; otherwise the first
        // snapshot comes after one interval.
        let at_once = request.deltas || (request.once && bound.is_none());
        let now = tokio::time::Instant::now();
        let first = if at_once { now } else { now + interval };
        let mut interval = tokio::time::interval_at(first, interval);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let snapshots = Snapshots {
            server: self.clone(),
            caller,
            spec: spec_of(aggregation.spec.as_ref())?.clone(),
            name: aggregation.name.clone(),
            interval,
            deltas: request.deltas,
            before: None,
            sight,
            _bound: bound,
        };
        let started = v1::StreamAggregationResponse {
            message: Some(Message::Started(Arc::unwrap_or_clone(aggregation))),
        };
        // After the first failure the stream ends.
        let rest = stream::unfold(Some(snapshots), |snapshots| async {
            let mut snapshots = snapshots?;
            match snapshots.next().await {
                Ok(snapshot) => {
                    let message = Some(Message::Snapshot(snapshot));
                    Some((Ok(v1::StreamAggregationResponse { message }), Some(snapshots)))
                }
                Err(status) => Some((Err(status), None)),
            }
        });
        let rest = rest.take(if request.once { 1 } else { usize::MAX });
        Ok(Response::new(Box::pin(stream::once(std::future::ready(Ok(started))).chain(rest))))
    }
}
