//! `kprobectl check`: the verdict of a kernel on definitions.

use clap::{ArgGroup, Args};
use kprobed_client::api::{CheckProbeResponse, CheckedDefinition, Verdict};
use kprobed_client::{CheckStream, Client};
use kprobed_lang::definition::Call;
use kprobed_lines::Definition;

use super::by_source;
use super::connection::connect;
use super::definitions::{call, remarks};
use super::image::{self, Images};
use super::input::{DefinitionFile, definition};
use super::{Exit, Failure};
use crate::global::Global;
use crate::lines::Lines;
use crate::output::Output;

const AFTER_HELP: &str = "\
Exits with 0 if `kprobectl add` would make the probe now, and with 1 if not. The check writes \
nothing to the kernel.

A short form, such as `openat` or `vfs_*`, is checked as the line or the lines that it becomes, and a note shows them.

A file has one definition per line, in any of the languages that `kprobectl add` takes. `#` \
starts a comment, and a backslash at the end of a line continues it. Each verdict is printed \
as soon as its line is read: the file may have millions of lines, or be a pipe without an end.

With `-o json` a verdict is the message CheckProbeResponse of the API. With --file it is `check` of the message \
CheckedDefinition, which also has the line and the `definition`, one object on each line. Of its keys:
  verdict     VERDICT_ACCEPTED or VERDICT_REFUSED
  errno       the kernel's error number; 0: accepted
  rule        the exact reason; kernel_reason: the code in the kernel's error_log
  diagnostics mistakes and warnings: where they are, in bytes, and what to write instead
  canonical   the line for the kernel
  by          REFUSED_BY_KERNEL, or REFUSED_BY_KPROBED if the kernel would take the definition

These rules are kprobed's own; the kernel would take the definition:
IGNORED_TEXT, OFFSET_TRUNCATED, RESERVED_EVENT_NAME, RESERVED_GROUP_NAME, \
RESERVED_ARG_NAME, NO_MODULE_NAME, DANGEROUS_ARRAY, DANGEROUS_MEMORY, NEVER_ARMED, \
OUTSIDE_FUNCTION, JUMP_OVER_LANDING, EXPECTED_FAULT, MISJUDGED_JUMP, END_OF_MODULE, \
NO_INTERRUPT_TABLE, TOO_MANY_ARGS, UNSUPPORTED_FEATURE, BAD_CHARACTER, SEVERAL_LINES, NO_DEFINITION, WOULD_APPEND, \
PROBE_EXISTS, FOREIGN_PROBE, DELETES_LOCATION.

With --explain it also describes the definition, accepted or not: the line for the kernel, each argument in words, the \
fields of an event, and what was assumed (with -o json: `explanation`).

With --hosts, answers are grouped by kernel. If several kernels accept a definition, the command compares \
what it records: if a register or an offset is another parameter or member, it shows the prototypes and \
the recorded values side by side (with -o json: a record `contrast`). That is a warning; with --strict \
the exit code is 1 as well. `apply --dry-run` compares in the same way.

With --kernel or --diff no daemon is asked: symbols, types, blacklist, ftrace's call sites and code are all in the \
image. The verdict is that of the kernel when it was booted, without modules, livepatches and probes. The definitions \
are taken to be made for the first kernel; for the others the command compares what they mean, as the daemon does \
when a host was booted with another kernel. Exits with 0 if every kernel takes every definition and gives it the same \
meaning, with 1 if not (with --diff: if the kernels differ). Verdicts are:
  accepted   the kernel takes the definition
  changed    it does, and the definition means something else there: the daemon would hold it back
  refused    it does not, for the reason given
  uncertain  that depends on what boot makes of the code there, to fit the processor
  unknown    the definition is about a module, and modules are not looked at
With -o json there is an object for each definition and kernel, one on each line: `kernel`, `definition`, `verdict`, the \
message CheckProbeResponse as `check`, the message MeaningChange as `change`, and `file` and `line`.

Examples:
  kprobectl check openat
  kprobectl check 'vfs_*'
  kprobectl check 'p:open do_sys_openat2+4 dfd=$arg1:s32'
  kprobectl check 'ip_rcv(x64 skb | int skb[32])'
  kprobectl check -o json p:fork kernel_clone
  kprobectl check --explain 'ip_rcv(x64 skb | int skb[32], NULL, string name+8)'
  kprobectl check --explain 'r:back do_sys_open rv ra # dialect: 2009'
  kprobectl check -f probes.txt
  generate-probes | kprobectl check -f - -o json | jq -r 'select(.check.errno != 0).definition'
  kprobectl check 'p:unlink vfs_unlink dir=%si' --hosts all --strict
  kprobectl check --kernel linux-image-6.12.117+deb13-amd64.deb 'p:open do_sys_openat2 how->flags'
  kprobectl check --diff /boot/vmlinuz-6.1.0-48-amd64 new/ -f /etc/kprobed/probes.d --junit report.xml";

/// Arguments of `check`.
#[derive(Clone, Debug, Args)]
#[command(after_help = AFTER_HELP, group = ArgGroup::new("images").args(["kernel", "diff"]))]
pub(crate) struct Arguments {
    /// The definition, as one argument or several; `-` reads it from standard input
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    definition: Vec<String>,
    /// Check every definition in this file; `-` is standard input. With --kernel also documents, or a directory of them
    #[arg(short, long, value_name = "FILE")]
    file: Option<DefinitionFile>,
    /// With several hosts: also exit with 1 if all hosts accept a definition but would record different things
    #[arg(long)]
    pub(crate) strict: bool,
    /// Also describe the definition in words: the line for the kernel, each argument, the fields of an event
    #[arg(long, conflicts_with_all = ["file", "strict"])]
    explain: bool,
    #[command(flatten)]
    images: Images,
}

impl Arguments {
    /// Whether it is about kernels that need not run: no daemon is asked.
    pub(crate) fn is_offline(&self) -> bool {
        self.images.are_given()
    }

    /// Reads the whole file, which several hosts share.
    pub(crate) async fn read_file(&mut self) -> Result<(), Failure> {
        match &mut self.file {
            Some(file) => file.read().await,
            None => Ok(()),
        }
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments, output: &mut Output) -> Result<Exit, Failure> {
    if arguments.is_offline() {
        return image::run(arguments.images, &arguments.definition, arguments.file.as_ref(), output).await;
    }
    if let Some(file) = &arguments.file {
        return run_file(global, file, output).await;
    }
    let definition = definition(&arguments.definition).await?;
    let client = connect(global).await?;
    let lines = by_source::lines(&client, &global.lines, &[definition], Some(output)).await?;
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
fn exit_of(check: Option<&CheckProbeResponse>) -> Exit {
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
        let hint = "`--explain` is for one: write one of its lines".to_owned();
        return Err(Failure::usage(message, Some(hint)));
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
    let lines = match by_source::lines(client, debug, definitions, Some(output)).await {
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
