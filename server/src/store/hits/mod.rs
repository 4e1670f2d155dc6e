//! Hit history: how often probes were hit, over time.
//!
//! Owns three tables: samples for hours, counts by the minute for weeks, counts by the hour for a
//! year. Never reads a clock or the kernel: its callers pass times and counters.
//!
//! A *series* is one probe in one boot. Its samples are the counters of the kernel that had
//! changed, and the hits since the previous sample: a counter that goes back was restarted at zero.
//! These hits are cut by time ([`spread`]) into minutes and hours, so that sums stay exact and
//! rates are right whatever the begin of an interval. "Not hit" takes no room: it is the rest of
//! the time that was watched, which is kept once for all probes ([`watch`]), and cut to the life of
//! the series. So a rate is one of the seconds that were watched.
//!
//! All times are whole seconds since 1970. The control thread takes its samples at whole multiples
//! of its interval, so that with one of a minute no sample is cut in two.
//!
//! How it is stored, and why:
//!
//! - A sample is one row with all counters, LEB128-packed ([`packed`]): one insert for a thousand
//!   probes.
//! - Minutes are a row for each hour and series, hours a row for each day and series: a mask of the
//!   slots in which something happened, and their counts. A row of the table for each minute would
//!   take 14 bytes besides its count of one or two.
//! - Keys begin with the time. So rolling up appends, pages are full, and what goes is a range; a
//!   probe's row of an hour is one look-up. With the series first, every roll-up would write a page
//!   for each probe.
//!
//! How large and how long, with the defaults and a sample a minute (`simulation.rs`, through these
//! methods, compiled with `opt-level = 1`, on a machine with other work to do, without
//! waiting for the disk). A quarter of the probes is hit thousands of times a minute, a quarter
//! some times, the rest rarely:
//!
//! | | 1000 probes, 365 days | 100 probes, 365 days |
//! |---|---|---|
//! | size of the database | 73.3 MB | 7.4 MB |
//! | of which counts by the minute, by the hour (packed) | 36.7 MB, 14.6 MB | 3.7 MB, 1.5 MB |
//! | a sample | 0.1 ms | 0.05 ms |
//! | a step of rolling up (at most) | 6.5 ms (135 ms) | 1.2 ms (45 ms) |
//! | 24 h by 5 min: one probe, all | 70 ms, 254 ms | 16 ms, 17 ms |
//! | a year by day: one probe, all | 77 ms, 3.0 s | 26 ms, 0.36 s |
//! | `quick_check`, `integrity_check` | 87 ms, 107 ms | 15 ms, 20 ms |

mod packed;
mod rates;
mod record;
mod rollup;
mod samples;
mod spread;
mod watch;

pub use rates::{MAX_POINTS, RatePage, RatePoint, RateQuery, RateSeries};
pub use record::{Counted, Counters, Tick, TickOf};
pub use rollup::HitRetention;
pub use samples::{SamplePage, SamplePosition, SampleQuery};

use std::time::{Duration, SystemTime};

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::StoreError;
use kprobed_lang::model::ProbeName;

/// Seconds of a minute, an hour and a day.
const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
const DAY: i64 = 86_400;

/// Slots of an hour by the minute, and of a day by the hour.
const MINUTES: usize = 60;
const HOURS: usize = 24;

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

fn name(row: &SqliteRow) -> Result<ProbeName, StoreError> {
    let (group, event): (String, String) = (row.try_get("event_group")?, row.try_get("event")?);
    ProbeName::new(&group, &event)
        .map_err(|error| StoreError::Corrupt { what: "probe name", value: error.to_string() })
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
