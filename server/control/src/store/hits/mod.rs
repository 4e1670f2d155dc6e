//! Hit history: how often probes were hit, over time.
//!
//! Owns two plain tables: hits by the minute for days, and by the hour for a year. Never reads a clock or the
//! kernel: its callers pass times and counters.
//!
//! A *series* is one probe in one boot. What its counter has grown by since the look before belongs to the
//! minute that the look ends; a counter that goes back was restarted at zero. Looks are taken at whole
//! minutes: unless a look is late, what a minute has is what happened in it. Sums are exact in any case.
//! "Not hit" takes no room: it is the rest of the time that was watched, which is kept once for all
//! probes ([`rates`]), and cut to the life of the series. So a rate is one of the seconds that were watched.
//!
//! All times are whole seconds since 1970. Keys begin with the time: so rolling up appends, pages are full,
//! and what goes is a range.
//!
//! How large and how long, with the defaults and a sample a minute. A quarter of the probes is hit thousands of times
//! a minute, a quarter some times, the rest rarely. Each row takes 17 bytes. Reading was measured on a machine
//! with other work to do:
//!
//! | | 1000 probes, 365 days |
//! |---|---|
//! | size of the database | 201 MB |
//! | of which hits by the minute (7 days), by the hour | 88 MB, 112 MB |
//! | rolling up an hour | 18 ms |
//! | 24 h by 5 min: one probe, all | 38 ms, 0.5 s |
//! | a year by day: one probe, all | 0.7 s, 6 s |
//! | `quick_check` | 1.3 s |

mod rates;
mod record;
mod rollup;

pub use rates::{MAX_POINTS, RatePage, RateQuery};
pub use record::{Counted, Counters, Tick, TickOf};
pub use rollup::HitRetention;

use std::time::{Duration, SystemTime};

use super::bad::CheckedRow;
use kprobed_lang::model::ProbeName;

/// Seconds of a minute, an hour and a day.
const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
const DAY: i64 = 86_400;

/// The second since 1970 that a time lies in. Times before count as 1970.
fn second(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn as_second(second: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(unsigned(second))
}

/// A number that is not negative unless it is damaged.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// What a bad value of a series costs.
const NOT_SHOWN: &str = "these hits are not shown";

/// The name of a series. Absent for a bad one.
fn name(row: &mut CheckedRow<'_>) -> Option<ProbeName> {
    let (group, event): (String, String) =
        (row.need("event_group", NOT_SHOWN)?, row.need("event", NOT_SHOWN)?);
    ProbeName::new(&group, &event).map_err(|error| row.note("event", &error, NOT_SHOWN)).ok()
}

#[cfg(test)]
mod tests;
