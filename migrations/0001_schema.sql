-- Probes as they were acknowledged.
CREATE TABLE probe (
    -- Never given out twice: AUTOINCREMENT.
    uid    INTEGER PRIMARY KEY AUTOINCREMENT,
    -- `GROUP/EVENT`.
    name   TEXT    NOT NULL UNIQUE,
    -- Everything that is stored of it, as JSON: `server/control/src/store/probes.rs: Record`.
    record TEXT    NOT NULL
) STRICT;

-- Changes of probes that are under way: from before the kernel is touched until the change is acknowledged or refused. The row of
-- the probe is what it was before. A change that a crash has left here is taken back by the next start, whatever it was.
CREATE TABLE journal (
    uid    INTEGER PRIMARY KEY,
    name   TEXT NOT NULL,
    -- What the probe is to be, as `probe.record`: it tells the event that the change has made from one of another program. NULL for
    -- a probe that is to be deleted.
    record TEXT
) STRICT;

CREATE UNIQUE INDEX journal_by_name ON journal (name) WHERE record IS NOT NULL;

-- A name belongs to one probe, unless that is being deleted.
CREATE TRIGGER journal_name BEFORE INSERT ON journal
WHEN NEW.record IS NOT NULL AND EXISTS (
    SELECT 1 FROM probe
    WHERE name = NEW.name AND uid != NEW.uid AND uid NOT IN (SELECT uid FROM journal WHERE record IS NULL)
)
BEGIN
    SELECT RAISE(ABORT, 'a probe has this name');
END;

-- Requests that were carried out, so that repeating one does not do it twice.
CREATE TABLE request (
    -- Who asked, an account such as `uid:1000`: the ids of others are not known to anybody.
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

-- What a hit takes on this host, as it was measured last.
CREATE TABLE calibration (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    -- Kernel and processor: on others it is measured again.
    host    TEXT NOT NULL,
    -- JSON.
    figures TEXT NOT NULL
) STRICT;

-- Records of the reserve file (`server/control/src/store/reserve.rs`) up to this number are in the tables above: a crash before
-- the file is emptied does not write them twice.
CREATE TABLE reserve (
    id   INTEGER PRIMARY KEY CHECK (id = 0),
    paid INTEGER NOT NULL
) STRICT;

INSERT INTO reserve (id, paid) VALUES (0, 0);
