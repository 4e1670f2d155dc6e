//! Definitions in arguments: the lines of the kernel's language for which they stand, as the daemon reads them.
//!
//! Owns the note that says what a short form became, and the confirmation of many probes. Never reads a definition
//! itself.

use kprobed_client::api::CheckProbeResponse;
use kprobed_client::{Client, Error};
use tonic::Code;

use super::Failure;
use crate::output::Output;

/// More probes than these need `--yes`.
const CONFIRM_ABOVE: usize = 100;

/// The definitions of arguments, each of one probe: the one place where a command learns what its arguments define.
///
/// # Errors
/// When the daemon does not answer, or there are more probes than are made without `--yes`.
pub(in crate::command) async fn definitions(
    client: &Client,
    arguments: &[String],
    yes: bool,
    output: &mut Output,
) -> Result<Vec<String>, Failure> {
    let mut definitions = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let checked = checked(client, argument).await?;
        note(argument, &checked, output);
        match checked.lines.len() {
            0 | 1 => definitions.push(argument.clone()),
            _ => definitions.extend(checked.lines),
        }
    }
    confirm(arguments, definitions.len(), yes)?;
    Ok(definitions)
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

/// Says which lines a short form became, and what it leaves out.
pub(in crate::command) fn note(definition: &str, checked: &CheckProbeResponse, output: &mut Output) {
    match checked.lines.as_slice() {
        [] => {}
        [line] => output.remark(&format!("`{}` is `{line}`", definition.trim())),
        [first, .., last] => output.remark(&format!(
            "`{}` is {} probes, from `{first}` to `{last}`",
            definition.trim(),
            checked.lines.len()
        )),
    }
    for note in &checked.notes {
        output.remark(note);
    }
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
