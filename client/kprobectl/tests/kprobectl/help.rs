//! What the command says of itself.

use insta::assert_snapshot;

use super::command::kprobectl;
use super::fake::shown;

fn help(arguments: &[&str]) -> String {
    shown(&kprobectl(arguments).output().unwrap())
}

#[test]
fn help_says_what_there_is() {
    let whole = help(&["--help"]);
    assert_snapshot!(whole, @"
    exit: 0
    -- stdout
    Define kernel probes, and follow their events

    Usage: kprobectl [OPTIONS] <COMMAND>

    Commands:
      add           Define a probe and start recording
      apply         Make probes what documents say
      diff          Show what `apply` would change
      check         Check whether the running kernel would accept a probe
      explain       Explain a definition in words
      describe      Show the parameters, return type and structures of a function
      symbols       Find functions by name
      disasm        Show the code of a function, and where it can be probed
      list          List probes
      get           Show all properties of a probe
      accept        Arm probes that are held back: what they record on this kernel is right
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
      latency       Measure the time between two probes in the kernel
      stacks        Count the call stacks that lead to a probe in the kernel
      aggregations  List, read and delete aggregations
      profile       Show how often probes were hit, and how often the kernel skipped them
      ledger        Show where every event went
      exporters     Show what the daemon sends elsewhere, and how that stands
      doctor        Check the host, and show how to fix what is missing
      rollout       Change a fleet wave by wave, and put everything back if a gate is not passed
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
              Do it on these hosts: names, globs, ranges (`web[001-480]`), groups, addresses, `all`,
              `srv:NAME` for the targets of an SRV record in DNS, `@FILE`, `-`, or `@failed` for those
              of the last run that did not answer; counts before --server

      -L, --host-selector <SELECTOR>
              Only on hosts whose labels match, as for `list --selector`

          --parallel <N>
              Most hosts that are asked at the same time; streams stay open, one for each host [default:
              that of the context, or 64]

          --fail-fast
              Try no further host after one that did not answer

          --tolerate <HOSTS>
              So many hosts may fail to answer without an effect on the exit code: `3` or `5%`

          --yes
              Change something on many hosts without a question [asked above 20 hosts, or
              `confirm_above` of the context]

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
              Form of the output

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
    On many hosts (--hosts) it is the highest of these, unless no more hosts than --tolerate are without
    an answer:
      1  a host refused the request, or its answer is such a one as above
      3  a host could not be reached, or did not answer in time
      4  a host failed in the middle, or was not tried

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
    Follow events, or read the history

    Usage: kprobectl observe [OPTIONS] [PROBE-GLOB]...

    Arguments:
      [PROBE-GLOB]...
              Only probes whose names match (`*`, `?`), also those that are defined later [default: all]

    Options:
      -p, --probe <DEFINITION>
              Define this probe as well, for as long as the command runs; as for `trace`. May be given
              more than once

      -n, --count <N>
              Stop after this many events [default: no limit]

          --duration <DURATION>
              Stop after this time [default: no limit]

          --max-wait <DURATION>
              With --hosts: how long the others wait for a host that says nothing, before they go on
              without it
              
              [default: 10s]

      -q, --quiet
              Print no notes and no summary

      -h, --help
              Print help (see a summary with '-h')

    Selection:
          --filter <EXPRESSION>
              Only events that pass this filter [default: all]

          --pid <N>
              Only events of this thread id, as seen outside of containers
              
              [alias: --tid]

          --comm <GLOB>
              Only events of tasks whose name matches (`*`, `?`)

          --cpu <N>
              Only events of this CPU

          --sample <N>
              Only every Nth event [default: 1]

      -l, --selector <SELECTOR>
              Only probes whose labels match, as for `list`. For events of the history, the labels at
              that time count

    Time:
          --since <TIME>
              Begin with the history, at this time: `10m` ago, `07:00`, or a date with a time

          --last <N>
              Begin with the history, N events back

          --oldest
              Begin with the oldest event of the history

      -f, --follow
              Follow new events after the history

          --no-follow
              Stop after the events that happened until now

          --cursor <FILE>
              Begin at the place in this file, if it exists, and save the place there

    Delivery:
          --order <HOW>
              Order of events

              Possible values:
              - cpu:  As they are read: in order for each CPU
              - time: In the order of time, over all CPUs
              
              [default: cpu]

          --pace <WHAT>
              What to optimise for [default: between both]

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
              Form of time

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
              any of them: `nats://HOST:PORT` or `tls://HOST:PORT`; --hosts names hosts of the stream
              then

          --stream <NAME>
              The stream of events; that of states has `_STATE` behind it
              
              [default: KPROBED]

          --subject-prefix <PREFIX>
              What subjects begin with
              
              [default: kprobed]

          --credentials <FILE>
              File of a user as `nsc` writes it

          --token <FILE>
              File with a token

          --password <FILE>
              File with `USER:PASSWORD`

    Follows new events until Ctrl-C, or until -n or --duration is reached. --since, --last and --oldest
    read the history and end with it, unless -f follows on. If the connection is lost, the command
    connects again and reads the events in between from the history; those that the history does not
    have are reported as lost.

    `observing N probes` on stderr says that the daemon has subscribed the command: every event recorded
    from then on is shown or reported as lost. A script waits for this line before it causes events. It
    is not printed with -q, nor when only the history is read.

    --filter is an expression of the kernel's filter language over the fields of the probe and comm, pid
    (thread id), tgid, cpu, probe and host: == != < <= > >= & with numbers, == != ~ with strings and
    globs, && || ! and parentheses. A field of the probe that has one of these names is written
    fields.NAME. The daemon evaluates the filter, for this command alone. --pid, --comm and --cpu are
    short for parts of it. A kernel filter (`kprobectl filter`) keeps events from being recorded at all.

    TIME is how long ago (`10m`, `7h`), a time of day (`07:00`: the last such moment), or a date with a
    time, in RFC 3339 or as printed by --wide. A time without a zone is local.

    --cursor saves the place where the command ended in a file, and the next run goes on there. A batch
    of events that -n cut is shown again.

    With --hosts or --host-selector the events of all hosts are in one order of time. The clock of each
    host is compared with that of this one over the connection, again and again, and the order is by the
    corrected time, which is the one shown; JSON has both. Events of two hosts that are closer together
    than the error bounds of their clocks (shown with each host) may have happened the other way round.
    An event is shown when every host has said that nothing earlier comes. A host that says nothing for
    --max-wait holds up no other any longer: what it sends after that, and what is older than events
    that were shown, is marked `late`. Hosts that are lost, late and back are shown among the events,
    and at the end what became of each.

    --from reads what daemons have published to NATS JetStream ([export.nats] of their configuration):
    the same events, gaps and losses, of one host or a thousand over one connection, merged in the same
    way. The clocks of the hosts cannot be compared there: the order is by the wall clock of each. Hosts
    are those of which the stream has something when the command begins. Globs, --filter, --pid, --comm,
    --cpu, --sample, --fields and -l select here what a daemon would select; -l goes by the labels that
    probes have now, and a field that no probe has selects nothing. --last, --cursor, -p and the limits
    of queues need a daemon, and so do `.function` and `common_*` other than `common_pid` and
    `common_cpu` in a filter. --ca, --cert and --key are for tls://.

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
