//! `AggregationService`: aggregations over gRPC, and streams of their snapshots.
//!
//! Owns the timing of a stream, and the deletion of an aggregation that is bound to one. Never
//! counts anything.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use kprobed_proto::v1;
use kprobed_proto::v1::aggregation_service_server::AggregationService;
use kprobed_proto::v1::aggregation_spec::Aggregation as Spec;
use kprobed_proto::v1::stream_aggregation_request::Source;
use kprobed_proto::v1::stream_aggregation_response::Message;
use prost::Message as _;
use tokio::runtime::Handle;
use tokio::time::{Interval, MissedTickBehavior};
use tonic::{Request, Response, Status};

use super::access::{self, KeptBytes};
use super::events::Responses;
use super::hidden;
use super::services::Services;
use kprobed_control::auth::Caller;
use kprobed_control::error::Error;
use kprobed_control::{ControlHandle, CreateAggregation, NumberedAggregation, grown_since};

/// Time between two snapshots unless the client says otherwise.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest interval: each snapshot reads all of the kernel's tables.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The longest one: a moment that is later than a clock can show does not come.
const MAX_INTERVAL: Duration = Duration::from_hours(24);

impl Services {
    /// Has the audit log say that the caller begins to receive the counts.
    fn note_counts(&self, caller: &Caller, aggregation: &v1::Aggregation) {
        let Some(spec) = aggregation.spec.as_ref().and_then(|spec| spec.aggregation.as_ref()) else { return };
        let names = match spec {
            Spec::Histogram(spec) => vec![spec.probe.clone()],
            Spec::Latency(spec) => vec![spec.start_probe.clone(), spec.end_probe.clone()],
        };
        let stacks = aggregation.keys.iter().any(|key| key.name == "stack");
        self.access.note_read(caller, &names, if stacks { "counts by call stack" } else { "counts" });
    }
}

async fn create(
    control: &ControlHandle,
    caller: &Caller,
    name: String,
    spec: Option<v1::AggregationSpec>,
    ttl: Option<Duration>,
    bound_to_stream: bool,
) -> Result<NumberedAggregation, Error> {
    let spec = spec.and_then(|spec| spec.aggregation);
    let spec = spec.ok_or_else(|| Error::bad_argument("spec", "`spec` must be a histogram or a latency"))?;
    let request = CreateAggregation { name, spec, ttl, bound_to_stream };
    control.create_aggregation(caller, request).await
}

/// A duration in a request.
fn duration(field: &'static str, given: Option<prost_types::Duration>) -> Result<Option<Duration>, Error> {
    let read = given.map(Duration::try_from).transpose();
    read.map_err(|_negative| Error::bad_argument(field, "the duration must not be negative"))
}

/// The time between two snapshots.
fn interval(given: Option<prost_types::Duration>) -> Result<Duration, Error> {
    let interval = duration("interval", given)?.unwrap_or(DEFAULT_INTERVAL);
    if (MIN_INTERVAL..=MAX_INTERVAL).contains(&interval) {
        return Ok(interval);
    }
    Err(Error::bad_argument("interval", "`interval` must be between 100 ms and 24 h"))
}

/// Deletes the aggregation of a stream when the stream ends, for whatever reason.
struct Bound {
    control: ControlHandle,
    number: u64,
    runtime: Handle,
}

impl Drop for Bound {
    fn drop(&mut self) {
        let (control, number) = (self.control.clone(), self.number);
        self.runtime.spawn(async move {
            if let Err(error) = control.end_aggregation(number).await {
                tracing::debug!(number, %error, "cannot delete the aggregation of a stream");
            }
        });
    }
}

/// The counts as a caller may see them.
fn shown(mut snapshot: v1::AggregationSnapshot, shows_addresses: bool) -> v1::AggregationSnapshot {
    if !shows_addresses {
        hidden::rows(&mut snapshot.rows);
    }
    snapshot
}

/// A stream under way.
struct Snapshots {
    /// Not another one that has its name later.
    which: NumberedAggregation,
    interval: Interval,
    deltas: bool,
    /// The snapshot that the next delta is computed against.
    before: Option<v1::AggregationSnapshot>,
    shows_addresses: bool,
    /// Who counts what: a right can end while counts are read.
    control: ControlHandle,
    caller: Caller,
    /// What `before` takes.
    kept: Option<KeptBytes>,
    _bound: Option<Bound>,
}

/// A snapshot takes so many times what its message does.
const SNAPSHOT_TIMES: usize = 3;

impl Snapshots {
    async fn next(&mut self) -> Result<v1::AggregationSnapshot, Error> {
        self.interval.tick().await;
        let snapshot = self.control.read_aggregation(&self.caller, &self.which).await?;
        let message = match &self.before {
            Some(before) if self.deltas => shown(grown_since(&snapshot, before), self.shows_addresses),
            _ => shown(snapshot.clone(), self.shows_addresses),
        };
        if self.deltas {
            if let Some(kept) = &self.kept {
                kept.set(snapshot.encoded_len() * SNAPSHOT_TIMES)?;
            }
            self.before = Some(snapshot);
        }
        Ok(message)
    }
}

