-- Labels that clients put on probes. They go with their probe.
CREATE TABLE probe_label (
    probe_uid INTEGER NOT NULL REFERENCES probe (uid) ON DELETE CASCADE,
    key       TEXT    NOT NULL,
    -- May be empty.
    value     TEXT    NOT NULL,
    PRIMARY KEY (probe_uid, key)
) STRICT, WITHOUT ROWID;
