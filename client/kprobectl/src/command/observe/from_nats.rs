//! `observe --from`: events from NATS, merged in the order of time.
//!
//! Owns which options need a daemon, and selects here what a daemon would select.

use std::time::SystemTime;

use kprobed_client::event::Projection;
use kprobed_client::merge::{MergeOptions, MergedStream};
use kprobed_client::nats::{NatsRequest, NatsStart};
use tokio::task::JoinSet;

use super::Arguments;
use super::merged_hosts::{MergedHosts, Show};
use crate::command::nats::{LabelFilter, connect, failure, selected};
use crate::command::stop_condition::StopCondition;
use crate::command::{Exit, Failure};
use crate::glob;
use crate::global::Global;
use crate::output::Output;

/// Refuses what only a daemon can do.
fn judge(arguments: &Arguments) -> Result<(), Failure> {
    let refused = |message: &str, hint: &str| Err(Failure::usage(message.to_owned(), Some(hint.to_owned())));
    if !arguments.definitions.is_empty() {
        return refused(
            "`--probe` defines a probe in a daemon, and `--from` asks none",
            "define it with `kprobectl apply --hosts`",
        );
    }
    if arguments.start.cursor.is_some() {
        return refused(
            "`--cursor` is a place in the events of one daemon, and `--from` reads those of many",
            "use `--since`, which reads the stream from that time on",
        );
    }
    if arguments.start.last.is_some() {
        return refused(
            "`--last` counts events backwards, and a stream of NATS is read forwards only",
            "use `--since`, or `--oldest` for all that the stream has",
        );
    }
    if let Some(option) = arguments.delivery.first() {
        return refused(
            &format!("`{option}` is about the queue that a daemon has for a command, and `--from` asks none"),
            "leave it out: the stream keeps what was not read yet",
        );
    }
    super::judge_wait(arguments.max_wait)
}

/// Shows what was published.
pub(super) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    judge(&arguments)?;
    let (filter, one_in) = arguments.selection.published()?;
    let stop = StopCondition::new(None).map_err(Failure::Signals)?;
    let start = &arguments.start;
    let (begin, since_ns) = match start.since {
        Some(since) => {
            let since_ns = i64::try_from(since.as_nanosecond()).unwrap_or(i64::MAX);
            (NatsStart::Since(SystemTime::from(since)), Some(since_ns))
        }
        None if start.oldest || start.ends() => (NatsStart::Oldest, None),
        None => (NatsStart::Now, None),
    };
    let ends = start.ends();
    let source = connect(arguments.from, global).await?;
    let hosts = selected(source.hosts().await.map_err(|error| failure(&error))?, &global.hosts)?;
    let mut tasks = JoinSet::new();
    let labelled = match arguments.selection.labels() {
        "" => None,
        selector => Some(LabelFilter::watch(&source, selector, &mut tasks).await?),
    };
    let globs: Vec<String> = arguments.probes.iter().map(|pattern| glob::of_names(pattern)).collect();
    let is_wanted = move |host: &str, probe: &str| {
        let matches = |glob: &String| glob.is_empty() || glob::matches(glob.as_bytes(), probe.as_bytes());
        let is_named = globs.is_empty() || globs.iter().any(matches);
        is_named && labelled.as_ref().is_none_or(|labelled| labelled.selects(host, probe))
    };
    let request = NatsRequest::default()
        .start(begin)
        .probes_of_hosts(is_wanted)
        .sample_one_in(one_in)
        .fields(Projection::new(arguments.form.fields.clone()));
    let request = if ends { request.until_now() } else { request };
    let request = match filter {
        Some(filter) => request.filter(filter),
        None => request,
    };
    let default = MergeOptions::default();
    let options = MergeOptions {
        max_wait: arguments.max_wait,
        parallel: global.parallel.unwrap_or(default.parallel),
        reconnect: !arguments.delivery.no_reconnect && !global.fail_fast,
        ..default
    };
    let merged = MergedStream::from_nats(&source, hosts.clone(), &request, options);
    let show = Show {
        count: arguments.count,
        duration: arguments.duration,
        quiet: arguments.quiet,
        form: arguments.form,
        ends,
        since_ns,
    };
    let (exit, _) = show.run(MergedHosts::new(merged, hosts), stop, global, output).await?;
    Ok(exit)
}
