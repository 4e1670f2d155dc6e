-- What is kept with a probe and never reaches the kernel.
ALTER TABLE probe ADD COLUMN description TEXT NOT NULL DEFAULT '';
-- Who is to be asked.
ALTER TABLE probe ADD COLUMN owner TEXT NOT NULL DEFAULT '';
-- The file that declares it; NULL for one that a client made.
ALTER TABLE probe ADD COLUMN declared_by TEXT;
-- A lease for a time has the first two, one that a client holds the third, none of them is for ever.
ALTER TABLE probe ADD COLUMN lease_duration_ns INTEGER CHECK (lease_duration_ns > 0);
ALTER TABLE probe ADD COLUMN lease_expire_ns INTEGER;
ALTER TABLE probe ADD COLUMN lease_holder TEXT;
ALTER TABLE probe ADD COLUMN on_kernel_change TEXT NOT NULL DEFAULT 'hold' CHECK (on_kernel_change IN ('hold', 'arm-anyway'));
