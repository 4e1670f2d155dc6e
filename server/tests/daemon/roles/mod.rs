//! Matrix of what roles are told: every method of the API, over a real connection to a real server with every
//! service, by principals with every kind of role.
//!
//! The host has probes that a role does not show for each reason that there is: group, label, function, a function that
//! is not known, and an event of another program. Each of them has its own mark in every text about it, and no answer
//! and no refusal has the mark of one that the role hides. With a role that shows everything, the answers have the
//! marks: the test would notice them. Methods and texts of answers are those of the descriptors of the API: a new one
//! fails the test until it is classed here.

mod fields;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use kprobed::config::Listen;
use kprobed_proto::v1;
use kprobed_proto::v1::probe_change::Change;
use kprobed_rights::{METHODS, Method, Roles, Verb};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor, Value};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request};

use self::world::{FUNCTION, OTHER, Object};
use crate::server::{Server, Setup};
use crate::surface::raw::Raw;

/// How long a stream may have nothing to say.
const QUIET: Duration = Duration::from_millis(100);

/// A kind of role, and which objects it shows to who may look.
struct Case {
    name: &'static str,
    rules: &'static str,
    verbs: &'static [Verb],
    shows: &'static [Object],
}

const CASES: &[Case] = &[
    Case { name: "nothing", rules: "", verbs: &[], shows: &[] },
    Case {
        name: "read only, one group",
        rules: "[[role.allow]]\nmethods = [\"read\"]\ngroups = [\"open\"]\n",
        verbs: &[Verb::Read],
        shows: &[Object::Plain, Object::Labelled, Object::Placed, Object::Unknown],
    },
    Case {
        name: "read only, but not with a label",
        rules: "[[role.allow]]\nmethods = [\"read\"]\n[[role.deny]]\nmethods = [\"read\"]\nlabels = \"secret\"\n",
        verbs: &[Verb::Read],
        shows: &[Object::Plain, Object::Grouped, Object::Placed, Object::Unknown, Object::Foreign],
    },
    Case {
        name: "everything, but not on a function",
        rules: "[[role.allow]]\nmethods = [\"all\"]\nreads = [\"all\"]\n[[role.deny]]\nfunctions = [\"vfs_iocb_*\"]\n",
        verbs: &Verb::ALL,
        shows: &[Object::Plain, Object::Labelled],
    },
    Case {
        name: "check only",
        rules: "[[role.allow]]\nmethods = [\"check\"]\n",
        verbs: &[Verb::Check],
        shows: &[],
    },
    Case {
        name: "observe only, one group",
        rules: "[[role.allow]]\nmethods = [\"observe\"]\ngroups = [\"open\"]\nreads = [\"all\"]\n",
        verbs: &[Verb::Observe],
        shows: &[Object::Plain, Object::Labelled, Object::Placed, Object::Unknown],
    },
    Case {
        name: "change only, another group",
        rules: "[[role.allow]]\nmethods = [\"change\"]\ngroups = [\"elsewhere\"]\nreads = [\"all\"]\n",
        verbs: &[Verb::Change],
        shows: &[],
    },
    Case {
        name: "check, read and change on another group",
        rules: "[[role.allow]]\nmethods = [\"check\", \"read\", \"change\"]\ngroups = [\"elsewhere\"]\nreads = [\"all\"]\n",
        verbs: &[Verb::Check, Verb::Read, Verb::Change],
        shows: &[],
    },
    Case { name: EVERYTHING, rules: ALL, verbs: &Verb::ALL, shows: &Object::ALL },
];

const EVERYTHING: &str = "everything";
const ALL: &str = "[[role.allow]]\nmethods = [\"all\"]\nreads = [\"all\"]\n";

impl Case {
    /// Whether an answer of a method may have the mark of an object.
    fn shows(&self, method: &Method, object: Object) -> bool {
        // Answers of other methods have the probes that reading them shows.
        let by = if method.verb == Verb::Observe { Verb::Observe } else { Verb::Read };
        self.verbs.contains(&by) && self.shows.contains(&object)
    }
}

/// How the answers of a method come about.
enum Told {
    /// What these requests tell is judged by the object.
    Here(Vec<Bytes>),
    /// Only who administers the daemon, or nothing about objects. Of aggregations there are none: the kernel in memory
    /// has no histogram triggers, and `server/control/src/aggregation/access.rs` has tests of them.
    Method,
}

