-- Rows that a crash has left unfinished are few, and are looked for whenever probes are made.
CREATE INDEX probe_unfinished ON probe (uid) WHERE phase != 'settled';
