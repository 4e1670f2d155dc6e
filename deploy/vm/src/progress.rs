//! Output of the host programs: progress on standard error, results on standard output.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::time::Instant;

/// A slow step, announced when it starts and, when it took noticeably long, again when it is done.
#[derive(Debug)]
pub struct Step {
    what: String,
    start: Instant,
}

impl Step {
    /// Announces the step.
    pub fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        note(format_args!("{what} …"));
        Self { what, start: Instant::now() }
    }

    /// Says how long it took.
    pub fn done(self) {
        note(format_args!("{}: done in {:.1} s", self.what, self.start.elapsed().as_secs_f64()));
    }
}

/// One line for the person who waits, on standard error.
pub fn note(line: impl Display) {
    // A closed standard error is not an error.
    drop(writeln!(io::stderr().lock(), "[vm] {line}"));
}

/// One line of the result, on standard output. Fails when standard output is closed.
pub fn result(line: impl Display) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{line}")
}
