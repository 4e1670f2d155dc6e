//! Definitions in arguments: the lines of the kernel's language for which they stand, as the daemon reads them.
//!
//! Owns the notes that say what a short form, or a definition by a source line, became, and the confirmation of many
//! probes. Never reads a definition itself, but for a call (`FUNCTION(ARGUMENTS) -> NAME`), which is two probes whose
//! events a command joins. The return probe is the first of them, so that it records before the entry probe: a call
//! that is under way when the command begins lacks its entry, and none its return.

use kprobed_client::api::{CheckProbeResponse, Diagnostic, Diagnostics, RefusedBy, Verdict};
use kprobed_client::{Client, Error, RpcError};
use kprobed_lang::definition::{self, Call};
use kprobed_lines::Definition;
use tonic::Code;

use super::Failure;
use crate::global::Global;
use crate::lines::{KernelLine, Lines};
use crate::output::Output;

/// More probes than these need `--yes`.
const CONFIRM_ABOVE: usize = 100;

/// Definitions, each of one probe.
#[derive(Clone, Debug)]
pub(in crate::command) struct Definitions {
    pub(in crate::command) lines: Vec<String>,
    /// Where the lines of each call begin, in the order of the arguments: its return probe, and then its entry probe.
    pub(in crate::command) calls: Vec<usize>,
}

/// The functions whose calls the arguments ask for, in their order.
///
/// # Errors
/// The first problem of a call.
pub(in crate::command) fn called(arguments: &[String]) -> Result<Vec<String>, Failure> {
    arguments.iter().filter_map(|text| call(text).transpose()).map(|call| Ok(call?.function)).collect()
}

/// Whether the arguments are calls, and nothing else.
pub(in crate::command) fn are_calls(arguments: &[String]) -> bool {
    !arguments.is_empty() && arguments.iter().all(|text| definition::call(text).is_some())
}

/// The failure that the daemon would answer.
fn refused(text: &str, problem: &definition::Diagnostic) -> Failure {
    let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let finding = Diagnostic {
        code: problem.code.name().to_owned(),
        message: problem.message.clone(),
        hint: problem.hint.clone().unwrap_or_default(),
        span_start: place(problem.span.start),
        span_end: place(problem.span.end),
        by: RefusedBy::Kprobed.into(),
        ..Diagnostic::default()
    };
    let error = RpcError {
        code: Code::InvalidArgument,
        message: finding.message.clone(),
        reason: finding.code.clone(),
        metadata: Vec::new(),
        fields: Vec::new(),
        diagnostics: Some(Diagnostics { text: text.to_owned(), diagnostics: vec![finding] }),
        operation: String::new(),
    };
    Error::Rpc(Box::new(error)).into()
}

/// The two ends of a call, if the argument is one.
///
/// # Errors
/// When the call has a mistake.
pub(in crate::command) fn call(argument: &str) -> Result<Option<Call>, Failure> {
    definition::call(argument).transpose().map_err(|problem| refused(argument, &problem))
}

/// Each definition as those that the daemon reads: one by source becomes a line for each of its places, all others
/// stay as they are.
///
/// # Errors
/// When one by source has no line.
pub(super) async fn by_source(
    client: &Client,
    debug: &Lines,
    definitions: &[String],
    output: &mut Output,
) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::with_capacity(definitions.len());
    for text in definitions {
        match Definition::by_source(text) {
            None => lines.push(text.clone()),
            Some(read) => {
                let made = debug.of(client, &read?).await?;
                note_lines(text, &made, output);
                lines.extend(made.into_iter().map(|line| line.definition));
            }
        }
    }
    Ok(lines)
}

/// The definition of a document: one by source has one line there, named as the document is.
///
/// # Errors
/// When it has no line, or several.
pub(super) async fn of_document(
    client: &Client,
    global: &Global,
    (name, text): (&str, &str),
) -> Result<Option<String>, Failure> {
    let Some(read) = Definition::by_source(text) else { return Ok(None) };
    let mut read = read?;
    if let (None, Some((group, event))) = (&read.event, name.split_once('/')) {
        read.group = Some(group.to_owned());
        read.event = Some(event.to_owned());
    }
    let made = global.lines.of(client, &read).await?;
    match made.as_slice() {
        [only] => Ok(Some(only.definition.clone())),
        several => {
            let places: Vec<_> = several.iter().take(4).map(|line| format!("`{}`", line.text)).collect();
            let message = format!("`{text}` has {} places, and a document is of one probe", several.len());
            let hint = format!("write one of its lines: {}", places.join(", "));
            Err(Failure::refused(message, &hint))
        }
    }
}

/// Says what a definition has become.
pub(super) fn note_lines(text: &str, lines: &[KernelLine], output: &mut Output) {
    for line in lines {
        output.note(&format!("`{text}` is `{}`", line.text));
        for remark in &line.remarks {
            output.note(remark);
        }
    }
}

