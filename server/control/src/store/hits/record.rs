//! Recording of hits from the counters of the kernel.
//!
//! Owns what is known of the counters between two looks, [`Counters`]. The database has the counter of each
//! series beside its hits, and what is added to these is the difference to that counter, in the same
//! transaction: a look that could not be stored is a part of the next one, also if the disk has kept it
//! all the same. Never reads the kernel.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row as _, Sqlite, SqliteConnection};

use super::{MINUTE, as_second, second, unsigned};
use crate::store::{Store, StoreError, to_i64};
use kprobed_lang::model::{Hits, ProbeName, ProbeUid};

/// Seconds after which the absence of hits is stored. A daemon that is killed forgets less than
/// that.
const QUIET_S: i64 = 300;

/// Rows in a statement: SQLite takes 32,766 values.
const ROWS: usize = 500;

/// The kernel's counters of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The probe.
    pub uid: ProbeUid,
    /// Its name.
    pub name: ProbeName,
    /// Its counters.
    pub hits: Hits,
    /// When it was made. Before that it was not hit.
    pub created: SystemTime,
}

/// One look at the counters of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    /// Since when the counters are watched, if they were not before: otherwise the time of the look
    /// before.
    pub since: SystemTime,
    /// When they were read. Times are kept to the second.
    pub time: SystemTime,
    /// The counters.
    pub counts: Vec<Counted>,
    /// The probes that the counters are of.
    pub of: TickOf,
}

/// Which probes a look covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickOf {
    /// All of them: a probe that is missing is not counted any more.
    All,
    /// Probes that are about to be removed. Says nothing about others.
    Leaving,
}

/// What is known of the counters of one boot.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    boot_id: String,
    kernel_release: String,
    series: HashMap<ProbeUid, Series>,
    /// Counters of probes that have no series yet, if they do not begin at zero.
    begin_at: HashMap<ProbeUid, Hits>,
    span: Option<Span>,
    /// The disk has not said whether it has the last look.
    in_doubt: bool,
}

#[derive(Clone, Copy, Debug)]
struct Series {
    id: i64,
    first_s: i64,
    counter: Hits,
    /// It is counted now.
    is_open: bool,
}

/// The time that is watched.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// Absent before it is stored.
    id: Option<i64>,
    start_s: i64,
    end_s: i64,
    /// Its end as stored in the database.
    stored_s: i64,
}

fn series_of(row: &SqliteRow) -> Option<(ProbeUid, Series)> {
    let int = |column| row.try_get::<i64, _>(column).ok();
    // SQLite writes no row that has a value of a wrong type.
    for column in ["event_group", "event", "kernel_release"] {
        row.try_get::<String, _>(column).ok()?;
    }
    let counter = Hits { hits: unsigned(int("hits")?), nmissed: unsigned(int("nmissed")?) };
    let is_open = row.try_get::<Option<i64>, _>("last_s").ok()?.is_none();
    Some((ProbeUid(int("probe_uid")?), Series { id: int("id")?, first_s: int("first_s")?, counter, is_open }))
}

/// What a look changes.
#[derive(Debug, Default)]
struct Changes {
    /// Series that are new, with their first second and their first counter.
    begun: Vec<(ProbeUid, ProbeName, i64, Hits)>,
    /// Counters that have changed.
    counted: Vec<(ProbeUid, Hits)>,
    /// Series that end, and when.
    ended: Vec<(ProbeUid, i64)>,
    span: Option<Span>,
}

impl Counters {
    /// The time until which the counters of this boot were watched without a gap.
    pub(crate) fn watched_until(&self) -> Option<SystemTime> {
        self.span.map(|span| as_second(span.end_s))
    }

    /// The kernel has counted these hits before the event was a probe: they are not part of its
    /// history.
    pub fn begin_at(&mut self, uid: ProbeUid, counter: Hits) {
        self.begin_at.insert(uid, counter);
    }

