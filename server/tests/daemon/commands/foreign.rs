//! Tests of `adopt`, `list --foreign` and `doctor --repair`.

use insta::assert_snapshot;
use kprobed_client::api::{AdoptProbeRequest, ReconcileOutcome, ReconciledProbe};
use tonic::Code;

use super::Host;
use crate::server::Setup;

const FOREIGN: &[&str] =
    &["p:perf/slow_path vfs_read size=%dx:u64", "p:perf/two vfs_read", "p:perf/two do_sys_openat2"];

#[tokio::test(flavor = "multi_thread")]
async fn foreign_events_are_listed() {
    let host = Host::with(Setup { foreign: FOREIGN, ..Setup::default() }).await;
    assert_snapshot!(host.run(&["list", "--foreign"]), @"
    exit: 0
    -- stdout
    NAME            KIND   PLACE     ENABLED IN  HITS  LOOKS OWN  ADOPTABLE
    perf/slow_path  entry  vfs_read  -              0  no         yes
    perf/two        entry  vfs_read  -              0  no         no
    -- stderr
    note: `perf/two` cannot be adopted: it has 2 probe points under one name, and a probe of kprobed has one
    ");
    assert_snapshot!(host.run(&["list", "--foreign", "-o", "wide"]), @"
    exit: 0
    -- stdout
    NAME            KIND   PLACE     ENABLED IN  HITS  LOOKS OWN  ADOPTABLE  NMISSED  KERNEL DEFINITION
    perf/slow_path  entry  vfs_read  -              0  no         yes              0  p:perf/slow_path vfs_read size=%dx:u64
    perf/two        entry  vfs_read  -              0  no         no               0  p:perf/two vfs_read; p:perf/two do_sys_openat2
    -- stderr
    note: `perf/two` cannot be adopted: it has 2 probe points under one name, and a probe of kprobed has one
    ");
    assert_snapshot!(host.run(&["list", "--foreign", "none/*"]), @"
    exit: 0
    -- stdout
    NAME  KIND  PLACE  ENABLED IN  HITS  LOOKS OWN  ADOPTABLE
    -- stderr
    note: no foreign event matches
    ");
    assert_snapshot!(host.run(&["list", "--foreign", "*two", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"name":"perf/two","kernel_definitions":["p:perf/two vfs_read","p:perf/two do_sys_openat2"],"kind":"PROBE_KIND_ENTRY","place":"vfs_read","enabled_in":[],"hits":"0","nmissed":"0","made_by_kprobed":false,"obstacle":"SEVERAL_PLACES","obstacle_message":"it has 2 probe points under one name, and a probe of kprobed has one","definition":""}
    -- stderr
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_adopted() {
    let host = Host::with(Setup { foreign: FOREIGN, ..Setup::default() }).await;
    let neighbour = host.server.neighbour();
    neighbour.set("events/perf/slow_path/enable", "1").unwrap();
    // As a daemon whose database was lost has left it.
    neighbour.add("kprobe_events", "r:kprobes/lost vfs_read").unwrap();
    neighbour.set("instances/i/events/kprobes/lost/enable", "1").unwrap();
    assert_snapshot!(host.run(&["adopt", "perf/slow_path", "--dry-run"]), @"
    exit: 0
    -- stdout
    perf/slow_path disabled
    -- stderr
    note: `perf/slow_path` is switched on in other trace instances as well, and stays so: (top)
    note: nothing was changed
    ");
    assert_snapshot!(host.run(&["adopt", "slow_path", "perf/two", "--enable", "--label", "team=storage"]), @"
    exit: 1
    -- stdout
    perf/slow_path armed
    -- stderr
    error: `perf/two` cannot be adopted: it has 2 probe points under one name, and a probe of kprobed has one [NOT_ADOPTABLE]
    note: `perf/slow_path` is switched on in other trace instances as well, and stays so: (top)
    ");
    assert_snapshot!(host.run(&["adopt", "nothing"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: no event of another program is called `nothing`
    hint: `kprobectl list --foreign` lists them all
    ");
    assert_snapshot!(host.run(&["adopt", "--all-own"]), @"
    exit: 0
    -- stdout
    kprobes/lost armed
    -- stderr
    ");
    assert_snapshot!(host.run(&["adopt"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the following required arguments were not provided:
      <NAME>...

    Usage: kprobectl adopt <NAME>...

    For more information, try '--help'.
    ");
    assert_snapshot!(host.run(&["list"]), @"
    exit: 0
    -- stdout
    NAME            KIND    STATE  LOCATION
    kprobes/lost    return  armed  vfs_read+0x0
    perf/slow_path  entry   armed  vfs_read+0x0
    -- stderr
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_program_has_changed_is_repaired() {
    let host = Host::with_probes().await;
    let switch = "instances/i/events/kprobes/open/enable";
    host.server.neighbour().set(switch, "0").unwrap();
    assert_snapshot!(host.run(&["list"]), @"
    exit: 0
    -- stdout
    NAME          KIND    STATE     LOCATION            FILTER
    kprobes/open  entry   drifted   do_sys_openat2+0x0  dfd == -100
    kprobes/read  return  disabled  vfs_read+0x0        -
    -- stderr
    note: `kprobes/open` is drifted: its event is switched off in the daemon's instance
    hint: enable the probe: that switches its event on again
    ");
    assert_snapshot!(host.run(&["doctor", "--repair", "--dry-run"]), @"
    exit: 1
    -- stdout
    NAME          FOUND     OUTCOME       STATE
    kprobes/open  drifted   would-repair  drifted
    kprobes/read  disabled  as-wanted     disabled
    -- stderr
    note: `kprobes/open` was drifted: its event is switched off in the daemon's instance
    note: this would be done, in the tracing directory:
      echo 1 > instances/i/events/kprobes/open/enable
    note: nothing was changed
    ");
    assert_snapshot!(host.run(&["doctor", "--repair"]), @"
    exit: 0
    -- stdout
    NAME          FOUND     OUTCOME    STATE
    kprobes/open  drifted   repaired   armed
    kprobes/read  disabled  as-wanted  disabled
    -- stderr
    note: `kprobes/open` was drifted: its event is switched off in the daemon's instance
    ");
    assert_snapshot!(host.run(&["doctor", "--repair", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"name":"kprobes/open","found":"PROBE_STATE_ARMED","found_reason":"","found_message":"","outcome":"RECONCILE_OUTCOME_AS_WANTED","message":"","state":"PROBE_STATE_ARMED"}
    {"name":"kprobes/read","found":"PROBE_STATE_DISABLED","found_reason":"","found_message":"","outcome":"RECONCILE_OUTCOME_AS_WANTED","message":"","state":"PROBE_STATE_DISABLED"}
    -- stderr
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_lists_adopts_and_reconciles() {
    let host = Host::with(Setup { foreign: FOREIGN, ..Setup::default() }).await;
    let client = host.client().await;
    let names: Vec<_> =
        client.foreign_probes("").await.unwrap().into_iter().map(|event| event.name).collect();
    assert_eq!(names, ["perf/slow_path", "perf/two"]);
    let request = |name: &str| AdoptProbeRequest { name: name.to_owned(), ..Default::default() };
    let adopted = client.adopt_probe(request("perf/slow_path")).await.unwrap();
    assert_eq!(adopted.probe.map(|probe| probe.name).as_deref(), Some("perf/slow_path"));
    let refused = client.adopt_probe(request("no/event")).await.unwrap_err();
    assert_eq!(refused.rpc().map(|rpc| rpc.code), Some(Code::NotFound), "{refused}");
    let outcomes = client.reconcile_probes(false).await.unwrap();
    let outcomes: Vec<_> = outcomes.iter().map(ReconciledProbe::outcome).collect();
    assert_eq!(outcomes, [ReconcileOutcome::AsWanted]);
}
