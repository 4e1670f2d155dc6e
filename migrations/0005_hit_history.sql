-- Hits over time, in three resolutions: samples as they were taken, by the minute, and by the hour. What leaves one of them enters the next
-- one in the same transaction. `server/src/store/hits/mod.rs` says how counts are packed, and why so.
--
-- The samples of `hit_sample` had no times between which nothing was hit, so that no rates can be made of them.
DROP TABLE hit_sample;

-- Boots that were sampled in: the kernel counts from zero in each.
CREATE TABLE hit_boot (
    id             INTEGER PRIMARY KEY,
    boot_id        TEXT    NOT NULL UNIQUE,
    kernel_release TEXT    NOT NULL
) STRICT;

-- Names of probes that were sampled. They outlive the row in `probe`, whose uid is given out once.
CREATE TABLE hit_probe (
    uid         INTEGER PRIMARY KEY,
    event_group TEXT    NOT NULL,
    event       TEXT    NOT NULL
) STRICT;

-- What the kernel counts for one probe in one boot, without a break.
CREATE TABLE hit_series (
    id        INTEGER PRIMARY KEY,
    probe_uid INTEGER NOT NULL,
    boot      INTEGER NOT NULL,
    -- Since when, in seconds since 1970.
    first_s   INTEGER NOT NULL,
    -- Until when. NULL while it is counted: then until the end of what was sampled in that boot.
    last_s    INTEGER,
    -- The counters of the kernel at the last sample that has left `hit_tick`.
    hits      INTEGER NOT NULL CHECK (hits >= 0),
    nmissed   INTEGER NOT NULL CHECK (nmissed >= 0)
) STRICT;

CREATE INDEX hit_series_by_boot ON hit_series (boot);

-- Times in which the counters were watched: once for all probes. A probe that has no counts in such a time was not hit.
CREATE TABLE hit_span (
    id      INTEGER PRIMARY KEY,
    boot    INTEGER NOT NULL,
    start_s INTEGER NOT NULL,
    end_s   INTEGER NOT NULL
) STRICT;

-- Samples: the counters that had changed since the one before.
CREATE TABLE hit_tick (
    id      INTEGER PRIMARY KEY,
    boot    INTEGER NOT NULL,
    -- What happened, happened after this second began and before `time_s` did.
    since_s INTEGER NOT NULL,
    time_s  INTEGER NOT NULL,
    counts  BLOB    NOT NULL
) STRICT;

-- By the minute: a row for each hour in which a probe was hit.
CREATE TABLE hit_minutes (
    -- Hours since 1970.
    hour   INTEGER NOT NULL,
    series INTEGER NOT NULL,
    counts BLOB    NOT NULL,
    PRIMARY KEY (hour, series)
) STRICT, WITHOUT ROWID;

-- By the hour: a row for each day.
CREATE TABLE hit_hours (
    -- Days since 1970.
    day    INTEGER NOT NULL,
    series INTEGER NOT NULL,
    counts BLOB    NOT NULL,
    PRIMARY KEY (day, series)
) STRICT, WITHOUT ROWID;
