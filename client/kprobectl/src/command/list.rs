//! `kprobectl list`: probes by name.

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::{ListProbesRequest, WatchProbesRequest};

use super::connection::connect;
use super::published::From;
use super::{Exit, Failure};
use crate::cli::Global;
use crate::glob;
use crate::output::Output;

const AFTER_HELP: &str = "\
STATE is what the kernel has now:
  armed                  records
  disabled               is switched off, as it was asked for
  pending-module         its module is not loaded: it is armed when the module comes
  drifted                is in the kernel, and not as it was asked for
  failed                 is not in the kernel, or was changed by another program after every repair
  held-back              is kept out of the kernel: it might record something else than on the kernel that it was made for
  shadowed-by-livepatch  is in code that is not run: a livepatch has redirected the function
  expired                was taken out of the kernel when its lease ended
The reason and a hint stand under the table.

LEASE is how long a probe is still there (`held`: as long as the command that defined it runs). Probes without a lease stay. \
`kprobectl renew` brings back one that has expired.

--watch prints a line for each probe, and one for each change: when the probe or its state is not as it was. Changes by other \
programs are noticed when the daemon looks for them (`[reconcile]` in its configuration). `-o wide` adds kind, location, filter and labels. \
`-o json` prints an object in each line: `probe`, and `event`, which is `present`, `synced` (these were all, without a probe), `added`, \
`changed`, `deleted`, or `restarted` (changes were missed, and all probes follow). `-o yaml` prints the document of the probe each time, \
after a comment with the event and the state.

--watch --from follows the probes of all hosts that publish to NATS (`[export.nats]` of their daemons), with the name of the host in each line: `host` in \
JSON. All of them come first, host by host; one that was not reached meanwhile is shown as it was published last.

--foreign shows events of other programs, and those of a daemon whose database was lost (LOOKS OWN): `kprobectl adopt` makes probes of \
them. ENABLED IN names the trace instances in which an event is switched on. What perf and BPF use is not known.

`-o yaml` prints documents, which `kprobectl apply -f` takes back; `-o json` prints everything.

Examples:
  kprobectl list
  kprobectl list 'kprobes/*' -o wide
  kprobectl list -l 'team=storage,tier!=2,!reviewed'
  kprobectl list -l 'team in (storage,net)'
  kprobectl list --watch
  kprobectl list --watch -o json | jq 'select(.event == \"changed\") | .probe.state'
  kprobectl list --watch --from nats://127.0.0.1:4222 --hosts 'web*'
  kprobectl list --foreign
  kprobectl list -l team=storage -o yaml > probes.yaml
  kprobectl list -o json";

/// Arguments of `list`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Only probes whose names match (`*`, `?`)
    glob: Option<String>,
    /// Only probes whose labels match: `key=value`, `key!=value`, `key`, `!key`, `key in (a,b)`, `key notin (a,b)`; with commas all of them must
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    selector: String,
    /// Follow the probes: print all of them, and then every change, until Ctrl-C
    #[arg(short, long)]
    pub(super) watch: bool,
    /// Instead of probes: the kprobe events of the host that are not the daemon's, which it never touches
    #[arg(long, conflicts_with_all = ["selector", "watch"])]
    foreign: bool,
    #[command(flatten)]
    from: From,
}

impl Arguments {
    /// Whether it is asked for what was published.
    pub(crate) const fn is_published(&self) -> bool {
        self.from.is_given()
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if arguments.is_published() {
        if !arguments.watch {
            let message =
                "`--from` without `--watch` asks for no daemon, and states that are published are followed"
                    .to_owned();
            return Err(Failure::usage(message, Some("add `--watch`".to_owned())));
        }
        #[cfg(not(feature = "nats"))]
        return Err(super::published::refused());
        #[cfg(feature = "nats")]
        {
            let pattern = glob::of_names(arguments.glob.as_deref().unwrap_or_default());
            let Arguments { from, selector, .. } = arguments;
            return super::published::watch(global, from, (pattern, &selector), output).await;
        }
    }
    let client = connect(global).await?;
    if arguments.foreign {
        return foreign(&client, arguments, output).await;
    }
    if arguments.watch {
        return watch(&client, arguments, output).await;
    }
    let all = arguments.glob.is_none() && arguments.selector.trim().is_empty();
    let request = ListProbesRequest {
        name_glob: glob::of_names(arguments.glob.as_deref().unwrap_or_default()),
        label_selector: arguments.selector,
        ..Default::default()
    };
    let (probes, problems) = client.select_probes_and_problems(request).await?;
    output.probes(&probes)?;
    output.declaration_problems(&problems);
    if probes.is_empty() {
        output.empty(if all {
            "there are no probes: `kprobectl add` defines one"
        } else {
            "no probe matches"
        });
    }
    Ok(Exit::Success)
}

/// Prints events that are not the daemon's.
async fn foreign(client: &Client, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let glob = glob::of_names(arguments.glob.as_deref().unwrap_or_default());
    let events = client.foreign_probes(&glob).await?;
    output.foreign_events(&events)?;
    if events.is_empty() {
        output.empty(if glob.is_empty() {
            "every kprobe event of this host is a probe of the daemon"
        } else {
            "no foreign event matches"
        });
    }
    Ok(Exit::Success)
}

/// Prints what becomes of probes until it is interrupted.
async fn watch(client: &Client, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let request = WatchProbesRequest {
        name_glob: glob::of_names(arguments.glob.as_deref().unwrap_or_default()),
        label_selector: arguments.selector,
        ..Default::default()
    };
    let mut watch = client.watch_probes(request).await?;
    loop {
        output.watched(None, &watch.next().await?)?;
        output.flush()?;
    }
}
