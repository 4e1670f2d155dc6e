//! Test of layers: imports inside a crate point one way, so that a module uses only those below it.
//!
//! Cargo checks this between crates. The test reads the sources and checks every `crate::` path.

use super::pages::{files, read};

/// The modules of a crate, from the bottom to the top; one may use those of its own line and of
/// lines above. `*` stands for all that no line names.
struct Crate {
    sources: &'static str,
    layers: &'static [&'static [&'static str]],
}

const CRATES: &[Crate] = &[
    Crate { sources: "server/lang/src", layers: &[&["model"], &["definition"]] },
    Crate {
        sources: "server/host/src",
        layers: &[&["little_endian"], &["insn", "ring"], &["kernel"], &["tracefs"]],
    },
    Crate {
        sources: "server/rights/src",
        layers: &[
            &["principal", "reads", "limits", "method", "pattern"],
            &["role"],
            &["decision", "file"],
            &["bound"],
            &["tests"],
        ],
    },
    Crate {
        sources: "server/verdict/src",
        layers: &[&["validate"], &["meaning"], &["checker"], &["message"], &["offline"]],
    },
    Crate {
        sources: "server/trace/src",
        layers: &[&["decode", "spool"], &["wire", "filter"], &["pipeline"], &["history"], &["feed"]],
    },
    Crate { sources: "server/control/src", layers: &[&["error", "places"], &["auth"], &["store"], &["*"]] },
    Crate {
        sources: "server/src",
        layers: &[
            &["auth", "sandbox", "turns"],
            &["health", "auditor"],
            &["doctor"],
            &["config", "shutdown", "start_error", "telemetry"],
            &["export"],
            &["rpc"],
            &["front", "declared"],
            &["app"],
        ],
    },
    Crate {
        sources: "client/lines/src",
        layers: &[
            &["error", "value"],
            &["symbols", "grammar", "anchor", "origin"],
            &["written"],
            &["model", "image"],
            &["dwarf"],
            &["index"],
            &["resolve"],
            &["port"],
        ],
    },
    Crate {
        sources: "client/kprobectl/src",
        layers: &[
            &["progress", "quantity"],
            &["config"],
            &["lines"],
            &["global", "rollout"],
            &["output"],
            &["command"],
            &["cli"],
            &["help"],
            &["completion", "dispatch", "manual"],
        ],
    },
];

#[cfg(test)]
/// The number of imports between the modules of a crate.
fn check(sources: &str, layers: &[&[&str]]) -> usize {
    let of_name = |module: &str| layers.iter().position(|layer| layer.contains(&module));
    let layer = |module: &str| of_name(module).or_else(|| of_name("*"));
    let mut edges = 0;
    for path in files(sources, ".rs") {
        let inner = path.strip_prefix(sources).unwrap().trim_start_matches('/');
        let module = inner.split('/').next().unwrap().trim_end_matches(".rs");
        if ["lib", "main"].contains(&module) {
            continue;
        }
        let own = layer(module).unwrap_or_else(|| panic!("`{module}` has no layer: put it into the list"));
        let text = read(&path);
        // What the documentation links to is not an import. Tests may use samples, which are fixtures or lie above all.
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for used in line.split("crate::").skip(1) {
                let end = used.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(used.len());
                let Some(other) = layer(&used[..end]).filter(|_| used[..end] != *"samples") else { continue };
                // This one compares the help of a command with the columns that are printed.
                let is_known = path.ends_with("output/ledger/tests.rs") && used[..end] == *"command";
                assert!(other <= own || is_known, "{path}: `{module}` must not use `{}`", &used[..end]);
                edges += 1;
            }
        }
    }
    edges
}

#[test]
fn imports_point_downward() {
    let edges: usize = CRATES.iter().map(|of_crate| check(of_crate.sources, of_crate.layers)).sum();
    assert!(edges > 200, "only {edges} imports were found");
}
