//! `kprobectl hist`: counts of events by keys.

use clap::Args;
use kprobed_client::api::aggregation_key::Key;
use kprobed_client::api::aggregation_spec::Aggregation;
use kprobed_client::api::{AggregationKey, AggregationSpec, ContextKey, HistogramSpec};

use super::counting::{Count, CountKey, Lifetime, RowOptions};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{CountView, LatencyUnit, Output};

const AFTER_HELP: &str = "\
A word that names a probe is that probe; any other word is a function, and in quotes a definition, as for \
`kprobectl trace`. What the command defines it deletes at its end; if it is killed, the daemon does. On more hosts than \
are changed without a confirmation, that needs --yes.

The kernel counts and records no event: the probe may be disabled. Counting ends with the command, \
unless --keep is given, which needs a probe that exists.

A KEY is one of:
  thread, comm, cpu, stack  the thread, the name of its task, the CPU, the call stack in the kernel
  FIELD                     a field of the probe: one row for each value
  FIELD.log2                powers of two, drawn as bars
  FIELD.buckets=N           buckets of width N, drawn as bars
  FIELD.sym                 addresses, by function
  FIELD.sym-offset          addresses, by function and offset
  FIELD.exact               a field that is named like another key, such as `comm`
  host                      with --hosts: the counts of each host, instead of their sum
Without a key, one row counts all events.

The last reading has all counts, even with --deltas. `dropped` is the number of events for which the \
kernel's table had no free row.

The hits of kprobed's own threads, which each reading causes, are in no row: their number is printed beside \
the counts (`own` in JSON), and --include-self counts them. They are known by the name of the task: one of \
another program that begins with `kprobed` is left out too.

`kprobectl stacks` is short for `kprobectl hist --by stack`: kernel stacks, from the innermost function outward, up \
to 16 frames. `--folded` prints one line for each stack, outermost function first, as flame graph tools read it. The \
number at its end is the count, or with --sum the first sum. With `--by host` the host is the outermost frame.

`(4, 8]` contains 8 and not 4; `[4, 8)` contains 4 and not 8. K, M and G are powers of 1024. A \
percentile is given as its bucket.

Examples:
  kprobectl hist vfs_read --by comm --for 10s
  kprobectl hist 'p vfs_read count' --by count.log2
  kprobectl hist 'r vfs_read ret=$retval:s64' --by ret.log2 --filter 'ret > 0'
  kprobectl hist sched/sched_switch --by next_comm --top 10
  kprobectl hist read --by comm,bytes.buckets=4096 --sum bytes --sort bytes
  kprobectl hist read --by comm --interval 1s --deltas -o json | jq -r '.rows[].keys[0].text'
  kprobectl hist open --by comm --keep opens --lease 1h
  kprobectl hist vfs_read --by comm --hosts 'web[001-020]' --for 10s
  kprobectl hist open --by host,comm --hosts 'web[001-003]' --for 10s
  kprobectl stacks tcp_connect --for 10s --top 5
  kprobectl stacks open --by comm --filter 'dfd == -100'
  kprobectl stacks vfs_read --by host --hosts 'web[001-003]' --folded > out
  kprobectl stacks read --sum bytes --folded | flamegraph.pl > bytes.svg";

/// Arguments of `hist`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Count separately by this key; at most 3 keys besides `host` [default: one row for all events]
    #[arg(long = "by", value_name = "KEY", value_delimiter = ',')]
    keys: Vec<CountKey<AggregationKey>>,
    /// A probe (GROUP/EVENT, or EVENT if only one probe has it), a function, or a definition in quotes
    #[arg(value_name = "PROBE")]
    probe: String,
    /// Field to add up in each row; at most 2 [default: none]
    #[arg(long = "sum", value_name = "FIELD", value_delimiter = ',')]
    sums: Vec<String>,
    /// Count only events that pass this filter, in the kernel's filter language [default: all]
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    filter: String,
    /// Rows in the kernel's table, 128 to 16384 [default: 2048]
    #[arg(long, value_name = "ROWS", default_value_t = 0, hide_default_value = true)]
    size: u32,
    /// Count the hits of kprobed's own threads as well [default: leave them out, and print how many]
    #[arg(long)]
    include_self: bool,
    /// Print one line for each call stack, as flame graph tools read them; needs the key `stack`
    #[arg(long, conflicts_with_all = ["interval", "keep", "output"])]
    folded: bool,
    #[command(flatten)]
    life: Lifetime,
    #[command(flatten)]
    shown: RowOptions,
}

impl Arguments {
    /// The same counts, by the call stack before all other keys.
    fn by_stack(mut self) -> Self {
        let stack = AggregationKey { key: Some(Key::Context(ContextKey::Stack.into())) };
        self.keys.insert(0, CountKey::Key(stack));
        self
    }
}

/// `kprobectl stacks`.
pub(crate) async fn stacks(
    global: &Global,
    arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    run(global, arguments.by_stack(), output).await
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let Arguments { keys, probe, sums, filter, size, include_self, folded, life, shown } = arguments;
    let view = CountView { is_folded: folded, ..shown.view(&sums, LatencyUnit::Auto)? };
    let (keys, is_by_host) = CountKey::split(keys);
    let spec = HistogramSpec { probe, keys, sums, filter, size, include_self };
    let spec = AggregationSpec { aggregation: Some(Aggregation::Histogram(spec)) };
    Count { spec, is_by_host, life, view }.run(global, output).await
}
