//! Definitions as they are given on a command line.

use std::io;
use std::path::Path;

use kprobed_client::Client;
use kprobed_client::api::{FileDefinition, ProbeSpec};
use tokio::sync::{OnceCell, oneshot};

use super::Failure;
use kprobed_document::json;

/// Joins the words of a definition, or reads one from standard input when the only word is `-`.
pub(super) async fn definition(words: &[String]) -> Result<String, Failure> {
    if words != ["-"] {
        return Ok(words.join(" "));
    }
    let text = standard_input().await.map_err(Failure::Input)?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (lines.next(), lines.next()) {
        (Some(line), None) => Ok(line.to_owned()),
        (None, _) => Err(Failure::usage("standard input has no definition".to_owned(), None)),
        (Some(_), Some(_)) => Err(Failure::usage(
            "standard input has more than one definition".to_owned(),
            Some("`-f -` reads several".to_owned()),
        )),
    }
}

/// The definitions of a file, or of standard input if the file is `-`.
pub(super) async fn definitions(client: &Client, path: &Path) -> Result<Vec<FileDefinition>, Failure> {
    Ok(client.read_definitions(content(path).await?).await?)
}

/// The definitions that a file, or standard input if the file is `-`, has as fields in JSON or YAML.
pub(super) async fn specs(path: &Path) -> Result<Vec<ProbeSpec>, Failure> {
    json::read(&content(path).await?)
        .map_err(|problem| Failure::usage(format!("cannot use `{}`: {problem}", path.display()), None))
}

pub(super) async fn content(path: &Path) -> Result<String, Failure> {
    if path == Path::new("-") {
        return standard_input().await.map_err(Failure::Input);
    }
    let file = path.to_owned();
    on_a_thread(move || std::fs::read_to_string(file))
        .await
        .map_err(|source| Failure::File { path: path.to_owned(), source })
}

/// All of standard input. It can be read once only, and every host of a fleet gets the same text.
pub(super) async fn standard_input() -> io::Result<String> {
    static INPUT: OnceCell<String> = OnceCell::const_new();
    INPUT.get_or_try_init(|| on_a_thread(|| io::read_to_string(io::stdin()))).await.cloned()
}

/// Reads to the end on a thread of its own, so that Ctrl-C is heard meanwhile. The thread ends with the process.
async fn on_a_thread(read: impl FnOnce() -> io::Result<String> + Send + 'static) -> io::Result<String> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        // Nobody listens any more when the command was interrupted.
        sender.send(read()).ok();
    });
    receiver.await.map_err(io::Error::other)?
}
