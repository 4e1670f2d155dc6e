//! `kprobectl diff`: the changes that `apply` would make.

use clap::Args;
use kprobed_document::{document_of, write};

use super::apply::{Files, Prune};
use super::connection::connect;
use super::document_changes::{compare, to_prune};
use super::{Exit, Failure};
use crate::global::Global;
use crate::output::{Output, ProbeDifference};

/// Arguments of `diff`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/diff.txt"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) files: Files,
    #[command(flatten)]
    prune: Prune,
}

/// Never ends with 1 unless there is a difference.
pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    answer(global, arguments, output).await.or_else(|failure| ended_by(failure, output))
}

/// The exit code after a failure. A reader that closed the pipe is none.
fn ended_by(failure: Failure, output: &mut Output) -> Result<Exit, Failure> {
    if failure.is_broken_pipe() { Err(failure) } else { Ok(failure.report(output).max(Exit::Usage)) }
}

/// The same, with failures as they are.
pub(crate) async fn answer(
    global: &Global,
    arguments: Arguments,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let found = differences(global, arguments, output).await?;
    output.differences(&found)?;
    Ok(if found.is_empty() { Exit::Success } else { Exit::Refused })
}

async fn differences(
    global: &Global,
    Arguments { files, prune }: Arguments,
    output: &mut Output,
) -> Result<Vec<ProbeDifference>, Failure> {
    let client = connect(global).await?;
    let planned = compare(&client, global, files.into_documents()).await?;
    let pruned = match prune.selector {
        Some(selector) => to_prune(&client, selector, &planned, false, output).await?,
        None => Vec::new(),
    };
    let text = |document| write(&[document]).map_err(std::io::Error::other);
    let mut found = Vec::new();
    for one in planned.into_iter().filter(|one| one.change.is_some()) {
        found.push(ProbeDifference {
            name: one.declared.name().to_owned(),
            action: if one.live.is_some() { "configured" } else { "created" },
            file: one.declared.file.clone(),
            before: one.live.as_ref().map(|live| text(document_of(live))).transpose()?.unwrap_or_default(),
            after: text(one.wanted)?,
        });
    }
    for probe in pruned {
        found.push(ProbeDifference {
            name: probe.name.clone(),
            action: "deleted",
            file: String::new(),
            before: text(document_of(&probe))?,
            after: String::new(),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::io;

    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Options {
        #[command(flatten)]
        global: Global,
    }

    #[test]
    fn a_closed_pipe_is_no_failed_comparison() {
        let Options { global } = Options::parse_from(["kprobectl"]);
        let mut output = Output::new(&global).keeping();
        let closed = ended_by(io::Error::from(io::ErrorKind::BrokenPipe).into(), &mut output);
        assert!(closed.is_err_and(|failure| failure.is_broken_pipe()));
        let failed = ended_by(Failure::refused("no", "yes"), &mut output);
        assert_eq!(failed.ok(), Some(Exit::Usage));
    }
}
