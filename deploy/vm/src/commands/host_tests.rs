//! The tests that need no guest: one cargo builds them all, and several test programs run at a time, each
//! as soon as it is built.
//!
//! `cargo test` builds all before it runs one after the other, and most of them wait for something most
//! of the time.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use kprobed_vm::packages::{ensure_in_time, limited};
use kprobed_vm::progress::{self, Step};
use kprobed_vm::workspace;
use serde_json::Value;

/// Limit of one test program.
const LIMIT: Duration = Duration::from_mins(15);

/// Tests of one program that run at a time. More than there are CPUs, since tests wait.
const THREADS: &str = "4";

/// The package whose integration test boots guests.
const GUESTS: &str = "kprobed-vm";

/// The test that runs examples, which cargo may build after it.
const OF_EXAMPLES: &str = "--test examples";

/// The programs that integration tests run. cargo may build them after the tests, also those of a test's own package:
/// a test can be compiled without them.
const PROGRAMS: [&str; 2] = ["kprobed", "kprobectl"];

/// A test program that cargo has built.
#[derive(Debug, PartialEq, Eq)]
struct TestProgram {
    /// The arguments with which `cargo test` runs this program alone.
    selection: String,
    path: PathBuf,
    /// Where cargo runs it: the directory of its package.
    directory: PathBuf,
}

/// Variables of the environment that test programs get.
type Environment<'a> = [(&'a str, &'a OsStr); 2];

/// What the draws of test programs follow from, if it is set.
const SEEDS: [&str; 2] = ["KPROBED_SEED", "PROPTEST_RNG_SEED"];

/// Builds all tests and runs those that need no guest. `environment` and `arguments` are for the test
/// programs.
pub(super) fn run(root: &Path, environment: Environment<'_>, arguments: &[String]) -> Result<()> {
    let step = Step::start("building and running the tests");
    let (built, programs) = mpsc::channel::<TestProgram>();
    let (programs, failed) = (Mutex::new(programs), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        // The last one is passed on when the sender is gone.
        let build = scope.spawn(move || build(root, &|program| drop(built.send(program))));
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                let next = || programs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                while let Ok(program) = next() {
                    if let Err(error) = program.run(environment, arguments) {
                        progress::note(format_args!("FAILED: {error:#}"));
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(program.selection);
                    }
                }
            });
        }
        build.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failed.is_empty() {
        progress::note("these have failed; to repeat them:");
        let set = SEEDS.iter().filter_map(|name| Some(format!("{name}={} ", env::var(name).ok()?)));
        let seeds: String = set.collect();
        for selection in &failed {
            progress::note(format_args!("    {seeds}cargo test {selection}"));
        }
        bail!("{} test programs failed", failed.len());
    }
    step.done();
    examples_of_documentation(root)
}

/// Passes each test program on when cargo has built it.
fn build(root: &Path, pass_on: &dyn Fn(TestProgram)) -> Result<()> {
    let begun = Instant::now();
    let mut cargo = workspace::cargo_in_background(root)
        .args(["test", "--no-run", "--workspace", "--message-format=json-render-diagnostics"])
        .args(workspace::FEATURES)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context("cargo test")?;
    let (mut count, mut waiting, mut missing) = (0, Vec::new(), PROGRAMS.to_vec());
    for message in BufReader::new(cargo.stdout.take().context("cargo has no output")?).lines() {
        let message = message.context("cargo's messages")?;
        let message: Value = serde_json::from_str(&message).unwrap_or_default();
        missing.retain(|program| !is_program(&message, program));
        if let Some(program) = test_program(&message) {
            count += 1;
            waiting.push(program);
        }
        let is_ready = |test: &mut TestProgram| test.is_ready(missing.is_empty());
        waiting.extract_if(.., is_ready).for_each(pass_on);
    }
    let status = cargo.wait().context("cargo test")?;
    ensure!(status.success(), "the tests cannot be built ({status})");
    ensure!(count > 0, "cargo built no tests");
    waiting.into_iter().for_each(pass_on);
    progress::note(format_args!("{count} test programs were built in {:.1?}", begun.elapsed()));
    Ok(())
}

/// Whether a message of cargo's says that a program is built.
fn is_program(message: &Value, program: &str) -> bool {
    let target = &message["target"];
    message["profile"]["test"] == false && target["kind"][0] == "bin" && target["name"] == program
}

/// The test program that a message of cargo's is about, unless that is the one that boots guests.
fn test_program(message: &Value) -> Option<TestProgram> {
    if message["profile"]["test"] != true {
        return None;
    }
    let target = &message["target"];
    let (kind, name) = (target["kind"][0].as_str()?, target["name"].as_str()?);
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = package(message["package_id"].as_str()?)?;
    if package == GUESTS && kind == "test" {
        return None;
    }
    let which = if kind == "lib" { "--lib".to_owned() } else { format!("--{kind} {name}") };
    Some(TestProgram {
        selection: format!("-p {package} {which}"),
        path: message["executable"].as_str()?.into(),
        directory,
    })
}

/// The name in an id of a package: `path+file:///DIRECTORY#NAME@VERSION`, or without the name when it
/// is that of the directory.
fn package(id: &str) -> Option<&str> {
    let (place, version) = id.rsplit_once('#')?;
    match version.split_once('@') {
        Some((name, _)) => Some(name),
        None => place.rsplit('/').next(),
    }
}

