//! Queries for hit samples, for as long as they are kept.
//!
//! Owns the pages of a listing. Never writes.

use std::collections::HashMap;
use std::time::SystemTime;

use sqlx::{Row as _, SqliteConnection};

use super::packed::decode_counts;
use super::{as_second, second};
use crate::store::{Store, StoreError};
use kprobed_lang::model::{HitProfile, ProbeName, ProbeUid};

/// Which samples to read.
#[derive(Clone, Debug, Default)]
pub struct SampleQuery {
    /// Samples of this name only.
    pub name: Option<ProbeName>,
    /// Taken at this time or later.
    pub start: Option<SystemTime>,
    /// Taken before this time.
    pub end: Option<SystemTime>,
    /// Only those after this position.
    pub after: SamplePosition,
    /// At most this many.
    pub limit: u32,
}

/// A position among the samples: the look at the counters, and the series in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SamplePosition {
    /// The number of the look.
    pub tick: i64,
    /// The number of the series.
    pub series: i64,
}

/// Samples, oldest first, and the position to go on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplePage {
    /// The samples.
    pub samples: Vec<HitProfile>,
    /// Position of the last one; absent when there are no more.
    pub next: Option<SamplePosition>,
}

/// The probe and boot of a counter.
struct Owner {
    uid: ProbeUid,
    name: ProbeName,
    boot_id: String,
}

impl Store {
    /// Reads samples, oldest first. A sample contains only counters that had changed.
    ///
    /// # Errors
    /// [`StoreError::Database`], [`StoreError::Corrupt`].
    pub async fn samples(&self, query: &SampleQuery) -> Result<SamplePage, StoreError> {
        let limit = query.limit as usize;
        let read = async |connection: &mut SqliteConnection| {
            let owners = read_owners(connection).await?;
            let ticks = sqlx::query(
                "SELECT id, time_s, counts FROM hit_tick WHERE id >= ? AND time_s >= ? AND time_s < ? ORDER BY id",
            )
            .bind(query.after.tick)
            .bind(query.start.map_or(0, second))
            .bind(query.end.map_or(i64::MAX, second))
            .fetch_all(connection)
            .await?;
            let mut page = SamplePage { samples: Vec::new(), next: None };
            let mut last = query.after;
            for tick in ticks {
                let (number, time) = (tick.try_get("id")?, as_second(tick.try_get("time_s")?));
                for count in decode_counts(tick.try_get("counts")?)? {
                    let position = SamplePosition { tick: number, series: count.series };
                    let Some(owner) = owners.get(&count.series).filter(|owner| {
                        position > query.after && query.name.as_ref().is_none_or(|name| *name == owner.name)
                    }) else {
                        continue;
                    };
                    // One more than requested: it shows whether there is a next page.
                    if page.samples.len() == limit {
                        page.next = Some(last);
                        return Ok(page);
                    }
                    last = position;
                    page.samples.push(HitProfile {
                        uid: owner.uid,
                        name: owner.name.clone(),
                        boot_id: owner.boot_id.clone(),
                        time,
                        hits: count.now,
                    });
                }
            }
            Ok(page)
        };
        self.database.read(read).await
    }
}

async fn read_owners(connection: &mut SqliteConnection) -> Result<HashMap<i64, Owner>, StoreError> {
    let rows = sqlx::query(
        "SELECT s.id, s.probe_uid, p.event_group, p.event, b.boot_id FROM hit_series AS s \
         JOIN hit_probe AS p ON p.uid = s.probe_uid JOIN hit_boot AS b ON b.id = s.boot",
    )
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let owner = Owner {
                uid: ProbeUid(row.try_get("probe_uid")?),
                name: super::name(row)?,
                boot_id: row.try_get("boot_id")?,
            };
            Ok((row.try_get("id")?, owner))
        })
        .collect()
}
