-- The principal that made the probe, for limits of roles: `uid:1000`, `uri:...`, `dns:...`, `loopback`. Empty for one that a file declares,
-- and for one that was made before principals were kept. The column `owner` is a note of people, which any client can change.
ALTER TABLE probe ADD COLUMN creator TEXT NOT NULL DEFAULT '';
