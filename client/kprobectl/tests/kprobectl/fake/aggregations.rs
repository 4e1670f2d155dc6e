//! Fake aggregation service: three rows for every aggregation.

use std::sync::{Arc, Mutex};

use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::aggregation_service_server::AggregationService;
use kprobed_client::api::aggregation_spec::Aggregation as Kind;
use kprobed_client::api::key_value::Value;
use kprobed_client::api::stream_aggregation_request::Source;
use kprobed_client::api::stream_aggregation_response::Message;
use kprobed_client::api::*;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status};

use super::answers;
use super::services::{Answer, BoxedStream};

/// What was made and deleted, in its order.
#[derive(Clone, Default)]
pub(crate) struct Aggregations {
    log: Arc<Mutex<Vec<String>>>,
    /// Of streams, by the number in their name.
    specs: Arc<Mutex<Vec<AggregationSpec>>>,
}

/// What a reading is multiplied with: there are two of a stream, and then the last one.
const READINGS: [u64; 2] = [1, 2];
const LAST: u64 = 4;

/// Tells when a stream is over.
struct Ended(Aggregations);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.note("the stream ended");
    }
}

impl Aggregations {
    /// All that was made and deleted until now.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Keeps the spec of a stream. Gives its name.
    fn remember(&self, spec: &AggregationSpec) -> String {
        let mut specs = self.specs.lock().unwrap();
        specs.push(spec.clone());
        let probe = match spec.aggregation.as_ref().unwrap() {
            Kind::Histogram(spec) => &spec.probe,
            Kind::Latency(spec) => &spec.start_probe,
        };
        format!("{probe}-{}", specs.len() - 1)
    }

    fn streamed(&self, name: &str) -> Option<AggregationSpec> {
        let number: usize = name.rsplit_once('-')?.1.parse().ok()?;
        self.specs.lock().unwrap().get(number).cloned()
    }

    fn note(&self, what: impl Into<String>) {
        self.log.lock().unwrap().push(what.into());
    }
}

fn column(name: &str) -> AggregationColumn {
    AggregationColumn { name: name.to_owned(), hexadecimal: name == "flags", unproven: false }
}

fn context_name(key: ContextKey) -> &'static str {
    match key {
        ContextKey::Thread => "thread",
        ContextKey::Comm => "comm",
        ContextKey::Cpu => "cpu",
        ContextKey::Stack => "stack",
        ContextKey::Unspecified => "?",
    }
}

/// An aggregation of this name, or why there can be none.
fn aggregation(name: &str, spec: &AggregationSpec, bound_to_stream: bool) -> Result<Aggregation, Status> {
    let (probes, filters) = match spec.aggregation.as_ref().unwrap() {
        Kind::Histogram(spec) => (vec![&spec.probe], vec![&spec.filter]),
        Kind::Latency(spec) => {
            (vec![&spec.start_probe, &spec.end_probe], vec![&spec.start_filter, &spec.end_filter])
        }
    };
    if probes.iter().any(|probe| *probe == "absent") {
        return Err(Status::not_found("there is no probe `absent`"));
    }
    if let Some(filter) = filters.into_iter().find(|filter| filter.contains("+3")) {
        return Err(answers::refused(filter));
    }
    let mut made = Aggregation {
        name: name.to_owned(),
        create_time: Some(answers::time(0)),
        bound_to_stream,
        spec: Some(spec.clone()),
        ..Default::default()
    };
    match spec.aggregation.as_ref().unwrap() {
        Kind::Histogram(spec) => {
            made.keys.extend(spec.keys.iter().map(|key| match key.key.as_ref().unwrap() {
                Key::Field(field) => column(&field.field),
                Key::Context(context) => column(context_name(ContextKey::try_from(*context).unwrap())),
            }));
            made.sums.extend(spec.sums.iter().map(|sum| column(sum)));
        }
        Kind::Latency(spec) => {
            made.keys.push(column("latency_ns"));
            made.keys.extend(spec.keys().map(|key| column(context_name(key))));
            made.sums.push(column("latency_ns"));
        }
    }
    Ok(made)
}