/// What is asked of a method. A method that is not here fails the test.
fn told(method: &str) -> Told {
    let objects = Object::ALL.iter();
    let one =
        |message: &dyn Fn(&Object) -> Vec<u8>| objects.clone().map(|object| message(object).into()).collect();
    let only = |message: Vec<u8>| Told::Here(vec![message.into()]);
    match method {
        "GetProbe" => {
            let by = |name: String| v1::GetProbeRequest { name, with_states: true }.encode_to_vec().into();
            Told::Here(objects.flat_map(|object| [by(object.name()), by(object.event())]).collect())
        }
        "ListProbes" => Told::Here(vec![
            v1::ListProbesRequest::default().encode_to_vec().into(),
            v1::ListProbesRequest { label_selector: "secret".to_owned(), ..Default::default() }
                .encode_to_vec()
                .into(),
        ]),
        "WatchProbes" => only(v1::WatchProbesRequest::default().encode_to_vec()),
        "ListHits" => only(v1::ListHitsRequest::default().encode_to_vec()),
        "GetLedger" => only(v1::GetLedgerRequest::default().encode_to_vec()),
        "GetHost" => {
            only(v1::GetHostRequest { view: v1::HostView::Full.into(), modules: Vec::new() }.encode_to_vec())
        }
        "ListForeignProbes" => only(v1::ListForeignProbesRequest::default().encode_to_vec()),
        "DisassembleFunction" => only(
            v1::DisassembleFunctionRequest { function: FUNCTION.to_owned(), ..Default::default() }
                .encode_to_vec(),
        ),
        "CheckProbe" => Told::Here(one(&|object| {
            v1::CheckProbeRequest { definition: object.again(), ..Default::default() }.encode_to_vec()
        }))
        .and(one(&|object| {
            v1::CheckProbeRequest { definition: format!("-:{}", object.name()), ..Default::default() }
                .encode_to_vec()
        }))
        .and(vec![
            v1::CheckProbeRequest { definition: "-:open/".to_owned(), ..Default::default() }
                .encode_to_vec()
                .into(),
        ]),
        "CheckProbes" => Told::Here(one(&|object| {
            let text = format!("{}\n-:{}\n", object.again(), object.name());
            v1::CheckProbesRequest { text: text.into(), listings: true }.encode_to_vec()
        })),
        "CheckAccess" => {
            let asked = |method: &str, object: v1::check_access_request::Object| {
                let (method, object) = (method.to_owned(), Some(object));
                v1::CheckAccessRequest { method, object, ..Default::default() }.encode_to_vec().into()
            };
            let named = |object: &Object| v1::check_access_request::Object::Name(object.name());
            let text = format!("p:open/other {FUNCTION}");
            Told::Here(objects.clone().map(|object| asked("GetProbe", named(object))).collect())
                .and(objects.clone().map(|object| asked("StreamEvents", named(object))).collect())
                .and(objects.map(|object| asked("UpdateProbe", named(object))).collect())
                .and(vec![asked("CreateProbe", v1::check_access_request::Object::Definition(text))])
        }
        "StreamEvents" => {
            let asked = |probe: &str, labels: &str, filter: &str| {
                let selection = v1::EventSelection {
                    probes: vec![probe.to_owned()],
                    label_selector: labels.to_owned(),
                    filter: filter.to_owned(),
                    ..Default::default()
                };
                v1::StreamEventsRequest { selection: Some(selection), ..Default::default() }
                    .encode_to_vec()
                    .into()
            };
            let exact = objects.clone().map(|object| asked(&object.name(), "", "")).collect();
            let event = objects.map(|object| asked(&object.event(), "", "")).collect();
            Told::Here(exact).and(event).and(vec![
                asked("*", "", ""),
                asked("*", "", "large == 1"),
                asked("*", "", "nosuch == 1"),
                asked("zb*/*", "", "nosuch == 1"),
                asked("*", "secret", ""),
                asked("*", "secret", "nosuch == 1"),
            ])
        }
        "ListFunctions" | "DescribeFunction" | "ReadClock" | "HoldProbes" | "GetCaller" | "ReadAudit" => {
            Told::Method
        }
        "ReconcileProbes" => {
            only(v1::ReconcileProbesRequest { validate_only: true, ..Default::default() }.encode_to_vec())
        }
        // Nothing is changed, so that all roles meet the same objects.
        "CreateProbe" => Told::Here(one(&|object| create(*object).encode_to_vec())),
        "UpdateProbe" => Told::Here(one(&|object| update(object.name()).encode_to_vec()))
            .and(one(&|object| update(object.event()).encode_to_vec())),
        "DeleteProbe" => Told::Here(one(&|object| delete(object.name()).encode_to_vec()))
            .and(one(&|object| delete(object.event()).encode_to_vec())),
        "ApplyProbes" => Told::Here(one(&|object| {
            let changes = [
                Change::Create(create(*object)),
                Change::Update(update(object.name())),
                Change::Delete(delete(object.event())),
            ];
            let changes = changes.map(|change| v1::ProbeChange { change: Some(change) }).into();
            v1::ApplyProbesRequest { changes, all_or_nothing: false }.encode_to_vec()
        }))
        // Alone, it has a plan: what else is recorded moves to another instance.
        .and(one(&|object| {
            let change = Some(Change::Delete(delete(object.name())));
            let changes = vec![v1::ProbeChange { change }];
            v1::ApplyProbesRequest { changes, all_or_nothing: true }.encode_to_vec()
        })),
        "AdoptProbe" => Told::Here(one(&|object| {
            v1::AdoptProbeRequest { name: object.name(), validate_only: true, ..Default::default() }
                .encode_to_vec()
        })),
        "CreateAggregation" => Told::Here(one(&|object| {
            v1::CreateAggregationRequest { spec: Some(histogram(*object)), ..Default::default() }
                .encode_to_vec()
        })),
        "StreamAggregation" => Told::Here(one(&|object| {
            let source = Some(v1::stream_aggregation_request::Source::Spec(histogram(*object)));
            v1::StreamAggregationRequest { source, once: true, ..Default::default() }.encode_to_vec()
        })),
        "ListAggregations" | "DeleteAggregation" => Told::Method,
        other => {
            panic!("say in `told` what the answers of {other} tell about probes, events and aggregations")
        }
    }
}

