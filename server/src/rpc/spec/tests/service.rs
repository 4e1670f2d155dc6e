//! Tests of both forms through the service, over a connection.

use std::sync::Arc;
use std::time::SystemTime;

use kprobed_client::{Client, ConnectOptions, Error, FetchArg, ProbeBuilder, Target};
use kprobed_proto::v1::probe_service_server::ProbeServiceServer;
use tokio_stream::wrappers::UnixListenerStream;

use super::*;
use crate::auth::{AuditQueue, Rights, as_daemon};
use crate::control::{Controller, Observer, ProbeStates, Registry};
use crate::rpc::ProbeServer;
use crate::shutdown::Tasks;
use crate::store::Store;
use kprobed_host::kernel::{FactsCache, KernelPaths};
use kprobed_host::tracefs::{CurrentInstance, Instance, Tracefs};
use kprobed_rights::Roles;
use kprobed_verdict::checker::Checker;

/// A client of a service that knows the kernel's language, and nothing else of the kernel.
async fn client(directory: &tempfile::TempDir) -> Client {
    let nowhere = || "/nonexistent".into();
    let paths = KernelPaths { procfs: nowhere(), sysfs: nowhere(), tracefs: nowhere(), debugfs: nowhere() };
    // No thread takes commands: a request that reaches the control thread is answered with
    // `Stopping`.
    let (control, _) = Controller::channel();
    std::fs::create_dir_all(directory.path().join("instances/i")).unwrap();
    let tracefs = Tracefs::new(directory.path(), "/nonexistent");
    let instance = CurrentInstance::new(Instance::find(&tracefs, "i").unwrap());
    let observer = Observer::new(tracefs, Arc::new(instance), nowhere(), nowhere());
    let server = ProbeServer {
        states: ProbeStates { observer, control: control.clone(), registry: Arc::default() },
        control,
        registry: Arc::<Registry>::default(),
        checker: Arc::new(Checker::new(v6_12(), Arc::new(FactsCache::new(paths)))),
        store: Store::open(directory.path(), SystemTime::now()).await.unwrap().store,
        declarations: Arc::default(),
        costs: Arc::default(),
        rights: Arc::new(Rights::new(Roles::default(), AuditQueue::new().0)),
    };
    let socket = directory.path().join("socket");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let router =
        tonic::transport::Server::builder().layer(as_daemon()).add_service(ProbeServiceServer::new(server));
    Tasks::default().spawn("service", async move {
        router.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap();
    });
    Client::connect(Target::Unix(socket), ConnectOptions::default()).await.unwrap()
}

/// The reason and the fields of a refusal.
fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> (String, Vec<String>) {
    let error = result.unwrap_err();
    let refused = error.rpc().unwrap();
    (refused.reason.clone(), refused.fields.iter().map(|violation| violation.field.clone()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_are_explained_like_the_text_that_they_stand_for() {
    let directory = tempfile::tempdir().unwrap();
    let client = client(&directory).await;
    let line = "p:g/e vfs_read x=+8($arg1):u32 %si";
    let by_text = client.explain_probe(line).await.unwrap();
    let by_fields = client.explain_probe(spec(line)).await.unwrap();
    assert_eq!(by_text, by_fields);
    assert_eq!(by_fields.definition, line);
    let read = by_text.spec.unwrap();
    assert_eq!(read.arguments[1].name, "arg2", "every argument has a name");
    // The service's answer can be sent again, and means the same.
    let again = client.explain_probe(read.clone()).await.unwrap();
    assert_eq!(again.kernel_definition, by_text.kernel_definition);
    assert_eq!(again.spec, Some(read));
    // Other dialects have the same fields.
    let prototype = client.explain_probe("f(int a)").await.unwrap().spec.unwrap();
    assert_eq!(prototype, spec("p:functions/f f a=$arg1:s32"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_together_step_by_step_is_the_line() {
    let directory = tempfile::tempdir().unwrap();
    let client = client(&directory).await;
    let entry = ProbeBuilder::entry("f")
        .module("m")
        .offset(4)
        .event("g", "e")
        .argument("a", FetchArg::register("di").at(8).at_user(-16).typed(v1::FetchTypeName::U16))
        .argument("b", FetchArg::symbol("jiffies", 8).typed(v1::FetchTypeName::X8).array(4))
        .argument("c", FetchArg::comm());
    let exit = ProbeBuilder::returning("f")
        .maxactive(7)
        .argument("", FetchArg::retval())
        .argument("text", FetchArg::argument(2).typed(v1::FetchTypeName::String).at(0));
    for (built, line) in [
        (entry, "p:g/e m:f+4 a=-u16(+8(%di)):u16 b=@jiffies+8:x8[4] c=$comm"),
        (exit, "r7 f $retval text=+0($arg2):string"),
    ] {
        let explained = client.explain_probe(built).await.unwrap();
        assert_eq!(explained.definition, line);
        assert_eq!(explained, client.explain_probe(line).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_one_form() {
    let directory = tempfile::tempdir().unwrap();
    let client = client(&directory).await;
    let both = || (String::from("p f"), Some(spec("p f")));
    let neither = || (String::new(), None);
    let expected = ("BAD_ARGUMENT".to_owned(), vec!["definition".to_owned()]);
    for (definition, spec) in [both(), neither()] {
        let create = v1::CreateProbeRequest { definition, spec, ..Default::default() };
        assert_eq!(refusal(client.create_probe(create).await), expected);
    }
    assert_eq!(refusal(client.check_probe("").await), expected);
    assert_eq!(refusal(client.explain_probe("").await), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_the_field() {
    let directory = tempfile::tempdir().unwrap();
    let client = client(&directory).await;
    // The parser refuses it: the same code as for the text, and the text that it is about.
    let mut fields = spec("p:g/e vfs_read x=+8(%di) y=%si");
    fields.arguments[1].name = "x".to_owned();
    let checked = client.check_probe(fields.clone()).await.unwrap();
    assert_eq!((checked.verdict(), checked.rule.as_str()), (v1::Verdict::Refused, "USED_ARG_NAME"));
    assert_eq!(checked.definition, "p:g/e vfs_read x=+8(%di) x=%si");
    assert_eq!(checked.diagnostics[0].field, "spec.arguments[1].name");
    let as_text = client.check_probe(checked.definition.as_str()).await.unwrap();
    assert_eq!((as_text.rule, as_text.errno), (checked.rule, checked.errno));
    assert_eq!(as_text.diagnostics[0].field, "");
    let explained = client.explain_probe(fields).await;
    assert_eq!(refusal(explained), ("USED_ARG_NAME".to_owned(), vec!["spec.arguments[1].name".to_owned()]));

    // No line can express it.
    let mut fields = spec("p:g/e vfs_read x=+8(%di)");
    fields.event = "e f".to_owned();
    let expected = ("BAD_CHARACTER".to_owned(), vec!["spec.event".to_owned()]);
    let create = v1::CreateProbeRequest { spec: Some(fields.clone()), ..Default::default() };
    assert_eq!(refusal(client.create_probe(create).await), expected);
    assert_eq!(refusal(client.explain_probe(fields.clone()).await), expected);
    let checked = client.check_probe(fields).await.unwrap();
    assert_eq!((checked.verdict(), checked.errno_name.as_str()), (v1::Verdict::Refused, "EINVAL"));
    assert_eq!((checked.diagnostics[0].field.as_str(), checked.definition.as_str()), ("spec.event", ""));

    // A definition that is sent as text has no such fields.
    assert_eq!(
        refusal(client.explain_probe("p:x").await),
        ("NO_PLACE".to_owned(), vec!["definition".to_owned()])
    );
}
