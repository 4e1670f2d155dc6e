//! The reference pages in `proto/reference`: made of the comments of the protos, and of what
//! `proto/guide` adds to them.
//!
//! `KPROBED_RENEW=1 cargo test -p kprobed-proto --test reference` writes them anew; without it, the
//! test says which are not current.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of it is a test, its parts too"
)]

mod errors;
mod page;
mod schema;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use errors::Errors;
use schema::Schema;

const RENEW: &str = "KPROBED_RENEW=1 cargo test -p kprobed-proto --test reference";

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The examples of `guide/examples`, by the method that they call.
fn examples() -> BTreeMap<String, String> {
    let files = fs::read_dir(directory("guide/examples")).unwrap();
    files
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// All pages, by the name of their file.
fn pages() -> BTreeMap<String, String> {
    let (schema, errors) = (Schema::of_the_api(), Errors::read(&directory("guide/errors.md")));
    let examples = examples();
    for name in examples.keys() {
        assert!(schema.has_method(name), "guide/examples/{name}.sh: the API has no such call");
    }
    for (reason, call) in errors.calls() {
        assert!(schema.has_method(call), "guide/errors.md: {reason}: the API has no call {call}");
    }
    let mut pages: BTreeMap<_, _> = schema
        .files()
        .map(|file| (page::name(file), page::of_file(&schema, file, &errors, &examples)))
        .collect();
    pages.insert("README.md".to_owned(), page::index(&schema));
    pages.insert("errors.md".to_owned(), errors.page(&schema));
    pages
}

#[test]
fn the_reference_is_current() {
    let target = directory("reference");
    let pages = pages();
    if env::var_os("KPROBED_RENEW").is_some() {
        drop(fs::remove_dir_all(&target));
        fs::create_dir_all(&target).unwrap();
        for (name, text) in &pages {
            fs::write(target.join(name), text).unwrap();
        }
    }
    for (name, text) in &pages {
        let written = fs::read_to_string(target.join(name)).unwrap_or_default();
        let line = text.lines().zip(written.lines()).position(|(a, b)| a != b).unwrap_or_default();
        assert!(written == *text, "proto/reference/{name} is not current (line {}): run `{RENEW}`", line + 1);
    }
    for file in fs::read_dir(&target).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(pages.contains_key(&name), "proto/reference/{name} belongs to nothing: run `{RENEW}`");
    }
}

/// Every link leads to a heading that is there.
#[test]
fn links_lead_somewhere() {
    let pages = pages();
    let anchors: BTreeMap<&str, Vec<String>> = pages
        .iter()
        .map(|(name, text)| {
            let headings = text.lines().filter(|line| line.starts_with('#'));
            (name.as_str(), headings.map(|line| page::anchor(line.trim_start_matches(['#', ' ']))).collect())
        })
        .collect();
    let mut links = 0;
    for (name, text) in &pages {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("https://") || link.starts_with("../") {
                continue;
            }
            let (page, anchor) = link.split_once('#').unwrap_or((link, ""));
            let page = if page.is_empty() { name } else { page };
            let known = anchors.get(page).unwrap_or_else(|| panic!("{name}: no page {link}"));
            assert!(anchor.is_empty() || known.iter().any(|one| one == anchor), "{name}: no heading {link}");
            links += 1;
        }
    }
    assert!(links > 500, "only {links} links");
}

/// Every reason that the daemon has, with its code, has a row; and no row names one that the daemon does not have.
#[test]
fn every_reason_is_explained() {
    let errors = Errors::read(&directory("guide/errors.md"));
    let found = errors::in_source(&fs::read_to_string(directory("../server/control/src/error.rs")).unwrap());
    assert!(found.len() > 50, "{found:?}");
    for (code, reason) in &found {
        assert!(errors.has(code, reason), "guide/errors.md has no row for {reason} with {code}");
    }
    for reason in errors.reasons() {
        let is_known = found.iter().any(|(_, known)| known == reason);
        assert!(is_known, "guide/errors.md: the daemon never sends {reason}");
    }
}
