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
