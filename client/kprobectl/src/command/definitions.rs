//! Definitions in arguments: the lines of the kernel's language for which they stand, as the daemon reads them.
//!
//! Owns the note that says what a short form became, and the confirmation of many probes. Never reads a definition
//! itself.

use kprobed_client::api::{CheckProbeResponse, Verdict};
use kprobed_client::{Client, Error};
use tonic::Code;

use super::Failure;
use super::by_source;
use crate::lines::Lines;
use crate::output::Output;

/// More probes than these need `--yes`.
const CONFIRM_ABOVE: usize = 100;

/// The definitions of arguments, each of one probe: the one place where a command learns what its arguments define.
/// `notes` gets what the arguments became; absent with `--quiet`.
///
/// # Errors
/// When the daemon does not answer, or there are more probes than are made without `--yes`.
pub(in crate::command) async fn definitions(
    client: &Client,
    lines: &Lines,
    arguments: &[String],
    yes: bool,
    mut notes: Option<&mut Output>,
) -> Result<Vec<String>, Failure> {
    let arguments = &*by_source::lines(client, lines, arguments, notes.as_deref_mut()).await?;
    let mut definitions = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let checked = checked(client, argument).await?;
        for remark in remarks(argument, &checked) {
            if let Some(output) = notes.as_deref_mut() {
                output.note(&remark);
            }
        }
        match checked.lines.len() {
            0 | 1 => definitions.push(argument.clone()),
            // What is listed by name is refused with its reason.
            _ if !argument.contains(['*', '?']) => definitions.extend(checked.lines),
            _ => definitions.extend(accepted(client, argument, &checked.lines, notes.as_deref_mut()).await?),
        }
    }
    confirm(arguments, definitions.len(), yes)?;
    Ok(definitions)
}

/// Those of the lines of a short form that the kernel takes: a glob matches functions that cannot be probed as well.
async fn accepted(
    client: &Client,
    argument: &str,
    lines: &[String],
    notes: Option<&mut Output>,
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
    if let Some(output) = notes.filter(|_| left_out > 0) {
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
    Err(Failure::usage(message, Some(hint.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_probes_are_confirmed() {
        let one = ["vfs_*".to_owned()];
        let many = vec!["p vfs_read".to_owned(); 200];
        assert!(confirm(&one, 100, false).is_ok() && confirm(&one, 101, true).is_ok());
        assert!(confirm(&one, 101, false).is_err());
        assert!(confirm(&many, 200, false).is_ok(), "they are written out");
    }
}
