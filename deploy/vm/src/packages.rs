//! Programs that the host needs: installing the Debian packages that have them, and a limit for those that may hang.

use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use nix::unistd::geteuid;

use crate::progress::Step;

/// Program and the package that has it.
const NEEDED: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("mkfs.ext4", "e2fsprogs"),
    ("setpriv", "util-linux"),
    ("ldd", "libc-bin"),
];

/// Programs that single tests need too.
pub const OF_TESTS: &[(&str, &str)] = &[
    ("kubectl", "kubernetes-client"),
    ("umoci", "umoci"),
    ("crun", "crun"),
    ("tar", "tar"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("strip", "binutils"),
];

/// Makes sure that every program that booting a guest takes is there; installs what is missing as
/// root, or through `sudo` when that asks for no password.
pub fn ensure() -> Result<()> {
    ensure_programs(&NEEDED)
}

/// Installs these programs if they are missing, each from the package that has it.
pub fn ensure_programs(needed: &[(&'static str, &'static str)]) -> Result<()> {
    ensure_all(needed, |program| search_path(program).is_some())
}

/// The same for a Python that makes virtual environments: Debian has that part in a package of its
/// own.
pub fn ensure_python() -> Result<()> {
    ensure_all(&[("python3 with venv", "python3-venv")], |_| {
        let asked =
            Command::new("python3").args(["-c", "import ensurepip, venv"]).stdin(Stdio::null()).output();
        asked.is_ok_and(|output| output.status.success())
    })
}

fn ensure_all(needed: &[(&'static str, &'static str)], is_there: impl Fn(&str) -> bool) -> Result<()> {
    let missing = || needed.iter().copied().filter(|(program, _)| !is_there(program)).collect::<Vec<_>>();
    let (programs, packages): (Vec<_>, Vec<_>) = missing().into_iter().unzip();
    if programs.is_empty() {
        return Ok(());
    }
    let step = Step::start(format!("installing {}", packages.join(" ")));
    install(&packages)
        .and_then(|()| {
            ensure!(missing().is_empty(), "their packages did not bring them");
            Ok(())
        })
        .map_err(|reason| anyhow!(not_installed(&programs, &packages, &reason.to_string())))?;
    step.done();
    Ok(())
}

/// What to do when programs are missing and were not installed.
fn not_installed(programs: &[&str], packages: &[&str], reason: &str) -> String {
    format!(
        "missing programs: {} ({reason}). Install what is missing with:\n\n    {}apt-get install --no-install-recommends {}\n",
        programs.join(", "),
        sudo(),
        packages.join(" ")
    )
}

/// Where `program` is: in `PATH`, or in the directories for administrators, which users often do
/// not have in theirs.
pub fn search_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let executable = |file: &Path| {
        file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(program))
        .find(|file| executable(file))
}

/// Another program may be installing something: apt waits for it, in seconds.
const LOCK_TIMEOUT: &str = "DPkg::Lock::Timeout=600";

/// Threads of this program take turns.
static TURN: Mutex<()> = Mutex::new(());

fn install(packages: &[&str]) -> Result<()> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(search_path("apt-get").is_some(), "this machine has no apt-get");
    ensure!(geteuid().is_root() || sudo_works(), "this needs root");
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(packages);
    // Images come without lists, and lists that are months old name files that the archive no longer has.
    apt_get(&arguments).or_else(|_| apt_get(&["update"]).and_then(|()| apt_get(&arguments)))
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let limit = limit_words(LIMIT);
    let mut words = if geteuid().is_root() { Vec::new() } else { vec!["sudo", "-n"] };
    words.extend(limit.iter().map(String::as_str));
    // `env`, because sudo passes no environment on.
    words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "apt-get", "-q", "-o", LOCK_TIMEOUT]);
    words.extend(arguments);
    let output = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| anyhow!("apt-get cannot be run: {error}"))?;
    ensure_in_time(LIMIT, "apt-get", output.status)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = said.lines().rev().find(|line| line.starts_with("E: ")).unwrap_or("it does not say why");
    bail!("apt-get {} failed: {last}", arguments[0])
}

fn sudo_works() -> bool {
    let asked = Command::new("sudo").args(["-n", "true"]).stdin(Stdio::null()).output();
    asked.is_ok_and(|output| output.status.success())
}

fn sudo() -> &'static str {
    if geteuid().is_root() { "" } else { "sudo " }
}

/// How long a download or a build may take: one that hangs must not hang what waits for it.
pub const LIMIT: Duration = Duration::from_mins(30);

/// How timeout(1) ends if the time was over.
const TIMED_OUT: i32 = 124;

/// The words before a command with which it is killed when it takes longer than `limit`.
fn limit_words(limit: Duration) -> [String; 4] {
    ["timeout", "--foreground", "--kill-after=10", &limit.as_secs().to_string()].map(str::to_owned)
}

/// A program that is killed when it takes longer than `limit`.
pub fn limited(limit: Duration, program: impl AsRef<OsStr>) -> Command {
    let [timeout, options @ ..] = limit_words(limit);
    let mut command = Command::new(timeout);
    command.args(options).arg(program);
    command
}

/// An error if a program was killed because it took longer than `limit`.
pub fn ensure_in_time(limit: Duration, what: &str, status: ExitStatus) -> Result<()> {
    ensure!(status.code() != Some(TIMED_OUT), "{what} did not end within {} s", limit.as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let limit = Duration::from_secs(1);
        let status = limited(limit, "sleep").arg("1000").status().unwrap();
        let error = ensure_in_time(limit, "sleep", status).unwrap_err();
        assert_eq!(error.to_string(), "sleep did not end within 1 s");
        let status = limited(limit, "false").status().unwrap();
        assert!(!status.success() && ensure_in_time(limit, "false", status).is_ok());
    }

    #[test]
    fn programs_are_found_or_not() {
        assert!(search_path("sh").is_some());
        assert!(search_path("no-such-program-anywhere").is_none());
    }

    #[test]
    fn the_error_says_what_to_type() {
        let error = not_installed(&["busybox"], &["busybox-static"], "this needs root");
        assert!(error.contains("apt-get install --no-install-recommends busybox-static"));
    }
}
