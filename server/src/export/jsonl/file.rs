//! The output file of JSON Lines: appending, rotation, and truncating an incomplete chunk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::SinkError;
use super::resume;
use kprobed_trace::spool::Cursor;

/// When a file is renamed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
    /// Largest size in bytes. Absent for no limit.
    pub(super) max_bytes: Option<u64>,
    /// Renamed files that are kept.
    pub(super) files: u64,
}

/// A file of lines.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    rotation: Rotation,
    /// Whether it is to be on the disk before the place is written down.
    is_synced: bool,
    open: Option<Open>,
    /// An operation on the file that continues after its caller has timed out.
    job: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Open {
    file: File,
    bytes: u64,
}

impl LogFile {
    pub(super) const fn new(path: PathBuf, rotation: Rotation, is_synced: bool) -> Self {
        Self { path, rotation, is_synced, open: None, job: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a pipe of that name.
    pub(super) fn is_pipe(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| found.file_type().is_fifo())
    }

    /// Opens or makes the file, and truncates it after its last complete chunk. Returns the cursor
    /// there.
    pub(super) async fn open(&mut self) -> Result<Option<Cursor>, SinkError> {
        self.open = None;
        let path = self.path.clone();
        let (open, place) =
            self.blocking(move || open(&path)).await.map_err(|error| self.failed("open", &error))?;
        self.open = Some(open);
        Ok(place)
    }

    /// Appends lines, all of them or none. Gives the memory back.
    pub(super) async fn append(&mut self, lines: Vec<u8>) -> Result<Vec<u8>, SinkError> {
        let (path, rotation) = (self.path.clone(), self.rotation);
        let open = self.open.take();
        let appended = self.blocking(move || {
            let mut open = current(open, &path, rotation, lines.len() as u64)?;
            append(&mut open, &lines)?;
            Ok((open, lines))
        });
        let (open, lines) = appended.await.map_err(|error| self.failed("write to", &error))?;
        self.open = Some(open);
        Ok(lines)
    }

    /// Has the disk take what was written.
    pub(super) async fn sync(&mut self) -> Result<(), SinkError> {
        let Some(open) = self.open.take_if(|_| self.is_synced) else { return Ok(()) };
        let synced = self.blocking(move || open.file.sync_data().map(|()| open)).await;
        self.open = Some(synced.map_err(|error| self.failed("write to the disk", &error))?);
        Ok(())
    }

    /// Runs an operation that waits for the disk. It continues if the caller times out, and the
    /// next one waits for it.
    async fn blocking<T: Send + 'static>(
        &mut self,
        act: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        if let Some(job) = &mut self.job {
            job.await.map_err(io::Error::other)?;
        }
        let (sender, result) = oneshot::channel();
        self.job = Some(tokio::task::spawn_blocking(move || drop(sender.send(act()))));
        let result = result.await.map_err(io::Error::other)?;
        self.job = None;
        result
    }

    fn failed(&self, action: &str, error: &io::Error) -> SinkError {
        SinkError::new(format_args!("{action} `{}`", self.path.display()), error)
    }
}

fn open(path: &Path) -> io::Result<(Open, Option<Cursor>)> {
    // Events hold memory of the kernel and of programs: the file is root's alone.
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is neither a file nor a pipe"));
    }
    let bytes = found.len();
    if let Some(end) = resume::find(&file, bytes)? {
        if end.offset < bytes {
            file.set_len(end.offset)?;
        }
        return Ok((Open { file, bytes: end.offset }, Some(end.place)));
    }
    // Foreign lines stay, and so does an incomplete one: the exporter appends after it.
    let mut last = [b'\n'];
    if bytes > 0 {
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut last, bytes - 1)?;
    }
    if last != [b'\n'] {
        file.write_all(b"\n")?;
    }
    let bytes = file.metadata()?.len();
    Ok((Open { file, bytes }, None))
}

/// The file that lines go to: another one when it was moved away, or has become too large.
fn current(open: Option<Open>, path: &Path, rotation: Rotation, more: u64) -> io::Result<Open> {
    let is_there = |open: &Open| -> io::Result<bool> {
        let (own, found) = (open.file.metadata()?, fs::metadata(path));
        Ok(found.is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())))
    };
    let open = match open {
        Some(open) if is_there(&open)? => open,
        _ => self::open(path)?.0,
    };
    if open.bytes == 0 || rotation.max_bytes.is_none_or(|most| open.bytes + more <= most) {
        return Ok(open);
    }
    rotate(path, rotation.files)?;
    Ok(self::open(path)?.0)
}

/// `events.jsonl` becomes `events.jsonl.1`, that becomes `events.jsonl.2`, and the last one goes.
fn rotate(path: &Path, files: u64) -> io::Result<()> {
    let numbered = |number: u64| -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        name.into()
    };
    if files == 0 {
        return fs::remove_file(path);
    }
    for number in (1..files).rev() {
        match fs::rename(numbered(number), numbered(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, numbered(1))
}

fn append(open: &mut Open, lines: &[u8]) -> io::Result<()> {
    if let Err(error) = open.file.write_all(lines) {
        // A part of a chunk would be there twice when it is written again. This takes no room on a
        // full disk.
        open.file.set_len(open.bytes)?;
        return Err(error);
    }
    open.bytes += lines.len() as u64;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Rotation = Rotation { max_bytes: Some(10), files: 2 };

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[tokio::test]
    async fn large_files_are_renamed_and_the_oldest_goes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events.jsonl");
        let mut file = LogFile::new(path.clone(), KEEP, true);
        assert_eq!(file.open().await.unwrap(), None);
        for line in ["one...\n", "two...\n", "three\n", "four-is-longer-than-a-file\n", "5\n"] {
            file.append(line.into()).await.unwrap();
            file.sync().await.unwrap();
        }
        let numbered = |number: u32| read(&directory.path().join(format!("events.jsonl.{number}")));
        assert_eq!(
            (read(&path), numbered(1), numbered(2)),
            ("5\n".to_owned(), "four-is-longer-than-a-file\n".to_owned(), "three\n".to_owned(),)
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn a_file_that_was_moved_away_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("a"), directory.path().join("b"));
        let mut file = LogFile::new(path.clone(), Rotation { max_bytes: None, files: 0 }, false);
        file.open().await.unwrap();
        file.append(b"one\n".to_vec()).await.unwrap();
        fs::rename(&path, &moved).unwrap();
        file.append(b"two\n".to_vec()).await.unwrap();
        assert_eq!((read(&moved), read(&path)), ("one\n".to_owned(), "two\n".to_owned()));
    }

    #[tokio::test]
    async fn lines_of_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::write(&path, "not ours").unwrap();
        let mut file = LogFile::new(path.clone(), KEEP, false);
        assert_eq!(file.open().await.unwrap(), None);
        assert_eq!(read(&path), "not ours\n");
    }

    #[tokio::test]
    async fn what_cannot_be_a_file_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = LogFile::new(directory.path().to_owned(), KEEP, false);
        let error = file.open().await.unwrap_err().to_string();
        assert!(error.starts_with("open `/") && error.contains("directory"), "{error}");
    }
}
