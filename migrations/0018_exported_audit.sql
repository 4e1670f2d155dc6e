-- Where exporters go on in the audit log after a restart of the daemon: everything up to this entry was acknowledged by the other side.
CREATE TABLE exporter_audit (
    name     TEXT PRIMARY KEY,
    sequence INTEGER NOT NULL,
    -- Of that entry: a log that was begun anew has another one there.
    digest   BLOB    NOT NULL
) STRICT;
