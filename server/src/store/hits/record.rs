//! Recording of hit samples from the counters of the kernel.
//!
//! Owns what is known of the counters between two samples, [`Counters`]: it lives in memory, begins
//! with what the database has, and advances only when a sample is stored. So a sample that could
//! not be stored becomes part of the next one. If the disk has kept such a sample all the same, the
//! next one replaces it, since it has the same number. Never reads the kernel.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use sqlx::{QueryBuilder, Row as _, Sqlite, SqliteConnection};

use super::packed::{Count, decode_counts, encode_counts};
use super::rollup::or_dropped;
use super::{as_second, second, unsigned};
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
#[derive(Clone, Debug)]
pub struct Counters {
    boot: Boot,
    next_tick: i64,
    next_series: i64,
    next_span: i64,
    series: HashMap<ProbeUid, Series>,
    span: Option<Span>,
}

#[derive(Clone, Debug)]
struct Boot {
    id: i64,
    name: String,
    kernel_release: String,
    is_stored: bool,
}

#[derive(Clone, Copy, Debug)]
struct Series {
    id: i64,
    first_s: i64,
    counter: Hits,
    /// The counter as stored in the database.
    stored: Hits,
    /// It is counted now.
    is_open: bool,
}

/// The time that is watched.
#[derive(Clone, Copy, Debug)]
struct Span {
    id: i64,
    start_s: i64,
    end_s: i64,
    /// Its end as stored in the database.
    stored_s: i64,
}

/// Rows that a look adds.
#[derive(Debug, Default)]
struct Rows {
    counts: Vec<Count>,
    begun: Vec<Begun>,
    /// Series, and when each ended.
    ended: Vec<(i64, i64)>,
}

/// A series that is new.
#[derive(Debug)]
struct Begun {
    id: i64,
    uid: ProbeUid,
    name: ProbeName,
    first_s: i64,
    counter: Hits,
}

impl Counters {
    /// The time until which the counters of this boot were watched without a gap.
    pub(crate) fn watched_until(&self) -> Option<SystemTime> {
        self.span.map(|span| as_second(span.end_s))
    }

    /// The kernel has counted these hits before the event was a probe: they are not part of its
    /// history.
    pub fn begin_at(&mut self, uid: ProbeUid, counter: Hits) {
        let series = Series { id: 0, first_s: 0, counter, stored: counter, is_open: false };
        self.series.insert(uid, series);
    }

    /// Takes a look in. Returns the rows that it adds.
    fn take(&mut self, tick: &Tick) -> Rows {
        let (since, time) = (second(tick.since), second(tick.time));
        let mut rows = Rows::default();
        let mut seen = HashSet::with_capacity(tick.counts.len());
        for Counted { uid, name, hits, created } in &tick.counts {
            seen.insert(*uid);
            let before = self.series.get(uid).copied();
            let series = match before {
                Some(series) if series.is_open => series,
                // Its counter goes on: the kernel had it all the time.
                _ => {
                    let (id, first_s) = (self.next_series, second(*created).clamp(since.min(time), time));
                    self.next_series += 1;
                    let counter = before.map(|series| series.counter).unwrap_or_default();
                    rows.begun.push(Begun { id, uid: *uid, name: name.clone(), first_s, counter });
                    Series { id, first_s, counter, stored: counter, is_open: true }
                }
            };
            // Also if a counter was restarted and not hit: the next start must know it.
            if *hits != series.stored {
                let happened = happened(series.counter, *hits);
                rows.counts.push(Count { series: series.id, now: *hits, happened });
            }
            self.series.insert(*uid, Series { counter: *hits, stored: *hits, ..series });
        }
        match tick.of {
            TickOf::All => {
                // When they were removed is not known: they existed at the previous look.
                let last = self.span.map_or(since, |span| span.end_s);
                for (_, series) in
                    self.series.iter_mut().filter(|(uid, series)| series.is_open && !seen.contains(uid))
                {
                    series.is_open = false;
                    rows.ended.push((series.id, last.max(series.first_s)));
                }
                self.extend(since, time);
            }
            TickOf::Leaving => {
                let gone = seen.iter().filter_map(|uid| self.series.remove(uid));
                rows.ended.extend(gone.map(|series| (series.id, time.max(series.first_s))));
            }
        }
        rows.counts.sort_unstable_by_key(|count| count.series);
        rows
    }

    fn extend(&mut self, since: i64, time: i64) {
        match &mut self.span {
            Some(span) if since <= span.end_s && span.end_s <= time => span.end_s = time,
            _ => {
                let id = self.next_span;
                self.next_span += 1;
                self.span = Some(Span { id, start_s: since.min(time), end_s: time, stored_s: i64::MIN });
            }
        }
    }
}

