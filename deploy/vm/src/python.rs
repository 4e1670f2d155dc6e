//! Tools from Python packages: installed once, pinned by version and hash, into a virtual
//! environment in the cache.
//!
//! Owns the environments and nothing that runs in them. Never changes the machine's own Python.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Error, Result};

use crate::cache::Cache;
use crate::machine::tail;
use crate::packages::{self, LIMIT, ensure_in_time, limited};
use crate::progress::Step;

/// The package index does not answer, and the packages are not there yet.
#[derive(Debug, thiserror::Error)]
#[error(
    "the Python package index does not answer, and the packages of {list} are not in the cache yet: {said}. Run this once with a network"
)]
pub struct NoNetwork {
    list: &'static str,
    said: String,
}

/// How pip is run.
const PIP: [&str; 5] = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];

/// A list of packages, each with its version and the hashes of its files.
#[derive(Clone, Copy, Debug)]
pub struct Requirements {
    name: &'static str,
    text: &'static str,
}

impl Requirements {
    /// `buf`, and what the Python client is built with, runs on and is tested with.
    pub const LANGUAGES: Self =
        Self { name: "deploy/vm/python/languages.txt", text: include_str!("../python/languages.txt") };
    /// `kubernetes-validate`, with the schemas of Kubernetes.
    pub const KUBERNETES: Self =
        Self { name: "deploy/vm/python/kubernetes.txt", text: include_str!("../python/kubernetes.txt") };
}

/// A virtual environment with the packages of one list.
#[derive(Clone, Debug)]
pub struct Environment {
    directory: PathBuf,
}

impl Environment {
    /// The environment of `list` in `cache`, made when it is not there. Programs that wait for the
    /// same one take turns.
    ///
    /// # Errors
    /// [`NoNetwork`] if the packages must be fetched and cannot be.
    pub fn ensure(cache: &Cache, list: Requirements) -> Result<Self> {
        packages::ensure_python()?;
        let version = said(Path::new("python3"), &["--version"]).context("python3 --version")?;
        let mut key = DefaultHasher::new();
        (list.text, &version).hash(&mut key);
        let root = cache.root().join("python");
        let this = Self { directory: root.join(format!("{:016x}", key.finish())) };
        fs::create_dir_all(&root).with_context(|| root.display().to_string())?;
        let lock = this.directory.with_extension("lock");
        let locked = File::create(&lock).and_then(|file| file.lock().map(|()| file));
        let _turn = locked.with_context(|| lock.display().to_string())?;
        // Written last: what was interrupted is made anew.
        let complete = this.directory.join("complete");
        if !complete.is_file() {
            let step = Step::start(format!("installing the packages of {}", list.name));
            this.make(list)?;
            fs::write(&complete, list.text).with_context(|| complete.display().to_string())?;
            step.done();
        }
        Ok(this)
    }

    /// Where a program of the environment is: `python`, or one of its packages'.
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join("bin").join(name)
    }

    /// Builds the Python package in `source` and installs it into `target`, with the packages that
    /// the environment has and no network.
    pub fn install(&self, source: &Path, target: &Path) -> Result<()> {
        let (source, target) = (source.display().to_string(), target.display().to_string());
        let options = ["--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--target"];
        let arguments = [PIP.as_slice(), &options, &[&target, &source]].concat();
        said(&self.program("python"), &arguments).context("pip install").map(drop)
    }

    fn make(&self, list: Requirements) -> Result<()> {
        let directory = self.directory.display().to_string();
        said(Path::new("python3"), &["-m", "venv", "--clear", &directory]).context("python3 -m venv")?;
        let file = self.directory.join("requirements.txt");
        fs::write(&file, list.text).with_context(|| file.display().to_string())?;
        let file = file.display().to_string();
        let options =
            ["--require-hashes", "--only-binary", ":all:", "--no-deps", "--retries", "2", "-r", &file];
        let installed = said(&self.program("python"), &[PIP.as_slice(), &options].concat());
        installed.map(drop).map_err(|error| {
            let said = error.to_string();
            if is_about_the_network(&said) {
                let said = said.lines().last().unwrap_or_default().to_owned();
                Error::new(NoNetwork { list: list.name, said })
            } else {
                error.context("pip install")
            }
        })
    }
}

/// Whether pip could not reach its index, by what it says of each attempt.
fn is_about_the_network(text: &str) -> bool {
    text.contains("after connection broken by")
}

/// The standard output of a program, or its last words as an error.
fn said(program: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = limited(LIMIT, program);
    command.args(arguments).env("LC_ALL", "C.UTF-8").env_remove("PYTHONPATH").stdin(Stdio::null());
    let output = command.output().with_context(|| format!("cannot run {}", program.display()))?;
    ensure_in_time(LIMIT, &program.display().to_string(), output.status)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::msg(tail(String::from_utf8_lossy(&output.stderr).trim(), 15)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_has_a_version_and_hashes() {
        for (list, wanted) in [
            (Requirements::LANGUAGES, include_str!("../python/languages.in")),
            (Requirements::KUBERNETES, include_str!("../python/kubernetes.in")),
        ] {
            let lines = || list.text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
            for (number, line) in lines() {
                let is_hash = line.starts_with("    --hash=sha256:");
                let is_package = line.contains("==") && line.ends_with(" \\");
                assert!(is_hash || is_package, "{} line {}: {line}", list.name, number + 1);
            }
            for package in wanted.lines() {
                let pinned = lines().any(|(_, line)| line.starts_with(package));
                assert!(pinned, "{}: {package}: run pip-compile again", list.name);
            }
        }
    }

    #[test]
    fn a_missing_network_is_told_from_a_wrong_file() {
        let unreachable = "WARNING: Retrying (Retry(total=0, ...)) after connection broken by 'NewConnectionError(...)'\nERROR: No matching distribution found for buf-bin==1.75.0\n";
        assert!(is_about_the_network(unreachable));
        assert!(!is_about_the_network("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"));
    }
}
