//! Texts of sources, from the directories that are given.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Directories with sources.
pub(crate) struct Sources {
    directories: Vec<PathBuf>,
    read: RefCell<HashMap<String, Option<String>>>,
}

impl Sources {
    pub(crate) fn new(directories: &[PathBuf]) -> Self {
        Self { directories: directories.to_vec(), read: RefCell::default() }
    }

    /// The text of a source. Debug information has its path in the tree of the kernel, or where it was built: a
    /// directory may be any of those above the source.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.read.borrow_mut().entry(path.to_owned()).or_insert_with(|| self.look_up(path)).clone()
    }

    /// One line of a source, from 1.
    pub(crate) fn line(&self, path: &str, number: u32) -> Option<String> {
        let number = usize::try_from(number).ok()?.checked_sub(1)?;
        self.text(path)?.lines().nth(number).map(str::to_owned)
    }

    fn look_up(&self, path: &str) -> Option<String> {
        let parts: Vec<_> = Path::new(path).components().collect();
        let names: Vec<PathBuf> =
            (0..parts.len()).map(|skipped| parts.iter().skip(skipped).collect()).collect();
        let is_inside =
            |name: &&PathBuf| name.is_relative() && !name.components().any(|part| part.as_os_str() == "..");
        let found = names.iter().filter(is_inside).find_map(|name| {
            let read = |directory: &PathBuf| fs::read(directory.join(name)).ok();
            self.directories.iter().find_map(read)
        });
        found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_may_be_any_above_the_source() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("fs")).unwrap();
        fs::write(directory.path().join("fs/read_write.c"), "one\ntwo\n").unwrap();
        fs::write(directory.path().join("other.c"), "other\n").unwrap();
        let sources = Sources::new(&[PathBuf::from("/nonexistent"), directory.path().to_owned()]);
        for path in ["fs/read_write.c", "./fs/read_write.c", "/build/linux-6.1/fs/read_write.c"] {
            assert_eq!(sources.line(path, 2).as_deref(), Some("two"), "{path}");
        }
        let below = Sources::new(&[directory.path().join("fs")]);
        assert_eq!(below.line("fs/read_write.c", 1).as_deref(), Some("one"));
        for path in ["fs/absent.c", "", "/", "../other.c/.."] {
            assert_eq!(below.line(path, 1), None, "{path}");
        }
        assert_eq!((sources.line("other.c", 0), sources.line("other.c", 2)), (None, None));
    }
}
