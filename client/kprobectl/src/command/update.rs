//! `kprobectl update`, `enable` and `disable`: change probes that there are.

use std::time::Duration;

use clap::{ArgGroup, Args};
use jiff::Timestamp;
use kprobed_client::api::{Lease, Probe, UpdateProbeRequest};

use super::changes::{Mode, update};
use super::connection::connect;
use super::probe_selection::{ProbeSelection, choose};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Output, lease, state_name};
use crate::quantity::duration;

/// Arguments of `update`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = include_str!("help/update.txt"), override_usage = "kprobectl update [OPTIONS] <NAME>...", group(
    ArgGroup::new("change")
        .required(true)
        .multiple(true)
        .args(["filter", "no_filter", "lease", "renew", "keep", "description", "owner", "accept"])
))]
pub(crate) struct Arguments {
    #[command(flatten)]
    probes: ProbeSelection,
    /// Set the kernel filter
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// Remove the kernel filter
    #[arg(long, conflicts_with = "filter")]
    no_filter: bool,
    /// Delete the probes after this time from now (`30m`, `2h`)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,
    /// Start the lease anew, with the duration that it has; with --selector or a glob only of probes that have one
    #[arg(long, conflicts_with = "lease")]
    renew: bool,
    /// Remove the lease: the probe stays until it is deleted
    #[arg(long, conflicts_with_all = ["lease", "renew"])]
    keep: bool,
    /// Set the description
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Name who answers questions about the probes
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    /// Arm probes that the daemon holds back after a change of kernel, as they are written
    #[arg(long, conflicts_with_all = [
        "filter", "no_filter", "lease", "renew", "keep", "description", "owner", "take_over",
    ])]
    accept: bool,
}

impl Arguments {
    /// The request for each probe, without its name. The lease of `--renew` is that of the probe.
    fn change(&self) -> UpdateProbeRequest {
        UpdateProbeRequest {
            filter: if self.no_filter { Some(String::new()) } else { self.filter.clone() },
            lease: if self.keep { Some(Lease::default()) } else { self.lease.map(for_so_long) },
            description: self.description.clone(),
            owner: self.owner.clone(),
            accept: self.accept,
            take_over: self.probes.take_over,
            ..Default::default()
        }
    }
}

/// Continues with the next probe after a failure. The worst exit code wins.
pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let change = arguments.change();
    let changes_lease = arguments.renew || change.lease.is_some();
    let ProbeSelection { names, selector, .. } = arguments.probes;
    let mut chosen = choose(&client, names, selector.as_deref()).await?;
    let mut exit = Exit::Success;
    let mut requests = Vec::with_capacity(chosen.len());
    if arguments.renew {
        chosen.retain(|one| one.listed.as_ref().is_none_or(|probe| probe.lease.is_some()));
        if chosen.is_empty() {
            let message = "none of these probes has a lease: they stay until they are deleted";
            return Err(Failure::refused(message, "`--lease 2h` gives them one"));
        }
    }
    for one in chosen {
        let mut request = UpdateProbeRequest { etag: one.etag(), name: one.name.clone(), ..change.clone() };
        if arguments.renew {
            match one.probe(&client).await.and_then(|probe| Ok((renewed(&probe)?, probe))) {
                Ok((lease, Probe { name, etag, .. })) => {
                    request = UpdateProbeRequest { name, etag, lease: Some(lease), ..request };
                }
                Err(failure) => {
                    exit = exit.max(failure.report(output));
                    continue;
                }
            }
        }
        requests.push(request);
    }
    let (probes, worst) = update(&client, requests, Mode::Each, output).await?;
    let now = Timestamp::now();
    output.probes_changed(&probes, |probe| match lease(probe, now) {
        _ if !changes_lease => state_name(probe.state()).0.to_owned(),
        lease if lease.is_empty() => "stays".to_owned(),
        lease => lease,
    })?;
    Ok(exit.max(worst))
}

/// The lease that a probe has, from its beginning.
fn renewed(probe: &Probe) -> Result<Lease, Failure> {
    match &probe.lease {
        Some(Lease { duration: Some(duration), .. }) => {
            Ok(Lease { duration: Some(*duration), ..Lease::default() })
        }
        Some(_) => Err(Failure::refused(
            format!("`{}` is there for as long as the client that defined it is connected", probe.name),
            "give `--lease`, or `--keep` for a probe that stays until it is deleted",
        )),
        None => Err(Failure::refused(
            format!("`{}` has no lease: it stays until it is deleted", probe.name),
            "`--lease 2h` gives it one",
        )),
    }
}

/// A lease of this duration. One that the API cannot say is longer than the daemon allows, and refused as such.
pub(super) fn for_so_long(lasting: Duration) -> Lease {
    let longest = prost_types::Duration { seconds: i64::MAX, nanos: 0 };
    let duration = prost_types::Duration::try_from(lasting).unwrap_or(longest);
    Lease { duration: Some(duration), ..Lease::default() }
}

pub(crate) async fn enable(
    global: &Global,
    probes: ProbeSelection,
    output: &mut Output,
) -> Result<Exit, Failure> {
    switch(global, probes, true, output).await
}

pub(crate) async fn disable(
    global: &Global,
    probes: ProbeSelection,
    output: &mut Output,
) -> Result<Exit, Failure> {
    switch(global, probes, false, output).await
}

/// Continues with the next name after a failure. The worst exit code wins.
async fn switch(
    global: &Global,
    ProbeSelection { names, selector, take_over }: ProbeSelection,
    enabled: bool,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let chosen = choose(&client, names, selector.as_deref()).await?;
    let requests = chosen.into_iter().map(|one| UpdateProbeRequest {
        etag: one.etag(),
        name: one.name,
        enabled: Some(enabled),
        take_over,
        ..Default::default()
    });
    let (probes, exit) = update(&client, requests.collect(), Mode::Each, output).await?;
    output.probes_changed(&probes, |probe| state_name(probe.state()).0.to_owned())?;
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_as_long_as_before_or_as_asked() {
        let probe = |lease| Probe { name: "kprobes/open".to_owned(), lease, ..Default::default() };
        let hour = for_so_long(Duration::from_hours(1));
        let leased =
            probe(Some(Lease { expire_time: Some(prost_types::Timestamp::default()), ..hour.clone() }));
        let held = probe(Some(Lease { holder: "hold-1".to_owned(), ..Default::default() }));
        assert_eq!(renewed(&leased).unwrap(), hour);
        let asked = |lease, keep| Arguments { lease, keep, ..Default::default() }.change().lease;
        let lease = Duration::from_secs(90);
        assert_eq!(asked(Some(lease), false), Some(for_so_long(lease)));
        assert_eq!(asked(None, true), Some(Lease::default()));
        assert_eq!(asked(None, false), None);
        for probe in [held, probe(None)] {
            let refused = renewed(&probe).unwrap_err();
            assert_eq!(refused.hints().len(), 1, "{refused}");
        }
        assert!(for_so_long(Duration::MAX).duration.is_some());
    }
}
