-- Every name that the maker of a probe had then, as a JSON array of texts: by them roles are found for what it has made, also while it is not
-- connected. `[]` if they are not known.
ALTER TABLE probe ADD COLUMN creator_names TEXT NOT NULL DEFAULT '[]';
-- The same of who attached an event.
ALTER TABLE attachment ADD COLUMN creator_names TEXT NOT NULL DEFAULT '[]';
