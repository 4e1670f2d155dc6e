//! Tests of commands about probes: output and exit codes.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use insta::assert_snapshot;
use kprobed_client::Client;

use super::fake::{Beginning, Ending, Fake, shown};

const DEFINITION: &str = "p:open do_sys_openat2";

#[test]
fn add() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["add", DEFINITION]), @"
    exit: 0
    -- stdout
    kprobes/open
    -- stderr
    ");
    assert_snapshot!(fake.run(&["add", "p:waiting", "do_sys_openat2", "--disabled", "--dry-run"]), @"
    exit: 0
    -- stdout
    kprobes/waiting
    -- stderr
    warning: some calls are inlined and will not be seen [INLINED]
      | p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
      |        ^^^^^^^^^^^^^^
    note: `kprobes/waiting` is held-back: module `btrfs` is not loaded
    note: this would be done, in the tracing directory:
      echo 'p:waiting do_sys_openat2' >> kprobe_events
    note: nothing was changed
    ");
    assert_snapshot!(fake.run(&["add", "p:open do_sys_openat2+3"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | p:open do_sys_openat2+3
      |        ^^^^^^^^^^^^^^^^
    hint: `+5` works
    ");
    assert_snapshot!(fake.run(&["add", "-:kprobes/open"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: this line deletes a probe
    hint: `kprobectl delete kprobes/open` does it
    ");
    assert_snapshot!(fake.run(&["add", "--", "-:kprobes/"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: this line deletes a probe
    hint: `kprobectl delete 'kprobes/*'` does it
    ");
    assert_snapshot!(fake.run(&["add"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: the following required arguments were not provided:
      <DEFINITION>...

    Usage: kprobectl add <DEFINITION>...

    For more information, try '--help'.
    ");
    assert_snapshot!(fake.run(&["add", "p:slow x", "--timeout", "50ms"]), @"
    exit: 3
    -- stdout
    -- stderr
    error: the daemon did not answer within 50ms
    hint: the daemon may have carried out the request: check before you repeat it
    ");
}

#[test]
fn many_changes_have_the_time_of_many() {
    // It takes two milliseconds for each change.
    let fake = Fake::beginning(Beginning::Late, Ending::Open);
    let lines: Vec<_> = (0..999).map(|number| format!("p:open{number} do_sys_openat2")).collect();
    let added =
        fake.command(&["add", "-f", &fake.file(&lines.join("\n")), "--timeout", "1s"]).output().unwrap();
    assert!(added.status.success(), "{}", shown(&added));
    assert_eq!(fake.changed_at_once(), [999, 999], "checked, and made");
    // A small request has the limit that it is given.
    let limit = |changes| Client::time_for_changes(Duration::from_secs(30), changes).as_secs_f64();
    assert_eq!((limit(0), limit(1), limit(251), limit(1001)), (30.0, 30.0, 60.0, 150.0));
}

#[test]
fn add_from_standard_input() {
    let fake = Fake::start(Ending::Open);
    let run = |text: &[u8]| {
        let mut child = fake
            .command(&["add", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text).unwrap();
        shown(&child.wait_with_output().unwrap())
    };
    assert_snapshot!(run(b"# a comment\n\np:open do_sys_openat2\n"), @"
    exit: 0
    -- stdout
    kprobes/open
    -- stderr
    ");
    assert_snapshot!(run(b"-:kprobes/open\n"), @"
    exit: 2
    -- stdout
    -- stderr
    error: this line deletes a probe
    hint: `kprobectl delete kprobes/open` does it
    ");
    assert_snapshot!(run(b"p:a b\np:c d\n"), @"
    exit: 2
    -- stdout
    -- stderr
    error: standard input has more than one definition
    hint: `-f -` reads several
    ");
}

#[test]
fn add_from_a_file() {
    let fake = Fake::start(Ending::Open);
    let good = fake.file("# all\np:open do_sys_openat2\n");
    assert_snapshot!(fake.run(&["add", "-f", &good, "--dry-run"]), @"
    exit: 0
    -- stdout
    kprobes/open
    -- stderr
    note: this would be done, in the tracing directory:
      echo 'p:open do_sys_openat2' >> kprobe_events
    note: nothing was changed
    ");
    let refused = fake.file("p:open do_sys_openat2\np:open do_sys_openat2+3\np:open do_sys_openat2\n");
    assert_snapshot!(fake.run(&["add", "-f", &refused]), @"
    exit: 1
    -- stdout
    -- stderr
    line 2:
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | p:open do_sys_openat2+3
      |        ^^^^^^^^^^^^^^^^
    hint: `+5` works
    note: nothing was changed
    ");
    let before = fake.changed_at_once().len();
    let with_deletion = fake.file("p:open do_sys_openat2\n-:kprobes/open # gone\n");
    assert_snapshot!(fake.run(&["add", "-f", &with_deletion]), @"
    exit: 2
    -- stdout
    -- stderr
    error: line 2 deletes a probe
    hint: `kprobectl delete kprobes/open` does it
    ");
    assert_eq!(fake.changed_at_once().len(), before, "nothing was asked for");
    let many = fake.file("p:open do_sys_openat2\np:open do_sys_openat2\n");
    assert_snapshot!(fake.run(&["add", "-f", &many]), @"
    exit: 0
    -- stdout
    kprobes/open
    kprobes/open
    -- stderr
    ");
    assert_eq!(fake.changed_at_once()[before..], [2, 2], "checked as a whole, then defined as a whole");
    assert_snapshot!(fake.run(&["add", "-f", &many, "--dry-run"]), @"
    exit: 0
    -- stdout
    kprobes/open
    kprobes/open
    -- stderr
    note: this would be done, in the tracing directory:
      echo 'p:open do_sys_openat2' >> kprobe_events
      echo 'p:open do_sys_openat2' >> kprobe_events
    note: nothing was changed
    ");
    let late = fake.file("p:open do_sys_openat2\np:late do_sys_openat2\np:open do_sys_openat2\n");
    assert_snapshot!(fake.run(&["add", "-f", &late]), @"
    exit: 1
    -- stdout
    -- stderr
    line 2:
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | p:late do_sys_openat2
      |        ^^^^^^^^^^^^^^
    hint: `+5` works
    note: nothing was changed
    ");
    let unreadable = fake.file("p:open do_sys_openat2\np:open do_sys_openat2?\n");
    assert_snapshot!(fake.run(&["add", "-f", &unreadable]), @"
    exit: 1
    -- stdout
    -- stderr
    line 2:
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | p:open do_sys_openat2?
      |        ^^^^^^^^^^^^^^^
    hint: `+5` works
    note: nothing was changed
    ");
}

#[test]
fn a_long_file_is_checked_as_a_whole_and_defined_in_pieces() {
    let fake = Fake::start(Ending::Open);
    let long = "p:open do_sys_openat2\n".repeat(1000);
    let path = fake.file(&format!("{long}p:late do_sys_openat2\np:open do_sys_openat2\n"));
    let text = fake.run(&["add", "-f", &path]);
    assert_eq!(fake.changed_at_once(), [1000, 2, 1000, 2]);
    let (made, told) = text.split_once("-- stderr\n").unwrap();
    assert_eq!(made.lines().filter(|line| *line == "kprobes/open").count(), 1000);
    assert_snapshot!(format!("{}\n{told}", made.lines().next().unwrap()), @"
    exit: 1
    line 1001:
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | p:late do_sys_openat2
      |        ^^^^^^^^^^^^^^
    hint: `+5` works
    note: the first 1000 definitions were carried out, and those after them were not
    ");
}

#[test]
fn a_probe_says_what_it_is_for() {
    let fake = Fake::start(Ending::Open);
    let arguments = ["add", DEFINITION, "--description", "who opens what", "--owner", "me", "-o", "json"];
    let output = fake.command(&arguments).output().unwrap();
    let probe: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&probe["description"], &probe["owner"]), (&"who opens what".into(), &"me".into()));
}

#[test]
fn list_and_get() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["list"]), @"
    exit: 0
    -- stdout
    NAME             KIND    STATE      LOCATION            FILTER
    kprobes/open     entry   armed      do_sys_openat2+0x0  dfd == -100
    kprobes/waiting  return  held-back  do_sys_openat2+0x0  -
    -- stderr
    ");
    assert_snapshot!(fake.run(&["list", "-o", "wide"]), @"
    exit: 0
    -- stdout
    NAME             KIND    STATE      LOCATION            FILTER       LEASE  LABELS               UID  CREATED               CREATOR  REASON                        DEFINITION
    kprobes/open     entry   armed      do_sys_openat2+0x0  dfd == -100  -      team=storage,tier=2    1  2026-01-31T12:00:00Z  -        -                             p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
    kprobes/waiting  return  held-back  do_sys_openat2+0x0  -            -      -                      1  2026-01-31T12:00:00Z  -        module `btrfs` is not loaded  p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
    -- stderr
    ");
    assert_snapshot!(fake.run(&["get", "open"]), @"
    exit: 0
    -- stdout
    name               kprobes/open
    uid                1
    kind               entry
    state              armed
    state reason       -
    state hint         -
    state since        -
    enabled            yes
    location           do_sys_openat2+0x0
    filter             dfd == -100
    labels             team=storage,tier=2
    description        slow opens
    owner              storage
    created by         -
    declared by        -
    lease              -
    on kernel change   hold
    definition         p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
    kernel definition  p:kprobes/open do_sys_openat2 dfd=%di:s32 filename=+0(%si):string
    created            2026-01-31T12:00:00Z
    updated            2026-01-31T12:01:00Z
    etag               e1
    hits               7
    misses             1
    hits per second    0.500
    last hit           2026-01-31T12:05:00Z

    SINCE                 STATE    WHY
    2026-01-31T12:01:00Z  armed    -
    2026-01-31T12:00:30Z  drifted  its event is switched off in the daemon's instance
    2026-01-31T12:00:00Z  armed    -

    FIELD     TYPE    FAULTS
    dfd       s32     detected
    filename  string  detected
    -- stderr
    ");
    assert_snapshot!(fake.run(&["get", "kprobes/waiting", "-o", "yaml"]), @"
    exit: 0
    -- stdout
    probe: kprobes/waiting
    definition: p:open do_sys_openat2 dfd=$arg1:s32 filename=+0($arg2):string
    enabled: true
    -- stderr
    ");
    assert_snapshot!(fake.run(&["get", "gone", "-o", "json"]), @r#"
    exit: 1
    -- stdout
    -- stderr
    {"exit":1,"code":"NOT_FOUND","reason":null,"message":"there is no probe `gone`","hints":[]}
    "#);
    assert_snapshot!(fake.run(&["get", "open", "waiting", "--watch", "-o", "json"]), @r#"
    exit: 2
    -- stdout
    -- stderr
    {"exit":2,"code":null,"reason":null,"message":"`--watch` follows one probe, or those of one glob","hints":["name one probe, or give a glob such as `kprobes/*`"]}
    "#);
    // Without a name it lists; several names and globs are shown one below the other.
    assert_eq!(fake.run(&["get", "-o", "wide"]), fake.run(&["list", "-o", "wide"]));
    assert_eq!(fake.run(&["get", "-l", "team=storage"]), fake.run(&["list", "-l", "team=storage"]));
    let each = ["open", "kprobes/waiting"].map(|name| fake.run(&["get", name, "-o", "yaml"]));
    let [open, waiting] =
        each.map(|said| said.split_once("-- stdout\n").unwrap().1.replace("-- stderr\n", ""));
    for arguments in [&["get", "open", "kprobes/waiting"][..], &["get", "kprobes/*"]] {
        let both = fake.run(&[arguments, &["-o", "yaml"]].concat());
        assert_eq!(both, format!("exit: 0\n-- stdout\n---\n{open}---\n{waiting}-- stderr\n"));
    }
    assert_snapshot!(fake.run(&["get", "gone"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: there is no probe `gone`
    ");
}

#[test]
fn a_list_fits_the_terminal() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run_in(80, &["list"]), @"
    exit: 0
    -- stdout
    NAME             KIND    STATE      LOCATION            FILTER
    kprobes/open     entry   armed      do_sys_openat2+0x0  dfd == -100
    kprobes/waiting  return  held-back  do_sys_openat2+0x0  -
    -- stderr
    ");
    assert_eq!(fake.run_in(200, &["list"]), fake.run_in(80, &["list"]), "all columns have room");
    assert_snapshot!(fake.run_in(60, &["list"]), @"
    exit: 0
    -- stdout
    NAME             KIND    STATE      LOCATION
    kprobes/open     entry   armed      do_sys_openat2+0x0
    kprobes/waiting  return  held-back  do_sys_openat2+0x0
    -- stderr
    note: no room for FILTER: `-o wide` shows all columns
    ");
    assert_snapshot!(fake.run_in(30, &["list"]), @"
    exit: 0
    -- stdout
    NAME      kprobes/open
    KIND      entry
    STATE     armed
    LOCATION  do_sys_openat2+0x0
    FILTER    dfd == -100

    NAME      kprobes/waiting
    KIND      return
    STATE     held-back
    LOCATION  do_sys_openat2+0x0
    FILTER    -
    -- stderr
    ");
}

#[test]
fn a_list_has_forms_for_scripts() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["list", "-o", "name"]), @"
    exit: 0
    -- stdout
    kprobes/open
    kprobes/waiting
    -- stderr
    ");
    assert_snapshot!(fake.run(&["list", "--no-headers"]), @"
    exit: 0
    -- stdout
    kprobes/open     entry   armed      do_sys_openat2+0x0  dfd == -100
    kprobes/waiting  return  held-back  do_sys_openat2+0x0  -
    -- stderr
    ");
    let names = |arguments: &[&str]| {
        let shown = fake.run(&[arguments, &["-o", "json"]].concat());
        let objects = shown.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        objects.map(|probe| probe["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = ["kprobes/open", "kprobes/waiting"];
    assert_eq!(
        (names(&["list"]), names(&["disable", "open"])),
        (all.map(str::to_owned).to_vec(), vec![all[0].to_owned()])
    );
    assert_eq!(names(&["list", "-l", "team=nobody"]), [""; 0], "a line for each, and none for none");
    // Changes print what they were about.
    assert_snapshot!(fake.run(&["disable", "open", "-o", "name"]), @"
    exit: 0
    -- stdout
    kprobes/open
    -- stderr
    ");
}

#[test]
fn enable_disable_and_update() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["enable", "open", "gone", "kprobes/waiting"]), @"
    exit: 1
    -- stdout
    kprobes/open armed
    kprobes/waiting held-back
    -- stderr
    error: there is no probe `gone`
    note: `kprobes/waiting` is held-back: module `btrfs` is not loaded
    ");
    assert_snapshot!(fake.run(&["disable", "open"]), @"
    exit: 0
    -- stdout
    kprobes/open disabled
    -- stderr
    ");
    assert_snapshot!(fake.run(&["update", "open", "gone", "--filter", "dfd == 3"]), @"
    exit: 1
    -- stdout
    kprobes/open armed
    -- stderr
    error: there is no probe `gone`
    ");
    let output =
        fake.command(&["update", "open", "--filter", "dfd == 3", "--owner", "me", "-o", "json"]).output();
    let probe: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    let now = (probe["filter"].as_str(), probe["owner"].as_str());
    assert_eq!(now, (Some("dfd == 3"), Some("me")));
    assert_snapshot!(fake.run(&["update", "open", "--filter", "a +3"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | a +3
      |   ^^
    hint: `+5` works
    ");
    let output = fake.command(&["update", "open", "--no-filter", "-o", "json"]).output();
    let probe: serde_json::Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    assert_eq!(probe["filter"], "");
    assert_snapshot!(fake.run(&["update", "open", "--keep"]), @"
    exit: 0
    -- stdout
    kprobes/open stays
    -- stderr
    ");
    assert_snapshot!(fake.run(&["update", "open", "--renew"]), @"
    exit: 2
    -- stdout
    -- stderr
    error: `kprobes/open` has no lease: it stays until it is deleted
    hint: `--lease 2h` gives it one
    ");
    assert_snapshot!(fake.run(&["update", "kprobes/waiting", "--accept"]), @"
    exit: 0
    -- stdout
    kprobes/waiting held-back
    -- stderr
    note: `kprobes/waiting` is held-back: module `btrfs` is not loaded
    ");
    // A change is necessary, and an acceptance is one of its own.
    let nothing = fake.run(&["update", "open"]);
    assert!(nothing.starts_with("exit: 2") && nothing.contains("--no-filter"), "{nothing}");
    for (one, other) in [("--accept", "--no-filter"), ("--keep", "--renew")] {
        let refused = fake.run(&["update", "open", one, other]);
        assert!(refused.starts_with("exit: 2") && refused.contains("cannot be used with"), "{refused}");
    }
}

#[test]
fn delete() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["delete", "open", "gone"]), @"
    exit: 1
    -- stdout
    kprobes/open hits=7 nmissed=1
    -- stderr
    error: there is no probe `gone`
    ");
    assert_eq!(fake.changed_at_once(), [2], "those that go on recording pay once");
    assert_snapshot!(fake.run(&["delete", "open", "a +3", "kprobes/waiting"]), @"
    exit: 1
    -- stdout
    kprobes/open hits=7 nmissed=1
    kprobes/waiting
    -- stderr
    error: probe point is not an instruction boundary [BAD_INSN_BNDRY]
      | a +3
      |   ^^
    hint: `+5` works
    ");
    assert_snapshot!(fake.run(&["delete", "--all", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {"name":"kprobes/open","profile":{"probe":"kprobes/open","probe_uid":"1","boot_id":"b0","time":"2026-01-31T12:00:00Z","hits":"7","nmissed":"1","own_unknown":""},"note":""}
    {"name":"kprobes/waiting","note":""}
    -- stderr
    "#);
    assert_snapshot!(fake.run(&["delete", "nothing*"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: no probe matches `nothing*`
    hint: `kprobectl list` shows all probes
    ");
}

#[test]
fn many_are_deleted_in_few_requests() {
    let fake = Fake::start(Ending::Open);
    let output = fake.command(&[vec!["delete"], vec!["open"; 1150]].concat()).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), stdout.lines().count()), (Some(0), 1150), "{stdout}");
    assert_eq!(fake.changed_at_once(), [1000, 150]);
}

/// An event of the host has the rows of all probes.
#[test]
fn an_event_of_the_host_is_a_probe() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["list", "raw_syscalls/*"]), @"
    exit: 0
    -- stdout
    NAME                    KIND   STATE  LOCATION  FILTER
    raw_syscalls/sys_enter  event  armed  -         id == 257
    -- stderr
    ");
    assert_snapshot!(fake.run(&["hits", "raw_syscalls/*"]), @"
    exit: 0
    -- stdout
    PROBE         HITS  OWN  NMISSED
    kprobes/open     5    2        1
    -- stderr
    note: the kernel does not count hits of events such as `raw_syscalls/sys_enter`: `kprobectl ledger` shows what was recorded of them
    ");
}
