//! Vetted crates: `Cargo.lock` against the list of versions that this project has decided to build.
//!
//! Owns the comparison. The list is that of `cargo vet`, in `.cargo/vet`: exemptions in `config.toml`,
//! and audits in `audits.toml`. Whether a crate that only tests use is built into the daemon, and what
//! others have audited, is for `cargo vet` itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// A crate and its version.
type Crate = (String, String);

#[derive(Deserialize)]
struct Lock {
    package: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Exemptions {
    #[serde(default)]
    exemptions: BTreeMap<String, Vec<Entry>>,
}

#[derive(Deserialize)]
struct Audits {
    #[serde(default)]
    audits: BTreeMap<String, Vec<Entry>>,
}

/// An entry about one version, or about the step from one to another.
#[derive(Deserialize)]
struct Entry {
    version: Option<String>,
    delta: Option<String>,
}

impl Entry {
    fn version(self) -> Option<String> {
        let after = |delta: String| delta.rsplit("->").next().map(|version| version.trim().to_owned());
        self.version.or_else(|| self.delta.and_then(after))
    }
}

/// Crates that are built and not listed, and exemptions for crates that are not built.
///
/// # Errors
/// A file that cannot be read, or is not what cargo and `cargo vet` write.
pub(super) fn problems(root: &Path) -> Result<Vec<String>> {
    let read = |path: &str| fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"));
    compare(&read("Cargo.lock")?, &read(".cargo/vet/config.toml")?, &read(".cargo/vet/audits.toml")?)
}

fn compare(lock: &str, config: &str, audits: &str) -> Result<Vec<String>> {
    let lock: Lock = toml::from_str(lock).context("Cargo.lock")?;
    let built: BTreeSet<Crate> = lock
        .package
        .into_iter()
        .filter(|package| package.source.is_some())
        .map(|package| (package.name, package.version))
        .collect();
    let exempted = crates(toml::from_str::<Exemptions>(config).context(".cargo/vet/config.toml")?.exemptions);
    let audited = crates(toml::from_str::<Audits>(audits).context(".cargo/vet/audits.toml")?.audits);
    let unknown = built.iter().filter(|one| !exempted.contains(one) && !audited.contains(one));
    let unknown = unknown.map(|(name, version)| {
        format!("{name} {version} is not listed in .cargo/vet: look at what has changed, and add it")
    });
    let unused = exempted.difference(&built).map(|(name, version)| {
        format!("{name} {version} is not built any more: take it from .cargo/vet/config.toml")
    });
    Ok(unknown.chain(unused).collect())
}

fn crates(listed: BTreeMap<String, Vec<Entry>>) -> BTreeSet<Crate> {
    let versions = |(name, entries): (String, Vec<Entry>)| {
        entries.into_iter().filter_map(Entry::version).map(move |version| (name.clone(), version))
    };
    listed.into_iter().flat_map(versions).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_is_listed_and_each_exemption_is_used() {
        let package = |name: &str, version: &str| {
            format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\nsource = \"registry+x\"\n")
        };
        let ours = "[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n";
        let built = ["a", "b", "c"].map(|name| package(name, "1.1.0")).concat() + ours;
        let config = "[cargo-vet]\nversion = \"0.10\"\n[[exemptions.a]]\nversion = \"1.1.0\"\n\
            criteria = \"safe-to-deploy\"\n[[exemptions.a]]\nversion = \"1.0.0\"\ncriteria = \"safe-to-run\"\n";
        let audits = "[[audits.b]]\nwho = \"x\"\ncriteria = \"safe-to-deploy\"\ndelta = \"1.0.0 -> 1.1.0\"\n";
        let found = compare(&built, config, audits).unwrap();
        assert_eq!(
            found,
            [
                "c 1.1.0 is not listed in .cargo/vet: look at what has changed, and add it",
                "a 1.0.0 is not built any more: take it from .cargo/vet/config.toml",
            ]
        );
        assert!(
            compare("package = 1", config, audits).is_err() && compare(&built, "exemptions = 1", "").is_err()
        );
    }
}