    fn changes(&self, tick: &Tick) -> Changes {
        let (since, time) = (second(tick.since), second(tick.time));
        let mut changes = Changes { span: self.span, ..Changes::default() };
        for Counted { uid, name, hits, created } in &tick.counts {
            let known = self.series.get(uid);
            let before = known.map(|series| series.counter).or_else(|| self.begin_at.get(uid).copied());
            let before = before.unwrap_or_default();
            if known.is_none_or(|series| !series.is_open) {
                // Its counter goes on if it had a series: the kernel had it all the time.
                let first_s = second(*created).clamp(since.min(time), time);
                changes.begun.push((*uid, name.clone(), first_s, before));
            }
            // Also if a counter was restarted and not hit: the next start must know it.
            if *hits != before {
                changes.counted.push((*uid, *hits));
            }
        }
        let seen: HashSet<_> = tick.counts.iter().map(|count| count.uid).collect();
        match tick.of {
            TickOf::All => {
                // When they were removed is not known: they existed at the previous look.
                let last = self.span.map_or(since, |span| span.end_s);
                let gone = self.series.iter().filter(|(uid, series)| series.is_open && !seen.contains(uid));
                changes.ended.extend(gone.map(|(uid, series)| (*uid, last.max(series.first_s))));
                changes.span = Some(extended(self.span, since, time));
            }
            TickOf::Leaving => changes.ended.extend(seen.into_iter().map(|uid| (uid, time))),
        }
        changes
    }

    /// The changes are stored; these are the numbers of new series and of the span.
    fn take(&mut self, changes: Changes, ids: &[i64], span_id: Option<i64>, of: TickOf) {
        for ((uid, _, first_s, counter), id) in changes.begun.into_iter().zip(ids) {
            self.begin_at.remove(&uid);
            self.series.insert(uid, Series { id: *id, first_s, counter, is_open: true });
        }
        for (uid, hits) in changes.counted {
            if let Some(series) = self.series.get_mut(&uid) {
                series.counter = hits;
            }
        }
        for (uid, _) in changes.ended {
            if of == TickOf::Leaving {
                self.series.remove(&uid);
            } else if let Some(series) = self.series.get_mut(&uid) {
                series.is_open = false;
            }
        }
        self.span = changes.span.map(|span| Span { id: span_id, stored_s: span.end_s, ..span });
    }
}

/// The span after a look.
fn extended(span: Option<Span>, since: i64, time: i64) -> Span {
    match span {
        Some(span) if since <= span.end_s && span.end_s <= time => Span { end_s: time, ..span },
        _ => Span { id: None, start_s: since.min(time), end_s: time, stored_s: i64::MIN },
    }
}

