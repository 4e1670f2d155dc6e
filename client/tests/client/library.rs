//! The library against a fake daemon.

use kprobed_client::api::ListHitProfileSamplesRequest;
use kprobed_client::event::StreamItem;
use kprobed_client::{Client, ConnectOptions, Definition, Error, Target};

use super::fake::{Ending, Fake};

async fn client(fake: &Fake) -> Client {
    let target = Target::Unix(fake.socket().to_owned());
    Client::connect(target, ConnectOptions::default()).await.unwrap()
}

#[tokio::test]
async fn pages_are_put_together() {
    let fake = Fake::start(Ending::Open);
    let client = client(&fake).await;
    let names: Vec<_> = client.list_probes("").await.unwrap().into_iter().map(|probe| probe.name).collect();
    assert_eq!(names, ["kprobes/open", "kprobes/waiting"]);
    assert_eq!(client.hit_profile_samples(ListHitProfileSamplesRequest::default()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn refusals_carry_their_diagnostics() {
    let fake = Fake::start(Ending::Open);
    let error = client(&fake).await.set_filter("open", "a +3").await.unwrap_err();
    let refusal = error.rpc().unwrap();
    assert_eq!(refusal.reason, "BAD_INSN_BNDRY");
    assert_eq!(refusal.diagnostics.as_ref().unwrap().text, "a +3");
}

#[tokio::test]
async fn verdicts_come_one_by_one() {
    let fake = Fake::start(Ending::Open);
    // Pieces may end anywhere.
    let pieces = ["p:open do_sys_", "openat2\n# no\n-:x", "\np:open do_sys_openat2+3"];
    let text = tokio_stream::iter(pieces.map(|piece| piece.as_bytes().to_vec()));
    let mut checks = client(&fake).await.check_probes(text, false).await.unwrap();
    let mut seen = Vec::new();
    while let Some(checked) = checks.next().await.unwrap() {
        seen.push((checked.line, checked.definition, checked.check.unwrap().errno, checks.ready()));
    }
    let line = |text: &str| text.to_owned();
    assert_eq!(
        seen,
        [
            (1, line("p:open do_sys_openat2"), 0, 1),
            (3, line("-:x"), 0, 0),
            (4, line("p:open do_sys_openat2+3"), 84, 0)
        ]
    );
}

#[tokio::test]
async fn events_come_as_rows() {
    let fake = Fake::start(Ending::Ended);
    let client = client(&fake).await;
    let mut stream = client.stream_events(Vec::new(), 0).await.unwrap();
    let mut seen = Vec::new();
    while let Some(item) = stream.next().await.unwrap() {
        match item {
            StreamItem::Started(started) => seen.push(format!("started {}", started.clock)),
            StreamItem::Schema(schema) => seen.push(format!("schema of {}", schema.probe())),
            StreamItem::Loss(loss) => seen.push(format!("lost {:?}", loss.count)),
            StreamItem::Batch(batch) => {
                seen.extend(batch.rows().map(|row| row.field("filename").unwrap().to_string()));
            }
        }
    }
    assert_eq!(
        seen,
        [
            "started mono",
            "schema of kprobes/open",
            "lost Some(12)",
            "\"/etc/passwd\"",
            "\"/tmp/\\xff\"",
            "(fault)"
        ]
    );
    let mut rows = client.stream_event_rows(Vec::new(), 0).await.unwrap();
    assert_eq!(rows.next().await.unwrap().unwrap().events.len(), 1);
    assert!(rows.next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_missing_daemon_is_a_connect_error() {
    let target: Target = "/nonexistent/kprobed.sock".parse().unwrap();
    let error = Client::connect(target, ConnectOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }));
    assert!(error.hints()[0].contains("is the daemon running"));
}

#[tokio::test]
async fn definitions_can_be_fields() {
    let fake = Fake::start(Ending::Open);
    let client = client(&fake).await;
    let spec = client.get_probe("open").await.unwrap().spec.unwrap();
    assert_eq!(client.explain_probe(spec.clone()).await.unwrap().spec, Some(spec.clone()));
    assert_eq!(client.check_probe(spec.clone()).await.unwrap().definition, "p:open do_sys_openat2+3");
    let probe = client.create_probe(Definition::from(spec.clone()).into()).await.unwrap();
    assert_eq!(probe.spec, Some(spec));
}
