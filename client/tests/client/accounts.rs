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
    PROBE               HITS  = READ  + UNDECODABLE  + NOT READ  (LOST  + FILTERED)  MISSES  CLOSES
    kprobes/open          10       6              1           3      2            1       1  yes
    sched/sched_switch     -       3              0           -      -            -       -  -

    CPU  READ  OVERRUN  REFUSED  WIPED  UNDECODABLE  PAGES
      0     6        2        0      1            1      4

    SUBSCRIBER  SINCE                 READ  = DELIVERED  + QUEUED  + DROPPED  + LIMITED  + SAMPLED OUT  + FILTERED  + NOT SELECTED  CLOSES  REPLAYED  EXPIRED
             1  2026-01-31T12:00:00Z    20            4         1          1          2              3           4               5  yes            9        1

    HISTORY READ  = STORED  + NOT STORED  CLOSES  AVAILABLE  EXPIRED  BYTES  OLDEST
               6         5             1  yes           100       50   4096  2026-01-31T11:59:00Z
    the last error of the history: no space left on device

    the ledger closes, and it is settled
    -- stderr
    ");
    assert_snapshot!(fake.run(&["ledger", "-o", "wide"]), @"
    exit: 0
    -- stdout
    PROBE               HITS  = READ  + UNDECODABLE  + NOT READ  (LOST  + FILTERED)  MISSES  CLOSES  PAUSED  FIRST READ  LAST READ
    kprobes/open          10       6              1           3      2            1       1  yes          0    0.001000   2.500000
    sched/sched_switch     -       3              0           -      -            -       -  -            -           -          -

    CPU  READ  OVERRUN  REFUSED  WIPED  UNDECODABLE  PAGES  BYTES  FIRST READ  LAST READ  FIRST OVERRUN  LAST OVERRUN
      0     6        2        0      1            1      4  65536           -          -       0.000007      0.000008

    SUBSCRIBER  SINCE                 READ  = DELIVERED  + QUEUED  + DROPPED  + LIMITED  + SAMPLED OUT  + FILTERED  + NOT SELECTED  CLOSES  REPLAYED  EXPIRED  OVERFLOW     LOSS RECORDS  FIRST DELIVERED  LAST DELIVERED  FIRST DROPPED  LAST DROPPED
             1  2026-01-31T12:00:00Z    20            4         1          1          2              3           4               5  yes            9        1  drop-newest             2         0.001000        0.002000              -             -

    HISTORY READ  = STORED  + NOT STORED  CLOSES  AVAILABLE  EXPIRED  BYTES  OLDEST
               6         5             1  yes           100       50   4096  2026-01-31T11:59:00Z
    the last error of the history: no space left on device

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
          "read_span": {
            "first_ns": 1000000,
            "last_ns": 2500000000
          },
          "undecodable": 1,
          "not_read": 3,
          "lost": 2,
          "filtered": 1,
          "paused": 0,
          "loss_is_shared": false,
          "closes": true
        },
        {
          "probe": "sched/sched_switch",
          "probe_uid": 0,
          "hits": null,
          "misses": 0,
          "read": 3,
          "read_span": {
            "first_ns": 0,
            "last_ns": 0
          },
          "undecodable": 0,
          "not_read": 0,
          "lost": null,
          "filtered": null,
          "paused": 0,
          "loss_is_shared": false,
          "closes": null
        }
      ],
      "buffers": [
        {
          "cpu": 0,
          "read": 6,
          "read_span": {
            "first_ns": 0,
            "last_ns": 0
          },
          "overrun": 2,
          "overrun_span": {
            "first_ns": 7000,
            "last_ns": 8000
          },
          "refused": 0,
          "wiped": 1,
          "undecodable": 1,
          "pages": 4,
          "buffer_bytes": 65536
        }
      ],
      "subscribers": [
        {
          "subscriber_id": 1,
          "start_time": "2026-01-31T12:00:00Z",
          "overflow": "drop-newest",
          "read": 20,
          "not_selected": 5,
          "filtered": 4,
          "sampled_out": 3,
          "limited": 2,
          "dropped": 1,
          "dropped_span": {
            "first_ns": 0,
            "last_ns": 0
          },
          "queued": 1,
          "delivered": 4,
          "delivered_span": {
            "first_ns": 1000000,
            "last_ns": 2000000
          },
          "replayed": 9,
          "expired": 1,
          "loss_records": 2,
          "closes": true
        }
      ],
      "spool": {
        "read": 6,
        "stored": 5,
        "not_stored": 1,
        "available": 100,
        "expired": 50,
        "bytes": 4096,
        "oldest_time": "2026-01-31T11:59:00Z",
        "last_error": "no space left on device",
        "closes": true
      }
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
      add           Define a probe and let it record
      check         Ask whether the running kernel would accept a probe
      explain       Say in words what a definition does
      describe      Show what a function takes and returns, and what lies behind its parameters
      symbols       Find functions to probe by name
      disasm        Show the code of a function, and where probes can sit in it
      list          List probes
      get           Show everything about a probe
      enable        Let probes record
      disable       Stop probes from recording, and keep them
      filter        Show, set or clear the kernel filter of a probe
      label         Set and remove labels of probes
      delete        Remove probes
      observe       Follow events
      attach        Record an event of the host: a tracepoint, or what another tool has defined
      detach        Stop recording events of the host
      attached      List the events of the host that are recorded
      hist          Count in the kernel: how often, by what, and how it is spread
      latency       Measure in the kernel how long it takes from one probe to another
      stacks        Count in the kernel on which ways a probe is reached
      aggregations  List, read and delete what is counted in the kernel
      profile       Show how often probes were hit and missed
      ledger        Show where every event went
      doctor        Examine the host, and say what is missing
      completions   Print a completion script for a shell
      version       Print the versions of this command and of the daemon
      help          Print this message or the help of the given subcommand(s)

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
              - table:  Columns for people
              - wide:   More columns for people
              - json:   JSON; one object per line when following
              - yaml:   YAML; one document per object when following
              - folded: Call stacks for tools that draw flame graphs; for commands that have some
              
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
    assert_snapshot!(shown(&kprobectl(&["observe", "--help"]).output().unwrap()), @r#"
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

      -q, --quiet
              Do not say what else could be said: no notes, no summary

      -h, --help
              Print help (see a summary with '-h')

    Which events:
          --filter <EXPRESSION>
              Only events for which this holds, in the language of kernel filters

      -l, --selector <SELECTOR>
              Only probes whose labels fit, as for `list`; of the past, those that they had then

          --pid <N>
              Only events of this thread id, as seen from outside of containers
              
              [alias: --tid]

          --comm <GLOB>
              Only events of tasks whose name matches (`*`, `?`)

          --cpu <N>
              Only events of this CPU

          --sample <N>
              Only one in so many of them

    From when to when:
          --since <TIME>
              Begin at a time (RFC 3339), or so long ago (`10m`)

          --last <N>
              Begin with so many of the latest events

          --oldest
              Begin with the oldest event that the daemon has kept

      -f, --follow
              Go on with new events after those of the past

          --no-follow
              Stop when everything that has happened until now is shown

          --cursor <FILE>
              Begin where this file says, if it exists, and keep the place there

    How they come:
          --order <HOW>
              In which order

              Possible values:
              - cpu:  As they are read: sorted for each CPU
              - time: All in the order of time
              
              [default: cpu]

          --pace <WHAT>
              What matters more

              Possible values:
              - latency:    To see events at once
              - throughput: To take little of the machine

          --rate <EVENTS>
              Show at most so many events a second; others count as lost

          --queue <EVENTS>
              Events that may wait in the daemon for this command; 0: the daemon's default

          --queue-bytes <BYTES>
              Bytes of events that may wait there (`64MiB`); 0: the daemon's default

          --overflow <WHAT>
              What to do when no more may wait

              Possible values:
              - drop-oldest: The oldest events that wait are lost
              - drop-newest: The events that arrive are lost
              - disconnect:  Read what waits, connect again, and get the rest from what the daemon has
                kept
              
              [default: drop-oldest]

          --no-reconnect
              End when the connection is lost

    How they are shown:
          --fields <NAMES>
              Only these fields of the probe, and of `tid`, `comm`, `context`, `location`

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
              - table:  Columns for people
              - wide:   More columns for people
              - json:   JSON; one object per line when following
              - yaml:   YAML; one document per object when following
              - folded: Call stacks for tools that draw flame graphs; for commands that have some
              
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

    Follows until Ctrl-C, unless -n or --duration say otherwise. --since, --last and --oldest look at
    what the daemon has kept, and end there unless -f follows on. When the connection is lost it is made
    again, and what happened meanwhile comes from what the daemon has kept, or is reported as lost.

    --filter is an expression of the kernel's filter language over the fields of the probe and comm,
    pid, tgid, cpu, probe and host: == != < <= > >= & with numbers, == != ~ with strings and globs, &&
    || ! and parentheses. The daemon evaluates it, for this command alone. --pid, --comm and --cpu are
    short for parts of it. To keep events from being recorded at all, use a kernel filter (`kprobectl
    filter`).

    With --cursor the place where the command ended is kept in a file, and the next run goes on there. A
    batch of events that -n cut is shown again.

    Examples:
      kprobectl observe
      kprobectl observe kprobes/open -n 10
      kprobectl observe 'kprobes/*' --comm 'ssh*' --filter 'filename ~ "/etc/*"'
      kprobectl observe open --filter 'dfd != -100' -o json | jq .fields
      kprobectl observe -l team=storage --since 10m
      kprobectl observe --last 1000 -f --order time
      kprobectl observe --cursor place.txt --no-follow -o json >> events.json
      kprobectl observe --duration 10s --time delta
    -- stderr
    "#);
    for shell in ["bash", "zsh", "fish"] {
        let output = kprobectl(&["completions", shell]).output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty());
    }
}
