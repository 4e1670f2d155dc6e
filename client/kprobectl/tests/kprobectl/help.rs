//! Tests of help texts.

use insta::assert_snapshot;

use super::command::kprobectl;
use super::fake::shown;

fn help(arguments: &[&str]) -> String {
    shown(&kprobectl(arguments).output().unwrap())
}

#[test]
fn help_lists_every_command_and_option() {
    let whole = help(&["--help"]);
    assert_snapshot!(whole, @"
    exit: 0
    -- stdout
    Define kernel probes, and follow their events

    Usage: kprobectl [OPTIONS] <COMMAND>

    Commands:
      add           Define a probe and start recording
      apply         Create and change probes as documents describe them
      diff          Show what `apply` would change
      check         Check whether the running kernel would accept a probe
      describe      Show the parameters, return type and structures of a function
      symbols       Find functions by name
      disasm        Show the code of a function, and where it can be probed
      list          List probes
      get           Show all properties of a probe
      accept        Arm probes that the daemon holds back after a change of kernel
      enable        Switch recording on
      disable       Switch recording off, and keep the probes
      filter        Show, set or clear the kernel filter of a probe
      label         Set and remove labels
      renew         Renew the leases of probes
      delete        Delete probes
      adopt         Make probes of kprobe events that the daemon did not define
      reconcile     Look at all probes now, and repair what other programs have changed
      observe       Follow events, or read the history
      trace         Define probes for as long as the command runs, and follow their events
      attach        Record a trace event that the daemon did not define, such as a tracepoint
      detach        Stop recording attached events
      attached      List attached events
      hist          Count events in the kernel, by fields, tasks or CPUs
      latency       Measure in the kernel the time between two probes
      stacks        Count in the kernel the call stacks that lead to a probe
      aggregations  List, read and delete aggregations
      profile       Show how often probes were hit, and how often the kernel skipped them
      cost          Show the processor time that probes take
      ledger        Show the account of every event: read, lost, filtered
      exporters     Show the state and the account of the daemon's exporters
      status        Show the daemon on one page: health, probes, hits, losses, exporters, and what to do
      doctor        Check the host, and show how to fix what is missing
      debug         Collect what a maintainer needs to understand a daemon
      audit         Show who changed, was refused, or received what
      auth          Show who you are to the daemon, and what roles allow
      rollout       Change the probes of a fleet wave by wave, and undo it if a gate fails
      config        Show and change contexts: hosts, groups, and how to reach them
      completions   Print a shell completion script
      version       Print the versions of this command and the daemon
      help          Print this message or the help of the given subcommand(s)

    Options:
      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Global options:
          --server <TARGET>
              Address of the daemon: `HOST:PORT` (TLS, or plain TCP on loopback without certificates),
              `unix:/PATH`, `/PATH`, `tcp://HOST:PORT` or `https://HOST:PORT` [default: that of the
              context, or unix:/run/kprobed/kprobed.sock]
              
              [env: KPROBED_SERVER=]

          --context <NAME>
              Context of the configuration, as `kprobectl help config` explains [default: the current
              one]

          --hosts <LIST>
              Run the command on these hosts: names, globs, ranges (`web[001-480]`), groups, addresses,
              `all`, `@FILE`, `-`, or `@failed` for those that did not answer in the last run; overrides
              --server

      -L, --host-selector <SELECTOR>
              Run the command on the hosts whose labels match, as for `list --selector` [default: all of
              --hosts]

          --parallel <N>
              Most hosts that are asked at the same time; streams stay open, one for each host [default:
              that of the context, or 64]

          --fail-fast
              Try no further host after the first that did not answer

          --tolerate <HOSTS>
              Number or percentage of hosts that may fail to answer without an effect on the exit code:
              `3` or `5%` [default: 0]

          --yes
              Change many hosts without a confirmation [needed above 20 hosts, or `confirm_above` of the
              context]

          --ca <FILE>
              Certificate of the authority that signed the daemon's certificate, a PEM file; needed for
              https
              
              [env: KPROBED_CA=]

          --cert <FILE>
              Certificate of this client, a PEM file; needed for https
              
              [env: KPROBED_CERT=]

          --key <FILE>
              Private key of this client, a PEM file; needed for https
              
              [env: KPROBED_KEY=]

          --domain <NAME>
              Name in the daemon's certificate [default: the host of the address]
              
              [env: KPROBED_DOMAIN=]

      -o, --output <FORMAT>
              Format of the output

              Possible values:
              - table:  Columns for people
              - wide:   More columns for people
              - json:   JSON; one object per line for streams
              - yaml:   YAML; one document per object for streams
              - folded: Call stacks as flame graph tools read them; only for commands that count by
                stack
              - csv:    Comma-separated values with a line of headings; only for `profile`
              
              [default: table]

          --color <WHEN>
              When to use colours; the environment variable NO_COLOR switches them off as well

              Possible values:
              - auto:   On a terminal
              - always: Always
              - never:  Never
              
              [default: auto]

          --timeout <DURATION>
              How long to wait for the daemon's answer; with several hosts, for each of them, from the
              connection to its answer
              
              [default: 30s]

    Exit codes:
      0  success
      1  the request was refused, the probe was not found, or a check failed
      2  wrong usage of this command
      3  the daemon cannot be reached
      4  interrupted or disconnected before everything was done
    With several hosts (--hosts) the highest of these counts. Hosts that fail to answer count only if
    they are more than --tolerate:
      1  a host refused the request, or its own answer has exit code 1
      3  a host could not be reached, or did not answer in time
      4  a host failed in the middle, or was not tried

    Examples:
      kprobectl check 'p:open do_sys_openat2 filename=+0($arg2):ustring'
      kprobectl add 'p:open do_sys_openat2 filename=+0($arg2):ustring'
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
    Follow events, or read the history

    Usage: kprobectl observe [OPTIONS] [PROBE-GLOB]...

    Arguments:
      [PROBE-GLOB]...
              Only probes whose names match (`*`, `?`), including probes that are defined later
              [default: all]

    Options:
      -p, --probe <DEFINITION>
              Define this probe as well, for as long as the command runs; as for `trace`. May be given
              more than once

      -n, --count <N>
              Stop after this many events [default: no limit]

          --duration <DURATION>
              Stop after this time [default: no limit]

          --max-wait <DURATION>
              With --hosts: how long the others wait for a silent host before they continue without it
              
              [default: 10s]

      -q, --quiet
              Print no notes and no summary

      -h, --help
              Print help (see a summary with '-h')

    Selection:
          --filter <EXPRESSION>
              Only events that pass this filter [default: all]

          --pid <N>
              Only events of this thread id, in the initial PID namespace; may be given more than once
              [default: all]
              
              [alias: --tid]

          --comm <GLOB>
              Only events of tasks whose name matches (`*`, `?`); may be given more than once [default:
              all]

          --cpu <N>
              Only events of this CPU; may be given more than once [default: all]

          --sample <N>
              Only every Nth event [default: 1]

      -l, --selector <SELECTOR>
              Only probes whose labels match, as for `list`; for events of the history, their labels at
              that time [default: all]

    Time:
          --since <TIME>
              Begin with the events of the history since this time: `10m` ago, `07:00`, or a date with a
              time

          --last <N>
              Begin with the last N events of the history

          --oldest
              Begin with the oldest event of the history

      -f, --follow
              Follow new events after the history

          --no-follow
              Stop after the events that were recorded before the command began

          --cursor <FILE>
              Begin at the position in this file, if it exists, and save the position there

    Delivery:
          --order <HOW>
              Order of events

              Possible values:
              - cpu:  As they are read: in order for each CPU
              - time: In the order of time, over all CPUs
              
              [default: cpu]

          --pace <WHAT>
              What to optimise for [default: a compromise]

              Possible values:
              - latency:    Each event as early as possible
              - throughput: Little CPU time for many events

          --rate <EVENTS>
              Show at most this many events per second, and report the others as lost [default: no
              limit]

          --queue <EVENTS>
              Events that the daemon queues for this command [default: set by the daemon]

          --queue-bytes <BYTES>
              Bytes of events that the daemon queues (`65536`, `64MiB`) [default: set by the daemon]

          --overflow <WHAT>
              What the daemon does when the queue is full

              Possible values:
              - drop-oldest: Drops the oldest events in the queue
              - drop-newest: Drops the events that arrive
              - disconnect:  Ends the stream after the queue; the command connects again and reads the
                rest from the history
              
              [default: drop-oldest]

          --no-reconnect
              End if the connection is lost, instead of connecting again

    Output:
          --fields <NAMES>
              Show only these: fields of the probe, `tid`, `comm`, `context`, `location` [default: all]

          --time <HOW>
              Format of times

              Possible values:
              - wall:  Time of day, in the local zone
              - delta: Seconds since the previous event shown
              - trace: Seconds of the kernel's trace clock
              
              [default: wall]

          --wide
              Show the date and the execution context too; the same as `-o wide`

          --no-header
              Print no line of headings

    From NATS:
          --from <URL>
              Read what daemons have published to this server (`[export.nats]`), without a connection to
              any of them: `nats://HOST:PORT` or `tls://HOST:PORT`; --hosts then names hosts of the
              stream

          --stream <NAME>
              Name of the stream
              
              [default: KPROBED]

          --subject-prefix <PREFIX>
              First part of the subjects
              
              [default: kprobed]

          --credentials <FILE>
              File with the JWT and seed of a user, as `nsc` writes it [default: none]

          --token <FILE>
              File with a token [default: none]

          --password <FILE>
              File with `USER:PASSWORD` [default: none]

    Follows new events until Ctrl-C, or until -n or --duration is reached. --since, --last and --oldest
    read the history and end with it, unless -f follows new events after it. If the connection is lost,
    the command connects again and reads the missed events from the history; events that the history
    does not have are reported as lost.

    The note `observing N probes` on stderr means that the daemon has subscribed the command: every
    event recorded from then on is shown or reported as lost. A script should wait for it before it
    causes events. It is not printed with -q, or if only the history is read.

    --filter is an expression of the kernel's filter language over the fields of the probe and comm, pid
    (thread id), tgid, cpu, probe and host: == != < <= > >= & with numbers, == != ~ with strings and
    globs, && || ! and parentheses. A field of the probe that has one of these names is written
    fields.NAME. The daemon evaluates the filter, for this command alone. --pid, --comm and --cpu are
    short for parts of it; values of one of them are alternatives. A kernel filter (`kprobectl filter`)
    keeps events from being recorded at all.

    TIME is how long ago (`10m`, `7h`), a time of day (`07:00`: the last such moment), or a date with a
    time, in RFC 3339 or as printed by --wide. A time without a zone is local.

    --cursor saves the position at which the command ended in a file, and the next run continues there.
    If -n ends the command inside a batch of events, the next run shows that batch again.

    With --hosts or --host-selector the events of all hosts are shown in one order of time. The command
    measures the offset of each host's clock over the connection, again and again, and shows and orders
    events by the corrected time; JSON has both times. Events of two hosts that are closer together than
    the error bounds of their clocks (shown with each host) may have happened in the other order. An
    event is shown when every host has reported that no earlier one follows. If a host is silent for
    --max-wait, the others do not wait for it any longer: what it sends after that, and events that are
    older than shown ones, are marked `late`. State changes of hosts are shown among the events, and at
    the end the outcome of each.

    --from reads what daemons have published to NATS JetStream ([export.nats] of their configuration):
    the same events, gaps and losses, of any number of hosts over one connection, merged in the same
    way. Clocks cannot be measured there: the order is by the wall clock of each host. Hosts are those
    with messages in the stream when the command begins. Globs, --filter, --pid, --comm, --cpu, --sample
    and --fields are evaluated by this command; a field that no probe has selects nothing. -l, --last,
    --cursor, -p and the limits of queues need a daemon, and so do `.function` and `common_*` other than
    `common_pid` and `common_cpu` in a filter. --ca, --cert and --key are for tls://.

    -p defines a probe that is deleted when the command ends, as `kprobectl trace` does; without a
    PROBE-GLOB only its events are shown.

    A value followed by `(?)` is unproven: the kernel does not show whether it could be read (`kprobectl
    check` says why). JSON and YAML list such fields in `unproven`, and those that could not be read in
    `faults`.

    Examples:
      kprobectl observe
      kprobectl observe kprobes/open -n 10
      kprobectl observe 'kprobes/*' --comm 'ssh*' --filter 'filename ~ "/etc/*"'
      kprobectl observe open --filter 'dfd != -100' -o json | jq .fields
      kprobectl observe -l team=storage --since 10m
      kprobectl observe kprobes/open --since 07:00 -f
      kprobectl observe --last 1000 -f --order time
      kprobectl observe --cursor place.txt --no-follow -o json >> events.json
      kprobectl observe kprobes/open -p 'r:opened do_sys_openat2 fd=$retval:s32'
      kprobectl observe --duration 10s --time delta
      kprobectl observe 'kprobes/*' --hosts 'web[001-480]' --max-wait 5s
      kprobectl observe -L role=web --comm nginx --since 10m -o json
      kprobectl observe kprobes/open --from nats://127.0.0.1:4222 --hosts 'web*' --since 10m
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
