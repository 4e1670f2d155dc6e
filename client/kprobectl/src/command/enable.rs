//! `kprobectl enable` and `kprobectl disable`: switch the recording of probes.

use clap::Args;
use kprobed_client::api::UpdateProbeRequest;

use super::changes::{Mode, update};
use super::connection::connect;
use super::probe_selection::{ProbeSelection, choose};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Output, state_name};

/// Arguments of `enable` and `disable`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    probes: ProbeSelection,
}

pub(crate) async fn enable(
    global: &Global,
    arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    switch(global, arguments, true, output).await
}

pub(crate) async fn disable(
    global: &Global,
    arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    switch(global, arguments, false, output).await
}

/// Continues with the next name after a failure. The worst exit code wins.
async fn switch(
    global: &Global,
    Arguments { probes: ProbeSelection { names, selector, take_over } }: Arguments,
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
