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
    update_time_ns    INTEGER NOT NULL
) STRICT;

-- While a probe is replaced, the one that goes has its name too.
CREATE UNIQUE INDEX probe_by_name ON probe (event_group, event) WHERE phase != 'removing';

-- Hit counts over time. Only changes are stored. Rows outlive their probe: its name is kept with them.
CREATE TABLE hit_sample (
    id          INTEGER PRIMARY KEY,
    probe_uid   INTEGER NOT NULL,
    event_group TEXT    NOT NULL,
    event       TEXT    NOT NULL,
    -- The kernel counts from zero after a boot.
    boot_id     TEXT    NOT NULL,
    time_ns     INTEGER NOT NULL,
    hits        INTEGER NOT NULL CHECK (hits >= 0),
    nmissed      INTEGER NOT NULL CHECK (nmissed >= 0)
) STRICT;

CREATE INDEX hit_sample_by_name ON hit_sample (event_group, event, id);
CREATE INDEX hit_sample_by_time ON hit_sample (time_ns);

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
