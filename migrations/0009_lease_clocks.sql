-- How leases are counted that have a duration. Within a boot the clock counts that no program can set, and the wall clock only over a reboot.
CREATE TABLE lease_clock (
    probe_uid INTEGER PRIMARY KEY REFERENCES probe (uid) ON DELETE CASCADE,
    -- The end by the wall clock that this belongs to: the row of the probe has another one after a renewal, and this counts no more then.
    expire_ns INTEGER NOT NULL,
    -- The boot in which the lease was counted last.
    boot_id TEXT NOT NULL,
    -- When it ends, in nanoseconds of CLOCK_BOOTTIME of that boot.
    end_boot_ns INTEGER NOT NULL,
    -- When it ended, by the wall clock. NULL before that was written down.
    ended_ns INTEGER
);
