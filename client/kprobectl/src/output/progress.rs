//! Progress of what takes longer than a second, on a terminal.
//!
//! Owns when it is shown: on stderr, if that is a terminal, and never among the messages of one of many hosts. It goes
//! away when it is dropped.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinSet;

use super::Output;

/// What takes less than this is not shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the time is redrawn.
const TICK: Duration = Duration::from_millis(200);

/// How far something is.
pub(crate) struct Progress(Option<Shown>);

struct Shown {
    bar: ProgressBar,
    /// Shows it, when it has taken long enough.
    _waiting: JoinSet<()>,
}

impl Output {
    /// Shows no progress: nobody wants notes.
    pub(crate) fn without_progress(&mut self) {
        self.has_progress = false;
    }

    /// Begins to show how much of a whole is done. Needs a runtime.
    pub(crate) fn progress(&self, what: &'static str, whole: usize) -> Progress {
        if !self.has_progress {
            return Progress(None);
        }
        let bar = ProgressBar::with_draw_target(Some(whole as u64), ProgressDrawTarget::hidden());
        bar.set_message(what);
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {pos} of {len}, {elapsed}") {
            bar.set_style(style.progress_chars("## "));
        }
        let later = bar.clone();
        let mut waiting = JoinSet::new();
        waiting.spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            later.set_draw_target(ProgressDrawTarget::stderr());
            later.enable_steady_tick(TICK);
        });
        Progress(Some(Shown { bar, _waiting: waiting }))
    }
}

impl Progress {
    /// So much is done.
    pub(crate) fn set(&self, done: usize) {
        if let Self(Some(shown)) = self {
            shown.bar.set_position(done as u64);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Self(Some(shown)) = self {
            shown.bar.finish_and_clear();
        }
    }
}
