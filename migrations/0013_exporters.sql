-- Where exporters go on after a restart of the daemon: everything before was acknowledged by the other side.
CREATE TABLE exporter (
    name     TEXT PRIMARY KEY,
    boot_id  TEXT NOT NULL,
    -- The run of the daemon, as a decimal number: it may be larger than what an integer holds here.
    epoch    TEXT NOT NULL,
    sequence INTEGER NOT NULL
) STRICT;
