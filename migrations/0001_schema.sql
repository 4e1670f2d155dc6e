-- Probes as clients asked for them. A row is written before the kernel is touched, so that whatever the kernel has of ours can be
-- recognised after a crash; it becomes `settled` in the transaction that precedes the acknowledgement.
CREATE TABLE probe (
    -- Never given out twice: AUTOINCREMENT.
    uid               INTEGER PRIMARY KEY AUTOINCREMENT,
    event_group       TEXT    NOT NULL,
    event             TEXT    NOT NULL,
    -- As the client wrote it.
    definition        TEXT    NOT NULL,
    -- As the kernel was given it.
    kernel_definition TEXT    NOT NULL,
    -- As the kernel lists it, which is not the same text. How an event that a crash left behind is told from a stranger's.
    kernel_listing    TEXT    NOT NULL,
    enabled           INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    -- Kernel filter; empty for none.
    filter            TEXT    NOT NULL,
    -- pending: not acknowledged yet, undone after a crash. removing: a client has asked for it to go, finished after a crash.
    phase             TEXT    NOT NULL CHECK (phase IN ('pending', 'settled', 'removing')),
    -- Counts the changes that clients made.
    revision          INTEGER NOT NULL CHECK (revision >= 1),
    create_time_ns    INTEGER NOT NULL,
    update_time_ns    INTEGER NOT NULL,
    -- A note of people, which never reaches the kernel.
    description       TEXT    NOT NULL DEFAULT '',
    -- Who is to be asked: a note of people, which any client can change.
    owner             TEXT    NOT NULL DEFAULT '',
    -- The file that declares it; NULL for one that a client made.
    declared_by       TEXT,
    -- A lease for a time has the first four, one that a client holds the last, none of them is for ever.
    lease_duration_ns INTEGER CHECK (lease_duration_ns > 0),
    -- When it ends: by the wall clock as it was set when the lease was given, which counts over a reboot only; and in nanoseconds of
    -- CLOCK_BOOTTIME of the boot in which it was counted last.
    lease_expire_ns   INTEGER,
    lease_boot_id     TEXT,
    lease_end_boot_ns INTEGER,
    lease_holder      TEXT,
    -- `lease_expire_ns` of the lease that has ended, with its entry in the audit log.
    lease_ended_ns    INTEGER,
    on_kernel_change  TEXT    NOT NULL DEFAULT 'hold' CHECK (on_kernel_change IN ('hold', 'arm-anyway')),
    -- The principal that made the probe, for limits of roles: `uid:1000`, `uri:...`, `dns:...`, `loopback`. Empty for one that a file declares.
    creator           TEXT    NOT NULL DEFAULT '',
    -- Whether the probe was an event of another program, or of an earlier run, that was adopted: its creator is who adopted it, and has not
    -- made it. Such a probe is on no budget of a creator.
    adopted           INTEGER NOT NULL DEFAULT 0
) STRICT;

-- While a probe is replaced, the one that goes has its name too.
CREATE UNIQUE INDEX probe_by_name ON probe (event_group, event) WHERE phase != 'removing';

-- Rows that a crash has left unfinished are few, and are looked for whenever probes are made.
CREATE INDEX probe_unfinished ON probe (uid) WHERE phase != 'settled';

-- Requests that were carried out, so that repeating one does not do it twice.
CREATE TABLE request (
    id          TEXT    PRIMARY KEY,
    -- Method and arguments: the same id for something else is refused.
    fingerprint TEXT    NOT NULL,
    -- The probe that the request was about.
    probe_uid   INTEGER NOT NULL,
    time_ns     INTEGER NOT NULL
) STRICT;

CREATE INDEX request_by_time ON request (time_ns);

-- Labels that clients put on probes. They go with their probe.
CREATE TABLE probe_label (
    probe_uid INTEGER NOT NULL REFERENCES probe (uid) ON DELETE CASCADE,
    key       TEXT    NOT NULL,
    -- May be empty.
    value     TEXT    NOT NULL,
    PRIMARY KEY (probe_uid, key)
) STRICT, WITHOUT ROWID;

