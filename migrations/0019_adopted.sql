-- Whether the probe was an event of another program, or of an earlier run, that was adopted: its creator is who adopted it, and has not made
-- it. Such a probe is on no budget of a creator.
ALTER TABLE probe ADD COLUMN adopted INTEGER NOT NULL DEFAULT 0;