fn create(object: Object) -> v1::CreateProbeRequest {
    v1::CreateProbeRequest { definition: object.again(), validate_only: true, ..Default::default() }
}

fn update(name: String) -> v1::UpdateProbeRequest {
    v1::UpdateProbeRequest { name, enabled: Some(false), validate_only: true, ..Default::default() }
}

fn delete(name: String) -> v1::DeleteProbeRequest {
    v1::DeleteProbeRequest { name, validate_only: true, ..Default::default() }
}

/// Counts by a field that the probe does not have.
fn histogram(object: Object) -> v1::AggregationSpec {
    let probe = object.name();
    let spec = v1::HistogramSpec { probe, sums: vec!["nosuch".to_owned()], ..Default::default() };
    v1::AggregationSpec { aggregation: Some(v1::aggregation_spec::Aggregation::Histogram(spec)) }
}

impl Told {
    fn and(self, more: Vec<Bytes>) -> Self {
        match self {
            Self::Here(mut requests) => {
                requests.extend(more);
                Self::Here(requests)
            }
            Self::Method => Self::Method,
        }
    }
}

/// All that a call tells, as text: its messages, or its refusal with all details.
async fn answer(channel: &Channel, method: &MethodDescriptor, request: Bytes) -> (Code, String) {
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let request = Request::new(tokio_stream::once(request));
    let called = client.streaming(request, PathAndQuery::try_from(path).unwrap(), Raw).await;
    let (mut text, mut answers) = match called {
        Ok(answers) => (String::new(), answers.into_inner()),
        Err(status) => return (status.code(), refusal(&status)),
    };
    loop {
        match tokio::time::timeout(QUIET, answers.message()).await {
            Ok(Ok(Some(message))) => {
                let message = DynamicMessage::decode(method.output(), message).unwrap();
                texts(&Value::Message(message), &mut text);
            }
            Ok(Ok(None)) | Err(_) => return (Code::Ok, text),
            Ok(Err(status)) => return (status.code(), text + &refusal(&status)),
        }
    }
}

/// The texts of a message, and of all messages in it.
fn texts(value: &Value, text: &mut String) {
    match value {
        Value::String(value) => writeln!(text, "{value:?}").unwrap(),
        Value::Bytes(value) => writeln!(text, "{:?}", String::from_utf8_lossy(value)).unwrap(),
        Value::Message(message) => {
            for (_, value) in message.fields() {
                texts(value, text);
            }
        }
        Value::List(values) => {
            for value in values {
                texts(value, text);
            }
        }
        Value::Map(values) => {
            for (key, value) in values {
                writeln!(text, "{key:?}").unwrap();
                texts(value, text);
            }
        }
        _ => {}
    }
}

