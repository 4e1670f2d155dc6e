//! `kprobectl renew`: start the leases of probes anew.

use std::time::Duration;

use clap::Args;
use kprobed_client::Client;
use kprobed_client::api::{Lease, ListProbesRequest, Probe, UpdateProbeRequest};

use super::connection::connect;
use super::label_arguments::selector;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;
use crate::quantity::duration;

const AFTER_HELP: &str = "\
The lease starts anew, now, with its duration or with that of --for. An expired probe is brought back \
while `kprobectl list` still shows it: for one hour, unless the daemon is configured otherwise. --for \
gives a lease to a probe that has none.

Examples:
  kprobectl renew open
  kprobectl renew open opened --for 8h
  kprobectl renew -l team=storage
  kprobectl renew open --keep";

/// Arguments of `renew`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// GROUP/EVENT, or EVENT if only one probe has it
    #[arg(required_unless_present = "selector", value_name = "NAME")]
    names: Vec<String>,
    /// Renew all probes whose labels match, as for `list`, and that have a lease, instead of named ones
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector, conflicts_with = "names")]
    selector: Option<String>,
    /// Set the duration of the lease (`30m`, `2h`) [default: as before]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    lasting: Option<Duration>,
    /// Remove the lease: the probe stays until it is deleted
    #[arg(long, conflicts_with = "lasting")]
    keep: bool,
}

/// Continues with the next probe after a failure. The worst exit code wins.
pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let mut exit = Exit::Success;
    let mut probes = Vec::new();
    match &arguments.selector {
        None => {
            for name in &arguments.names {
                match client.get_probe(name).await {
                    Ok(probe) => probes.push(probe),
                    Err(error) => exit = exit.max(Failure::from(error).report(output)),
                }
            }
        }
        Some(selector) => {
            let request = ListProbesRequest { label_selector: selector.clone(), ..Default::default() };
            probes = client.select_probes(request).await?;
            probes.retain(|probe| arguments.lasting.is_some() || arguments.keep || probe.lease.is_some());
            if probes.is_empty() {
                return Err(Failure::NoMatch(selector.clone()));
            }
        }
    }
    let mut requests = Vec::with_capacity(probes.len());
    for probe in probes {
        match lease(&probe, &arguments) {
            Ok(lease) => requests.push(UpdateProbeRequest {
                name: probe.name,
                etag: probe.etag,
                lease: Some(lease),
                ..Default::default()
            }),
            Err(failure) => exit = exit.max(failure.report(output)),
        }
    }
    let mut renewed = Vec::with_capacity(requests.len());
    for requests in requests.chunks(Client::CHANGES_AT_ONCE) {
        let outcomes = client.update_probes(requests.to_vec()).await.unwrap_or_else(|error| vec![Err(error)]);
        for outcome in outcomes {
            match outcome {
                Ok(probe) => renewed.push(probe),
                Err(error) => exit = exit.max(Failure::from(error).report(output)),
            }
        }
    }
    output.probes_renewed(&renewed)?;
    Ok(exit)
}

/// The lease that a probe is to have.
fn lease(probe: &Probe, arguments: &Arguments) -> Result<Lease, Failure> {
    if arguments.keep {
        return Ok(Lease::default());
    }
    if let Some(lasting) = arguments.lasting {
        return Ok(for_so_long(lasting));
    }
    match &probe.lease {
        Some(Lease { duration: Some(duration), .. }) => {
            Ok(Lease { duration: Some(*duration), ..Lease::default() })
        }
        Some(_) => Err(Failure::usage(
            format!("`{}` is there for as long as the client that defined it is connected", probe.name),
            Some("give `--for`, or `--keep` for a probe that stays until it is deleted".to_owned()),
        )),
        None => Err(Failure::usage(
            format!("`{}` has no lease: it stays until it is deleted", probe.name),
            Some("`--for 2h` gives it one".to_owned()),
        )),
    }
}

/// A lease of this duration. One that the API cannot say is longer than the daemon allows, and refused as such.
pub(super) fn for_so_long(lasting: Duration) -> Lease {
    let longest = prost_types::Duration { seconds: i64::MAX, nanos: 0 };
    let duration = prost_types::Duration::try_from(lasting).unwrap_or(longest);
    Lease { duration: Some(duration), ..Lease::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(lasting: Option<u64>, keep: bool) -> Arguments {
        let lasting = lasting.map(Duration::from_secs);
        Arguments { names: Vec::new(), selector: None, lasting, keep }
    }

    #[test]
    fn a_lease_is_as_long_as_before_or_as_asked() {
        let probe = |lease| Probe { name: "kprobes/open".to_owned(), lease, ..Default::default() };
        let hour = for_so_long(Duration::from_hours(1));
        let leased =
            probe(Some(Lease { expire_time: Some(prost_types::Timestamp::default()), ..hour.clone() }));
        let held = probe(Some(Lease { holder: "hold-1".to_owned(), ..Default::default() }));
        assert_eq!(lease(&leased, &arguments(None, false)).unwrap(), hour);
        for probe in [&leased, &held, &probe(None)] {
            let asked = lease(probe, &arguments(Some(90), false)).unwrap();
            assert_eq!(asked, for_so_long(Duration::from_secs(90)));
            assert_eq!(lease(probe, &arguments(None, true)).unwrap(), Lease::default());
        }
        for probe in [held, probe(None)] {
            let refused = lease(&probe, &arguments(None, false)).unwrap_err();
            assert!(matches!(refused, Failure::Usage { hint: Some(_), .. }), "{refused}");
        }
        assert!(for_so_long(Duration::MAX).duration.is_some());
    }
}