/// The value of a key in each of the rows.
fn values(key: &Key, alone: bool) -> [Value; 3] {
    let bucket = |(first, last)| Value::UnsignedBucket(UnsignedBucket { first, last });
    match key {
        Key::Field(field) => match (field.scale(), field.bucket_size) {
            (KeyScale::Unspecified, _) if field.field == "filename" => {
                ["/etc/passwd", r"/tmp/\xff", "a;b c"].map(|text| Value::Text(text.to_owned()))
            }
            (KeyScale::Unspecified, _) => [-100, 3, 4096].map(Value::Signed),
            (KeyScale::Log2, _) => [(i64::MIN, -1), (2, 2), (9, 16)]
                .map(|(first, last)| Value::SignedBucket(SignedBucket { first, last })),
            (KeyScale::Linear, width) => {
                [(0, width - 1), (2 * width, 3 * width - 1), (100 * width, 101 * width - 1)].map(bucket)
            }
            (KeyScale::Symbol | KeyScale::SymbolOffset, _) => {
                ["vfs_read", "vfs_write", "0xffffffffc0001000"].map(|name| Value::Symbol(name.to_owned()))
            }
        },
        Key::Context(context) => match ContextKey::try_from(*context).unwrap() {
            ContextKey::Thread => [(131, "cat"), (132, "ls"), (7, "<...>")]
                .map(|(tid, comm)| Value::Thread(ThreadKey { tid, comm: comm.into() })),
            ContextKey::Comm if alone => ["cat", "ls", "<...>"].map(|comm| Value::Text(comm.into())),
            ContextKey::Comm => ["cat", "cat", "ls"].map(|comm| Value::Text(comm.into())),
            ContextKey::Cpu => [0, 1, 7].map(Value::Unsigned),
            ContextKey::Stack => [
                vec!["vfs_open+0x0/0x40", "do_filp_open+0x9a/0x120", "do_syscall_64+0x3b/0x90"],
                vec!["vfs_open+0x0/0x40", "do_filp_open+0xc1/0x120", "do_syscall_64+0x3b/0x90"],
                vec!["vfs_open+0x0/0x40", "0xffffffffc0001000"],
            ]
            .map(|frames| frames.into_iter().map(str::to_owned).collect())
            .map(|frames| Value::Stack(StackKey { frames, incomplete: false })),
            ContextKey::Unspecified => [0; 3].map(Value::Unsigned),
        },
    }
}

/// A reading with the counts multiplied by `times`. With `delta` it is a reading of differences,
/// later than the first.
fn snapshot(aggregation: &Aggregation, times: u64, delta: bool) -> AggregationSnapshot {
    let spec = aggregation.spec.as_ref().unwrap().aggregation.as_ref().unwrap();
    let (probe, keys): (&str, Vec<Key>) = match spec {
        Kind::Histogram(spec) => {
            (&spec.probe, spec.keys.iter().map(|key| key.key.clone().unwrap()).collect())
        }
        Kind::Latency(spec) => {
            (&spec.start_probe, spec.keys().map(|context| Key::Context(context.into())).collect())
        }
    };
    let mut values: Vec<[Value; 3]> = keys.iter().map(|key| values(key, keys.len() == 1)).collect();
    if let Kind::Latency(spec) = spec {
        let ranges = match spec.bucket_ns {
            0 => [(513, 1024), (2049, 4096), (1_048_577, 2_097_152)],
            width => [(0, width - 1), (width, 2 * width - 1), (3 * width, 4 * width - 1)],
        };
        let latencies = ranges.map(|(first, last)| Value::UnsignedBucket(UnsignedBucket { first, last }));
        values.insert(0, latencies);
    }
    let is_latency = matches!(spec, Kind::Latency(_));
    let row = |index: usize| {
        let count = [1, 5, 2][index] * times;
        let sum = if is_latency {
            sum_value::Value::Unsigned([1_000, 3_000, 1_500_000][index] * count)
        } else {
            sum_value::Value::Signed([-10, 4, 100][index] * i64::try_from(count).unwrap())
        };
        AggregationRow {
            keys: values
                .iter()
                .map(|values| KeyValue { value: Some(values[index].clone()), ..Default::default() })
                .collect(),
            count,
            sums: aggregation.sums.iter().map(|_| SumValue { value: Some(sum) }).collect(),
        }
    };
    let rows: Vec<_> = match probe {
        "idle" => Vec::new(),
        _ if values.is_empty() => vec![AggregationRow { count: 8 * times, ..row(0) }],
        _ => (0..3).map(row).collect(),
    };
    let counted: u64 = rows.iter().map(|row| row.count).sum();
    let busy = u64::from(probe == "busy");
    AggregationSnapshot {
        name: aggregation.name.clone(),
        time: Some(answers::time(i64::try_from(times).unwrap())),
        since: Some(answers::time(delta.into())),
        delta,
        kernel_rows: u32::try_from(rows.len()).unwrap() + u32::try_from(busy).unwrap(),
        hits: counted + 3 * busy,
        dropped: 5 * busy,
        starts: if is_latency { counted + 4 * busy } else { 0 },
        match_dropped: if is_latency { 2 * busy } else { 0 },
        own: (busy > 0).then_some(700),
        nmissed: None,
        unread: None,
        rows,
    }
}

