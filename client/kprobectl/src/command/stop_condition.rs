//! Stop condition of a command that follows: a signal, a duration, or the end of a child process.
//!
//! Owns the start of the child, and the wait for its end. It never kills the child: the user started it to run.

use std::io;
use std::time::Duration;

use tokio::process::{self, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::{Exit, Failure};

/// Signals and the clock.
pub(super) struct StopCondition {
    interrupt: Signal,
    terminate: Signal,
    deadline: Option<Instant>,
    /// A program that was started to be followed: its end stops as well.
    pub(super) child: Option<Child>,
}

/// Why to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// Ctrl-C, or a request to terminate.
    Signal,
    /// The time is up.
    Elapsed,
    /// The program that was started has ended.
    ChildEnded,
}

impl StopReason {
    /// The exit code of a command that has stopped. Without a limit of its own an interrupt is the regular end; with
    /// one, it is early.
    pub(super) fn exit(self, is_limited: bool) -> Exit {
        if is_limited && self == Self::Signal { Exit::Interrupted } else { Exit::Success }
    }
}

impl StopCondition {
    /// Listens to signals from now on. No time counts before [`Self::begin`]: what must be made ready first takes none
    /// of the time that a user gives.
    ///
    /// # Errors
    /// When signals cannot be listened to.
    pub(super) fn new() -> Result<Self, Failure> {
        let failed =
            |why: io::Error| Failure::new(Exit::Refused, format!("cannot listen to signals: {why}"), []);
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            deadline: None,
            child: None,
        })
    }

    /// Stops after this time from now, and not earlier. `None`: only signals and the child stop.
    pub(super) fn begin(&mut self, duration: Option<Duration>) {
        // A time that the clock cannot reach does not limit.
        self.deadline = duration.and_then(|duration| Instant::now().checked_add(duration));
    }

    /// Waits for a signal, whatever the clock says.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn signal(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits until it is time to stop.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn wait(&mut self) -> StopReason {
        let ended = async {
            match &mut self.child {
                Some(child) => drop(child.process.wait().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => StopReason::Signal,
            _ = self.terminate.recv() => StopReason::Signal,
            () = until(self.deadline) => StopReason::Elapsed,
            () = ended => StopReason::ChildEnded,
        }
    }

    /// Does this work, unless it is time to stop first: that fails, with what is left behind, if anything.
    pub(super) async fn unless_stopped<T, E: Into<Failure>>(
        &mut self,
        work: impl Future<Output = Result<T, E>>,
        left: Option<&str>,
    ) -> Result<T, Failure> {
        tokio::select! {
            done = work => done.map_err(Into::into),
            _ = self.wait() => Err(Failure::interrupted(left)),
        }
    }
}

/// Waits until then. Never ends if that is not known.
pub(super) async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// A program under way.
pub(super) struct Child {
    name: String,
    process: process::Child,
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
        let process = Command::new(program).args(arguments).spawn().map_err(not_started)?;
        Ok(Self { name: program.to_owned(), process })
    }

    /// Waits for its end. Returns a message if it failed.
    pub(super) async fn wait(mut self) -> Option<String> {
        match self.process.wait().await {
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
        let mut stop = StopCondition::new().unwrap();
        stop.child = Some(Child::start(&words(&["true"])).unwrap());
        for _ in 0..2 {
            assert_eq!(stop.wait().await, StopReason::ChildEnded);
        }
        assert_eq!(stop.child.take().unwrap().wait().await, None);
        let badly = Child::start(&words(&["sh", "-c", "exit 3"])).unwrap();
        assert_eq!(badly.wait().await.as_deref(), Some("`sh` ended with exit status: 3"));
        let absent = Child::start(&words(&["/nonexistent"])).err().unwrap();
        assert!(absent.to_string().starts_with("cannot run `/nonexistent`: "), "{absent}");
    }

    #[tokio::test]
    async fn a_program_is_not_killed_with_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let [left, ended] = ["left", "ended"].map(|name| directory.path().join(name));
        let script =
            format!("until [ -e '{}' ]; do sleep 0.01; done; touch '{}'", left.display(), ended.display());
        drop(Child::start(&words(&["sh", "-c", &script])).unwrap());
        std::fs::write(&left, "").unwrap();
        let begun = Instant::now();
        while !ended.exists() {
            assert!(begun.elapsed() < Duration::from_secs(30), "the program did not run to its end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn work_is_done_unless_it_is_time_to_stop() {
        let mut stop = StopCondition::new().unwrap();
        let done = std::future::ready(Ok::<_, Failure>(7));
        assert_eq!(stop.unless_stopped(done, None).await.unwrap(), 7);
        let failed = std::future::ready(Err::<(), _>(Failure::usage("wrong", "right")));
        assert!(stop.unless_stopped(failed, None).await.unwrap_err().to_string().starts_with("wrong"));
        stop.begin(Some(Duration::ZERO));
        let endless = std::future::pending::<Result<(), Failure>>();
        let stopped = format!("{:?}", stop.unless_stopped(endless, Some("it is left")).await.unwrap_err());
        assert!(stopped.contains("exit: Interrupted") && stopped.contains("it is left"), "{stopped}");
    }
}
