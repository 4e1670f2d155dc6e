//! `cargo vm api`: lint of the protos, and a check that they break nothing in the accepted API.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use kprobed_vm::cache::Cache;
use kprobed_vm::python::{Environment, Requirements};
use kprobed_vm::{progress, workspace};

/// The API as it was accepted last: an image of the protos without comments, as `buf build` makes
/// it.
const ACCEPTED: &str = "accepted.binpb";

/// Check the protos with buf: style, comments, and that nothing breaks that was accepted
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  cargo vm api
  cargo vm api --accept

proto/accepted.binpb is the API as it was accepted last. A change of the protos is accepted with --accept in the same commit, which lists
what the change breaks; that list belongs in the message of the commit. buf is installed from the Python package index, once.")]
pub(crate) struct Api {
    /// Make the protos as they are now the accepted API, and list what that breaks
    #[arg(long)]
    accept: bool,
}

impl Api {
    pub(crate) fn run(&self, cache: &Cache) -> Result<()> {
        let root = workspace::root()?;
        let tools = Environment::ensure(cache, Requirements::LANGUAGES)?;
        let buf = Buf { program: &tools.program("buf"), directory: &root.join("proto") };
        buf.lint()?;
        let (broken, image) = (buf.breaking()?, buf.image()?);
        for line in &broken {
            progress::note(line);
        }
        let accepted = buf.directory.join(ACCEPTED);
        if self.accept {
            fs::write(&accepted, image).with_context(|| accepted.display().to_string())?;
            progress::note(format_args!(
                "proto/{ACCEPTED} is renewed; clients break at {} places",
                broken.len()
            ));
            return Ok(());
        }
        if !broken.is_empty() {
            bail!(
                "clients break at {} places of the API. Leave what was accepted as it is and add beside it. Where the break is \
                 intended: `cargo vm api --accept`, and say why in the message of the commit",
                broken.len()
            );
        }
        let before = fs::read(&accepted).with_context(|| accepted.display().to_string())?;
        ensure!(
            before == image,
            "the API has changed, and no client breaks: `cargo vm api --accept` protects what is new from here on"
        );
        progress::note("the protos are in style, and as they were accepted");
        Ok(())
    }
}

/// buf in the directory of the protos.
struct Buf<'a> {
    program: &'a Path,
    directory: &'a Path,
}

impl Buf<'_> {
    /// The exit code with which buf reports what it found in the files, as opposed to a failure of
    /// its own.
    const FOUND: i32 = 100;

    fn lint(&self) -> Result<()> {
        let output = self.run(&["lint"])?;
        if output.status.success() {
            return Ok(());
        }
        bail!("buf lint (the rules are in proto/buf.yaml):\n{}", text(&output))
    }

    /// What breaks clients of the accepted API, a line for each.
    fn breaking(&self) -> Result<Vec<String>> {
        if !self.directory.join(ACCEPTED).is_file() {
            return Ok(Vec::new());
        }
        let output = self.run(&["breaking", "--against", ACCEPTED])?;
        match output.status.code() {
            Some(0) => Ok(Vec::new()),
            Some(Self::FOUND) => {
                Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
            }
            _ => bail!("buf breaking: {}", text(&output)),
        }
    }

    /// The protos as an image. Comments are left out: a change of a comment does not change the
    /// API.
    fn image(&self) -> Result<Vec<u8>> {
        let output = self.run(&["build", "--exclude-source-info", "-o", "-#format=binpb"])?;
        ensure!(output.status.success(), "buf build: {}", text(&output));
        Ok(output.stdout)
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        Command::new(self.program)
            .args(arguments)
            .current_dir(self.directory)
            .stdin(Stdio::null())
            .output()
            .with_context(|| self.program.display().to_string())
    }
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}").trim_end().to_owned()
}
