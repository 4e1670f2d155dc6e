-- Who had made the probe: see `probe.creator`. Kept here, since rows outlive their probes. Empty if it is not known.
ALTER TABLE spent_by_probe ADD COLUMN creator TEXT NOT NULL DEFAULT '';
