//! Reading and writing the small control files of tracefs.
//!
//! Owns the three kinds of write: replacing a value, replacing a list of the daemon's own instance,
//! and appending to a list that others use too. Errors carry the action, the path and the errno.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;

use super::TracefsError;

/// Writes that the kernel has answered, by all threads of the process.
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// How many writes the kernel has answered since the process began. A change of many probes takes long; while this
/// number grows it goes on.
pub fn answered_writes() -> u64 {
    ANSWERED.load(Ordering::Relaxed)
}

/// Room for the first read of a file. Some files answer only one read, however small it was, and
/// nothing after that (kernel/trace/trace_events.c:show_header): it must be large enough for all of
/// them.
const FIRST_READ_BYTES: usize = 64 << 10;

/// The bit of a file's mode that lets its owner write.
const OWNER_WRITES: u32 = 0o200;

/// Reads a control file whole.
pub(super) fn read(path: &Path) -> Result<String, TracefsError> {
    Ok(String::from_utf8(read_bytes(path)?)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Reads a control file whole that can hold other people's bytes.
pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>, TracefsError> {
    let mut bytes = Vec::with_capacity(FIRST_READ_BYTES);
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(|source| failed("read", path, source))?;
    Ok(bytes)
}

/// Reads a control file without the newline at its end.
pub(super) fn read_trimmed(path: &Path) -> Result<String, TracefsError> {
    Ok(read(path)?.trim().to_owned())
}

/// Replaces the value of a control file that holds one value.
pub(super) fn write(path: &Path, value: &str) -> Result<(), TracefsError> {
    write_with(OpenOptions::new().write(true), path, value)
}

/// Replaces the value of a control file of the daemon's own instance that the kernel may show as
/// read-only although it takes a value, as `buffer_percent` before Linux 6.4. Who has no
/// `CAP_DAC_OVERRIDE` cannot open such a file. The owner can change its mode without any capability:
/// the file is writable for this one write, and then has the mode that the kernel gave it.
pub(super) fn write_as_owner(path: &Path, value: &str) -> Result<(), TracefsError> {
    let refusal = match write(path, value) {
        Err(refusal) if refusal.errno() == Errno::EACCES as i32 => refusal,
        answer => return answer,
    };
    let shown = fs::metadata(path).map_err(|source| failed("look at", path, source))?.permissions();
    let writable = Permissions::from_mode(shown.mode() | OWNER_WRITES);
    if fs::set_permissions(path, writable).is_err() {
        return Err(refusal);
    }
    let written = write(path, value);
    let restored = fs::set_permissions(path, shown);
    written.and_then(|()| restored.map_err(|source| failed("restore the mode of", path, source)))
}

/// Replaces the list of a control file of the daemon's own instance.
pub(super) fn replace(path: &Path, list: &str) -> Result<(), TracefsError> {
    write_with(OpenOptions::new().write(true).truncate(true), path, list)
}

/// Adds to a control file that holds a list that others may use too. Such a file must never be
/// opened in any other way: truncation deletes what is there
/// (kernel/trace/trace_kprobe.c:probes_open).
pub(super) fn append(path: &Path, line: &str) -> Result<(), TracefsError> {
    write_with(OpenOptions::new().append(true), path, line)
}

fn write_with(options: &OpenOptions, path: &Path, value: &str) -> Result<(), TracefsError> {
    let mut file = options.open(path).map_err(|source| failed("open for writing", path, source))?;
    tracing::debug!(path = %path.display(), value, "writes");
    // One call, so that the answer belongs to the whole value.
    let answer = file.write(value.as_bytes());
    ANSWERED.fetch_add(1, Ordering::Relaxed);
    let written = answer.map_err(|source| failed("write", path, source))?;
    if written == value.len() {
        return Ok(());
    }
    let source = io::Error::new(
        io::ErrorKind::WriteZero,
        format!("only {written} of {} bytes were taken", value.len()),
    );
    Err(failed("write", path, source))
}

/// An error about `path`.
pub(super) fn failed(action: &'static str, path: &Path, source: io::Error) -> TracefsError {
    TracefsError { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

    use super::*;

    #[test]
    fn an_owner_without_capabilities_writes_what_is_shown_as_read_only() {
        // Capabilities are those of a thread: other tests keep theirs.
        let thread = std::thread::spawn(|| {
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, sets).unwrap();
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("buffer_percent");
            fs::write(&path, "5").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
            assert_eq!(write(&path, "0").unwrap_err().errno(), Errno::EACCES as i32);
            write_as_owner(&path, "0").unwrap();
            assert_eq!(read(&path).unwrap(), "0");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o444);
        });
        thread.join().unwrap();
    }
}
