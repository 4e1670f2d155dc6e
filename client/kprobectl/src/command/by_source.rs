//! Definitions by source lines in commands: what they become on a host, and the notes that say so.

use kprobed_client::Client;
use kprobed_lines::Definition;

use super::Failure;
use crate::global::Global;
use crate::lines::{KernelLine, Lines};
use crate::output::Output;

/// Each definition as those that the daemon reads: one by source becomes a line for each of its places, all others
/// stay as they are.
///
/// # Errors
/// When one by source has no line.
pub(super) async fn lines(
    client: &Client,
    debug: &Lines,
    definitions: &[String],
    mut notes: Option<&mut Output>,
) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::with_capacity(definitions.len());
    for text in definitions {
        match Definition::by_source(text) {
            None => lines.push(text.clone()),
            Some(read) => {
                let made = debug.of(client, &read?).await?;
                if let Some(output) = notes.as_deref_mut() {
                    note(text, &made, output);
                }
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
pub(super) fn note(text: &str, lines: &[KernelLine], output: &mut Output) {
    for line in lines {
        output.note(&format!("`{text}` is `{}`", line.text));
        for remark in &line.remarks {
            output.note(remark);
        }
    }
}
