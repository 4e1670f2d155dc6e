//! Files of an ext4 image, read without mounting it, so that neither root nor the host's kernel is
//! needed.
//!
//! Owns the calls of e2fsck and debugfs. Changes the image as a mount after a power cut does: it
//! replays the journal.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Error, Result, anyhow};

use crate::packages::search_path;

/// Bits of e2fsck's exit status that say that the file system is as it should be now: none, and
/// `1`, errors were corrected.
const CORRECTED: i32 = 1;

/// Replays the journal of `image`, checks it, and copies those files of its root directory which
/// are there into the directory `to`.
///
/// # Errors
/// Also for a file system that cannot be put in order.
pub fn recover(image: &Path, names: &[&str], to: &Path) -> Result<()> {
    let checked = run("e2fsck", &["-f", "-y"], image)?;
    if checked.status.code().is_none_or(|status| status & !CORRECTED != 0) {
        return Err(failed("e2fsck", &checked));
    }
    for name in names {
        let request = format!("dump /{name} \"{}\"", to.join(name).display());
        // A file that is not there is said on standard error, and the exit status is 0 all the
        // same; no file is made then.
        let dumped = run("debugfs", &["-R", &request], image)?;
        let said = String::from_utf8_lossy(&dumped.stderr).into_owned();
        let is_absent = said.contains("File not found by ext2_lookup");
        // The first line is the version.
        if !dumped.status.success() || (said.lines().count() > 1 && !is_absent) {
            return Err(failed("debugfs", &dumped));
        }
    }
    Ok(())
}

fn run(program: &'static str, arguments: &[&str], image: &Path) -> Result<Output> {
    let path = search_path(program).unwrap_or_else(|| program.into());
    let run = Command::new(path).args(arguments).arg(image).stdin(Stdio::null()).output();
    run.context(program)
}

fn failed(program: &'static str, output: &Output) -> Error {
    let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    anyhow!("{program} of an image ended with {:?}: {}", output.status.code(), said.join("\n").trim())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::disk::Disk;

    #[test]
    fn files_come_out_as_they_went_in() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::open_logged(directory.path(), "a").unwrap();
        let content: Vec<u8> = (0..70_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        let (file, out) = (directory.path().join("in"), directory.path().join("out"));
        fs::write(&file, &content).unwrap();
        fs::create_dir(&out).unwrap();
        let request = format!("write \"{}\" there", file.display());
        assert!(run("debugfs", &["-w", "-R", &request], disk.image()).unwrap().status.success());
        recover(disk.image(), &["there", "absent"], &out).unwrap();
        assert!(fs::read(out.join("there")).unwrap() == content);
        assert!(!out.join("absent").exists());
    }

    #[test]
    fn what_is_no_file_system_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        fs::write(&image, vec![0; 1 << 20]).unwrap();
        let error = recover(&image, &["there"], directory.path()).unwrap_err();
        assert!(error.to_string().starts_with("e2fsck of an image ended with"), "{error}");
    }
}
