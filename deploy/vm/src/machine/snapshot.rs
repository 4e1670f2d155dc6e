//! Snapshots: the state of a guest in files, and guests that continue from it.
//!
//! A guest is booted once; a guest that is restored from its snapshot is ready in a part of the
//! time. Restored guests share what the first one had drawn until then: boot id, random numbers,
//! the address of the kernel. Each has a disk of its own, a copy of the first one's.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::{Command, Machine, MachineConfig, MachineError, host};
use crate::disk::Disk;

/// How long the state may take to be written or read.
const TRANSFER: Duration = Duration::from_mins(1);

/// A guest that stands still, in files that are removed with it.
#[derive(Debug)]
pub struct Snapshot {
    /// Settings that restore it, without the disk, the forwards and the log.
    pub(crate) config: MachineConfig,
    disk: Option<PathBuf>,
    _directory: tempfile::TempDir,
}

impl Snapshot {
    /// The image of its disk: a guest that is restored must begin with a copy.
    pub fn disk(&self) -> Option<&Path> {
        self.disk.as_deref()
    }
}

impl Machine {
    /// Writes the state of this guest, which was booted from `config`, into files in `directory`.
    /// It continues afterwards; no other thread may use it meanwhile.
    pub fn snapshot(&self, config: &MachineConfig, directory: &Path) -> Result<Snapshot, MachineError> {
        // Pending writes to the disk belong to it.
        self.exec(&Command::new("sync"))?;
        tidy(directory);
        let kept = fs::create_dir_all(directory)
            .and_then(|()| tempfile::Builder::new().prefix("snapshot-").tempdir_in(directory))
            .map_err(host("make a directory for a snapshot"))?;
        let in_it = |name: &str| kept.path().join(name);
        let (state, disk, initramfs) =
            (in_it("state"), self.disk.as_ref().map(|_| in_it("disk")), in_it("initramfs"));
        self.qmp("stop", &json!({})).map_err(host("stop the guest"))?;
        let written = self.write_state(&state).and_then(|()| match (&self.disk, &disk) {
            (Some(from), Some(to)) => copy_sparse(from.image(), to),
            _ => Ok(()),
        });
        self.qmp("cont", &json!({})).map_err(host("let the guest go on"))?;
        written.map_err(host("write the state of the guest"))?;
        // QEMU wants to see one, though its content is in the state.
        fs::hard_link(&config.initramfs, &initramfs).map_err(host("keep the initramfs"))?;
        // Not its disk: that stays locked while a machine uses it.
        let config = MachineConfig {
            initramfs,
            incoming: Some(state),
            boot_deadline: TRANSFER,
            disk: None,
            ..config.clone()
        };
        Ok(Snapshot { config, disk, _directory: kept })
    }

    /// Starts another guest where `snapshot` was taken, with a copy of the snapshot's disk, if it
    /// had one. Its clock is set.
    pub fn restore(
        snapshot: &Snapshot,
        disk: Option<Disk>,
        (forwards, reaches_host): (Vec<(u16, u16)>, bool),
        serial_log: &Path,
    ) -> Result<Self, MachineError> {
        let serial_log = serial_log.to_owned();
        let config = MachineConfig { disk, forwards, reaches_host, serial_log, ..snapshot.config.clone() };
        let machine = Self::boot(&config)?;
        // The guest's clock goes on from where it stood still.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        machine.exec(&Command::new("date").args(["-u", "-s", &format!("@{}", now.as_secs())]))?;
        Ok(machine)
    }

    fn write_state(&self, to: &Path) -> io::Result<()> {
        self.qmp("migrate-set-parameters", &json!({ "max-bandwidth": 1_u64 << 40 }))?;
        let quoted = to.display().to_string().replace('\'', r"'\''");
        self.qmp("migrate", &json!({ "uri": format!("exec:cat > '{quoted}'") }))?;
        let progress =
            self.when("query-migrate", |status| matches!(status, "completed" | "failed" | "cancelled"))?;
        if progress["status"] == "completed" {
            return Ok(());
        }
        Err(io::Error::other(progress["error-desc"].as_str().unwrap_or("no reason given")))
    }

    /// Waits until the state is read, and lets the guest go on.
    pub(super) fn resume(&self) -> io::Result<()> {
        self.when("query-status", |status| status != "inmigrate")?;
        self.qmp("cont", &json!({})).map(drop)
    }

    /// What QEMU answers to a question when its status is one of these.
    fn when(&self, question: &str, is_it: impl Fn(&str) -> bool) -> io::Result<Value> {
        let deadline = Instant::now() + TRANSFER;
        loop {
            let answer = self.qmp(question, &json!({}))?;
            if is_it(answer["status"].as_str().unwrap_or_default()) {
                return Ok(answer);
            }
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Removes what programs that were killed have left in `directory`.
fn tidy(directory: &Path) {
    const ABANDONED: Duration = Duration::from_hours(6);
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let age =
            entry.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|at| at.elapsed().ok());
        if age.is_some_and(|age| age > ABANDONED) {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

/// Copies a file and leaves the holes in it: an image is mostly holes.
pub(crate) fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    const BLOCK: usize = 64 << 10;
    let mut from = File::open(from)?;
    let length = from.metadata()?.len();
    let mut to = File::create(to)?;
    let mut block = vec![0; BLOCK];
    loop {
        let count = from.read(&mut block)?;
        if count == 0 {
            return to.set_len(length);
        }
        if block[..count].iter().all(|byte| *byte == 0) {
            to.seek(SeekFrom::Current(i64::try_from(count).map_err(io::Error::other)?))?;
        } else {
            to.write_all(&block[..count])?;
        }
    }
}

/// The command line's value that has QEMU read the state from `file`.
pub(super) fn incoming(file: &Path) -> String {
    let quoted = file.display().to_string().replace('\'', r"'\''");
    format!("exec:cat '{quoted}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_content_and_the_holes() {
        use std::os::unix::fs::MetadataExt as _;
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        let mut content = vec![0_u8; 3 << 20];
        content[1 << 20] = 7;
        fs::write(&from, &content).unwrap();
        copy_sparse(&from, &to).unwrap();
        assert!(fs::read(&to).unwrap() == content);
        assert!(fs::metadata(&to).unwrap().blocks() * 512 <= 1 << 20);
    }

    #[test]
    fn a_path_is_one_word_for_the_shell() {
        assert_eq!(incoming(Path::new("/it's here")), r"exec:cat '/it'\''s here'");
    }
}
