-- What each definition meant on the builds of kernel and module that it was made for, or accepted on: `server/verdict/src/meaning/mod.rs` says what that is,
-- and how it is compared with another build. It goes with its probe.
CREATE TABLE probe_meaning (
    probe_uid INTEGER PRIMARY KEY REFERENCES probe (uid) ON DELETE CASCADE,
    -- JSON, with its own version number.
    meaning   TEXT    NOT NULL
) STRICT;