/// A counter that goes back was restarted at zero.
fn happened(before: Hits, now: Hits) -> Hits {
    if now.hits < before.hits || now.nmissed < before.nmissed {
        return now;
    }
    Hits { hits: now.hits - before.hits, nmissed: now.nmissed - before.nmissed }
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
        let read = async |connection: &mut SqliteConnection| {
            let known = sqlx::query_scalar::<_, i64>("SELECT id FROM hit_boot WHERE boot_id = ?")
                .bind(boot_id)
                .fetch_optional(&mut *connection)
                .await?;
            let boot = Boot {
                id: match known {
                    Some(id) => id,
                    None => next(connection, "SELECT max(id) FROM hit_boot").await?,
                },
                name: boot_id.to_owned(),
                kernel_release: kernel_release.to_owned(),
                is_stored: known.is_some(),
            };
            let series = read_series(connection, boot.id).await?;
            let span = sqlx::query(
                "SELECT id, start_s, end_s FROM hit_span WHERE boot = ? ORDER BY id DESC LIMIT 1",
            )
            .bind(boot.id)
            .fetch_optional(&mut *connection)
            .await?;
            let span = match span {
                Some(row) => {
                    let end_s = row.try_get("end_s")?;
                    let (id, start_s) = (row.try_get("id")?, row.try_get("start_s")?);
                    Some(Span { id, start_s, end_s, stored_s: end_s })
                }
                None => None,
            };
            Ok(Counters {
                boot,
                next_tick: next(connection, "SELECT max(id) FROM hit_tick").await?,
                next_series: next(connection, "SELECT max(id) FROM hit_series").await?,
                next_span: next(connection, "SELECT max(id) FROM hit_span").await?,
                series,
                span,
            })
        };
        let mut counters = self.database.read(read).await?;
        for (uid, series) in &mut counters.series {
            if !is_counting(*uid) {
                series.counter = Hits::default();
            }
        }
        Ok(counters)
    }

    /// Stores what has changed since the look before. That nothing has is stored every five
    /// minutes, or if `at_once`.
    ///
    /// # Errors
    /// [`StoreError::Database`]. Then `counters` are as before: the next look contains what this
    /// one had.
    pub(crate) async fn add_tick(
        &self,
        counters: &mut Counters,
        tick: &Tick,
        at_once: bool,
    ) -> Result<(), StoreError> {
        let mut after = counters.clone();
        let rows = after.take(tick);
        let is_quiet = rows.counts.is_empty() && rows.begun.is_empty() && rows.ended.is_empty();
        let unstored_s = after.span.map_or(0, |span| span.end_s.saturating_sub(span.stored_s));
        if is_quiet && (unstored_s == 0 || (!at_once && unstored_s < QUIET_S)) {
            *counters = after;
            return Ok(());
        }
        let write = async |transaction: &mut SqliteConnection| {
            if !after.boot.is_stored {
                begin_boot(transaction, &after.boot).await?;
            }
            begin_series(transaction, after.boot.id, &rows.begun).await?;
            for (series, last_s) in &rows.ended {
                sqlx::query("UPDATE hit_series SET last_s = ? WHERE id = ?")
                    .bind(last_s)
                    .bind(series)
                    .execute(&mut *transaction)
                    .await?;
            }
            if !rows.counts.is_empty() {
                sqlx::query(
                    "INSERT OR REPLACE INTO hit_tick (id, boot, since_s, time_s, counts) VALUES (?, ?, ?, ?, ?)",
                )
                .bind(after.next_tick)
                .bind(after.boot.id)
                .bind(second(tick.since))
                .bind(second(tick.time))
                .bind(encode_counts(&rows.counts))
                .execute(&mut *transaction)
                .await?;
            }
            if let Some(span) = after.span {
                sqlx::query("INSERT OR REPLACE INTO hit_span (id, boot, start_s, end_s) VALUES (?, ?, ?, ?)")
                    .bind(span.id)
                    .bind(after.boot.id)
                    .bind(span.start_s)
                    .bind(span.end_s)
                    .execute(&mut *transaction)
                    .await?;
            }
            Ok(())
        };
        self.database.write(write).await?;
        after.boot.is_stored = true;
        after.next_tick += i64::from(!rows.counts.is_empty());
        if let Some(span) = &mut after.span {
            span.stored_s = span.end_s;
        }
        *counters = after;
        Ok(())
    }
}

