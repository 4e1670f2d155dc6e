//! Tools from Python packages: installed once, pinned by version and hash, into a virtual
//! environment in the cache.
//!
//! Owns the environments and nothing that runs in them. Never changes the machine's own Python.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::cache::Cache;
use crate::packages::{self, MissingPrograms};
use crate::progress::Step;

/// Why the tools are not there.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// There is no Python, or it cannot make virtual environments.
    #[error(transparent)]
    Missing(#[from] MissingPrograms),
    /// A program cannot be run.
    #[error("cannot run {program}: {source}")]
    Run {
        /// Which one.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The cache cannot be written.
    #[error("{path}: {source}")]
    Cache {
        /// Which file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The package index does not answer.
    #[error(
        "the Python package index does not answer, and the packages of {list} are not in the cache yet: {message}. Run this once with a network"
    )]
    NoNetwork {
        /// The list of packages.
        list: &'static str,
        /// What pip said last.
        message: String,
    },
    /// pip or Python failed for another reason.
    #[error("{command} failed: {message}")]
    Failed {
        /// What was run.
        command: String,
        /// The end of what it said.
        message: String,
    },
}

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
    /// See [`PythonError`]; [`PythonError::NoNetwork`] only when the packages must be fetched.
    pub fn ensure(cache: &Cache, list: Requirements) -> Result<Self, PythonError> {
        packages::ensure_python()?;
        let version = said(&run(Path::new("python3"), &["--version"])?, "python3 --version")?;
        let mut key = DefaultHasher::new();
        (list.text, &version).hash(&mut key);
        let root = cache.root().join("python");
        let directory = root.join(format!("{:016x}", key.finish()));
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| PythonError::Cache { path, source }
        };
        fs::create_dir_all(&root).map_err(failed(&root))?;
        let lock = directory.with_extension("lock");
        let file = File::create(&lock).map_err(failed(&lock))?;
        file.lock().map_err(failed(&lock))?;
        let environment = Self { directory };
        // Written last: what was interrupted is made anew.
        let complete = environment.directory.join("complete");
        if !complete.is_file() {
            let step = Step::start(format!("installing the packages of {}", list.name));
            environment.make(list)?;
            fs::write(&complete, list.text).map_err(failed(&complete))?;
            step.done();
        }
        Ok(environment)
    }

    /// Where a program of the environment is: `python`, or one of its packages'.
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join("bin").join(name)
    }

    /// Builds the Python package in `source` and installs it into `target`, with the packages that
    /// the environment has and no network.
    ///
    /// # Errors
    /// [`PythonError::Failed`] with the end of what pip said.
    pub fn install(&self, source: &Path, target: &Path) -> Result<(), PythonError> {
        let (source, target) = (source.display().to_string(), target.display().to_string());
        let options = ["--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--target"];
        let mut arguments = vec!["-m", "pip", "install", "-q", "--disable-pip-version-check"];
        arguments.extend(options);
        arguments.extend([target.as_str(), source.as_str()]);
        said(&run(&self.program("python"), &arguments)?, "pip install").map(drop)
    }

    fn make(&self, list: Requirements) -> Result<(), PythonError> {
        let directory = self.directory.display().to_string();
        let arguments = ["-m", "venv", "--clear", &directory];
        said(&run(Path::new("python3"), &arguments)?, "python3 -m venv")?;
        let file = self.directory.join("requirements.txt");
        fs::write(&file, list.text).map_err(|source| PythonError::Cache { path: file.clone(), source })?;
        let file = file.display().to_string();
        let options =
            ["--require-hashes", "--only-binary", ":all:", "--no-deps", "--retries", "2", "-r", &file];
        let mut arguments = vec!["-m", "pip", "install", "-q", "--disable-pip-version-check"];
        arguments.extend(options);
        let output = run(&self.program("python"), &arguments)?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() && is_about_the_network(&text) {
            return Err(PythonError::NoNetwork { list: list.name, message: last_line(&text) });
        }
        said(&output, "pip install").map(drop)
    }
}

/// Whether pip could not reach its index, by what it says of each attempt.
fn is_about_the_network(text: &str) -> bool {
    text.contains("after connection broken by")
}

fn last_line(text: &str) -> String {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it does not say why").trim().to_owned()
}

fn run(program: &Path, arguments: &[&str]) -> Result<Output, PythonError> {
    Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C.UTF-8")
        .env_remove("PYTHONPATH")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| PythonError::Run { program: program.to_owned(), source })
}

/// The standard output of what ended well.
fn said(output: &Output, command: &str) -> Result<String, PythonError> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let message = lines[lines.len().saturating_sub(15)..].join("\n");
    Err(PythonError::Failed { command: command.to_owned(), message })
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
        assert_eq!(last_line(unreachable), "ERROR: No matching distribution found for buf-bin==1.75.0");
        assert!(!is_about_the_network("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"));
    }
}
