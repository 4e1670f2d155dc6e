//! Commands about what the kernel has and the daemon did not define, and about what others have changed.

use insta::assert_snapshot;
use kprobed_client::api::{AdoptProbeRequest, ReconcileOutcome};
use tonic::Code;

use super::fake::{Ending, Fake, client};

#[tokio::test]
async fn the_library_lists_adopts_and_reconciles() {
    let fake = Fake::start(Ending::Open);
    let client = client(fake.socket()).await;
    let names: Vec<_> =
        client.foreign_probes("").await.unwrap().into_iter().map(|event| event.name).collect();
    assert_eq!(names, ["kprobes/open", "perf/slow_path", "perf/two"], "all pages");
    let request = |name: &str| AdoptProbeRequest { name: name.to_owned(), ..Default::default() };
    let adopted = client.adopt_probe(request("perf/slow_path")).await.unwrap();
    assert_eq!(adopted.enabled_in, ["", "trace-cmd"]);
    assert_eq!(
        client.adopt_probe(request("no/event")).await.unwrap_err().rpc().unwrap().code,
        Code::NotFound
    );
    let outcomes = client.reconcile_probes(false).await.unwrap();
    let outcomes: Vec<_> = outcomes.iter().map(|probe| probe.outcome()).collect();
    let expected = [ReconcileOutcome::AsWanted, ReconcileOutcome::Repaired, ReconcileOutcome::NotRepaired];
    assert_eq!(outcomes, expected);
}

#[test]
fn foreign_events_are_listed() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["list", "--foreign"]), @"");
    assert_snapshot!(fake.run(&["list", "--foreign", "-o", "wide"]), @"");
    assert_snapshot!(fake.run(&["list", "--foreign", "none/*"]), @"");
    assert_snapshot!(fake.run(&["list", "--foreign", "two", "-o", "json"]), @"");
}

#[test]
fn events_are_adopted() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["adopt", "perf/slow_path", "perf/two", "--enable", "-l", "team=storage"]), @"");
    assert_snapshot!(fake.run(&["adopt", "--all-own"]), @"");
    assert_snapshot!(fake.run(&["adopt", "perf/slow_path", "--dry-run"]), @"");
    assert_snapshot!(fake.run(&["adopt"]), @"");
}

#[test]
fn probes_are_looked_at() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["reconcile"]), @"");
    assert_snapshot!(fake.run(&["reconcile", "--force", "-o", "json"]), @"");
}
