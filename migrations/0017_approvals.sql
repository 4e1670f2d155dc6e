-- Definitions that a principal has signed off: rules with `approved = true` allow these alone.
CREATE TABLE approval (
    -- SHA-256 of the definition as a canonical line without names.
    digest     BLOB    NOT NULL CHECK (length(digest) = 32),
    -- Who: the account that is compared, and the name that people read.
    account    TEXT    NOT NULL,
    principal  TEXT    NOT NULL,
    -- That line.
    definition TEXT    NOT NULL,
    -- The classes of data that it reads, separated by commas.
    reads      TEXT    NOT NULL,
    note       TEXT    NOT NULL,
    time_ns    INTEGER NOT NULL,
    PRIMARY KEY (digest, account)
) STRICT, WITHOUT ROWID;
