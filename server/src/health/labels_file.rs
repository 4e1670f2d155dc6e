//! Labels file: the file with the labels of the host.
//!
//! Owns when it is read: each request for the labels checks whether the file has changed. If the
//! file cannot be read, or its contents are not labels, the labels stay as they were, and a check
//! of the host says why. Never writes the file.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::{HostCheck, ok, warning};
use kprobed_lang::model::HostLabels;

/// Longest file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The file, if there is one.
#[derive(Debug, Default)]
pub struct LabelsFile {
    path: Option<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    stamp: Option<Stamp>,
    labels: Arc<HostLabels>,
    problem: Option<String>,
}

/// What changes when a file does. Kubernetes replaces the file by a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    modified: (i64, i64),
    bytes: u64,
}

impl LabelsFile {
    /// The labels in this file; none without a file.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path, known: Mutex::default() }
    }

    /// The labels of the host, as they are in the file now.
    pub fn labels(&self) -> Arc<HostLabels> {
        self.look(|known| Arc::clone(&known.labels))
    }

    /// Whether the file can be read. Absent if no file is configured.
    pub fn check(&self) -> Option<HostCheck> {
        const ID: &str = "host_labels";
        let path = self.path.as_ref()?;
        Some(self.look(|known| match &known.problem {
            None => ok(ID, format!("{} labels from `{}`", known.labels.len(), path.display())),
            Some(problem) => {
                let fix = "correct the file, or set another one or none as `host.labels_file`; until then the host keeps the labels that it had";
                warning(ID, format!("the labels of the host cannot be read: {problem}"), fix)
            }
        }))
    }

    fn look<T>(&self, take: impl FnOnce(&Known) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &self.path {
            known.renew(path);
        }
        take(&known)
    }
}

impl Known {
    fn renew(&mut self, path: &Path) {
        let stamp = stamp(path);
        if self.stamp.is_some() && stamp.as_ref().ok() == self.stamp.as_ref() {
            return;
        }
        let before = self.problem.take();
        self.stamp = stamp.as_ref().ok().copied();
        match stamp.and_then(|_| read(path)) {
            Ok(labels) => self.labels = Arc::new(labels),
            Err(problem) => {
                if before.as_ref() != Some(&problem) {
                    tracing::warn!(problem, "the labels of the host cannot be read");
                }
                self.problem = Some(problem);
            }
        }
    }
}

fn stamp(path: &Path) -> Result<Stamp, String> {
    let found = fs::metadata(path).map_err(|error| format!("`{}`: {error}", path.display()))?;
    Ok(Stamp {
        inode: (found.dev(), found.ino()),
        modified: (found.mtime(), found.mtime_nsec()),
        bytes: found.len(),
    })
}

/// Reads a file of labels.
///
/// # Errors
/// Why the file cannot be read, for people.
pub fn read(path: &Path) -> Result<HostLabels, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("`{}`: {why}", path.display());
    let found = fs::metadata(path).map_err(|error| wrong(&error))?;
    if !found.is_file() {
        return Err(wrong(&"it is not a file"));
    }
    if found.len() > MAX_BYTES {
        return Err(wrong(&"it has more than 1 MiB"));
    }
    let text = fs::read_to_string(path).map_err(|error| wrong(&error))?;
    HostLabels::parse(&text).map_err(|error| wrong(&error))
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    fn of(file: &LabelsFile) -> Vec<String> {
        file.labels().iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn a_file_that_changes_is_read_again_and_a_bad_one_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("labels");
        let file = LabelsFile::new(Some(path.clone()));
        let status = || file.check().map(|check| (check.status() == CheckStatus::Ok, check.finding)).unwrap();
        assert_eq!(of(&file), Vec::<String>::new());
        assert!(!status().0 && status().1.contains("No such file"), "{:?}", status());
        fs::write(&path, "zone=\"a\"\n").unwrap();
        assert_eq!(of(&file), ["zone=a"]);
        assert_eq!(status(), (true, format!("1 labels from `{}`", path.display())));
        // As Kubernetes does it: a new file under the same name, of the same size.
        let other = directory.path().join("other");
        fs::write(&other, "zone=\"b\"\n").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(of(&file), ["zone=b"]);
        fs::write(&path, "zone=\"b\"\nrack=7\n").unwrap();
        assert_eq!(of(&file), ["zone=b"]);
        assert!(!status().0 && status().1.contains("line 2"), "{:?}", status());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(of(&file), ["zone=b"]);
        assert!(status().1.contains("it is not a file"), "{:?}", status());
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "rack=\"7\"\n").unwrap();
        assert_eq!((of(&file), status().0), (vec!["rack=7".to_owned()], true));
        assert_eq!(LabelsFile::new(None).check(), None);
    }
}
