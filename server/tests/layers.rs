//! Imports point one way: `app` at the top, `model` at the bottom (see the crate's documentation). This reads the sources and looks at every
//! `crate::` path.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// From the bottom to the top; a module may use those of its own line and of lines above.
const LAYERS: &[&[&str]] = &[
    &["model"],
    &["definition", "insn", "kernel", "ring"],
    &["tracefs", "validate", "store", "spool"],
    &["decode", "meaning"],
    &["wire", "filter"],
    &["pipeline"],
    &["control", "history"],
    &["feed"],
    &["config", "shutdown", "telemetry"],
    &["messages"],
    &["export"],
    &["rpc"],
    &["front", "declared"],
    &["app", "offline"],
];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

fn sources(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

#[test]
fn imports_point_downward() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut edges = 0;
    for path in sources(&root).unwrap() {
        let inner = path.strip_prefix(&root).unwrap();
        let module = inner.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if ["lib", "main"].contains(&module) {
            continue;
        }
        let own = layer(module).unwrap_or_else(|| panic!("`{module}` has no layer: put it into the list"));
        let text = fs::read_to_string(&path).unwrap();
        // What the documentation links to is not an import.
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for used in line.split("crate::").skip(1) {
                let end = used.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(used.len());
                let Some(other) = layer(&used[..end]) else { continue };
                assert!(other <= own, "{}: `{module}` must not use `{}`", inner.display(), &used[..end]);
                edges += 1;
            }
        }
    }
    assert!(edges > 50, "only {edges} imports were found");
}
