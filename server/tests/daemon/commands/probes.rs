//! Tests of commands that make, show, change and delete probes.

use insta::assert_snapshot;
use kprobed_client::Error;
use kprobed_client::api::{CreateProbeRequest, DeleteProbeRequest};
use serde_json::Value;

use super::Host;

const DEFINITION: &str = "p:open do_sys_openat2";

#[tokio::test(flavor = "multi_thread")]
async fn add() {
    let host = Host::new().await;
    assert_snapshot!(host.run(&["add", DEFINITION]), @"
    exit: 0
    -- stdout
    kprobes/open
    -- stderr
    note: a hit takes 500±250 ns (an estimate: this host was not measured)
    ");
    assert_snapshot!(host.run(&["add", "p:waiting", "vfs_read", "--disabled", "--dry-run"]), @"
    exit: 0
    -- stdout
    kprobes/waiting
    -- stderr
    note: a hit takes 500±250 ns (an estimate: this host was not measured)
    note: this would be done, in the tracing directory:
      echo 'p:kprobes/waiting vfs_read' >> kprobe_events
    note: nothing was changed
    ");
    assert_snapshot!(host.run(&["add", DEFINITION]), @"
    exit: 1
    -- stdout
    -- stderr
    error: kprobed has a probe `kprobes/open` already: it is exactly this probe [SAME_PROBE]
      | p:open do_sys_openat2
      | ^^^^^^
    hint: `kprobectl observe kprobes/open` shows its events; for a probe of your own, leave the name out: the daemon chooses a free one
    ");
    assert_snapshot!(host.run(&["add", "p:other do_sys_openat2+3"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: +3 is in the middle of the instruction at +0 of `do_sys_openat2` [BAD_INSN_BNDRY]
      | p:other do_sys_openat2+3
      |         ^^^^^^^^^^^^^^^^
    hint: +0 and +5 work
    ");
    assert_snapshot!(host.run(&["add", "-:kprobes/open"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: this line deletes a probe
    hint: `kprobectl delete kprobes/open` does it
    ");
    assert_snapshot!(host.run(&["add", "--", "-:kprobes/"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: this line deletes a probe
    hint: `kprobectl delete 'kprobes/*'` does it
    ");
    assert_snapshot!(host.run(&["add"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the following required arguments were not provided:
      <DEFINITION>...

    Usage: kprobectl add <DEFINITION>...

    For more information, try '--help'.
    ");
    assert_snapshot!(host.fed(&["add", "-"], b"# a comment\n\nr:read vfs_read\n"), @"
    exit: 0
    -- stdout
    kprobes/read
    -- stderr
    note: a hit takes 1000±500 ns (an estimate: this host was not measured)
    ");
    assert_snapshot!(host.fed(&["add", "-"], b"-:kprobes/open\n"), @"
    exit: 2
    -- stdout
    -- stderr
    error: this line deletes a probe
    hint: `kprobectl delete kprobes/open` does it
    ");
    assert_snapshot!(host.fed(&["add", "-"], b"p:a b\np:c d\n"), @"
    exit: 2
    -- stdout
    -- stderr
    error: standard input has more than one definition
    hint: `-f -` reads several
    ");
    assert_snapshot!(host.run(&["add", "p:open do_sys_openat2 dfd=%di", "p:read vfs_read n=%dx"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: there is more than one definition
    hint: `-f FILE` reads several, one on each line
    ");
    assert_snapshot!(host.run(&["list", "-o", "name"]), @"
    exit: 0
    -- stdout
    kprobes/open
    kprobes/read
    -- stderr
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn add_from_a_file() {
    let host = Host::new().await;
    let good = "# all\np:open do_sys_openat2\nr:read vfs_read\n";
    assert_snapshot!(host.run(&["add", "-f", &host.file(good), "--dry-run"]), @"
    exit: 0
    -- stdout
    kprobes/open
    kprobes/read
    -- stderr
    note: `kprobes/open`: a hit takes 500±250 ns (an estimate: this host was not measured)
    note: `kprobes/read`: a hit takes 1000±500 ns (an estimate: this host was not measured)
    note: this would be done, in the tracing directory:
      echo 'p:kprobes/open do_sys_openat2' >> kprobe_events
      echo 'r:kprobes/read vfs_read' >> kprobe_events
      echo 1 > instances/i/events/kprobes/open/enable
      echo 1 > instances/i/events/kprobes/read/enable
    note: nothing was changed
    ");
    let refused = host.file("p:open do_sys_openat2\np:inside do_sys_openat2+3\nr:read vfs_read\n");
    assert_snapshot!(host.run(&["add", "-f", &refused]), @"
    exit: 1
    -- stdout
    -- stderr
    line 2:
    error: +3 is in the middle of the instruction at +0 of `do_sys_openat2` [BAD_INSN_BNDRY]
      | p:inside do_sys_openat2+3
      |          ^^^^^^^^^^^^^^^^
    hint: +0 and +5 work
    note: nothing was changed
    ");
    let with_deletion = host.file("p:open do_sys_openat2\n-:kprobes/open # gone\n");
    assert_snapshot!(host.run(&["add", "-f", &with_deletion]), @"
    exit: 2
    -- stdout
    -- stderr
    error: line 2 deletes a probe
    hint: `kprobectl delete kprobes/open` does it
    ");
    let twice = host.file("p:open do_sys_openat2\np:open do_sys_openat2\n");
    assert_snapshot!(host.run(&["add", "-f", &twice]), @"
    exit: 1
    -- stdout
    -- stderr
    line 2:
    error: another change of this request is about `kprobes/open` [CHANGED_TWICE]
    note: nothing was changed
    ");
    let unreadable = host.file("p:open do_sys_openat2\np:open do_sys_openat2?\n");
    assert_snapshot!(host.run(&["add", "-f", &unreadable]), @"
    exit: 1
    -- stdout
    -- stderr
    line 2:
    error: the kernel has no symbol `do_sys_openat2?` [BAD_PROBE_ADDR]
      | p:open do_sys_openat2?
      |        ^^^^^^^^^^^^^^^
    hint: did you mean `do_sys_openat2`?
    note: nothing was changed
    ");
    assert_snapshot!(host.run(&["list"]), @"
    exit: 0
    -- stdout
    NAME  KIND  STATE  LOCATION
    -- stderr
    note: there are no probes: `kprobectl add` defines one
    ");
    assert_snapshot!(host.run(&["add", "-f", &host.file(good)]), @"
    exit: 0
    -- stdout
    kprobes/open
    kprobes/read
    -- stderr
    note: `kprobes/open`: a hit takes 500±250 ns (an estimate: this host was not measured)
    note: `kprobes/read`: a hit takes 1000±500 ns (an estimate: this host was not measured)
    ");
    assert_snapshot!(host.run(&["list", "--no-headers"]), @"
    exit: 0
    -- stdout
    kprobes/open  entry   armed  do_sys_openat2+0x0
    kprobes/read  return  armed  vfs_read+0x0
    -- stderr
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn list_and_get() {
    let host = Host::with_probes().await;
    assert_snapshot!(host.run(&["list"]), @"
    exit: 0
    -- stdout
    NAME          KIND    STATE     LOCATION            FILTER
    kprobes/open  entry   armed     do_sys_openat2+0x0  dfd == -100
    kprobes/read  return  disabled  vfs_read+0x0        -
    -- stderr
    ");
    assert_snapshot!(host.run(&["list", "-o", "csv"]), @r#"
    exit: 0
    -- stdout
    name,kind,state,location,filter,lease,labels,uid,created,creator,reason,definition
    kprobes/open,entry,armed,do_sys_openat2+0x0,dfd == -100,,"team=storage,tier=2",1,2026-01-31T12:00:00Z,uid:0,,p:open do_sys_openat2 dfd=%di:s32
    kprobes/read,return,disabled,vfs_read+0x0,,,,2,2026-01-31T12:00:00Z,uid:0,,r:read vfs_read
    -- stderr
    "#);
    // A rate takes a while.
    let shown = host.run(&["get", "open"]);
    let shown: Vec<_> = shown.lines().filter(|line| !line.starts_with("hits per second")).collect();
    assert_snapshot!(shown.join("\n"), @"
    exit: 0
    -- stdout
    name               kprobes/open
    uid                1
    kind               entry
    state              armed
    state reason       -
    state hint         -
    state since        2026-01-31T12:00:00Z
    enabled            yes
    location           do_sys_openat2+0x0
    filter             dfd == -100
    labels             team=storage,tier=2
    description        slow opens
    owner              storage
    created by         uid:0
    declared by        -
    lease              -
    on kernel change   hold
    definition         p:open do_sys_openat2 dfd=%di:s32
    kernel definition  p:kprobes/open do_sys_openat2 dfd=%di:s32
    created            2026-01-31T12:00:00Z
    updated            2026-01-31T12:00:00Z
    etag               1-1
    hits               0
    misses             0
    last hit           -

    SINCE                 STATE  WHY
    2026-01-31T12:00:00Z  armed  -

    FIELD  TYPE  FAULTS
    dfd    s32   detected
    -- stderr
    ");
    assert_snapshot!(host.run(&["get", "kprobes/read", "-o", "yaml"]), @"
    exit: 0
    -- stdout
    probe: kprobes/read
    definition: r:read vfs_read
    enabled: false
    -- stderr
    ");
    assert_snapshot!(host.run(&["get", "gone", "-o", "json"]), @r#"
    exit: 1
    -- stdout
    -- stderr
    {"exit":1,"code":"NOT_FOUND","reason":"NO_SUCH_PROBE","message":"there is no probe `gone`","hints":[]}
    "#);
    assert_snapshot!(host.run(&["get", "gone"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: there is no probe `gone` [NO_SUCH_PROBE]
    ");
    assert_snapshot!(host.run(&["get", "open", "read", "--watch", "-o", "json"]), @r#"
    exit: 2
    -- stdout
    -- stderr
    {"exit":2,"code":null,"reason":null,"message":"`--watch` follows one probe, or those of one glob","hints":["name one probe, or give a glob such as `kprobes/*`"]}
    "#);
    // Without a name it lists; several names and globs are shown one below the other.
    assert_eq!(host.run(&["get", "-o", "wide"]), host.run(&["list", "-o", "wide"]));
    assert_eq!(host.run(&["get", "-l", "team=storage"]), host.run(&["list", "-l", "team=storage"]));
    let each = ["open", "kprobes/read"].map(|name| host.run(&["get", name, "-o", "yaml"]));
    let [open, read] = each.map(|said| said.split_once("-- stdout\n").unwrap().1.replace("-- stderr\n", ""));
    for arguments in [&["get", "open", "kprobes/read"][..], &["get", "kprobes/*"]] {
        let both = host.run(&[arguments, &["-o", "yaml"]].concat());
        assert_eq!(both, format!("exit: 0\n-- stdout\n---\n{open}---\n{read}-- stderr\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_fits_the_terminal() {
    let host = Host::with_probes().await;
    let list_in = |columns: usize| {
        let output = host.command(&["list"]).env("COLUMNS", columns.to_string()).output().unwrap();
        let stdout = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(stdout.lines().all(|line| line.chars().count() <= columns), "{columns}: {stdout}");
        host.shown(&output)
    };
    assert_snapshot!(list_in(80), @"
    exit: 0
    -- stdout
    NAME          KIND    STATE     LOCATION            FILTER
    kprobes/open  entry   armed     do_sys_openat2+0x0  dfd == -100
    kprobes/read  return  disabled  vfs_read+0x0        -
    -- stderr
    ");
    assert_eq!(list_in(200), list_in(80), "all columns have room");
    assert_snapshot!(list_in(60), @"
    exit: 0
    -- stdout
    NAME          KIND    STATE     LOCATION
    kprobes/open  entry   armed     do_sys_openat2+0x0
    kprobes/read  return  disabled  vfs_read+0x0
    -- stderr
    note: no room for FILTER: `-o wide` shows all columns
    ");
    assert_snapshot!(list_in(30), @"
    exit: 0
    -- stdout
    NAME          KIND    STATE
    kprobes/open  entry   armed
    kprobes/read  return  disabled
    -- stderr
    note: no room for LOCATION, FILTER: `-o wide` shows all columns
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn colours_are_for_terminals() {
    let host = Host::with_probes().await;
    assert!(!host.run(&["list"]).contains('\x1b'), "a pipe is no terminal");
    assert!(host.run(&["list", "--color", "always"]).contains("\x1b[32marmed\x1b[0m"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_forms_for_scripts() {
    let host = Host::with_probes().await;
    assert_snapshot!(host.run(&["list", "-o", "name"]), @"
    exit: 0
    -- stdout
    kprobes/open
    kprobes/read
    -- stderr
    ");
    assert_snapshot!(host.run(&["list", "--no-headers"]), @"
    exit: 0
    -- stdout
    kprobes/open  entry   armed     do_sys_openat2+0x0  dfd == -100
    kprobes/read  return  disabled  vfs_read+0x0        -
    -- stderr
    ");
    let words = |arguments: &[&str], key: &str| {
        let shown = host.run(&[arguments, &["-o", "json"]].concat());
        let objects = shown.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        objects.map(|probe| probe[key].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let names = |arguments: &[&str]| words(arguments, "name");
    assert_eq!(names(&["list"]), ["kprobes/open", "kprobes/read"]);
    assert_eq!(words(&["list"], "state"), ["PROBE_STATE_ARMED", "PROBE_STATE_DISABLED"]);
    host.server.neighbour().run("do_sys_openat2", 2);
    assert_eq!(words(&["hits", "kprobes/open"], "hits"), ["2"]);
    assert_eq!(names(&["disable", "open"]), ["kprobes/open"]);
    assert_eq!(names(&["list", "-l", "team=nobody"]), [""; 0], "a line for each, and none for none");
    // Changes print what they were about.
    assert_snapshot!(host.run(&["enable", "open", "-o", "name"]), @"
    exit: 0
    -- stdout
    kprobes/open
    -- stderr
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn enable_disable_and_update() {
    let host = Host::with_probes().await;
    assert_snapshot!(host.run(&["enable", "open", "gone", "kprobes/read"]), @"
    exit: 1
    -- stdout
    kprobes/open armed
    kprobes/read armed
    -- stderr
    error: there is no probe `gone` [NO_SUCH_PROBE]
    ");
    assert_snapshot!(host.run(&["disable", "open"]), @"
    exit: 0
    -- stdout
    kprobes/open disabled
    -- stderr
    ");
    assert_snapshot!(host.run(&["update", "read", "gone", "--owner", "me"]), @"
    exit: 1
    -- stdout
    kprobes/read armed
    -- stderr
    error: there is no probe `gone` [NO_SUCH_PROBE]
    ");
    let changed = ["update", "open", "--filter", "dfd == 3", "--owner", "me", "-o", "json"];
    let output = host.command(&changed).output().unwrap();
    let probe: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&probe["filter"], &probe["owner"]), (&"dfd == 3".into(), &"me".into()));
    assert_snapshot!(host.run(&["update", "open", "--filter", "fd == 3"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: there is no field `fd` in the probe's events [FIELD_NOT_FOUND]
      | fd == 3
      | ^^
    hint: did you mean `dfd`? there are dfd, common_pid, common_type, common_flags, common_preempt_count, COMM, comm, CPU, cpu, common_cpu, __probe_ip
    ");
    // The kernel takes it, and compares with 0.
    let cut = host.run(&["update", "open", "--filter", "dfd > 4294967296"]);
    assert!(cut.contains("and this value does not fit [ILLEGAL_INTVAL"), "{cut}");
    let output = host.command(&["update", "open", "--no-filter", "-o", "json"]).output().unwrap();
    let probe: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(probe["filter"], "");
    assert_snapshot!(host.run(&["update", "open", "--keep"]), @"
    exit: 0
    -- stdout
    kprobes/open stays
    -- stderr
    ");
    assert_snapshot!(host.run(&["update", "open", "--renew"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: `kprobes/open` has no lease: it stays until it is deleted
    hint: `--lease 2h` gives it one
    ");
    assert_snapshot!(host.run(&["update", "read", "--accept"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: `kprobes/read` is not held back: it records what it was made for [NOT_HELD_BACK]
    ");
    assert_snapshot!(host.run(&["update", "open"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the following required arguments were not provided:
      <--filter <EXPR>|--no-filter|--lease <DURATION>|--renew|--keep|--description <TEXT>|--owner <TEXT>|--accept>

    Usage: kprobectl update [OPTIONS] <NAME>...

    For more information, try '--help'.
    ");
    for (one, other) in [("--accept", "--no-filter"), ("--keep", "--renew")] {
        let refused = host.run(&["update", "open", one, other]);
        assert!(refused.starts_with("exit: 2") && refused.contains("cannot be used with"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delete() {
    let host = Host::with_probes().await;
    assert_snapshot!(host.run(&["delete", "open", "--dry-run"]), @"
    exit: 0
    -- stdout
    kprobes/open hits=0 nmissed=0
    -- stderr
    note: this would be done, in the tracing directory:
      echo 0 > instances/i/events/kprobes/open/enable
      echo 0 > instances/i/tracing_on
      echo '-:kprobes/open' >> kprobe_events
      echo 1 > instances/i/tracing_on
    note: nothing was changed
    ");
    assert_snapshot!(host.run(&["delete", "open", "gone"]), @"
    exit: 1
    -- stdout
    kprobes/open hits=0 nmissed=0
    -- stderr
    error: there is no probe `gone` [NO_SUCH_PROBE]
    ");
    assert_snapshot!(host.run(&["delete", "nothing*"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: no probe matches `nothing*`
    hint: `kprobectl list` shows all probes
    ");
    assert_snapshot!(host.run(&["delete", "--all", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"name":"kprobes/read","profile":{"probe":"kprobes/read","probe_uid":"2","boot_id":"00000000-0000-4000-8000-000000000001","time":"2026-01-31T12:00:00Z","hits":"0","nmissed":"0","own_unknown":""},"note":""}
    -- stderr
    "#);
    assert_snapshot!(host.run(&["list", "-o", "name"]), @"
    exit: 0
    -- stdout
    -- stderr
    note: there are no probes: `kprobectl add` defines one
    ");
}

/// An event of the host has the rows of all probes.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_the_host_is_a_probe() {
    let host = Host::new().await;
    assert_snapshot!(host.run(&["add", "sched/sched_switch"]), @"
    exit: 0
    -- stdout
    sched/sched_switch
    -- stderr
    ");
    assert_snapshot!(host.run(&["list", "sched/*"]), @"
    exit: 0
    -- stdout
    NAME                KIND   STATE  LOCATION
    sched/sched_switch  event  armed  -
    -- stderr
    ");
    assert_snapshot!(host.run(&["hits", "sched/*"]), @"
    exit: 0
    -- stdout
    PROBE  HITS
    -- stderr
    note: the kernel does not count hits of events such as `sched/sched_switch`: `kprobectl ledger` shows what was recorded of them
    ");
    // A stream of checks with listings has the fields that a single check has.
    let client = host.client().await;
    let alone = client.check_probe("sched/sched_switch").await.unwrap().schema;
    assert!(alone.is_some());
    for (listings, schema) in [(true, alone), (false, None)] {
        let text = tokio_stream::once(b"sched/sched_switch".to_vec());
        let mut checks = client.check_probes(text, listings).await.unwrap();
        assert_eq!(checks.next().await.unwrap().unwrap().check.unwrap().schema, schema);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_carry_their_diagnostics() {
    let host = Host::with_probes().await;
    let error = host.client().await.set_filter("open", "fd == 3").await.unwrap_err();
    let refusal = error.rpc().unwrap();
    assert_eq!(refusal.reason, "BAD_FILTER");
    assert_eq!(refusal.diagnostics.as_ref().unwrap().text, "fd == 3");
}

/// A request with the same id has the same outcome, and is carried out once.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_safe_to_repeat() {
    let host = Host::new().await;
    let client = host.client().await;
    let reason = |error: Error| error.rpc().unwrap().reason.clone();
    let create = CreateProbeRequest {
        definition: "p:once vfs_read".to_owned(),
        request_id: "create-once".to_owned(),
        ..Default::default()
    };
    let first = client.create_probe(create.clone()).await.unwrap();
    let second = client.create_probe(create.clone()).await.unwrap();
    assert_eq!((first.uid, client.list_probes("").await.unwrap().len()), (second.uid, 1));
    let other = CreateProbeRequest { definition: "p:other vfs_read".to_owned(), ..create };
    assert_eq!(reason(client.create_probe(other).await.unwrap_err()), "REQUEST_ID_REUSED");
    let delete = |etag: &str| {
        let (name, etag, request_id) = ("kprobes/once".to_owned(), etag.to_owned(), "delete-once".to_owned());
        client.delete_probe(DeleteProbeRequest { name, etag, request_id, ..Default::default() })
    };
    assert_eq!(reason(delete("0-0").await.unwrap_err()), "ETAG_MISMATCH");
    delete(&first.etag).await.unwrap();
    delete(&first.etag).await.unwrap();
    let dry = CreateProbeRequest {
        definition: "p:dry vfs_read".to_owned(),
        validate_only: true,
        ..Default::default()
    };
    assert_eq!(client.create_probe(dry).await.unwrap().name, "kprobes/dry");
    assert!(client.list_probes("").await.unwrap().is_empty());
    assert_eq!(host.server.neighbour().text("kprobe_events").unwrap(), "");
}