impl Store {
    /// What is known of the counters of this boot. Those of the probes for which `is_counting` is
    /// false were restarted at zero.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn counters(
        &self,
        boot_id: &str,
        kernel_release: &str,
        is_counting: impl Fn(ProbeUid) -> bool,
    ) -> Result<Counters, StoreError> {
        let mut counters = Counters {
            boot_id: boot_id.to_owned(),
            kernel_release: kernel_release.to_owned(),
            ..Counters::default()
        };
        self.read_counters(&mut counters).await?;
        let mut restarted = Vec::new();
        for (uid, series) in &mut counters.series {
            if !is_counting(*uid) && series.counter != Hits::default() {
                series.counter = Hits::default();
                restarted.push(series.id);
            }
        }
        if !restarted.is_empty() {
            let write = async |transaction: &mut SqliteConnection| {
                for id in &restarted {
                    sqlx::query("UPDATE hit_series SET hits = 0, nmissed = 0 WHERE id = ?")
                        .bind(id)
                        .execute(&mut *transaction)
                        .await?;
                }
                Ok(())
            };
            self.database.write(write).await?;
        }
        Ok(counters)
    }

    /// Reads what the database has of a boot. Of a probe with several series the last one counts.
    async fn read_counters(&self, counters: &mut Counters) -> Result<(), StoreError> {
        let boot_id = &counters.boot_id;
        let read = async |connection: &mut SqliteConnection| {
            let rows = sqlx::query("SELECT * FROM hit_series WHERE boot_id = ? ORDER BY id")
                .bind(boot_id)
                .fetch_all(&mut *connection)
                .await?;
            // A series that cannot be read is not gone on with.
            let series: HashMap<_, _> = rows.iter().filter_map(series_of).collect();
            let last = "SELECT id, start_s, end_s FROM hit_span WHERE boot_id = ? ORDER BY id DESC LIMIT 1";
            let row = sqlx::query(last).bind(boot_id).fetch_optional(&mut *connection).await?;
            let span = row.and_then(|row| {
                let int = |column| row.try_get::<i64, _>(column).ok();
                let (start_s, end_s) = (int("start_s")?, int("end_s")?);
                Some(Span { id: int("id"), start_s, end_s, stored_s: end_s })
            });
            Ok((series, span))
        };
        (counters.series, counters.span) = self.database.read(read).await?;
        counters.in_doubt = false;
        Ok(())
    }

    /// Stores what has changed since the look before. That nothing has is stored every five
    /// minutes, or if `at_once`.
    ///
    /// # Errors
    /// [`StoreError::Database`]. The next look contains what this one had.
    pub(crate) async fn add_tick(
        &self,
        counters: &mut Counters,
        tick: &Tick,
        at_once: bool,
    ) -> Result<(), StoreError> {
        if counters.in_doubt {
            self.read_counters(counters).await?;
        }
        let changes = counters.changes(tick);
        let is_quiet = changes.counted.is_empty() && changes.begun.is_empty() && changes.ended.is_empty();
        let unstored_s = changes.span.map_or(0, |span| span.end_s.saturating_sub(span.stored_s));
        if is_quiet && (unstored_s == 0 || (!at_once && unstored_s < QUIET_S)) {
            counters.span = changes.span;
            return Ok(());
        }
        let (since, time) = (second(tick.since), second(tick.time));
        // The minute that the look ends. A look without a length belongs to the minute that it is in.
        let minute = (if since < time { time - 1 } else { time }).div_euclid(MINUTE) * MINUTE;
        let known = &*counters;
        let write = async |transaction: &mut SqliteConnection| {
            let ids = begin_series(transaction, known, &changes).await?;
            let begun = changes.begun.iter().map(|(uid, ..)| *uid).zip(ids.iter().copied());
            let before = known.series.iter().map(|(uid, series)| (*uid, series.id));
            let id_of: HashMap<_, _> = before.chain(begun).collect();
            let counted = changes.counted.iter().filter_map(|(uid, hits)| Some((*id_of.get(uid)?, *hits)));
            count(transaction, minute, &counted.collect::<Vec<_>>()).await?;
            for (uid, last_s) in &changes.ended {
                sqlx::query("UPDATE hit_series SET last_s = max(?, first_s) WHERE id = ?")
                    .bind(last_s)
                    .bind(id_of.get(uid))
                    .execute(&mut *transaction)
                    .await?;
            }
            Ok((ids, store_span(transaction, &known.boot_id, changes.span).await?))
        };
        let stored = self.database.write(write).await;
        counters.in_doubt = stored.is_err();
        let (ids, span_id) = stored?;
        counters.take(changes, &ids, span_id, tick.of);
        Ok(())
    }
}

