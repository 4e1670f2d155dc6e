//! The output file of JSON Lines, and standard output: appending, and truncating an incomplete chunk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::SinkError;
use super::resume;
use kprobed_trace::spool::Cursor;

/// Runs operations that wait for the disk or a reader, one at a time.
#[derive(Debug, Default)]
struct Worker(Option<JoinHandle<()>>);

impl Worker {
    /// Runs an operation. It continues if the caller times out, and the next one waits for it.
    async fn run<T: Send + 'static>(
        &mut self,
        act: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        if let Some(before) = &mut self.0 {
            let ended = before.await;
            self.0 = None;
            ended.map_err(io::Error::other)?;
        }
        let (sender, result) = oneshot::channel();
        self.0 = Some(tokio::task::spawn_blocking(move || drop(sender.send(act()))));
        let result = result.await;
        self.0 = None;
        result.map_err(io::Error::other)?
    }
}

/// Standard output.
#[derive(Debug, Default)]
pub(super) struct Stdout(Worker);

impl Stdout {
    /// Writes lines. Gives the memory back.
    pub(super) async fn write(&mut self, lines: Vec<u8>) -> Result<Vec<u8>, SinkError> {
        let written = self.0.run(move || {
            let mut out = io::stdout().lock();
            out.write_all(&lines)?;
            out.flush()?;
            Ok(lines)
        });
        written.await.map_err(|error| SinkError::new("write to standard output", error))
    }
}

/// A file of lines. One that another program has moved away, as logrotate does, is made anew.
#[derive(Debug)]
pub(super) struct LogFile {
    pub(super) path: PathBuf,
    /// Whether it is to be on the disk before the place is written down.
    is_synced: bool,
    open: Option<File>,
    worker: Worker,
}

impl LogFile {
    pub(super) fn new(path: PathBuf, is_synced: bool) -> Self {
        Self { path, is_synced, open: None, worker: Worker::default() }
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
        let opened = self.worker.run(move || open(&path)).await;
        let (file, place) = opened.map_err(|error| self.failed("open", &error))?;
        self.open = Some(file);
        Ok(place)
    }

    /// Appends lines, all of them or none. Gives the memory back.
    pub(super) async fn append(&mut self, lines: Vec<u8>) -> Result<Vec<u8>, SinkError> {
        let (path, is_synced, open) = (self.path.clone(), self.is_synced, self.open.take());
        let appended = self.worker.run(move || {
            let mut file = current(open, &path, is_synced)?;
            append(&mut file, &lines)?;
            Ok((file, lines))
        });
        let (file, lines) = appended.await.map_err(|error| self.failed("write to", &error))?;
        self.open = Some(file);
        Ok(lines)
    }

    /// Has the disk take what was written.
    pub(super) async fn sync(&mut self) -> Result<(), SinkError> {
        let Some(file) = self.open.take_if(|_| self.is_synced) else { return Ok(()) };
        let synced = self.worker.run(move || file.sync_data().map(|()| file)).await;
        self.open = Some(synced.map_err(|error| self.failed("write to the disk", &error))?);
        Ok(())
    }

    fn failed(&self, action: &str, error: &io::Error) -> SinkError {
        SinkError::new(format_args!("{action} `{}`", self.path.display()), error)
    }
}

fn open(path: &Path) -> io::Result<(File, Option<Cursor>)> {
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
        return Ok((file, Some(end.place)));
    }
    // Foreign lines stay, and so does an incomplete one: the exporter appends after it.
    let mut last = [b'\n'];
    if bytes > 0 {
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut last, bytes - 1)?;
    }
    if last != [b'\n'] {
        file.write_all(b"\n")?;
    }
    Ok((file, None))
}

/// The file that lines go to: another one if it was moved away.
fn current(file: Option<File>, path: &Path, is_synced: bool) -> io::Result<File> {
    if let Some(file) = file {
        let (own, found) = (file.metadata()?, fs::metadata(path));
        if found.is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())) {
            return Ok(file);
        }
        if is_synced {
            file.sync_data()?;
        }
    }
    Ok(open(path)?.0)
}

fn append(file: &mut File, lines: &[u8]) -> io::Result<()> {
    let bytes = file.metadata()?.len();
    if let Err(error) = file.write_all(lines) {
        // A part of a chunk would be there twice when it is written again. This takes no room on a
        // full disk.
        file.set_len(bytes)?;
        return Err(error);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[tokio::test]
    async fn the_next_operation_runs_after_one_that_panicked() {
        let mut worker = Worker::default();
        let panicked: io::Result<()> = worker.run(|| panic!("a mistake")).await;
        assert!(panicked.is_err());
        assert_eq!(worker.run(|| Ok(7)).await.unwrap(), 7);
        // The answer of this one is not read.
        worker.0 = Some(tokio::task::spawn_blocking(|| panic!("another mistake")));
        assert!(worker.run(|| Ok(8)).await.is_err());
        assert_eq!(worker.run(|| Ok(9)).await.unwrap(), 9);
    }

    #[tokio::test]
    async fn a_file_that_was_moved_away_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("a"), directory.path().join("b"));
        let mut file = LogFile::new(path.clone(), true);
        file.open().await.unwrap();
        file.append(b"one\n".to_vec()).await.unwrap();
        fs::rename(&path, &moved).unwrap();
        file.append(b"two\n".to_vec()).await.unwrap();
        assert_eq!((read(&moved), read(&path)), ("one\n".to_owned(), "two\n".to_owned()));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        // Another program may have made the next one already, or have emptied this one.
        fs::rename(&path, &moved).unwrap();
        fs::write(&path, "").unwrap();
        file.append(b"three\n".to_vec()).await.unwrap();
        fs::write(&path, "").unwrap();
        file.append(b"four\n".to_vec()).await.unwrap();
        file.sync().await.unwrap();
        assert_eq!((read(&moved), read(&path)), ("two\n".to_owned(), "four\n".to_owned()));
    }

    #[tokio::test]
    async fn lines_of_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        fs::write(&path, "not ours").unwrap();
        let mut file = LogFile::new(path.clone(), false);
        assert_eq!(file.open().await.unwrap(), None);
        assert_eq!(read(&path), "not ours\n");
    }

    #[tokio::test]
    async fn what_cannot_be_a_file_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = LogFile::new(directory.path().to_owned(), false);
        let error = file.open().await.unwrap_err().to_string();
        assert!(error.starts_with("open `/") && error.contains("directory"), "{error}");
    }
}
