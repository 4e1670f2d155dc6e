//! Building the programs for the guest from the workspace's source.

use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::initramfs::GuestFile;
use crate::packages::{LIMIT, ensure_in_time, limited};
use crate::progress::Step;
use crate::slim::without_debug_information;

/// How the programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The profile of the tests on the host, which have built most of it: optimised a little, with
    /// debug assertions and overflow checks.
    Dev,
    /// Built soonest: for a person's first look.
    Demo,
    /// As packages ship them.
    Release,
}

impl Profile {
    /// What cargo calls it.
    const fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Demo => "demo",
            Self::Release => "release",
        }
    }
}

/// The programs of the workspace.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The agent, `kprobed-guest`.
    pub agent: PathBuf,
    /// The daemon.
    pub kprobed: PathBuf,
    /// The command line client.
    pub kprobectl: PathBuf,
    /// The workload, whose system calls probes record.
    pub workload: PathBuf,
}

impl Programs {
    /// Builds them, cargo's own progress on standard error.
    pub fn build(profile: Profile) -> Result<Self> {
        let name = profile.name();
        let step = Step::start(format!("building kprobed, kprobectl and the agent ({name})"));
        let selected = selected(&OF_PROGRAMS, profile != Profile::Demo);
        let mut built = built_by(&["build", "--bins", "--profile", name], &selected)?;
        step.done();
        let mut take =
            |name| built.remove(name).with_context(|| format!("cargo built no program called {name}"));
        Ok(Self {
            agent: take("kprobed-guest")?,
            kprobed: take("kprobed")?,
            kprobectl: take("kprobectl")?,
            workload: take("kprobed-workload")?,
        })
    }

    /// Builds a benchmark of one of the packages, and does not run it.
    pub fn build_bench(package: &str, bench: &'static str) -> Result<PathBuf> {
        let step = Step::start(format!("building the benchmark {bench}"));
        let mut built = built_by(&["bench", "--no-run", "--bench", bench], &selected(&[package], true))?;
        step.done();
        built.remove(bench).with_context(|| format!("cargo built no program called {bench}"))
    }

    /// Daemon, client and workload, at their places in the guest.
    pub fn guest_files(&self) -> Vec<GuestFile> {
        let file = |host: &Path, guest: &str| GuestFile {
            host: without_debug_information(host),
            guest: guest.to_owned(),
        };
        vec![
            file(&self.kprobed, "/usr/bin/kprobed"),
            file(&self.kprobectl, "/usr/bin/kprobectl"),
            file(&self.workload, "/usr/bin/workload"),
        ]
    }
}

/// Runs cargo, its progress on standard error: the programs that it reports.
fn built_by(arguments: &[&str], selected: &[String]) -> Result<HashMap<String, PathBuf>> {
    let mut command = in_workspace(&root()?, limited(LIMIT, cargo_program()));
    command.args(arguments).arg("--message-format=json-render-diagnostics").args(selected);
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure_in_time(LIMIT, "cargo", output.status)?;
    ensure!(output.status.success(), "cargo failed ({})", output.status);
    Ok(executables(&String::from_utf8_lossy(&output.stdout)))
}

/// cargo, the one that runs this program if any, in the workspace.
pub fn cargo(root: &Path) -> Command {
    in_workspace(root, Command::new(cargo_program()))
}

/// The same with the lowest priority: tests find the machine as if nothing were built beside them.
pub fn cargo_in_background(root: &Path) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(cargo_program());
    in_workspace(root, nice)
}

fn cargo_program() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"))
}

fn in_workspace(root: &Path, mut command: Command) -> Command {
    command.current_dir(root);
    // What cargo told this program about itself must not reach the inner cargo's build scripts:
    // they would run again.
    for (name, _) in env::vars_os() {
        let about_this = |name: &str| {
            ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|start| name.starts_with(start))
        };
        if name.to_str().is_some_and(about_this) {
            command.env_remove(name);
        }
    }
    command
}

/// Cargo features that packages have and a plain build does not: one set for all builds here, so
/// that each crate is built once.
pub const FEATURES: [&str; 2] = ["--features", "kprobed/nats,kprobectl/nats"];

/// The crates with programs.
const OF_PROGRAMS: [&str; 3] = ["kprobed", "kprobectl", "kprobed-vm"];

/// The options that select these crates beside those with programs: cargo compiles every crate below them as it does
/// for the whole workspace. Alone, they would have another set of features, and all of it would be compiled again.
pub fn beside_programs(crates: &[&str]) -> Vec<String> {
    selected(&[&OF_PROGRAMS, crates].concat(), true)
}

/// The options that select these crates, with those of [`FEATURES`] that are theirs: cargo refuses features of
/// a crate that is not selected.
fn selected(crates: &[&str], with_features: bool) -> Vec<String> {
    let owned = |feature: &&str| feature.split_once('/').is_some_and(|(owner, _)| crates.contains(&owner));
    let features = FEATURES[1].split(',').filter(owned).filter(|_| with_features);
    let options = |option: &str, value: &str| [option.to_owned(), value.to_owned()];
    let crates = crates.iter().flat_map(|name| options("-p", name));
    crates.chain(features.flat_map(|feature| options("--features", feature))).collect()
}

/// The workspace's directory: what cargo says it runs this program from, or a directory above the
/// current one.
pub fn root() -> Result<PathBuf> {
    let told = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let starts = told.into_iter().chain(env::current_dir());
    starts
        .flat_map(|start| start.ancestors().map(Path::to_path_buf).collect::<Vec<_>>())
        .find(|directory| directory.join("deploy/vm/Cargo.toml").is_file())
        .context("the source of kprobed is not here: run this within its directory, through `cargo vm`")
}

/// Names and paths of the programs that cargo reports.
fn executables(messages: &str) -> HashMap<String, PathBuf> {
    messages
        .lines()
        .filter_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            let path = message["executable"].as_str()?;
            Some((message["target"]["name"].as_str()?.to_owned(), PathBuf::from(path)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"lib"},"executable":null}
not json
{"reason":"compiler-artifact","target":{"name":"kprobectl"},"executable":"/t/release/kprobectl"}
{"reason":"build-finished","success":true}"#;
        let found = executables(messages);
        assert_eq!(found.len(), 1);
        assert_eq!(found["kprobectl"], Path::new("/t/release/kprobectl"));
    }

    #[test]
    fn a_crate_is_selected_with_its_own_features() {
        assert_eq!(selected(&["kprobed"], true).join(" "), "-p kprobed --features kprobed/nats");
        assert_eq!(
            selected(&["kprobed", "kprobectl", "kprobed-vm"], true).join(" "),
            "-p kprobed -p kprobectl -p kprobed-vm --features kprobed/nats --features kprobectl/nats"
        );
        assert_eq!(selected(&["kprobed"], false).join(" "), "-p kprobed");
    }

    #[test]
    fn the_workspace_is_found() {
        assert!(root().unwrap().join("Cargo.toml").is_file());
    }
}
