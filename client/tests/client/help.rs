//! What the command says of itself.

use insta::assert_snapshot;

use super::fake::{kprobectl, shown};

fn help(arguments: &[&str]) -> String {
    shown(&kprobectl(arguments).output().unwrap())
}

#[test]
fn help_says_what_there_is() {
    let whole = help(&["--help"]);
    assert_snapshot!(whole, @"
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
      profile       Show how often probes were hit, and how often the kernel skipped them
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
      3  the daemon cannot be reached
      4  interrupted, or the connection was lost, before all was done

    Examples:
      kprobectl check 'p:open do_sys_openat2 filename=+0($arg2):string'
      kprobectl add 'p:open do_sys_openat2 filename=+0($arg2):string'
      kprobectl observe kprobes/open -n 10
      kprobectl delete kprobes/open
    -- stderr
    ");
    let (global, _) = whole.split_once("Exit codes:").unwrap();
    let global = &global[global.find("Global options:").unwrap()..];
    let observe = help(&["observe", "--help"]);
    assert!(observe.contains(global), "said the same way everywhere: {observe}");
    assert_snapshot!(observe.replace(global, ""), @r#"
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

    Follows new events until Ctrl-C, or until -n or --duration is reached. --since, --last and --oldest
    read the history and end with it, unless -f follows on. If the connection is lost, the command
    connects again and reads the events in between from the history; those that the history does not
    have are reported as lost.

    `observing N probes` on stderr says that the daemon has subscribed the command: every event recorded
    from then on is shown or reported as lost. A script waits for this line before it causes events. It
    is not printed with -q, nor when only the history is read.

    --filter is an expression of the kernel's filter language over the fields of the probe and comm,
    pid, tgid, cpu, probe and host: == != < <= > >= & with numbers, == != ~ with strings and globs, &&
    || ! and parentheses. The daemon evaluates it, for this command alone. --pid, --comm and --cpu are
    short for parts of it. A kernel filter (`kprobectl filter`) keeps events from being recorded at all.

    --cursor saves the place where the command ended in a file, and the next run goes on there. A batch
    of events that -n cut is shown again.

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
}

#[test]
fn completions_for_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let output = kprobectl(&["completions", shell]).output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty());
    }
}
