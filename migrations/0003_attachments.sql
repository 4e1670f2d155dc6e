-- Events of the host that clients want recorded, and that the daemon did not make: tracepoints, and dynamic events of other tools.
CREATE TABLE attachment (
    -- Never given out twice: AUTOINCREMENT.
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    event_group    TEXT    NOT NULL,
    event          TEXT    NOT NULL,
    -- Kernel filter in the daemon's instance; empty for none.
    filter         TEXT    NOT NULL,
    -- As in `probe`.
    phase          TEXT    NOT NULL CHECK (phase IN ('pending', 'settled', 'removing')),
    create_time_ns INTEGER NOT NULL,
    UNIQUE (event_group, event)
) STRICT;