/// Whether a text tells more of an object than the request has said itself.
fn tells(asked: &str, text: &str, object: Object) -> bool {
    if !asked.contains(&object.event()) {
        return text.contains(object.mark());
    }
    // What the client has written itself is no secret; what becomes of the name is.
    let text = text.replace(&object.name(), "").replace(&object.event(), "").replace(&object.unnamed(), "");
    let text = if asked.contains(&object.name()) {
        let group = object.mark();
        text.replace(&format!("\"{group}\""), "").replace(&format!("group `{group}`"), "")
    } else {
        text
    };
    let of_its_event =
        ["kprobed has a probe", "did not define", "another program has defined", "NOTHING_TO_CHECK"];
    // An access is asked about: where it lies, and what it reads.
    let of_its_place = [FUNCTION, OTHER, "registers"];
    text.contains(object.mark())
        || of_its_event.iter().any(|words| text.contains(words))
        || (!asked.contains("p:") && of_its_place.iter().any(|words| text.contains(words)))
}

fn refusal(status: &tonic::Status) -> String {
    let metadata: Vec<_> = status.metadata().iter().map(|one| format!("{one:?}")).collect();
    format!("{} {} {}", status.message(), String::from_utf8_lossy(status.details()), metadata.join(" "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_tells_of_what_a_role_hides() {
    let setup = Setup { probes: world::probes(), foreign: world::FOREIGN, ..Setup::default() };
    // Those who have made the probes may have them.
    let makers: Vec<_> = Object::ALL.iter().map(|object| object.maker()).collect();
    let rules = format!("{ALL}[[role]]\nname = \"makers\"\nprincipals = {makers:?}\n{ALL}");
    let server = Server::open_with(Listen::default(), &rules, setup).await;
    let pool = DescriptorPool::decode(kprobed_proto::FILE_DESCRIPTOR_SET).unwrap();
    let methods: BTreeMap<_, _> = pool
        .services()
        .flat_map(|service| service.methods().collect::<Vec<_>>())
        .map(|method| (method.name().to_owned(), method))
        .collect();
    let uid = nix::unistd::getuid();
    let (mut cells, mut calls, mut told_too_much) = (0, 0, Vec::new());
    for case in CASES {
        let role = format!("[[role]]\nname = \"one\"\nprincipals = [\"uid:{uid}\"]\n{}", case.rules);
        server.rights.replace(Roles::parse(&role).unwrap());
        // A connection ends with the roles that it began with.
        let channel = server.local().await.unwrap();
        let mut seen = BTreeSet::new();
        for (name, descriptor) in &methods {
            let method = Method::named(name).unwrap();
            let requests = match told(name) {
                Told::Here(requests) => requests,
                Told::Method => vec![Bytes::new()],
            };
            let is_here = matches!(told(name), Told::Here(_));
            for request in requests {
                let asked = String::from_utf8_lossy(&request).into_owned();
                let (code, text) = answer(&channel, descriptor, request).await;
                calls += 1;
                if !case.verbs.contains(&method.verb) && name != "GetCaller" && name != "CheckAccess" {
                    assert_eq!(code, Code::PermissionDenied, "{}: {name}: {text}", case.name);
                }
                for object in Object::ALL {
                    let tells = tells(&asked, &text, object);
                    if is_here && tells {
                        seen.insert((name.clone(), object));
                    }
                    if tells && !case.shows(method, object) {
                        told_too_much
                            .push(format!("{}: {name} tells of {object:?} to {asked:?}: {text}", case.name));
                    }
                    cells += fields::about(&descriptor.output()).len().max(1);
                }
            }
        }
        if case.name == EVERYTHING {
            let methods: BTreeSet<_> = seen.iter().map(|(method, _)| method.as_str()).collect();
            let expected = [
                "AdoptProbe",
                "ApplyProbes",
                "CheckAccess",
                "CheckProbe",
                "CheckProbes",
                "CreateAggregation",
                "CreateProbe",
                "DeleteProbe",
                "DisassembleFunction",
                "GetHost",
                "GetLedger",
                "GetProbe",
                "ListForeignProbes",
                "ListHits",
                "ListProbes",
                "ReconcileProbes",
                "StreamAggregation",
                "StreamEvents",
                "UpdateProbe",
                "WatchProbes",
            ];
            assert_eq!(methods, BTreeSet::from(expected), "the marks are in the answers of these");
        }
    }
    assert!(told_too_much.is_empty(), "{}:\n{}", told_too_much.len(), told_too_much.join("\n"));
    assert!(METHODS.iter().filter(|method| method.path.starts_with("/kprobed.")).count() == methods.len());
    eprintln!("{calls} calls, {cells} cells");
    assert!(cells > 10_000, "{cells}");
}
