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