#[tonic::async_trait]
impl AggregationService for Services {
    type StreamAggregationStream = Responses<v1::StreamAggregationResponse>;

    async fn create_aggregation(
        &self,
        request: Request<v1::CreateAggregationRequest>,
    ) -> Result<Response<v1::CreateAggregationResponse>, Status> {
        let caller = access::caller(&request)?;
        let request = request.into_inner();
        let ttl = duration("ttl", request.ttl)?;
        let made = create(&self.control, &caller, request.name, request.spec, ttl, false).await?;
        let aggregation = Some(Arc::unwrap_or_clone(made.aggregation));
        Ok(Response::new(v1::CreateAggregationResponse { aggregation }))
    }

    async fn list_aggregations(
        &self,
        request: Request<v1::ListAggregationsRequest>,
    ) -> Result<Response<v1::ListAggregationsResponse>, Status> {
        let caller = access::caller(&request)?;
        let visible = self.control.aggregations(&caller).await?;
        let aggregations = visible.into_iter().map(Arc::unwrap_or_clone).collect();
        Ok(Response::new(v1::ListAggregationsResponse { aggregations }))
    }

    async fn delete_aggregation(
        &self,
        request: Request<v1::DeleteAggregationRequest>,
    ) -> Result<Response<v1::DeleteAggregationResponse>, Status> {
        let caller = access::caller(&request)?;
        let last = self.control.delete_aggregation(&caller, request.into_inner().name).await?;
        let shows_addresses = self.access.rights.show_addresses(&caller);
        let snapshot = last.map(|last| shown(last, shows_addresses));
        Ok(Response::new(v1::DeleteAggregationResponse { snapshot }))
    }

    async fn stream_aggregation(
        &self,
        request: Request<v1::StreamAggregationRequest>,
    ) -> Result<Response<Self::StreamAggregationStream>, Status> {
        let caller = access::caller(&request)?;
        let shows_addresses = self.access.rights.show_addresses(&caller);
        let kept = request.extensions().get::<KeptBytes>().cloned();
        let request = request.into_inner();
        let interval = interval(request.interval)?;
        let (which, bound) = match request.source {
            Some(Source::Name(name)) => (self.control.aggregation(&caller, name).await?, None),
            Some(Source::Spec(spec)) => {
                let (control, caller) = (self.control.clone(), caller.clone());
                // If a client leaves while the aggregation is being created, this call is cancelled
                // and the task goes on: it then deletes the aggregation at once.
                let made = Handle::current().spawn(async move {
                    let made = create(&control, &caller, String::new(), Some(spec), None, true).await?;
                    let bound = Bound { control, number: made.number, runtime: Handle::current() };
                    Ok::<_, Error>((made, Some(bound)))
                });
                made.await.map_err(Error::internal)??
            }
            None => return Err(Error::bad_argument("source", "`name` or `spec` is required").into()),
        };
        self.note_counts(&caller, &which.aggregation);
        // Deltas begin with the present counts, and a single reading has no others; otherwise the first
        // snapshot comes after one interval.
        let at_once = request.deltas || (request.once && bound.is_none());
        let now = tokio::time::Instant::now();
        let first = if at_once { now } else { now + interval };
        let mut interval = tokio::time::interval_at(first, interval);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let started = Message::Started(v1::Aggregation::clone(&which.aggregation));
        let snapshots = Snapshots {
            control: self.control.clone(),
            caller,
            which,
            interval,
            deltas: request.deltas,
            before: None,
            shows_addresses,
            kept,
            _bound: bound,
        };
        let started = v1::StreamAggregationResponse { message: Some(started) };
        // After the first failure the stream ends.
        let rest = stream::try_unfold(snapshots, async |mut snapshots| {
            let message = Some(Message::Snapshot(snapshots.next().await?));
            Ok::<_, Status>(Some((v1::StreamAggregationResponse { message }, snapshots)))
        });
        let rest = rest.take(if request.once { 1 } else { usize::MAX });
        let stream = stream::once(std::future::ready(Ok(started))).chain(rest);
        Ok(Response::new(Box::pin(stream) as Self::StreamAggregationStream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_two_bounds() {
        let asked = |seconds, nanos| interval(Some(prost_types::Duration { seconds, nanos }));
        assert_eq!(interval(None).unwrap(), DEFAULT_INTERVAL);
        assert_eq!(asked(0, 100_000_000).unwrap(), MIN_INTERVAL);
        assert_eq!(asked(86_400, 0).unwrap(), MAX_INTERVAL);
        for (seconds, nanos) in [(0, 99_999_999), (86_400, 1), (i64::MAX, 0), (-1, 0)] {
            assert_eq!(asked(seconds, nanos).unwrap_err().field.as_deref(), Some("interval"));
        }
    }
}
