-- Probes that have cost more than their budget: how often in succession, and whether they are disarmed now. A client that enables or disables the
-- probe ends that, and the row goes.
CREATE TABLE trip (
    probe_uid INTEGER PRIMARY KEY REFERENCES probe (uid) ON DELETE CASCADE,
    times     INTEGER NOT NULL CHECK (times > 0),
    -- When it was disarmed last.
    time_ns   INTEGER NOT NULL,
    -- When it is armed again by itself. NULL: never.
    rearm_ns  INTEGER,
    -- 0: it was armed again by itself, and the row only counts.
    is_open   INTEGER NOT NULL CHECK (is_open IN (0, 1)),
    -- A code, and a sentence with the figures.
    reason    TEXT    NOT NULL,
    message   TEXT    NOT NULL
) STRICT;

-- What a hit takes on this host, as it was measured last.
CREATE TABLE calibration (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    -- Kernel and processor: on others it is measured again.
    host    TEXT    NOT NULL,
    time_ns INTEGER NOT NULL,
    -- JSON.
    figures TEXT    NOT NULL
) STRICT;

-- What probes have taken by the day, in UTC. Rows outlive their probes.
CREATE TABLE spent_by_probe (
    -- Days since 1970.
    day         INTEGER NOT NULL,
    probe_uid   INTEGER NOT NULL,
    event_group TEXT    NOT NULL,
    event       TEXT    NOT NULL,
    -- Hits, with the runs that the kernel skipped.
    runs        INTEGER NOT NULL,
    cpu_ns      INTEGER NOT NULL,
    PRIMARY KEY (day, probe_uid)
) STRICT, WITHOUT ROWID;

-- What the daemon itself has taken.
CREATE TABLE spent_by_daemon (
    day    INTEGER PRIMARY KEY,
    cpu_ns INTEGER NOT NULL
) STRICT;
