//! Tools on the host for clients in other languages: the Python environment, the built package, and
//! a unix socket that leads into the guest.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{self, Stdio};
use std::{env, fs, thread};

use anyhow::{Context as _, Result, ensure};
use kprobed_vm::python::Environment;
use kprobed_vm::workspace;
use tempfile::TempDir;

/// The Python client, built of the sources and installed into a directory of its own.
pub(crate) struct Package {
    directory: TempDir,
}

impl Package {
    pub(crate) fn install(tools: &Environment) -> Result<Self> {
        let root = workspace::root().context("no workspace")?;
        let directory = tempfile::tempdir()?;
        // Building writes beside the sources.
        let source = directory.path().join("source");
        copy(&root.join("client/python"), &source)?;
        copy(&root.join("proto/kprobed"), &source.join("protos/kprobed"))?;
        tools.install(&source, &directory.path().join("installed"))?;
        Ok(Self { directory })
    }

    /// A directory for what its tests need.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Runs files of its tests.
    pub(crate) fn test(&self, tools: &Environment, files: &[&str], env: &[(&str, &str)]) -> Result<()> {
        let mut arguments = vec!["-m", "pytest", "-q", "-p", "no:cacheprovider"];
        let files: Vec<String> = files.iter().map(|file| format!("source/tests/{file}")).collect();
        arguments.extend(files.iter().map(String::as_str));
        let installed = self.path().join("installed").display().to_string();
        let mut env = env.to_vec();
        env.extend([("PYTHONPATH", installed.as_str()), ("PYTHONDONTWRITEBYTECODE", "1")]);
        let output = run(tools, "python", &arguments, self.path(), &env)?;
        ensure!(output.contains(" passed") && !output.contains("skipped"), "{output}");
        Ok(())
    }
}

/// Runs a program with those of the environment before all others; what it printed.
pub(crate) fn run(
    tools: &Environment,
    program: &str,
    arguments: &[&str],
    directory: &Path,
    env: &[(&str, &str)],
) -> Result<String> {
    let own = tools.program(program);
    let own = own.parent().context("a program lies in a directory")?;
    let others = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([own.to_owned()].into_iter().chain(env::split_paths(&others)))?;
    let output =
        process::Command::new(if own.join(program).is_file() { own.join(program) } else { program.into() })
            .args(arguments)
            .env("PATH", path)
            .envs(env.iter().copied())
            .current_dir(directory)
            .stdin(Stdio::null())
            .output()
            .with_context(|| program.to_owned())?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}:\n{out}\n{err}", output.status);
    Ok(out.into_owned())
}

/// A unix socket in `directory` that leads to `address`, for as long as this program runs; its
/// path.
pub(crate) fn socket(directory: &Path, address: SocketAddr) -> Result<String> {
    let path = directory.join("kprobed.sock");
    let listener = UnixListener::bind(&path)?;
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // The client sees a connection that ends at once.
            let Ok(inside) = TcpStream::connect(address) else { continue };
            relay(stream, inside).ok();
        }
    });
    Ok(path.display().to_string())
}

fn relay(outside: UnixStream, inside: TcpStream) -> io::Result<()> {
    let (mut from_outside, mut to_outside) = (outside.try_clone()?, outside);
    let (mut from_inside, mut to_inside) = (inside.try_clone()?, inside);
    thread::spawn(move || {
        io::copy(&mut from_outside, &mut to_inside).ok();
        to_inside.shutdown(Shutdown::Both).ok();
    });
    thread::spawn(move || {
        io::copy(&mut from_inside, &mut to_outside).ok();
        to_outside.shutdown(Shutdown::Both).ok();
    });
    Ok(())
}

/// Copies a directory, but for what building leaves there.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "build" || name == "__pycache__" || name.to_string_lossy().ends_with(".egg-info") {
            continue;
        }
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to.join(name))?;
        } else {
            fs::copy(entry.path(), to.join(name))?;
        }
    }
    Ok(())
}
