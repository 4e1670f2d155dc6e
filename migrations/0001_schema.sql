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
    -- As the kernel lists it, which is not the same text. It tells an event that a crash left behind from one of another program.
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
    -- A lease for a time has the first four columns, one that a client holds has the last. Without any of them the probe stays.
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
    -- All names of that principal when it made the probe, as a JSON list: a place that is resolved later is judged by its roles.
    creator_names     TEXT    NOT NULL DEFAULT '[]'
) STRICT;

-- While a probe is replaced, the one that goes has its name too.
CREATE UNIQUE INDEX probe_by_name ON probe (event_group, event) WHERE phase != 'removing';

-- Rows that a crash has left unfinished are few, and are looked for whenever probes are made.
CREATE INDEX probe_unfinished ON probe (uid) WHERE phase != 'settled';

-- Requests that were carried out, so that repeating one does not do it twice.
CREATE TABLE request (
    -- Who asked, as in `probe.creator`: the ids of others are not known to anybody.
    principal   TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    -- The kind of change, and a digest of the message's bytes: the same id for something else is refused.
    fingerprint TEXT    NOT NULL,
    -- The probe that the request was about.
    probe_uid   INTEGER NOT NULL,
    time_ns     INTEGER NOT NULL,
    PRIMARY KEY (principal, id)
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

-- Hits over time. A series is what the kernel counts for one probe in one boot, without a break. It outlives the row in `probe`, whose uid is
-- given out once.
CREATE TABLE hit_series (
    id             INTEGER PRIMARY KEY,
    probe_uid      INTEGER NOT NULL,
    event_group    TEXT    NOT NULL,
    event          TEXT    NOT NULL,
    -- The kernel counts from zero in each boot.
    boot_id        TEXT    NOT NULL,
    kernel_release TEXT    NOT NULL,
    -- Since when, in seconds since 1970.
    first_s        INTEGER NOT NULL,
    -- Until when. NULL while it is counted: then until the end of what was watched in that boot.
    last_s         INTEGER,
    -- The counters of the kernel up to which the hits are in the tables below.
    hits           INTEGER NOT NULL CHECK (hits >= 0),
    nmissed        INTEGER NOT NULL CHECK (nmissed >= 0)
) STRICT;

-- Times in which the counters were watched: once for all probes. A probe without hits in such a time was not hit.
CREATE TABLE hit_span (
    id      INTEGER PRIMARY KEY,
    boot_id TEXT    NOT NULL,
    start_s INTEGER NOT NULL,
    end_s   INTEGER NOT NULL
) STRICT;

-- Hits by the minute. What was counted between two looks is in the minute that the later one ends.
CREATE TABLE hit_minute (
    -- When it begins, in seconds since 1970.
    time_s  INTEGER NOT NULL,
    series  INTEGER NOT NULL,
    hits    INTEGER NOT NULL,
    nmissed INTEGER NOT NULL,
    PRIMARY KEY (time_s, series)
) STRICT, WITHOUT ROWID;

-- The same by the hour: rows of `hit_minute` that have become too old are added up here.
CREATE TABLE hit_hour (
    time_s  INTEGER NOT NULL,
    series  INTEGER NOT NULL,
    hits    INTEGER NOT NULL,
    nmissed INTEGER NOT NULL,
    PRIMARY KEY (time_s, series)
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

-- Probes that are disarmed since they have cost more than their budget. A client that enables or disables the probe ends that, and the row goes.
CREATE TABLE trip (
    probe_uid INTEGER PRIMARY KEY REFERENCES probe (uid) ON DELETE CASCADE,
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

-- Records of the reserve file (`server/src/store/reserve.rs`) up to this number are in the tables above: a crash before
-- the file is emptied does not write them twice.
CREATE TABLE reserve (
    id   INTEGER PRIMARY KEY CHECK (id = 0),
    paid INTEGER NOT NULL
) STRICT;

INSERT INTO reserve (id, paid) VALUES (0, 0);
