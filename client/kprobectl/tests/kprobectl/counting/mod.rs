//! Tests of commands that count in the kernel.

mod aggregations;
mod ends;
mod hist;
mod latency;
mod library;
mod merging;
mod readings;
mod refusals;
mod stacks;
mod temporary;

use std::time::{Duration, Instant};

use super::fake::{Ending, Fake, client, interrupt};

/// Waits until the log of the fake ends so.
fn counted(fake: &Fake, last: &str) -> Vec<String> {
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        let log = fake.counted();
        if log.last().is_some_and(|entry| entry == last) || Instant::now() > limit {
            return log;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Counts for a moment.
fn run(fake: &Fake, arguments: &[&str]) -> String {
    fake.run(&[arguments, &["--for", "100ms"]].concat())
}

/// Counts for a moment, and gives what is shown. What is counted, and for how long, is said beside
/// that.
fn shown(fake: &Fake, arguments: &[&str]) -> String {
    let told = run(fake, arguments);
    let what = match arguments {
        ["latency", start, end, ..] => format!("measuring from {start} to {end}"),
        [_, probe, ..] => format!("counting {probe}"),
        _ => panic!("{arguments:?}"),
    };
    let note = format!("-- stderr\nnote: {what} for 100ms\n");
    let stdout = told.strip_prefix("exit: 0\n-- stdout\n").and_then(|told| told.strip_suffix(&note));
    stdout.unwrap_or_else(|| panic!("{told}")).to_owned()
}
