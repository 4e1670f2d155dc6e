//! `profile --from`: hit counts of the probes of many hosts, from NATS.

use std::collections::HashSet;
use std::time::SystemTime;

use jiff::Timestamp;
use kprobed_client::nats::HostProfile;
use tokio::task::JoinSet;

use super::{LabelFilter, NatsArguments, connect, failure, selected};
use crate::command::{Exit, Failure};
use crate::glob;
use crate::global::Global;
use crate::output::Output;

/// Options for the range of time. Absent: the last counts.
pub(in crate::command) struct Range {
    pub(in crate::command) since: Option<Timestamp>,
    pub(in crate::command) until: Option<Timestamp>,
}

/// Prints counts of hits: the last ones, or those of a time.
pub(in crate::command) async fn profiles(
    global: &Global,
    from: NatsArguments,
    (pattern, selector): (String, &str),
    range: Option<Range>,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let source = connect(from, global).await?;
    let mut tasks = JoinSet::new();
    let labelled = match selector.trim() {
        "" => None,
        selector => Some(LabelFilter::watch(&source, selector, &mut tasks).await?),
    };
    let since = range.as_ref().map(|range| range.since.map_or(SystemTime::UNIX_EPOCH, SystemTime::from));
    let is_wanted = |host: &str, probe: &str| {
        let is_named = pattern.is_empty() || glob::matches(pattern.as_bytes(), probe.as_bytes());
        is_named && labelled.as_ref().is_none_or(|labelled| labelled.selects(host, probe))
    };
    let mut found = source.profiles(since, is_wanted).await.map_err(|error| failure(&error))?;
    let there: HashSet<&str> = found.iter().map(|one| one.host.as_str()).collect();
    let mut there: Vec<String> = there.into_iter().map(ToOwned::to_owned).collect();
    there.sort_unstable();
    if !global.hosts.is_empty() {
        let asked: HashSet<String> = selected(there, &global.hosts)?.into_iter().collect();
        found.retain(|one| asked.contains(&one.host));
    }
    if let Some(until) = range.as_ref().and_then(|range| range.until).map(SystemTime::from) {
        let time = |one: &HostProfile| one.profile.time.and_then(|time| SystemTime::try_from(time).ok());
        found.retain(|one| time(one).is_some_and(|time| time < until));
    }
    let counts: Vec<_> = found.iter().map(|one| (one.host.as_str(), &one.profile)).collect();
    output.host_profiles(&counts, range.is_some())?;
    if counts.is_empty() {
        output.empty("the stream has no such counts: see `kprobectl exporters` on the hosts");
    }
    Ok(Exit::Success)
}