impl TestProgram {
    /// Whether all is there that it may run, before cargo has built everything.
    fn is_ready(&self, has_programs: bool) -> bool {
        let is_integration_test = self.selection.contains(" --test ");
        !self.selection.ends_with(OF_EXAMPLES) && (has_programs || !is_integration_test)
    }

    /// Runs it, and prints all that it said if it fails, its sum otherwise.
    fn run(&self, environment: Environment<'_>, arguments: &[String]) -> Result<()> {
        let begun = Instant::now();
        let mut said = tempfile::tempfile().context("a file for the output")?;
        let both = || said.try_clone().map(Stdio::from);
        let mut command = limited(LIMIT, &self.path);
        command
            .args(arguments)
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .envs(environment)
            .env("RUST_TEST_THREADS", THREADS)
            .stdin(Stdio::null())
            .stdout(both()?)
            .stderr(both()?);
        let status = command.status().with_context(|| format!("cannot run {}", self.path.display()))?;
        let text = read(&mut said)?;
        let seconds = begun.elapsed().as_secs_f64();
        let Self { selection, .. } = self;
        if status.success() {
            for sum in text.lines().filter(|line| line.starts_with("test result: ")) {
                progress::result(format_args!("{sum}  ({selection}, {seconds:.1} s)"))?;
            }
            return Ok(());
        }
        progress::result(&text)?;
        ensure_in_time(LIMIT, &format!("{selection} (what ran last is above)"), status)?;
        bail!("{selection} ended with {status} after {seconds:.1} s: its output is above");
    }
}

fn read(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// cargo has rustdoc read every crate that is selected, whether its manifest says that there are examples or
/// not: all of them take a minute.
fn examples_of_documentation(root: &Path) -> Result<()> {
    let step = Step::start("running the examples of the documentation");
    let described = workspace::cargo(root)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cargo metadata")?;
    let described: Value = serde_json::from_slice(&described.stdout).context("cargo metadata")?;
    let crates = with_examples(&described);
    ensure!(!crates.is_empty(), "no crate has examples: {described}");
    let status = workspace::cargo(root)
        .args(["test", "--quiet", "--doc"])
        .args(workspace::beside_programs(&crates))
        .status()
        .context("cargo test")?;
    ensure!(status.success(), "an example of the documentation failed ({status})");
    step.done();
    Ok(())
}

/// The packages whose library may have examples.
fn with_examples(described: &Value) -> Vec<&str> {
    let has_examples = |package: &&Value| {
        let mut targets = package["targets"].as_array().into_iter().flatten();
        targets.any(|target| target["kind"][0] == "lib" && target["doctest"] == true)
    };
    let packages = described["packages"].as_array().into_iter().flatten();
    packages.filter(has_examples).filter_map(|package| package["name"].as_str()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn artifact(package: &str, kind: &str, name: &str, is_test: bool) -> Value {
        json!({
            "reason": "compiler-artifact",
            "package_id": package,
            "manifest_path": "/source/here/Cargo.toml",
            "target": {"kind": [kind], "name": name},
            "profile": {"test": is_test},
            "executable": format!("/target/{name}"),
        })
    }

    #[test]
    fn tests_are_found_among_cargos_messages() {
        let messages = [
            artifact("path+file:///source/server#kprobed@0.1.0", "lib", "kprobed", true),
            artifact("path+file:///source/server#kprobed@0.1.0", "bin", "kprobed", false),
            artifact("path+file:///source/client/kprobectl#0.1.0", "test", "kprobectl", true),
            artifact("path+file:///source/client/kprobectl#0.1.0", "bin", "kprobectl", false),
            artifact("path+file:///source/deploy/vm#kprobed-vm@0.1.0", "test", "guest", true),
            json!({"reason": "build-finished", "success": true}),
        ];
        let found: Vec<_> = messages.iter().filter_map(test_program).collect();
        let selections: Vec<_> = found.iter().map(|program| program.selection.as_str()).collect();
        assert_eq!(selections, ["-p kprobed --lib", "-p kprobectl --test kprobectl"]);
        assert_eq!(found[0].directory, Path::new("/source/here"));
        for program in PROGRAMS {
            assert_eq!(messages.iter().filter(|message| is_program(message, program)).count(), 1);
        }
        let ready = |has_programs| found.iter().map(|test| test.is_ready(has_programs)).collect::<Vec<_>>();
        assert_eq!((ready(false), ready(true)), (vec![true, false], vec![true, true]));
    }

    #[test]
    fn crates_with_examples_are_found() {
        let package =
            |name, kind, doctest| json!({"name": name, "targets": [{"kind": [kind], "doctest": doctest}]});
        let packages = [package("a", "lib", true), package("b", "lib", false), package("c", "bin", true)];
        assert_eq!(with_examples(&json!({ "packages": packages })), ["a"]);
    }

    /// A program that does what the shell does with its first argument.
    fn shell() -> TestProgram {
        TestProgram { selection: "-p sh".to_owned(), path: "/bin/sh".into(), directory: "/".into() }
    }

    #[test]
    fn a_failed_program_fails_the_run() {
        let run = |script: &str| {
            let environment =
                [("STATUS", "3"), ("UNUSED", "")].map(|(name, value)| (name, OsStr::new(value)));
            shell().run(environment, &["-c", script].map(str::to_owned))
        };
        assert!(run("exit 0").is_ok());
        let error = run("exit $STATUS").unwrap_err().to_string();
        assert!(error.contains("-p sh ended with exit status: 3"), "{error}");
        let error = run("exit 124").unwrap_err().to_string();
        assert!(error.contains("did not end within"), "{error}");
    }
}
