//! `kprobectl check`: the verdict of a kernel on definitions.

use clap::{ArgGroup, Args};
use kprobed_client::api::{CheckProbeResponse, CheckedDefinition, Verdict};
use kprobed_client::{CheckStream, Client};
use kprobed_lang::definition::Call;
use kprobed_lines::Definition;

use super::connection::connect;
use super::definitions::{by_source, call, remarks};
use super::image::{self, Images};
use super::input::{DefinitionFile, definition};
use super::{Exit, Failure};
use crate::global::Global;
use crate::lines::Lines;
use crate::output::Output;

/// Arguments of `check`.
#[derive(Clone, Debug, Args)]
#[command(after_help = include_str!("help/check.txt"), group = ArgGroup::new("images").args(["kernel", "diff"]))]
pub(crate) struct Arguments {
    /// The definition, as one argument or several; `-` reads it from standard input
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    definition: Vec<String>,
    /// Check every definition in this file; `-` is standard input. With --kernel also documents, or a directory of them
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<DefinitionFile>,
    /// With several hosts: also exit with 1 if all hosts accept a definition but would record different things
    #[arg(long)]
    pub(crate) strict: bool,
    /// Also describe the definition in words: the line for the kernel, each argument, the fields of an event
    #[arg(long, conflicts_with_all = ["file", "strict"])]
    explain: bool,
    #[command(flatten)]
    pub(crate) images: Images,
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if arguments.images.are_given() {
        return image::run(arguments.images, &arguments.definition, arguments.file.as_ref(), output).await;
    }
    if let Some(file) = &arguments.file {
        return run_file(global, file, output).await;
    }
    let definition = definition(&arguments.definition).await?;
    let client = connect(global).await?;
    let lines = by_source(&client, &global.lines, &[definition], output).await?;
    let [definition] = lines.as_slice() else { return several(&client, &arguments, lines, output).await };
    let definition = definition.clone();
    if let Some(Call { entry, exit, .. }) = call(&definition)? {
        output.remark(&format!("`{}` is `{entry}` and `{exit}`", definition.trim()));
        return several(&client, &arguments, vec![entry, exit], output).await;
    }
    let answer = if arguments.explain {
        client.explain_probe(&definition).await?
    } else {
        client.check_probe(&definition).await?
    };
    for remark in remarks(&definition, &answer) {
        output.remark(&remark);
    }
    if answer.lines.len() > 1 {
        return several(&client, &arguments, answer.lines, output).await;
    }
    output.check(&definition, &answer)?;
    Ok(exit_of(Some(&answer)))
}

/// The exit code of a verdict.
pub(super) fn exit_of(check: Option<&CheckProbeResponse>) -> Exit {
    if check.is_some_and(|check| check.verdict() == Verdict::Accepted) {
        Exit::Success
    } else {
        Exit::Refused
    }
}

/// The verdicts on the lines for which a definition stands.
async fn several(
    client: &Client,
    arguments: &Arguments,
    lines: Vec<String>,
    output: &mut Output,
) -> Result<Exit, Failure> {
    if arguments.explain {
        let message = format!("`{}` stands for {} probes", arguments.definition.join(" "), lines.len());
        let hint = "`--explain` is for one: write one of its lines";
        return Err(Failure::usage(message, hint));
    }
    let text = lines.join("\n").into_bytes();
    let checks = client.check_probes(tokio_stream::once(text), output.is_keeping()).await?;
    verdicts(checks, None, output).await
}

async fn run_file(global: &Global, file: &DefinitionFile, output: &mut Output) -> Result<Exit, Failure> {
    let client = connect(global).await?;
    let (text, end) = file.chunks()?;
    let checks = client.check_probes(text, output.is_keeping()).await?;
    let exit = verdicts(checks, Some((&client, &global.lines)), output).await?;
    end.wait().await?;
    Ok(exit)
}

/// Prints verdicts as they come. The worst exit code wins. With a daemon and debug information, definitions by
/// source and short forms are checked as the lines that they are.
async fn verdicts(
    mut checks: CheckStream,
    expand: Option<(&Client, &Lines)>,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let mut exit = Exit::Success;
    let in_stream = |error| Failure::from(error).in_stream();
    while let Some(checked) = checks.next().await.map_err(in_stream)? {
        exit = exit.max(match (expand, &checked.check) {
            (Some((client, lines)), _) if Definition::by_source(&checked.definition).is_some() => {
                check_by_source(client, lines, &checked, output).await?
            }
            (Some((client, _)), Some(check)) if check.lines.len() > 1 => {
                check_lines(client, check, &checked, output).await?
            }
            (_, check) => {
                output.check_in_file(&checked)?;
                exit_of(check.as_ref())
            }
        });
        // Print verdicts before waiting for the next one.
        if checks.ready() == 0 {
            output.flush()?;
        }
    }
    Ok(exit)
}

/// Checks the lines of a definition by source, which the daemon cannot read. What has none is refused, and the others
/// of the file are checked.
async fn check_by_source(
    client: &Client,
    debug: &Lines,
    checked: &CheckedDefinition,
    output: &mut Output,
) -> Result<Exit, Failure> {
    let definitions = std::slice::from_ref(&checked.definition);
    let lines = match by_source(client, debug, definitions, output).await {
        Ok(lines) => lines,
        Err(failure) => {
            output.note(&format!("line {} is refused:", checked.line));
            return Ok(failure.report(output));
        }
    };
    let mut exit = Exit::Success;
    for definition in lines {
        let check = client.check_probe(&definition).await?;
        exit = exit.max(exit_of(Some(&check)));
        output.check_in_file(&CheckedDefinition { definition, check: Some(check), ..*checked })?;
    }
    Ok(exit)
}

/// Checks the lines of a short form, such as `vfs_*`, which have the number of its line in the file.
async fn check_lines(
    client: &Client,
    check: &CheckProbeResponse,
    checked: &CheckedDefinition,
    output: &mut Output,
) -> Result<Exit, Failure> {
    for remark in remarks(&checked.definition, check) {
        output.remark(&remark);
    }
    let text = check.lines.join("\n").into_bytes();
    let mut checks = client.check_probes(tokio_stream::once(text), output.is_keeping()).await?;
    let mut exit = Exit::Success;
    while let Some(CheckedDefinition { definition, check, .. }) = checks.next().await? {
        exit = exit.max(exit_of(check.as_ref()));
        output.check_in_file(&CheckedDefinition { definition, check, ..*checked })?;
    }
    Ok(exit)
}
