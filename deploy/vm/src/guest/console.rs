//! Lines on the guest's console, which the host records.

use std::fs::OpenOptions;
use std::io::Write as _;

/// Writes one line. Failures are ignored: there is no other place to report them.
pub(crate) fn say(line: &str) {
    if let Ok(mut console) = OpenOptions::new().write(true).open("/dev/console") {
        // One write, so that lines of several processes do not mix.
        drop(console.write_all(format!("{line}\n").as_bytes()));
    }
}
