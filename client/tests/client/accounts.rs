//! Commands that report: profile, ledger, doctor, version, help.

use insta::assert_snapshot;

use super::fake::{Ending, Fake, kprobectl, shown};

#[test]
fn profile_and_ledger() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["profile"]), @"
    exit: 0
    -- stdout
    PROBE         HITS  MISSES
    kprobes/open     7       1
    -- stderr
    ");
    assert_snapshot!(fake.run(&["profile", "kprobes/*", "--since", "10m"]), @"
    exit: 0
    -- stdout
    TIME                  PROBE         UID  HITS  MISSES
    2026-01-31T12:00:00Z  kprobes/open    1     3       1
    2026-01-31T12:01:00Z  kprobes/open    1     7       1
    -- stderr
    ");
    assert_snapshot!(fake.run(&["ledger"]), @"
    exit: 0
    -- stdout
    PROBE         HITS  = READ  + UNDECODABLE  + NOT READ  (LOST  + HELD BACK)  MISSES  CLOSES
    kprobes/open    10       6              1           3      2             1       1  yes

    CPU  READ  LOST  (REFUSED)  UNDECODABLE  PAGES
      0     6     2          0            1      4

    SUBSCRIBER  SINCE                 READ  = DELIVERED  + QUEUED  + DROPPED  + NOT SELECTED  CLOSES
             1  2026-01-31T12:00:00Z     6            4         1          1               0  yes

    the ledger closes, and it is settled
    -- stderr
    ");
    assert_snapshot!(fake.run(&["ledger", "-o", "json"]), @r#"
    exit: 0
    -- stdout
    {
      "settled": true,
      "closes": true,
      "probes": [
        {
          "probe": "kprobes/open",
          "probe_uid": 1,
          "hits": 10,
          "misses": 1,
          "read": 6,
          "undecodable": 1,
          "not_read": 3,
          "lost": 2,
          "held_back": 1,
          "loss_is_shared": false,
          "closes": true
        }
      ],
      "buffers": [
        {
          "cpu": 0,
          "read": 6,
          "lost": 2,
          "refused": 0,
          "undecodable": 1,
          "pages": 4
        }
      ],
      "subscribers": [
        {
          "subscriber_id": 1,
          "start_time": "2026-01-31T12:00:00Z",
          "read": 6,
          "delivered": 4,
          "queued": 1,
          "dropped": 1,
          "not_selected": 0,
          "closes": true
        }
      ]
    }
    -- stderr
    "#);
}

#[test]
fn doctor_and_version() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["doctor"]), @"
    exit: 1
    -- stdout
    host     testhost
    kernel   6.12.1 x86_64 #1 SMP
    boot     b0
    daemon   0.1.0, since 2026-01-31T12:00:00Z
    tracefs  /sys/kernel/tracing, instance kprobed, clock mono
    buffers  2 CPUs, 4096 KiB each, sub-buffers of 4096 bytes

    CHECK            STATUS  FINDING
    tracefs_mounted  ok      mounted at /sys/kernel/tracing
    ftrace_enabled   failed  `kernel.ftrace_enabled` is 0
    fix: ftrace_enabled: sysctl kernel.ftrace_enabled=1

    FEATURE  AVAILABLE  FOR
    symstr   yes        symbols as text

    FOREIGN PROBE  DEFINITION
    other/thing    p:other/thing vfs_read
    -- stderr
    ");
    assert_snapshot!(fake.run(&["version"]), @"
    exit: 0
    -- stdout
    kprobectl 0.1.0
    kprobed 0.1.0 on testhost (Linux 6.12.1)
    -- stderr
    ");
    let nowhere = kprobectl(&["version", "--server", "/nonexistent/kprobed.sock"]).output().unwrap();
    assert_snapshot!(shown(&nowhere), @"
    exit: 0
    -- stdout
    kprobectl 0.1.0
    -- stderr
    note: can not connect to `unix:/nonexistent/kprobed.sock`: No such file or directory (os error 2)
    ");
}

#[test]
fn colours_are_for_terminals() {
    let fake = Fake::start(Ending::Open);
    let stdout =
        |arguments: &[&str]| String::from_utf8(fake.command(arguments).output().unwrap().stdout).unwrap();
    assert!(!stdout(&["list"]).contains('\x1b'), "a pipe is no terminal");
    assert!(stdout(&["list", "--color", "always"]).contains("\x1b[32marmed\x1b[0m"));
}

#[test]
fn help_and_completions() {
    assert_snapshot!(shown(&kprobectl(&["--help"]).output().unwrap()), @"
    exit: 0
    -- stdout
    Define kernel probes, and follow what they record

    Usage: kprobectl [OPTIONS] <COMMAND>

    Commands:
      add          Define a probe and let it record
      check        Ask whether the running kernel would accept a probe
      explain      Say in words what a definition does
      describe     Show what a function takes and returns, and what lies behind its parameters
      symbols      Find functions to probe by name
      disasm       Show the code of a function, and where probes can sit in it
      list         List probes
      get          Show everything about a probe
      enable       Let probes record
      disable      Stop probes from recording, and keep them
      filter       Show, set or clear the kernel filter of a probe
      label        Set and remove labels of probes
      delete       Remove probes
      observe      Follow events
      attach       Record an event of the host: a tracepoint, or what another tool has defined
      detach       Stop recording events of the host
      attached     List the events of the host that are recorded
      profile      Show how often probes were hit and missed
      ledger       Show where every event went
      doctor       Examine the host, and say what is missing
      completions  Print a completion script for a shell
      version      Print the versions of this command and of the daemon
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Global options:
          --server <TARGET>
              The daemon: `unix:/PATH`, `/PATH`, `tcp://HOST:PORT` or `https://HOST:PORT`
              
              [env: KPROBED_SERVER=]
              [default: unix:/run/kprobed/kprobed.sock]

          --ca <FILE>
              Certificate of the authority that vouches for the daemon, in PEM (for https)

          --cert <FILE>
              Certificate of this client, in PEM (for https)

          --key <FILE>
              Private key of this client, in PEM (for https)

          --domain <NAME>
              Name in the daemon's certificate, if it is not the host of the target

      -o, --output <FORMAT>
              How to print

              Possible values:
              - table: Columns for people
              - wide:  More columns for people
              - json:  JSON; one object per line when following
              - yaml:  YAML; one document per object when following
              
              [default: table]

          --color <WHEN>
              When to use colours; the variable NO_COLOR switches them off too

              Possible values:
              - auto:   On a terminal
              - always: Always
              - never:  Never
              
              [default: auto]

          --timeout <DURATION>
              How long the daemon may take to answer
              
              [default: 30s]

    Exit codes:
      0  success
      1  the request was refused, the probe was not found, or a check failed
      2  wrong usage of this command
      3  the daemon can not be reached
      4  interrupted, or the connection was lost, before all was done

    Examples:
      kprobectl check 'p:open do_sys_openat2 filename=+0($arg2):string'
      kprobectl add 'p:open do_sys_openat2 filename=+0($arg2):string'
      kprobectl observe kprobes/open -n 10
      kprobectl delete kprobes/open
    -- stderr
    ");
    assert_snapshot!(shown(&kprobectl(&["observe", "--help"]).output().unwrap()), @"
    exit: 0
    -- stdout
    Follow events

    Usage: kprobectl observe [OPTIONS] [PROBE-GLOB]...

    Arguments:
      [PROBE-GLOB]...
              Only probes whose names match (`*`, `?`); those of the future too

    Options:
      -n, --count <N>
              Stop after this many events were shown

          --duration <DURATION>
              Stop after this time

          --pid <N>
              Only events of this thread id, as seen from outside of containers
              
              [alias: --tid]

          --comm <GLOB>
              Only events of tasks whose name matches (`*`, `?`)

          --cpu <N>
              Only events of this CPU

          --where <FIELD OP VALUE>
              Only events with a field that compares so

          --time <HOW>
              How to show time

              Possible values:
              - wall:  Time of day, in the local zone
              - delta: Seconds since the event shown before
              - trace: Seconds of the kernel's trace clock
              
              [default: wall]

          --wide
              Show date and execution context too; the same as `-o wide`

          --no-header
              Leave out the line of headings

          --queue <EVENTS>
              Events that may wait in the daemon for this command before it drops some; 0: the daemon's
              default
              
              [default: 0]

      -h, --help
              Print help (see a summary with '-h')

    Global options:
          --server <TARGET>
              The daemon: `unix:/PATH`, `/PATH`, `tcp://HOST:PORT` or `https://HOST:PORT`
              
              [env: KPROBED_SERVER=]
              [default: unix:/run/kprobed/kprobed.sock]

          --ca <FILE>
              Certificate of the authority that vouches for the daemon, in PEM (for https)

          --cert <FILE>
              Certificate of this client, in PEM (for https)

          --key <FILE>
              Private key of this client, in PEM (for https)

          --domain <NAME>
              Name in the daemon's certificate, if it is not the host of the target

      -o, --output <FORMAT>
              How to print

              Possible values:
              - table: Columns for people
              - wide:  More columns for people
              - json:  JSON; one object per line when following
              - yaml:  YAML; one document per object when following
              
              [default: table]

          --color <WHEN>
              When to use colours; the variable NO_COLOR switches them off too

              Possible values:
              - auto:   On a terminal
              - always: Always
              - never:  Never
              
              [default: auto]

          --timeout <DURATION>
              How long the daemon may take to answer
              
              [default: 30s]

    Follows until Ctrl-C, unless -n or --duration say otherwise. Events of one CPU are in the order of
    time; those of several CPUs come as they are read. --pid, --comm, --cpu and --where choose what is
    shown of what arrives; to keep events from being recorded at all, use a kernel filter (`kprobectl
    filter`).

    --where compares a field: == != < <= > >= with a number or a text, ~ with a glob. A value that could
    not be read matches nothing; an array matches when one of its values does. Of several --where all
    must hold.

    Examples:
      kprobectl observe
      kprobectl observe kprobes/open -n 10
      kprobectl observe 'kprobes/*' --comm 'ssh*' --where 'filename ~ /etc/*'
      kprobectl observe open --where 'dfd != -100' -o json | jq .fields
      kprobectl observe --duration 10s --time delta
    -- stderr
    ");
    for shell in ["bash", "zsh", "fish"] {
        let output = kprobectl(&["completions", shell]).output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty());
    }
}