-- Events of the host that clients want recorded, and that the daemon did not make: tracepoints, and dynamic events of other tools.
CREATE TABLE attachment (
    -- Never given out twice: AUTOINCREMENT.
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    event_group    TEXT    NOT NULL,
    event          TEXT    NOT NULL,
    -- Kernel filter in the daemon's instance; empty for none.
    filter         TEXT    NOT NULL,
    -- As in `probe`.
    phase          TEXT    NOT NULL CHECK (phase IN ('pending', 'settled', 'removing')),
    create_time_ns INTEGER NOT NULL,
    UNIQUE (event_group, event)
) STRICT;

-- Hits over time, in three resolutions: samples as they were taken, by the minute, and by the hour. What leaves one of them enters the next
-- one in the same transaction. `server/src/store/hits/mod.rs` says how counts are packed, and why so.

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

-- What each definition meant on the builds of kernel and module that it was made for, or accepted on: `server/verdict/src/meaning/mod.rs` says what that is,
-- and how it is compared with another build. It goes with its probe.
CREATE TABLE probe_meaning (
    probe_uid INTEGER PRIMARY KEY REFERENCES probe (uid) ON DELETE CASCADE,
    -- JSON, with its own version number.
    meaning   TEXT    NOT NULL
) STRICT;

-- The states that probes have had: the latest of each.
CREATE TABLE probe_state (
    id        INTEGER PRIMARY KEY,
    probe_uid INTEGER NOT NULL REFERENCES probe (uid) ON DELETE CASCADE,
    -- Since when.
    time_ns   INTEGER NOT NULL,
    state     TEXT    NOT NULL,
    -- A code, a sentence and what to do; empty for none.
    reason    TEXT    NOT NULL,
    message   TEXT    NOT NULL,
    hint      TEXT    NOT NULL
) STRICT;

CREATE INDEX probe_state_by_probe ON probe_state (probe_uid, id);

-- Changes that are made all or not at all, while they are under way: what the probes were before. A row goes in the transaction that makes the
-- changes good, or takes them back; one that a crash has left is taken back by the next start.
CREATE TABLE reversal (
    probe_uid INTEGER PRIMARY KEY,
    -- What clients can change of the probe, as JSON.
    settings  TEXT NOT NULL
) STRICT;

-- Where exporters go on after a restart of the daemon: everything before was acknowledged by the other side.
CREATE TABLE exporter (
    name     TEXT PRIMARY KEY,
    boot_id  TEXT NOT NULL,
    -- The run of the daemon, as a decimal number: it may be larger than what an integer holds here.
    epoch    TEXT NOT NULL,
    sequence INTEGER NOT NULL
) STRICT;

-- The audit log: one row for each change, refusal and read, in the order in which they were written. A change has its row in the
-- transaction that makes it durable.
CREATE TABLE audit (
    -- From 1, without gaps.
    sequence INTEGER PRIMARY KEY,
    -- JSON on one line: see the crate `kprobed-audit`.
    record   TEXT    NOT NULL,
    -- SHA-256 over the digest of the row before (32 bytes) and the record.
    digest   BLOB    NOT NULL
) STRICT;

-- The last row that was deleted to keep the log within its limit: the chain goes on from there.
CREATE TABLE audit_anchor (
    id       INTEGER PRIMARY KEY CHECK (id = 0),
    sequence INTEGER NOT NULL,
    digest   BLOB    NOT NULL
) STRICT;

INSERT INTO audit_anchor (id, sequence, digest) VALUES (0, 0, zeroblob(32));

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
    -- Who had made the probe: see `probe.creator`. Kept here, since rows outlive their probes. Empty if it is not known.
    creator     TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (day, probe_uid)
) STRICT, WITHOUT ROWID;

-- What the daemon itself has taken.
CREATE TABLE spent_by_daemon (
    day    INTEGER PRIMARY KEY,
    cpu_ns INTEGER NOT NULL
) STRICT;
