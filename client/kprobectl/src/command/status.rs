//! `kprobectl status`: the daemon on one page, and what to do.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use kprobed_client::Client;
use kprobed_client::api::ListHitsRequest;

use super::connection::connect;
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Output, Status, to_proto_time};

const AFTER_HELP: &str = "\
HITS are of the last five minutes. Exits with 1 if something needs attention: a check that failed, a probe that \
does not record what was asked, an exporter that fails, or a ledger that does not close. The commands behind the \
page are `doctor`, `list`, `hits`, `ledger` and `audit`.

Examples:
  kprobectl status
  kprobectl status -o json";

/// How far back hits are looked at.
const HITS_OF: Duration = Duration::from_mins(5);

/// Arguments of `status`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {}

pub(crate) async fn run(
    global: &Global,
    _arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let status = read(&connect(global).await?).await?;
    let is_well = output.status(&status)?;
    Ok(if is_well { Exit::Success } else { Exit::Refused })
}

async fn read(client: &Client) -> Result<Status, Failure> {
    let since = Timestamp::now().checked_sub(HITS_OF).unwrap_or(Timestamp::UNIX_EPOCH);
    let rates = ListHitsRequest {
        name_glob: "*".to_owned(),
        start_time: Some(to_proto_time(since)),
        step_seconds: 60,
        ..Default::default()
    };
    Ok(Status {
        host: client.host().await?,
        probes: client.list_probes("*").await?,
        attached: client.attached_events().await?,
        rates: client.hits_over_time(rates).await?,
        ledger: client.ledger().await?,
    })
}
