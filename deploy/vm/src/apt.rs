//! Package queries and downloads with apt, over the machine's own lists or private ones.
//!
//! Never installs anything.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::packages::{LIMIT, ensure_in_time, limited, search_path};

/// Debian's own suites all start with one of these; other archives name theirs after them.
const CODENAMES: [&str; 10] = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "sid",
    "stable",
    "oldstable",
    "oldoldstable",
    "testing",
    "unstable",
];
/// Keys of all of Debian's suites.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What is said when there is none.
const NO_ARCHIVE: &str =
    "no Debian archive among the package sources of this machine: give --kernel PATH and --modules DIRECTORY";

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
    pub(crate) fn private(directory: &Path, suites: &[&str]) -> Result<Self> {
        for part in ["lists/partial", "cache/archives/partial"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        }
        let at = directory.display();
        let settings = [
            format!("Dir::State::Lists={at}/lists"),
            format!("Dir::Cache={at}/cache"),
            // Container images switch this off, and without it every question reads all lists
            // again.
            "Dir::Cache::pkgcache=pkgcache.bin".to_owned(),
            "Dir::Cache::srcpkgcache=srcpkgcache.bin".to_owned(),
            // Apt would download as a user who may not write here.
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ];
        let mut apt = Self::default();
        apt.set(settings);
        let archives = if let Some(archives) = Self::machine().archives()? {
            archives
        } else {
            // Images of containers come without lists, and apt names only sources that have one.
            apt.get(&["update"], None)?;
            apt.archives()?.context(NO_ARCHIVE)?
        };
        let list = directory.join("all.sources");
        fs::write(&list, archives.list(suites)).with_context(|| list.display().to_string())?;
        apt.set([format!("Dir::Etc::SourceList={at}/all.sources"), "Dir::Etc::SourceParts=-".to_owned()]);
        // One suite that has moved away fails the command, yet the other lists are there.
        match apt.get(&["update"], None) {
            Ok(()) => Ok(apt),
            Err(_) if !apt.names("linux-image-")?.is_empty() => Ok(apt),
            Err(error) => Err(error),
        }
    }

    /// Every version of `package`; empty when it is not known.
    pub(crate) fn show(&self, package: &str) -> Result<Vec<Package>> {
        Ok(packages(&self.cache(&["show", package])?))
    }

    /// Names of all packages that start with `prefix`.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        Ok(self.cache(&["pkgnames", prefix])?.lines().map(str::to_owned).collect())
    }

    /// Downloads the package files of `packages` into `directory`.
    pub(crate) fn download(&self, packages: &[String], directory: &Path) -> Result<()> {
        let mut arguments = vec!["-o", "APT::Sandbox::User=root", "download"];
        arguments.extend(packages.iter().map(String::as_str));
        self.get(&arguments, Some(directory))
    }

    /// Downloads `package` and what it needs and this machine does not have into `directory`.
    pub(crate) fn download_with_missing(&self, package: &str, directory: &Path) -> Result<()> {
        // Apt needs a directory for incomplete downloads.
        let partial = directory.join("partial");
        fs::create_dir_all(&partial).with_context(|| partial.display().to_string())?;
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

    fn set(&mut self, settings: impl IntoIterator<Item = String>) {
        self.options.extend(settings.into_iter().flat_map(|value| ["-o".to_owned(), value]));
    }

    /// Where Debian's releases come from, by the sources whose lists are there.
    fn archives(&self) -> Result<Option<Archives>> {
        let format = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)";
        let arguments = ["indextargets", "--format", format, "Created-By: Packages"];
        let output = run("apt-get", &self.options, &arguments, None)?;
        success("apt-get", &arguments, &output)?;
        Ok(Archives::among(&String::from_utf8_lossy(&output.stdout)))
    }

    fn cache(&self, arguments: &[&str]) -> Result<String> {
        let output = run("apt-cache", &self.options, arguments, None)?;
        // It fails for unknown packages: empty output means the same.
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn get(&self, arguments: &[&str], directory: Option<&Path>) -> Result<()> {
        success("apt-get", arguments, &run("apt-get", &self.options, arguments, directory)?)
    }
}

/// Addresses of the archives that Debian's releases come from, so that this program names none.
#[derive(Debug, PartialEq, Eq)]
struct Archives {
    main: String,
    security: String,
}

