//! Debian packages that are unpacked into the cache instead of installed.
//!
//! Servers that tests talk to would start by themselves if they were installed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::apt::{self, Apt, AptError};
use crate::cache::Cache;
use crate::progress::Step;

/// Why a package is not there.
#[derive(Debug, thiserror::Error)]
pub enum UnpackedError {
    /// apt has it not, or cannot download it.
    #[error(transparent)]
    Apt(#[from] AptError),
    /// The cache cannot be written.
    #[error("{path}: {source}")]
    Cache {
        /// Which file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A package that is unpacked.
#[derive(Clone, Debug)]
pub struct Unpacked {
    root: PathBuf,
}

impl Unpacked {
    /// The package `name` in `cache`, downloaded and unpacked when it is not there. Programs that
    /// wait for the same one take turns.
    ///
    /// # Errors
    /// See [`UnpackedError`].
    pub fn ensure(cache: &Cache, name: &str) -> Result<Self, UnpackedError> {
        let download = |directory: &Path| Apt::machine().download(&[name.to_owned()], directory);
        Self::unpack(cache, name, download)
    }

    /// The same with what it needs and this machine does not have.
    ///
    /// # Errors
    /// See [`UnpackedError`].
    pub fn ensure_with_missing(cache: &Cache, name: &str) -> Result<Self, UnpackedError> {
        Self::unpack(cache, name, |directory| Apt::machine().download_with_missing(name, directory))
    }

    fn unpack(
        cache: &Cache,
        name: &str,
        download: impl FnOnce(&Path) -> Result<(), AptError>,
    ) -> Result<Self, UnpackedError> {
        let directory = cache.root().join("packages");
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| UnpackedError::Cache { path, source }
        };
        fs::create_dir_all(&directory).map_err(failed(&directory))?;
        let lock = directory.join(format!("{name}.lock"));
        let file = File::create(&lock).map_err(failed(&lock))?;
        file.lock().map_err(failed(&lock))?;
        let root = directory.join(name);
        if root.is_dir() {
            return Ok(Self { root });
        }
        let step = Step::start(format!("fetching the package {name}"));
        // Renamed when it is whole: what was interrupted is made anew.
        let made = tempfile::tempdir_in(&directory).map_err(failed(&directory))?;
        download(made.path())?;
        let tree = made.path().join("tree");
        for entry in fs::read_dir(made.path()).map_err(failed(made.path()))? {
            let path = entry.map_err(failed(made.path()))?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                apt::unpack(&path, &tree)?;
            }
        }
        fs::rename(&tree, &root).map_err(failed(&root))?;
        step.done();
        Ok(Self { root })
    }

    /// Where its tree is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A program of the package, such as `usr/bin/promtool`.
    pub fn program(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Directories of the package that have libraries, as `LD_LIBRARY_PATH` lists them.
    pub fn libraries(&self, directories: &[&str]) -> OsString {
        let all = directories.iter().map(|directory| self.root.join(directory));
        let paths: Vec<OsString> = all.map(PathBuf::into_os_string).collect();
        paths.join(OsStr::new(":"))
    }
}
