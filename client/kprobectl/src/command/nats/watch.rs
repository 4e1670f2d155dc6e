//! `list --watch --from`: states of the probes of many hosts, from NATS.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use kprobed_client::api::Probe;
use kprobed_client::nats::{NatsError, NatsWatchRequest};

use super::{NatsArguments, connect, failure, selected};
use crate::command::{Exit, Failure};
use crate::config::LabelSelector;
use crate::glob;
use crate::global::Global;
use crate::output::Output;

/// Time between two attempts to read on.
const RETRY: Duration = Duration::from_secs(1);

/// Whether a probe is selected.
pub(super) fn wanted(
    pattern: String,
    selector: &str,
) -> Result<impl Fn(&Probe) -> bool + Send + Sync + use<>, Failure> {
    let selector = match selector.trim() {
        "" => LabelSelector::default(),
        text => text.parse().map_err(Failure::Config)?,
    };
    Ok(move |probe: &Probe| {
        let labels: BTreeMap<String, String> =
            probe.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let is_named = pattern.is_empty() || glob::matches(pattern.as_bytes(), probe.name.as_bytes());
        is_named && selector.matches(&labels)
    })
}

/// Prints changes of probes until it is interrupted.
pub(in crate::command) async fn watch(
    global: &Global,
    from: NatsArguments,
    (pattern, selector): (String, &str),
    output: &mut Output,
) -> Result<Exit, Failure> {
    let is_wanted = wanted(pattern, selector)?;
    let source = connect(from, global).await?;
    let hosts = source.hosts_with_states().await.map_err(|error| failure(&error))?;
    // Those of all hosts also of hosts that come later.
    let is_all = global.hosts.is_empty() || global.hosts.iter().any(|list| list == "all");
    let hosts: HashSet<String> =
        if is_all { HashSet::new() } else { selected(hosts, &global.hosts)?.into_iter().collect() };
    let request =
        NatsWatchRequest::default().probes(is_wanted).hosts(move |host| is_all || hosts.contains(host));
    let mut watch = source.watch(request).await.map_err(|error| failure(&error))?;
    loop {
        match watch.next().await {
            Ok(watched) => output.watched(Some(&watched.host), &watched.message)?,
            Err(NatsError::Request { .. }) => {
                while watch.reopen().await.is_err() {
                    tokio::time::sleep(RETRY).await;
                }
            }
            Err(error) => return Err(failure(&error)),
        }
        output.flush()?;
    }
}