impl Archives {
    /// From lines of address, suite, component and origin.
    fn among(targets: &str) -> Option<Self> {
        let best = |security: bool| {
            let candidates = targets.lines().filter_map(|line| {
                let mut words = line.split(' ');
                let (uri, suite, component) = (words.next()?, words.next()?, words.next()?);
                let wanted =
                    component == "main" && is_debian(suite) && suite.contains("security") == security;
                wanted.then(|| (words.next() == Some("Debian"), uri.trim_end_matches('/')))
            });
            candidates.max_by_key(|(is_debians, _)| *is_debians).map(|(_, uri)| uri.to_owned())
        };
        let main = best(false)?;
        // Mirrors usually carry both next to each other.
        let security = best(true).unwrap_or_else(|| format!("{main}-security"));
        Some(Self { main, security })
    }

    /// A deb822 list of `suites`; those with `-security` at their end come from the security archive.
    fn list(&self, suites: &[&str]) -> String {
        let key = format!("Signed-By: {KEYRING}\n");
        let key = if Path::new(KEYRING).exists() { key.as_str() } else { "" };
        let (security, main): (Vec<_>, Vec<_>) =
            suites.iter().copied().partition(|suite| suite.ends_with("-security"));
        let both = [(&self.main, main), (&self.security, security)];
        let wanted = both.iter().filter(|(_, suites)| !suites.is_empty()).map(|(uri, suites)| {
            format!("Types: deb\nURIs: {uri}\nSuites: {}\nComponents: main\n{key}\n", suites.join(" "))
        });
        wanted.collect::<Vec<_>>().concat()
    }
}

fn is_debian(suite: &str) -> bool {
    CODENAMES.contains(&suite.split(['-', '/']).next().unwrap_or_default())
}

/// Unpacks a package file without installing it.
pub(crate) fn unpack(package: &Path, into: &Path) -> Result<()> {
    let (package, into) = (package.display().to_string(), into.display().to_string());
    let arguments = ["-x", &package, &into];
    success("dpkg-deb", &arguments, &run("dpkg-deb", &[], &arguments, None)?)
}

/// Whether version `a` is newer than `b`, by Debian's rules.
pub(crate) fn is_newer(a: &str, b: &str) -> Result<bool> {
    Ok(run("dpkg", &[], &["--compare-versions", a, "gt", b], None)?.status.success())
}

fn run(
    program: &'static str,
    options: &[String],
    arguments: &[&str],
    directory: Option<&Path>,
) -> Result<Output> {
    let elsewhere = "is this a Debian machine? Elsewhere, give --kernel PATH and --modules DIRECTORY";
    ensure!(search_path(program).is_some(), "cannot run {program} ({elsewhere})");
    let mut command = limited(LIMIT, program);
    command.args(options).args(arguments).env("LC_ALL", "C").stdin(Stdio::null());
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    ensure_in_time(LIMIT, program, output.status)?;
    Ok(output)
}

fn success(program: &str, arguments: &[&str], output: &Output) -> Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("W: ")).collect();
    let last = lines[lines.len().saturating_sub(3)..].join("; ");
    bail!("{program} {} failed: {last}", arguments.join(" "))
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
    fn archives_are_chosen_among_what_apt_names() {
        let archives = |targets: &str| Archives::among(targets).map(|found| (found.main, found.security));
        let both = |main: &str, security: &str| Some((main.to_owned(), security.to_owned()));
        let targets = "http://tool.example/apt/ bookworm main Tool\nhttp://m.example/debian/ bookworm main Debian\n\
            http://m.example/debian/ bookworm non-free Debian\nhttp://s.example/sec/ bookworm-security main Debian\n\
            http://u.example/ubuntu/ noble main Ubuntu\n";
        assert_eq!(archives(targets), both("http://m.example/debian", "http://s.example/sec"));
        let mirrors = "mirror+file:/etc/apt/mirrors/debian.list/ trixie main Debian\n";
        let mirror = "mirror+file:/etc/apt/mirrors/debian.list";
        assert_eq!(archives(mirrors), both(mirror, &format!("{mirror}-security")));
        assert_eq!(archives("http://u.example/ubuntu/ noble main Ubuntu\n"), None);
    }

    #[test]
    fn suites_come_from_their_archives() {
        let archives = Archives { main: "http://a/debian".into(), security: "http://a/security".into() };
        let list = archives.list(&["trixie", "trixie-security", "sid"]);
        assert!(
            list.starts_with("Types: deb\nURIs: http://a/debian\nSuites: trixie sid\nComponents: main\n")
        );
        assert!(list.contains("\nURIs: http://a/security\nSuites: trixie-security\nComponents: main\n"));
        assert_eq!(archives.list(&["sid"]).matches("URIs").count(), 1);
    }

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
