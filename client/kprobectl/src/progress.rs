//! Progress of what takes longer than a second, on a terminal.
//!
//! Owns when it is shown: on stderr, if that is a terminal, and never among the messages of one of many hosts. It goes
//! away when it is dropped.

use std::io::{self, IsTerminal as _};
use std::sync::LazyLock;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinSet;

/// What takes less than this is not shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the time is redrawn.
const TICK: Duration = Duration::from_millis(200);

/// All that is shown now, one below the other: hosts are waited for while debug information is downloaded.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// How far something is.
pub(crate) struct Progress(Option<Shown>);

struct Shown {
    bar: ProgressBar,
    /// Shows it, when it has taken long enough.
    _waiting: JoinSet<()>,
}

impl Progress {
    /// Of work that is done without an output of its own. Needs a runtime.
    pub(crate) fn on_terminal(what: &'static str, whole: usize) -> Self {
        if io::stderr().is_terminal() { Self::shown(what, whole) } else { Self::hidden() }
    }

    /// Of nothing: it is never shown.
    pub(crate) const fn hidden() -> Self {
        Self(None)
    }

    /// Begins to show how much of a whole is done. Needs a runtime.
    pub(crate) fn shown(what: &'static str, whole: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(whole as u64), ProgressDrawTarget::hidden());
        bar.set_message(what);
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {pos} of {len}, {elapsed}") {
            bar.set_style(style.progress_chars("## "));
        }
        let later = bar.clone();
        let mut waiting = JoinSet::new();
        waiting.spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            BARS.add(later).enable_steady_tick(TICK);
        });
        Self(Some(Shown { bar, _waiting: waiting }))
    }

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
            BARS.remove(&shown.bar);
        }
    }
}