/// The definitions of arguments: the one place where a command learns what its arguments define.
/// `output` gets the notes of what the arguments became.
///
/// # Errors
/// When the daemon does not answer, or there are more probes than are made without `--yes`.
pub(in crate::command) async fn definitions(
    client: &Client,
    lines: &Lines,
    arguments: &[String],
    yes: bool,
    output: &mut Output,
) -> Result<Definitions, Failure> {
    let arguments = &*by_source(client, lines, arguments, output).await?;
    let (mut definitions, mut calls) = (Vec::new(), Vec::new());
    for argument in arguments {
        if let Some(Call { entry, exit, .. }) = call(argument)? {
            output.note(&format!("`{}` is `{entry}` and `{exit}`", argument.trim()));
            calls.push(definitions.len());
            definitions.extend([exit, entry]);
            continue;
        }
        let checked = checked(client, argument).await?;
        for remark in remarks(argument, &checked) {
            output.note(&remark);
        }
        match checked.lines.len() {
            0 | 1 => definitions.push(argument.clone()),
            // What is listed by name is refused with its reason.
            _ if !argument.contains(['*', '?']) => definitions.extend(checked.lines),
            _ => definitions.extend(accepted(client, argument, &checked.lines, output).await?),
        }
    }
    confirm(arguments, definitions.len(), yes)?;
    Ok(Definitions { lines: definitions, calls })
}

/// Those of the lines of a short form that the kernel takes: a glob matches functions that cannot be probed as well.
async fn accepted(
    client: &Client,
    argument: &str,
    lines: &[String],
    output: &mut Output,
) -> Result<Vec<String>, Failure> {
    let text = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect::<String>().into_bytes();
    let mut checks = client.check_probes(tokio_stream::once(text), false).await?;
    let mut accepted = Vec::with_capacity(lines.len());
    while let Some(checked) = checks.next().await? {
        if checked.check.is_some_and(|check| check.verdict() == Verdict::Accepted) {
            accepted.push(checked.definition);
        }
    }
    let left_out = lines.len() - accepted.len();
    if accepted.is_empty() {
        let message = format!("none of the {left_out} probes of `{}` is possible here", argument.trim());
        return Err(Failure::refused(message, "`kprobectl check` shows why"));
    }
    if left_out > 0 {
        let probes = if left_out == 1 { "probe that is" } else { "probes that are" };
        output.note(&format!("left out {left_out} {probes} not possible: `kprobectl check` shows why"));
    }
    Ok(accepted)
}

/// What the daemon makes of a definition. Nothing for a client that may not ask: what needs no expansion works.
pub(in crate::command) async fn checked(
    client: &Client,
    definition: &str,
) -> Result<CheckProbeResponse, Error> {
    match client.check_probe(definition).await {
        Err(Error::Rpc(error)) if error.code == Code::PermissionDenied => Ok(CheckProbeResponse::default()),
        checked => checked,
    }
}

/// Which lines a short form became, and what it leaves out, in words.
pub(in crate::command) fn remarks(definition: &str, checked: &CheckProbeResponse) -> Vec<String> {
    let definition = definition.trim();
    let became = match checked.lines.as_slice() {
        [] => None,
        [line] => Some(format!("`{definition}` is `{line}`")),
        [first, .., last] => {
            let count = checked.lines.len();
            Some(format!("`{definition}` is {count} probes, from `{first}` to `{last}`"))
        }
    };
    became.into_iter().chain(checked.notes.iter().cloned()).collect()
}

/// Refuses many probes without `--yes`.
pub(in crate::command) fn confirm(arguments: &[String], probes: usize, yes: bool) -> Result<(), Failure> {
    if yes || probes <= CONFIRM_ABOVE || probes == arguments.len() {
        return Ok(());
    }
    let message = format!("`{}` stands for {probes} probes", arguments.join(" "));
    let hint = "add `--yes` to make all of them; `kprobectl check` shows them";
    Err(Failure::usage(message, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_calls_are_known_without_a_daemon() {
        let texts = ["vfs_read", "f(a) -> b", "m:g(*)", "ip_rcv(x64 skb)", "f(c)"].map(str::to_owned);
        assert_eq!(called(&texts).unwrap(), ["f", "m:g", "f"]);
        assert!(!are_calls(&texts) && are_calls(&texts[1..3]) && !are_calls(&[]));
        assert!(called(&["f(a) -> ".to_owned()]).is_err());
    }

    #[test]
    fn many_probes_are_confirmed() {
        let one = ["vfs_*".to_owned()];
        let many = vec!["p vfs_read".to_owned(); 200];
        assert!(confirm(&one, 100, false).is_ok() && confirm(&one, 101, true).is_ok());
        assert!(confirm(&one, 101, false).is_err());
        assert!(confirm(&many, 200, false).is_ok(), "they are written out");
    }
}
