//! Child process that runs while a command follows events.
//!
//! Owns its start and the wait for its end. It never kills the child: the user started it to run.

use std::io;
use std::process::{Command, ExitStatus};
use std::thread;

use tokio::sync::watch;

use super::{Exit, Failure};

/// A program under way.
pub(super) struct Child {
    name: String,
    /// How it ended, when it has.
    status: watch::Receiver<Option<io::Result<ExitStatus>>>,
}

impl Child {
    /// Starts it, with the standard streams of this program.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(words: &[String]) -> Result<Self, Failure> {
        let (program, arguments) = words.split_first().map_or(("", words), |(first, rest)| (first, rest));
        let not_started =
            |why: io::Error| Failure::new(Exit::Refused, format!("cannot run `{program}`: {why}"), []);
        let mut child = Command::new(program).args(arguments).spawn().map_err(not_started)?;
        let (ended, status) = watch::channel(None);
        // Blocks until the child ends, or this program does.
        let wait = move || ended.send_replace(Some(child.wait()));
        thread::Builder::new().name("child".to_owned()).spawn(wait).map_err(not_started)?;
        Ok(Self { name: program.to_owned(), status })
    }

    /// Completes when it has ended.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut status = self.status.clone();
        async move {
            // The thread always sends before it ends.
            drop(status.wait_for(Option::is_some).await);
        }
    }

    /// Waits for its end. Returns a message if it failed.
    pub(super) async fn wait(mut self) -> Option<String> {
        let status = self.status.wait_for(Option::is_some).await.ok()?;
        match status.as_ref()? {
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("`{}` ended with {status}", self.name)),
            Err(error) => Some(format!("cannot wait for `{}`: {error}", self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[tokio::test]
    async fn a_program_runs_to_its_end() {
        let well = Child::start(&words(&["true"])).unwrap();
        well.ended().await;
        assert_eq!(well.wait().await, None);
        let badly = Child::start(&words(&["sh", "-c", "exit 3"])).unwrap();
        assert_eq!(badly.wait().await.as_deref(), Some("`sh` ended with exit status: 3"));
        let absent = Child::start(&words(&["/nonexistent"])).err().unwrap();
        assert!(absent.to_string().starts_with("cannot run `/nonexistent`: "), "{absent}");
    }
}
