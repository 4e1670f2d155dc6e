//! File of `--cursor`: where the next run continues.
//!
//! Owns that the cursor in it never passes an event that was not printed: after a crash some events
//! may be printed again, and none is missed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kprobed_client::event::Cursor;

use crate::command::Failure;
use crate::config::replace;

/// How often the place is saved on the way.
const INTERVAL: Duration = Duration::from_secs(1);

/// A file with a cursor in it.
pub(in crate::command) struct CursorFile {
    path: PathBuf,
    saved: Option<Cursor>,
    saved_at: Instant,
}

impl CursorFile {
    /// Reads the file; one that does not exist yet will be made.
    ///
    /// # Errors
    /// When it cannot be read, or is something else.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let saved = match fs::read_to_string(path) {
            Ok(text) => Some(text.trim().parse().map_err(|error| {
                let hint = "remove the file to begin with new events";
                Failure::usage(format!("cannot use `{}`: {error}", path.display()), hint)
            })?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(why) => return Err(Failure::unreadable(path, &why)),
        };
        Ok(Self { path: path.to_owned(), saved, saved_at: Instant::now() })
    }

    /// Where to continue.
    pub(super) fn cursor(&self) -> Option<&Cursor> {
        self.saved.as_ref()
    }

    /// Whether it is time to save the place again.
    pub(super) fn is_due(&self) -> bool {
        self.saved_at.elapsed() >= INTERVAL
    }

    /// Saves a place. The file is replaced as a whole, so that it is never half written or empty, even if the machine
    /// stops.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn save(&mut self, cursor: &Cursor) -> Result<(), Failure> {
        self.saved_at = Instant::now();
        if self.saved.as_ref() == Some(cursor) {
            return Ok(());
        }
        replace(&self.path, format!("{cursor}\n").as_bytes())?;
        self.saved = Some(cursor.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_the_file_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("place"), directory.path().join("link"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for sequence in [3, 5] {
            fs::write(&file, format!("b0:2:{sequence}\n")).unwrap();
            let cursor = Cursor { boot_id: "b0".to_owned(), epoch: 2, sequence: sequence + 1 };
            CursorFile::open(&link).unwrap().save(&cursor).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), format!("b0:2:{}\n", sequence + 1));
        }
    }
}