/// The number after the greatest one that a query finds.
async fn next(connection: &mut SqliteConnection, greatest: &'static str) -> Result<i64, StoreError> {
    let greatest: Option<i64> = sqlx::query_scalar(greatest).fetch_one(connection).await?;
    Ok(greatest.unwrap_or(0).saturating_add(1))
}

/// The series of a boot with their counters: those of the last sample that has them, for samples
/// that are kept, or those that were kept of the others.
async fn read_series(
    connection: &mut SqliteConnection,
    boot: i64,
) -> Result<HashMap<ProbeUid, Series>, StoreError> {
    let rows = sqlx::query(
        "SELECT id, probe_uid, first_s, last_s, hits, nmissed FROM hit_series WHERE boot = ? ORDER BY id",
    )
    .bind(boot)
    .fetch_all(&mut *connection)
    .await?;
    let mut counters = HashMap::with_capacity(rows.len());
    let ticks = sqlx::query("SELECT counts FROM hit_tick WHERE boot = ? ORDER BY id")
        .bind(boot)
        .fetch_all(&mut *connection)
        .await?;
    for tick in ticks {
        let counts = or_dropped(decode_counts(tick.try_get("counts")?)).unwrap_or_default();
        counters.extend(counts.into_iter().map(|count| (count.series, count.now)));
    }
    let mut series = HashMap::with_capacity(rows.len());
    for row in rows {
        let id = row.try_get("id")?;
        let kept = Hits { hits: unsigned(row.try_get("hits")?), nmissed: unsigned(row.try_get("nmissed")?) };
        let counter = counters.get(&id).copied().unwrap_or(kept);
        let is_open = row.try_get::<Option<i64>, _>("last_s")?.is_none();
        // A later series of the same probe goes on with its counter.
        let first_s = row.try_get("first_s")?;
        let uid = ProbeUid(row.try_get("probe_uid")?);
        series.insert(uid, Series { id, first_s, counter, stored: counter, is_open });
    }
    Ok(series)
}

/// Stores a boot. The series of earlier boots have ended.
async fn begin_boot(transaction: &mut SqliteConnection, boot: &Boot) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE hit_series SET last_s = coalesce((SELECT max(end_s) FROM hit_span WHERE hit_span.boot = hit_series.boot), first_s) \
         WHERE last_s IS NULL AND boot != ?",
    )
    .bind(boot.id)
    .execute(&mut *transaction)
    .await?;
    sqlx::query("INSERT OR REPLACE INTO hit_boot (id, boot_id, kernel_release) VALUES (?, ?, ?)")
        .bind(boot.id)
        .bind(&boot.name)
        .bind(&boot.kernel_release)
        .execute(transaction)
        .await?;
    Ok(())
}

async fn begin_series(
    transaction: &mut SqliteConnection,
    boot: i64,
    begun: &[Begun],
) -> Result<(), StoreError> {
    for begun in begun.chunks(ROWS) {
        let mut probes =
            QueryBuilder::<Sqlite>::new("INSERT OR REPLACE INTO hit_probe (uid, event_group, event) ");
        probes.push_values(begun, |mut row, Begun { uid, name, .. }| {
            row.push_bind(uid.0).push_bind(name.group()).push_bind(name.event());
        });
        probes.build().execute(&mut *transaction).await?;
        let mut series = QueryBuilder::<Sqlite>::new(
            "INSERT OR REPLACE INTO hit_series (id, probe_uid, boot, first_s, last_s, hits, nmissed) ",
        );
        series.push_values(begun, |mut row, Begun { id, uid, first_s, counter, .. }| {
            row.push_bind(id).push_bind(uid.0).push_bind(boot).push_bind(first_s).push("NULL");
            row.push_bind(to_i64(counter.hits)).push_bind(to_i64(counter.nmissed));
        });
        series.build().execute(&mut *transaction).await?;
    }
    Ok(())
}

/// Stores the counters of samples that leave the table.
pub(super) async fn keep_counters(
    transaction: &mut SqliteConnection,
    counters: &HashMap<i64, Hits>,
) -> Result<(), StoreError> {
    let counters: Vec<_> = counters.iter().collect();
    for counters in counters.chunks(ROWS) {
        let mut update = QueryBuilder::<Sqlite>::new(
            "UPDATE hit_series SET hits = new.column2, nmissed = new.column3 FROM (",
        );
        update.push_values(counters, |mut row, (series, hits)| {
            row.push_bind(**series).push_bind(to_i64(hits.hits)).push_bind(to_i64(hits.nmissed));
        });
        update.push(") AS new WHERE hit_series.id = new.column1");
        update.build().execute(&mut *transaction).await?;
    }
    Ok(())
}
