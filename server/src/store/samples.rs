//! Hit profiles over time.

use std::time::SystemTime;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::{Store, StoreError, from_ns, to_i64, to_ns};
use crate::model::{HitProfile, Hits, ProbeName, ProbeUid};

/// Which samples to read.
#[derive(Clone, Debug, Default)]
pub struct SampleQuery {
    /// Of one name only.
    pub name: Option<ProbeName>,
    /// Taken at this time or later.
    pub start: Option<SystemTime>,
    /// Taken before this time.
    pub end: Option<SystemTime>,
    /// Only those after this position.
    pub after: i64,
    /// At most this many.
    pub limit: u32,
}

/// Samples, oldest first, and the position to go on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplePage {
    /// The samples.
    pub samples: Vec<HitProfile>,
    /// Position of the last one; absent when there are no more.
    pub next: Option<i64>,
}

impl Store {
    /// Adds samples, and drops those taken before `oldest`, so that history does not grow for ever.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn add_samples(
        &self,
        samples: &[HitProfile],
        oldest: Option<SystemTime>,
    ) -> Result<(), StoreError> {
        let write = async |transaction: &mut SqliteConnection| {
            for sample in samples {
                sqlx::query(
                    "INSERT INTO hit_sample (probe_uid, event_group, event, boot_id, time_ns, hits, nmissed) \
                     VALUES (?, ?, ?, ?, ?, ?, ?)",
                )
                .bind(sample.uid.0)
                .bind(sample.name.group())
                .bind(sample.name.event())
                .bind(&sample.boot_id)
                .bind(to_ns(sample.time))
                .bind(to_i64(sample.hits.hits))
                .bind(to_i64(sample.hits.nmissed))
                .execute(&mut *transaction)
                .await?;
            }
            if let Some(oldest) = oldest {
                sqlx::query("DELETE FROM hit_sample WHERE time_ns < ?")
                    .bind(to_ns(oldest))
                    .execute(transaction)
                    .await?;
            }
            Ok(())
        };
        self.database.write(write).await
    }

    /// Reads samples, oldest first.
    ///
    /// # Errors
    /// [`StoreError::Database`], [`StoreError::Corrupt`].
    pub async fn samples(&self, query: &SampleQuery) -> Result<SamplePage, StoreError> {
        let (group, event) = query.name.as_ref().map_or(("", ""), |name| (name.group(), name.event()));
        let read = async |connection: &mut SqliteConnection| {
            let rows = sqlx::query(
                "SELECT * FROM hit_sample WHERE id > ? AND (? = '' OR (event_group = ? AND event = ?)) \
                 AND time_ns >= ? AND time_ns < ? ORDER BY id LIMIT ?",
            )
            .bind(query.after)
            .bind(group)
            .bind(group)
            .bind(event)
            .bind(query.start.map_or(0, to_ns))
            .bind(query.end.map_or(i64::MAX, to_ns))
            // One more than asked for tells whether there is a next page.
            .bind(i64::from(query.limit) + 1)
            .fetch_all(connection)
            .await?;
            let more = rows.len() > query.limit as usize;
            let shown = rows.get(..query.limit as usize).unwrap_or(&rows);
            let next = shown.last().filter(|_| more).map(|row| row.try_get("id")).transpose()?;
            Ok(SamplePage { samples: shown.iter().map(from_row).collect::<Result<_, _>>()?, next })
        };
        self.database.read(read).await
    }
}

fn from_row(row: &SqliteRow) -> Result<HitProfile, StoreError> {
    let (group, event): (String, String) = (row.try_get("event_group")?, row.try_get("event")?);
    let count = |value: i64| u64::try_from(value).unwrap_or_default();
    Ok(HitProfile {
        uid: ProbeUid(row.try_get("probe_uid")?),
        name: ProbeName::new(&group, &event)
            .map_err(|error| StoreError::Corrupt { what: "probe name", value: error.to_string() })?,
        boot_id: row.try_get("boot_id")?,
        time: from_ns(row.try_get("time_ns")?),
        hits: Hits { hits: count(row.try_get("hits")?), nmissed: count(row.try_get("nmissed")?) },
    })
}
