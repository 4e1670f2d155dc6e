//! `kprobectl explain`: the meaning of a definition in words.

use std::path::PathBuf;

use clap::Args;

use super::connection::connect;
use super::input::{definition, specs};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::Output;

const AFTER_HELP: &str = "\
Prints the line for the kernel, each argument in words, the fields of an event, and the assumptions that were made. \
It does not check the place: `kprobectl check` reports whether the kernel would accept the definition. \
`-o json` and `-o yaml` print the definition as fields, under `spec`.

Examples:
  kprobectl explain 'ip_rcv(x64 skb | int skb[32], NULL, string name+8)'
  kprobectl explain 'r:back do_sys_open rv ra # dialect: 2009'
  kprobectl explain --spec probe.yaml
  kprobectl explain -o json 'p:x vfs_read +0(+8($arg1)):string'";

/// Arguments of `explain`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The definition, as one argument or several; `-` reads it from standard input
    #[arg(required_unless_present = "spec", conflicts_with = "spec")]
    definition: Vec<String>,
    /// Explain the definition in this JSON or YAML file; `-` is standard input
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if let Some(path) = &arguments.spec {
        let specs = specs(path).await?;
        let client = connect(global).await?;
        for spec in specs {
            let answer = client.explain_probe(spec).await?;
            output.explanation(&answer)?;
        }
        return Ok(Exit::Success);
    }
    let definition = definition(&arguments.definition).await?;
    let client = connect(global).await?;
    let answer = client.explain_probe(&definition).await?;
    output.explanation(&answer)?;
    Ok(Exit::Success)
}
