//! Debian packages that are unpacked into the cache instead of installed.
//!
//! Servers that tests talk to would start by themselves if they were installed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::apt::{self, Apt};
use crate::cache::Cache;
use crate::progress::Step;

/// A package that is unpacked.
#[derive(Clone, Debug)]
pub struct Unpacked {
    root: PathBuf,
}

impl Unpacked {
    /// The package `name` in `cache`, downloaded and unpacked when it is not there. Programs that
    /// wait for the same one take turns.
    pub fn ensure(cache: &Cache, name: &str) -> Result<Self> {
        let download = |directory: &Path| Apt::machine().download(&[name.to_owned()], directory);
        Self::unpack(cache, name, download)
    }

    /// The same with what it needs and this machine does not have.
    pub fn ensure_with_missing(cache: &Cache, name: &str) -> Result<Self> {
        Self::unpack(cache, name, |directory| Apt::machine().download_with_missing(name, directory))
    }

    fn unpack(cache: &Cache, name: &str, download: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        let directory = cache.root().join("packages");
        let name_of = |path: &Path| path.display().to_string();
        fs::create_dir_all(&directory).with_context(|| name_of(&directory))?;
        let lock = directory.join(format!("{name}.lock"));
        let file = File::create(&lock).with_context(|| name_of(&lock))?;
        file.lock().with_context(|| name_of(&lock))?;
        let root = directory.join(name);
        if root.is_dir() {
            return Ok(Self { root });
        }
        let step = Step::start(format!("fetching the package {name}"));
        // Renamed when it is whole: what was interrupted is made anew.
        let made = tempfile::tempdir_in(&directory).with_context(|| name_of(&directory))?;
        download(made.path())?;
        let tree = made.path().join("tree");
        for entry in fs::read_dir(made.path()).with_context(|| name_of(made.path()))? {
            let path = entry.with_context(|| name_of(made.path()))?.path();
            if path.extension().is_some_and(|extension| extension == "deb") {
                apt::unpack(&path, &tree)?;
            }
        }
        fs::rename(&tree, &root).with_context(|| name_of(&root))?;
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