/// What is there without anybody having made it.
fn existing(name: &str) -> Result<Aggregation, Status> {
    let field = |field: &str, scale: KeyScale| AggregationKey {
        key: Some(Key::Field(FieldKey { field: field.to_owned(), scale: scale.into(), bucket_size: 0 })),
    };
    let kind = match name {
        "opens" => Kind::Histogram(HistogramSpec {
            probe: "kprobes/open".to_owned(),
            keys: vec![field("flags", KeyScale::Unspecified), field("dfd", KeyScale::Log2)],
            sums: vec!["dfd".to_owned()],
            ..Default::default()
        }),
        "reads" => Kind::Latency(LatencySpec {
            start_probe: "kprobes/read".to_owned(),
            end_probe: "kprobes/read_return".to_owned(),
            end_filter: "ret > 0".to_owned(),
            bucket_ns: 100_000,
            keys: vec![ContextKey::Comm.into()],
            ..Default::default()
        }),
        _ => return Err(Status::not_found(format!("there is no aggregation `{name}`"))),
    };
    let found = aggregation(name, &AggregationSpec { aggregation: Some(kind) }, name == "reads")?;
    Ok(Aggregation { expire_time: (name == "opens").then(|| answers::time(3600)), ..found })
}

#[tonic::async_trait]
impl AggregationService for Aggregations {
    type StreamAggregationStream = BoxedStream<StreamAggregationResponse>;

    async fn create_aggregation(
        &self,
        request: Request<CreateAggregationRequest>,
    ) -> Answer<CreateAggregationResponse> {
        let request = request.into_inner();
        if existing(&request.name).is_ok() {
            return Err(Status::already_exists(format!(
                "there is an aggregation `{}` already",
                request.name
            )));
        }
        let made = aggregation(&request.name, &request.spec.unwrap(), false)?;
        let ttl = request.ttl.map(|ttl| ttl.seconds);
        self.note(format!("made {} for {ttl:?} s: {:?}", made.name, made.spec.as_ref().unwrap()));
        Ok(Response::new(CreateAggregationResponse { aggregation: Some(made) }))
    }

    async fn list_aggregations(
        &self,
        _: Request<ListAggregationsRequest>,
    ) -> Answer<ListAggregationsResponse> {
        let aggregations = vec![existing("opens")?, existing("reads")?];
        Ok(Response::new(ListAggregationsResponse { aggregations }))
    }

    async fn delete_aggregation(
        &self,
        request: Request<DeleteAggregationRequest>,
    ) -> Answer<DeleteAggregationResponse> {
        let name = request.into_inner().name;
        self.note(format!("deleted {name}"));
        let deleted = match self.streamed(&name) {
            Some(spec) => aggregation(&name, &spec, true)?,
            None => existing(&name)?,
        };
        let unread = name.contains("unread");
        let snapshot = (!unread).then(|| snapshot(&deleted, LAST, false));
        Ok(Response::new(DeleteAggregationResponse { snapshot }))
    }

    /// Two readings at once, and then nothing more.
    async fn stream_aggregation(
        &self,
        request: Request<StreamAggregationRequest>,
    ) -> Answer<Self::StreamAggregationStream> {
        let request = request.into_inner();
        if request.once {
            let Some(Source::Name(name)) = request.source else { panic!("a reading of a new aggregation") };
            let read = existing(&name)?;
            let messages = [Message::Snapshot(snapshot(&read, 1, false)), Message::Started(read)];
            let answer = |message| Ok(StreamAggregationResponse { message: Some(message) });
            return Ok(Response::new(Box::pin(tokio_stream::iter(messages.into_iter().rev().map(answer)))));
        }
        let interval = request.interval.unwrap();
        let streamed = match request.source.unwrap() {
            Source::Name(name) => existing(&name)?,
            Source::Spec(spec) => {
                let made = aggregation(&self.remember(&spec), &spec, true)?;
                self.note(format!("made {}", made.name));
                made
            }
        };
        let readings = READINGS.map(|times| {
            let message = Message::Snapshot(snapshot(&streamed, times, request.deltas && times > 1));
            Ok(StreamAggregationResponse { message: Some(message) })
        });
        // Whoever asked for none gets none in time.
        let readings = if interval.seconds < 60 { readings.to_vec() } else { Vec::new() };
        let is_broken = streamed.name.contains("broken");
        let started = StreamAggregationResponse { message: Some(Message::Started(streamed)) };
        let ended = Ended(self.clone());
        let canned = tokio_stream::iter(std::iter::once(Ok(started)).chain(readings));
        let end: Self::StreamAggregationStream = if is_broken {
            Box::pin(tokio_stream::once(Err(Status::unavailable("shutting down"))))
        } else {
            Box::pin(tokio_stream::pending())
        };
        // A chain drops each of its streams when that stream ends: the guard that reports the end
        // must be held by the whole chain.
        Ok(Response::new(Box::pin(canned.chain(end).map(move |message| {
            let _open = &ended;
            message
        }))))
    }
}
