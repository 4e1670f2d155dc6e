//! Package queries and downloads with apt, over the machine's own lists or private ones.
//!
//! Never installs anything.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::apt_sources::Archives;

/// Why apt could not help.
#[derive(Debug, thiserror::Error)]
pub enum AptError {
    /// A program of apt's or dpkg's cannot be run.
    #[error(
        "cannot run {program}: {source}. Is this a Debian machine? Elsewhere, give --kernel PATH and --modules DIRECTORY"
    )]
    Run {
        /// Which program.
        program: &'static str,
        /// Why.
        source: io::Error,
    },
    /// It ran and failed.
    #[error("{command} failed: {message}")]
    Failed {
        /// What was run.
        command: String,
        /// The end of what it said.
        message: String,
    },
    /// The machine's sources name no Debian archive.
    #[error(
        "no Debian archive among the package sources of this machine (/etc/apt): give --kernel PATH and --modules DIRECTORY"
    )]
    NoArchive,
    /// Directories for private lists could not be made.
    #[error("{path}: {source}")]
    Private {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A package in the output of `apt-cache show`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) version: String,
    /// Names only, alternatives included.
    pub(crate) depends: Vec<String>,
}

/// One set of package lists.
#[derive(Debug, Default)]
pub(crate) struct Apt {
    /// Options that lead away from the machine's lists; empty for those.
    options: Vec<String>,
}

impl Apt {
    /// The machine's own lists, as they are.
    pub(crate) fn machine() -> Self {
        Self::default()
    }

    /// Fresh lists of `suites` of the machine's Debian archive, kept in `directory`. Downloads
    /// them.
    pub(crate) fn private(directory: &Path, suites: &[&str]) -> Result<Self, AptError> {
        let archives = Archives::from_machine(Path::new("/etc/apt")).ok_or(AptError::NoArchive)?;
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| AptError::Private { path, source }
        };
        for part in ["lists/partial", "cache/archives/partial"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).map_err(failed(&path))?;
        }
        let list = directory.join("all.sources");
        fs::write(&list, archives.list(suites)).map_err(failed(&list))?;
        let directory = directory.display();
        let settings = [
            format!("Dir::State::Lists={directory}/lists"),
            format!("Dir::Cache={directory}/cache"),
            format!("Dir::Etc::SourceList={directory}/all.sources"),
            "Dir::Etc::SourceParts=-".to_owned(),
            // Container images switch this off, and without it every question reads all lists
            // again.
            "Dir::Cache::pkgcache=pkgcache.bin".to_owned(),
            "Dir::Cache::srcpkgcache=srcpkgcache.bin".to_owned(),
            // Apt would download as a user who may not write here.
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ];
        let apt = Self { options: settings.into_iter().flat_map(|value| ["-o".to_owned(), value]).collect() };
        // One suite that has moved away fails the command, yet the other lists are there.
        match apt.get(&["update"], None) {
            Ok(()) => Ok(apt),
            Err(_) if !apt.names("linux-image-")?.is_empty() => Ok(apt),
            Err(error) => Err(error),
        }
    }

    /// Every version of `package`; empty when it is not known.
    pub(crate) fn show(&self, package: &str) -> Result<Vec<Package>, AptError> {
        Ok(packages(&self.cache(&["show", package])?))
    }

    /// Names of all packages that start with `prefix`.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>, AptError> {
        Ok(self.cache(&["pkgnames", prefix])?.lines().map(str::to_owned).collect())
    }

    /// Downloads the package files of `packages` into `directory`.
    pub(crate) fn download(&self, packages: &[String], directory: &Path) -> Result<(), AptError> {
        let mut arguments = vec!["-o", "APT::Sandbox::User=root", "download"];
        arguments.extend(packages.iter().map(String::as_str));
        self.get(&arguments, Some(directory))
    }

    /// Downloads `package` and what it needs and this machine does not have into `directory`.
    pub(crate) fn download_with_missing(&self, package: &str, directory: &Path) -> Result<(), AptError> {
        // Apt needs a directory for incomplete downloads.
        let partial = directory.join("partial");
        fs::create_dir_all(&partial).map_err(|source| AptError::Private { path: partial.clone(), source })?;
        let archives = format!("Dir::Cache::archives={}", directory.display());
        let mut arguments =
            vec!["-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1", "-o", &archives];
        arguments.extend([
            "install",
            "-y",
            "--no-install-recommends",
            "--reinstall",
            "--download-only",
            package,
        ]);
        self.get(&arguments, None)
    }

    fn cache(&self, arguments: &[&str]) -> Result<String, AptError> {
        let output = run("apt-cache", &self.options, arguments, None)?;
        // It fails for unknown packages: empty output means the same.
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn get(&self, arguments: &[&str], directory: Option<&Path>) -> Result<(), AptError> {
        success("apt-get", arguments, &run("apt-get", &self.options, arguments, directory)?)
    }
}

/// Unpacks a package file without installing it.
pub(crate) fn unpack(package: &Path, into: &Path) -> Result<(), AptError> {
    let (package, into) = (package.display().to_string(), into.display().to_string());
    let arguments = ["-x", &package, &into];
    success("dpkg-deb", &arguments, &run("dpkg-deb", &[], &arguments, None)?)
}

/// Whether version `a` is newer than `b`, by Debian's rules.
pub(crate) fn is_newer(a: &str, b: &str) -> Result<bool, AptError> {
    Ok(run("dpkg", &[], &["--compare-versions", a, "gt", b], None)?.status.success())
}

fn run(
    program: &'static str,
    options: &[String],
    arguments: &[&str],
    directory: Option<&Path>,
) -> Result<Output, AptError> {
    let mut command = Command::new(program);
    command.args(options).args(arguments).env("LC_ALL", "C").stdin(Stdio::null());
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
    command.output().map_err(|source| AptError::Run { program, source })
}

fn success(program: &str, arguments: &[&str], output: &Output) -> Result<(), AptError> {
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("W: ")).collect();
    Err(AptError::Failed {
        command: format!("{program} {}", arguments.join(" ")),
        message: lines[lines.len().saturating_sub(3)..].join("; "),
    })
}

fn packages(text: &str) -> Vec<Package> {
    text.split("\n\n")
        .filter_map(|stanza| {
            let field =
                |name: &str| stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            let mut depends: Vec<String> = Vec::new();
            for list in [field("Pre-Depends"), field("Depends")].into_iter().flatten() {
                let names = list
                    .split([',', '|'])
                    .filter_map(|item| item.split([' ', '(', ':']).find(|w| !w.is_empty()));
                depends.extend(names.map(str::to_owned));
            }
            Some(Package { version: field("Version")?.to_owned(), depends })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stanzas_become_packages() {
        let found = packages(
            "Package: a\nVersion: 1-2\nPre-Depends: x:any (>= 1)\nDepends: b (= 1-2), c | d\n\nPackage: a\nVersion: 0\n\n",
        );
        let package = |version: &str, depends: &[&str]| Package {
            version: version.to_owned(),
            depends: depends.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(found, [package("1-2", &["x", "b", "c", "d"]), package("0", &[])]);
        assert_eq!(packages(""), []);
    }
}
