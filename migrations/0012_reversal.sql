-- Changes that are made all or not at all, while they are under way: what the probes were before. A row goes in the transaction that makes the
-- changes good, or takes them back; one that a crash has left is taken back by the next start.
CREATE TABLE reversal (
    probe_uid INTEGER PRIMARY KEY,
    -- What clients can change of the probe, as JSON.
    settings  TEXT NOT NULL
) STRICT;
