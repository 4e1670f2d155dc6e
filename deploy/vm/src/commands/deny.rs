//! `cargo vm deny`: licences, versions and sources of all dependencies.
//!
//! `cargo deny` has more rules, takes minutes to build, and fetches its list of advisories.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use kprobed_vm::{progress, workspace};
use serde_json::Value;

/// Licences that ask for no more than that they are named.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates that are there in several versions, and who wants the older ones. One that is gone has to
/// go from here too.
const SEVERAL: &[(&str, &str)] = &[
    ("base64", "sqlx and tonic"),
    ("block-buffer", "sqlx, by sha2 0.10"),
    ("const-oid", "async-nats, by nkeys, whose cryptography is older"),
    ("cpufeatures", "sqlx, by sha2 0.10"),
    ("crypto-common", "sqlx, by sha2 0.10"),
    ("digest", "sqlx, by sha2 0.10"),
    ("embedded-io", "postcard, which can use either and is built with neither"),
    ("foldhash", "petgraph, by hashbrown 0.15"),
    ("getrandom", "ring"),
    ("hashbrown", "petgraph and sqlx"),
    ("itertools", "criterion"),
    ("rand", "async-nats, by nkeys"),
    ("rand_core", "async-nats, by nkeys"),
    ("sha2", "sqlx"),
    ("syn", "jiff and logos, whose macros are older"),
    ("synstructure", "rcgen, by asn1-rs"),
    ("unicode-width", "protox, by miette"),
];

/// Where crates may come from, beside this workspace.
const SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Check the licences, versions and sources of all dependencies
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm deny

`Cargo.lock` pins each version with its checksum. Advisories: `cargo install cargo-deny`, then `cargo deny check advisories`.")]
pub(crate) struct Deny {}

impl Deny {
    pub(crate) fn run() -> Result<()> {
        let root = workspace::root()?;
        let output = workspace::cargo(&root)
            .args(["metadata", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"])
            .stderr(Stdio::inherit())
            .output()
            .context("cargo metadata")?;
        ensure!(output.status.success(), "cargo metadata failed ({})", output.status);
        let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
        let (count, problems) = check(&metadata);
        for problem in &problems {
            progress::note(problem);
        }
        if !problems.is_empty() {
            bail!("{} rules about dependencies are broken", problems.len());
        }
        progress::note(format_args!("{count} crates: licences, versions and sources are as they may be"));
        Ok(())
    }
}

/// How many crates of others are used, and what is wrong with them.
fn check(metadata: &Value) -> (usize, Vec<String>) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // Those that are used on this platform.
    let used: BTreeSet<String> =
        list(&metadata["resolve"]["nodes"]).iter().map(|node| text(&node["id"])).collect();
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (mut count, mut problems) = (0, Vec::new());
    for package in list(&metadata["packages"]) {
        if package["source"].is_null() || !used.contains(&text(&package["id"])) {
            continue;
        }
        count += 1;
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let licence = text(&package["license"]);
        if !allowed(&licence) {
            problems.push(format!("{name} {version}: the licence `{licence}` is not on the list"));
        }
        let source = text(&package["source"]);
        if source != SOURCE {
            problems.push(format!("{name} {version}: comes from {source}"));
        }
        versions.entry(name).or_default().insert(version);
    }
    let listed = |name: &str| SEVERAL.iter().any(|(several, _)| *several == name);
    for (name, versions) in versions.iter().filter(|(name, versions)| versions.len() > 1 && !listed(name)) {
        let versions: Vec<_> = versions.iter().map(String::as_str).collect();
        problems.push(format!("{name} is there in several versions: {}", versions.join(", ")));
    }
    for (name, _) in SEVERAL {
        if versions.get(*name).is_none_or(|versions| versions.len() < 2) {
            problems.push(format!("{name} is there once now: take it from the list"));
        }
    }
    (count, problems)
}

/// Whether every licence that an SPDX expression names is on the list; the old `/` is `OR`.
fn allowed(expression: &str) -> bool {
    let names = expression.replace(['(', ')'], "").replace('/', " OR ").replace(" AND ", " OR ");
    names.split(" OR ").all(|name| LICENCES.contains(&name.trim()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_are_understood() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "Apache-2.0 / MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR MIT AND ISC",
        ] {
            assert!(allowed(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "GPL-3.0 OR MIT",
            "MIT AND GPL-3.0",
            "(MIT OR GPL-2.0) AND GPL-2.0",
            "MIT WITH LLVM-exception",
            "MIT Apache-2.0",
            "MIT AND",
        ] {
            assert!(!allowed(bad), "{bad}");
        }
    }

    #[test]
    fn broken_rules_are_named() {
        let package = |name: &str, version: &str, licence: &str, source: Option<&str>| json!({"id": format!("{name} {version}"), "name": name, "version": version, "license": licence, "source": source});
        let mut packages = vec![
            package("ours", "1.0.0", "secret", None),
            package("bad", "1.0.0", "GPL-3.0", Some(SOURCE)),
            package("twice", "1.0.0", "MIT", Some(SOURCE)),
            package("twice", "2.0.0", "MIT", Some("git+https://example.org/twice")),
            package("elsewhere", "1.0.0", "GPL-3.0", Some(SOURCE)),
        ];
        for (name, _) in SEVERAL.iter().skip(1) {
            packages.extend(["1.0.0", "2.0.0"].map(|version| package(name, version, "MIT", Some(SOURCE))));
        }
        let nodes: Vec<_> = packages
            .iter()
            .filter(|package| package["name"] != "elsewhere")
            .map(|package| json!({"id": package["id"]}))
            .collect();
        let (count, problems) = check(&json!({"packages": packages, "resolve": {"nodes": nodes}}));
        assert_eq!(count, 3 + 2 * (SEVERAL.len() - 1));
        assert_eq!(problems.len(), 4, "{problems:?}");
        for expected in ["bad 1.0.0: the licence", "comes from git", "twice is there in", "once now"] {
            assert!(problems.iter().any(|problem| problem.contains(expected)), "{expected}: {problems:?}");
        }
    }
}