/// Stores new series, and returns their numbers. With the first ones of a boot, those of earlier boots
/// have ended.
async fn begin_series(
    transaction: &mut SqliteConnection,
    counters: &Counters,
    changes: &Changes,
) -> Result<Vec<i64>, StoreError> {
    if counters.series.is_empty() && !changes.begun.is_empty() {
        sqlx::query(
            // Not those that have a value of a wrong type: SQLite would refuse all of it.
            "UPDATE hit_series SET last_s = coalesce((SELECT max(end_s) FROM hit_span WHERE hit_span.boot_id = hit_series.boot_id \
             AND typeof(end_s) = 'integer'), first_s) WHERE last_s IS NULL AND boot_id != ? \
             AND typeof(event_group) || typeof(event) || typeof(boot_id) || typeof(kernel_release) = 'texttexttexttext' \
             AND typeof(probe_uid) || typeof(first_s) || typeof(hits) || typeof(nmissed) = 'integerintegerintegerinteger'",
        )
        .bind(&counters.boot_id)
        .execute(&mut *transaction)
        .await?;
    }
    let mut ids = Vec::with_capacity(changes.begun.len());
    for (uid, name, first_s, counter) in &changes.begun {
        let id = sqlx::query_scalar(
            "INSERT INTO hit_series (probe_uid, event_group, event, boot_id, kernel_release, first_s, hits, nmissed) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
        )
        .bind(uid.0)
        .bind(name.group())
        .bind(name.event())
        .bind(&counters.boot_id)
        .bind(&counters.kernel_release)
        .bind(first_s)
        .bind(to_i64(counter.hits))
        .bind(to_i64(counter.nmissed))
        .fetch_one(&mut *transaction)
        .await?;
        ids.push(id);
    }
    Ok(ids)
}

/// Adds what is new in these counters to a minute. A counter that goes back was restarted at zero.
async fn count(
    transaction: &mut SqliteConnection,
    minute: i64,
    counters: &[(i64, Hits)],
) -> Result<(), StoreError> {
    for counters in counters.chunks(ROWS) {
        let values = |query: &mut QueryBuilder<Sqlite>| {
            query.push_values(counters, |mut row, (series, hits)| {
                row.push_bind(*series).push_bind(to_i64(hits.hits)).push_bind(to_i64(hits.nmissed));
            });
        };
        let mut insert =
            QueryBuilder::<Sqlite>::new("INSERT INTO hit_minute (time_s, series, hits, nmissed) SELECT ");
        insert.push_bind(minute).push(
            ", id, new.column2 - iif(restarted, 0, hits), new.column3 - iif(restarted, 0, nmissed) FROM \
             (SELECT *, new.column2 < hits OR new.column3 < nmissed AS restarted FROM (",
        );
        values(&mut insert);
        insert.push(
            ") AS new JOIN hit_series ON id = new.column1 WHERE new.column2 != hits OR new.column3 != nmissed) AS new \
             WHERE new.column2 > 0 OR new.column3 > 0 ON CONFLICT DO UPDATE SET \
             hits = min(hits, 1 << 40) + excluded.hits, nmissed = min(nmissed, 1 << 40) + excluded.nmissed",
        );
        insert.build().execute(&mut *transaction).await?;
        let mut update = QueryBuilder::<Sqlite>::new(
            "UPDATE hit_series SET hits = new.column2, nmissed = new.column3 FROM (",
        );
        values(&mut update);
        update.push(") AS new WHERE id = new.column1");
        update.build().execute(&mut *transaction).await?;
    }
    Ok(())
}

/// Returns the number of the span.
async fn store_span(
    transaction: &mut SqliteConnection,
    boot_id: &str,
    span: Option<Span>,
) -> Result<Option<i64>, StoreError> {
    let Some(Span { id, start_s, end_s, .. }) = span else { return Ok(None) };
    let id = sqlx::query_scalar(
        "INSERT INTO hit_span (id, boot_id, start_s, end_s) VALUES (?, ?, ?, ?) \
         ON CONFLICT (id) DO UPDATE SET end_s = excluded.end_s RETURNING id",
    )
    .bind(id)
    .bind(boot_id)
    .bind(start_s)
    .bind(end_s)
    .fetch_one(transaction)
    .await?;
    Ok(Some(id))
}
