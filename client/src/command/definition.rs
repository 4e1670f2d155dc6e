//! Definitions as they are given on a command line.

use std::io;

use tokio::sync::oneshot;

use super::Failure;

/// Joins the words of a definition, or reads one from standard input when the only word is `-`.
pub(super) async fn definition(words: &[String]) -> Result<String, Failure> {
    if words != ["-"] {
        return Ok(words.join(" "));
    }
    let text = standard_input().await.map_err(Failure::Input)?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (lines.next(), lines.next()) {
        (Some(line), None) => Ok(line.to_owned()),
        (None, _) => Err(Failure::usage("standard input holds no definition".to_owned(), None)),
        (Some(_), Some(_)) => Err(Failure::usage(
            "standard input holds more than one definition".to_owned(),
            Some(
                "one call takes one line: `while read -r line; do kprobectl add \"$line\"; done`".to_owned(),
            ),
        )),
    }
}

/// Reads all of standard input on a thread of its own, so that Ctrl-C is heard meanwhile. The thread ends with the process.
async fn standard_input() -> io::Result<String> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        // Nobody listens any more when the command was interrupted.
        sender.send(io::read_to_string(io::stdin())).ok();
    });
    receiver.await.map_err(io::Error::other)?
}
