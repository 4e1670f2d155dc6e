//! Stripping debug information from programs, which a guest would unpack into its memory at each
//! boot.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Copies that this process has begun to make.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// A copy of `program` without debug information, beside it, made when the program is newer; the
/// program itself when that cannot be: it runs as well.
pub(crate) fn without_debug_information(program: &Path) -> PathBuf {
    slim(program).unwrap_or_else(|_| program.to_owned())
}

fn slim(program: &Path) -> io::Result<PathBuf> {
    let beside = |suffix: &str| {
        let mut name = OsString::from(program);
        name.push(suffix);
        PathBuf::from(name)
    };
    let copy = beside(".slim");
    let modified = |path: &Path| fs::metadata(path)?.modified();
    if modified(&copy).is_ok_and(|made| modified(program).is_ok_and(|built| built < made)) {
        return Ok(copy);
    }
    // Another process may do the same at the same time, and another thread, for another kernel:
    // what is there is whole.
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let making = beside(&format!(".slim-{}-{number}", std::process::id()));
    let status = Command::new("strip")
        .args(["--strip-all", "-o"])
        .arg(&making)
        .arg(program)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if !status.success() {
        drop(fs::remove_file(&making));
        return Err(io::Error::other("strip failed"));
    }
    fs::rename(&making, &copy)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn the_copy_is_smaller_and_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let size = |path: &Path| fs::metadata(path).unwrap().len();
        let copy = slim(&program).unwrap();
        assert!(size(&copy) < size(&program));
        let made = fs::metadata(&copy).unwrap().modified().unwrap();
        assert_eq!(slim(&program).unwrap(), copy);
        assert_eq!(fs::metadata(&copy).unwrap().modified().unwrap(), made);
        // Other files stay as they are.
        let text = directory.path().join("text");
        fs::write(&text, "no program").unwrap();
        assert_eq!(without_debug_information(&text), text);
    }

    #[test]
    fn threads_that_make_it_at_once_all_get_a_whole_one() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let runs = || {
            let copy = without_debug_information(&program);
            assert_ne!(copy, program);
            Command::new(copy).arg("--list").stdout(Stdio::null()).status().unwrap().success()
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(runs)).collect();
            assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
        });
    }
}
