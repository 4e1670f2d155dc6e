//! Tests of `adopt`, `list --foreign` and `doctor --repair`.

use insta::assert_snapshot;
use kprobed_client::api::{AdoptProbeRequest, ReconcileOutcome, ReconciledProbe};
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
    let outcomes: Vec<_> = outcomes.iter().map(ReconciledProbe::outcome).collect();
    let expected = [ReconcileOutcome::AsWanted, ReconcileOutcome::Repaired, ReconcileOutcome::NotRepaired];
    assert_eq!(outcomes, expected);
}

#[test]
fn foreign_events_are_listed() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["list", "--foreign"]), @"
    exit: 0
    -- stdout
    NAME            KIND    PLACE     ENABLED IN       HITS  LOOKS OWN  ADOPTABLE
    kprobes/open    return  vfs_read  kprobed          1234  yes        yes
    perf/slow_path  entry   vfs_read  (top),trace-cmd  1234  no         yes
    perf/two        entry   vfs_read  -                   -  no         no
    -- stderr
    note: `perf/two` cannot be adopted: it has 2 probe points under one name, and a probe of kprobed has one
    ");
    assert_snapshot!(fake.run(&["list", "--foreign", "-o", "wide"]), @"
    exit: 0
    -- stdout
    NAME            KIND    PLACE     ENABLED IN       HITS  LOOKS OWN  ADOPTABLE  NMISSED  KERNEL DEFINITION
    kprobes/open    return  vfs_read  kprobed          1234  yes        yes              1  p:perf/slow_path vfs_read size=%dx:u64
    perf/slow_path  entry   vfs_read  (top),trace-cmd  1234  no         yes              1  p:perf/slow_path vfs_read size=%dx:u64
    perf/two        entry   vfs_read  -                   -  no         no               -  p:perf/two vfs_read; p:perf/two vfs_write
    -- stderr
    note: `perf/two` cannot be adopted: it has 2 probe points under one name, and a probe of kprobed has one
    ");
    assert_snapshot!(fake.run(&["list", "--foreign", "none/*"]), @"
    exit: 0
    -- stdout
    NAME  KIND  PLACE  ENABLED IN  HITS  LOOKS OWN  ADOPTABLE
    -- stderr
    note: no foreign event matches
    ");
    assert_snapshot!(fake.run(&["list", "--foreign", "two", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"name":"kprobes/open","kernel_definitions":["p:perf/slow_path vfs_read size=%dx:u64"],"kind":"PROBE_KIND_RETURN","place":"vfs_read","enabled_in":["kprobed"],"hits":"1234","nmissed":"1","made_by_kprobed":true,"obstacle":"","obstacle_message":"","definition":"p:perf/slow_path vfs_read size=%dx:u64"}
    {"name":"perf/slow_path","kernel_definitions":["p:perf/slow_path vfs_read size=%dx:u64"],"kind":"PROBE_KIND_ENTRY","place":"vfs_read","enabled_in":["","trace-cmd"],"hits":"1234","nmissed":"1","made_by_kprobed":false,"obstacle":"","obstacle_message":"","definition":"p:perf/slow_path vfs_read size=%dx:u64"}
    {"name":"perf/two","kernel_definitions":["p:perf/two vfs_read","p:perf/two vfs_write"],"kind":"PROBE_KIND_ENTRY","place":"vfs_read","enabled_in":[],"made_by_kprobed":false,"obstacle":"SEVERAL_PLACES","obstacle_message":"it has 2 probe points under one name, and a probe of kprobed has one","definition":""}
    -- stderr
    "#);
}

#[test]
fn events_are_adopted() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["adopt", "perf/slow_path", "perf/two", "--enable", "--label", "team=storage"]), @"
    exit: 1
    -- stdout
    perf/slow_path armed
    -- stderr
    error: `perf/two` cannot be adopted: it has 2 probe points under one name, and a probe of kprobed has one
    note: `perf/slow_path` is switched on in other trace instances as well, and stays so: (top), trace-cmd
    ");
    let whole = fake.run(&["adopt", "perf/slow_path"]);
    assert!(whole.contains("perf/slow_path disabled"), "{whole}");
    assert_eq!(fake.run(&["adopt", "slow_path"]), whole, "the event alone");
    assert_snapshot!(fake.run(&["adopt", "nothing"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: no event of another program is called `nothing`
    hint: `kprobectl list --foreign` lists them all
    ");
    assert_snapshot!(fake.run(&["adopt", "--all-own"]), @"
    exit: 0
    -- stdout
    kprobes/open armed
    -- stderr
    ");
    assert_snapshot!(fake.run(&["adopt", "perf/slow_path", "--dry-run"]), @"
    exit: 0
    -- stdout
    perf/slow_path disabled
    -- stderr
    note: `perf/slow_path` is switched on in other trace instances as well, and stays so: (top), trace-cmd
    note: this would be done, in the tracing directory:
      echo 1 > instances/kprobed/events/perf/slow_path/enable
    note: nothing was changed
    ");
    assert_snapshot!(fake.run(&["adopt"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the following required arguments were not provided:
      <NAME>...

    Usage: kprobectl adopt <NAME>...

    For more information, try '--help'.
    ");
}

#[test]
fn probes_are_looked_at() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["doctor", "--repair"]), @"
    exit: 1
    -- stdout
    NAME            FOUND    OUTCOME       STATE
    kprobes/open    armed    as-wanted     armed
    kprobes/opened  drifted  repaired      armed
    kprobes/read    drifted  not-repaired  drifted
    -- stderr
    note: `kprobes/opened` was drifted: its event is switched off in the daemon's instance
    note: `kprobes/read` was drifted: its event is switched off in the daemon's instance
    note: `kprobes/read` was not repaired: only others can do something about it
    ");
    assert_snapshot!(fake.run(&["doctor", "--repair", "--dry-run"]), @"
    exit: 1
    -- stdout
    NAME            FOUND    OUTCOME       STATE
    kprobes/open    armed    as-wanted     armed
    kprobes/opened  drifted  would-repair  drifted
    -- stderr
    note: `kprobes/opened` was drifted: its event is switched off in the daemon's instance
    note: this would be done, in the tracing directory:
      echo 1 > instances/kprobed/events/kprobes/opened/enable
    note: nothing was changed
    ");
    assert_snapshot!(fake.run(&["doctor", "--repair", "--force", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"name":"kprobes/open","found":"PROBE_STATE_ARMED","found_reason":"","found_message":"","outcome":"RECONCILE_OUTCOME_AS_WANTED","message":"","state":"PROBE_STATE_ARMED"}
    {"name":"kprobes/opened","found":"PROBE_STATE_DRIFTED","found_reason":"SWITCHED_OFF","found_message":"its event is switched off in the daemon's instance","outcome":"RECONCILE_OUTCOME_REPAIRED","message":"","state":"PROBE_STATE_ARMED"}
    -- stderr
    "#);
}
