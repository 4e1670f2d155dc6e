//! QEMU's log of writes to a disk (dm-log-writes), and the disk images that a power cut can leave.
//!
//! Owns the format, and which writes a cut keeps. Never reads the contents of the disk.
//!
//! The format is in QEMU's block/blklogwrites.c: a super block in the first sector (magic, version,
//! number of entries: u64; bytes of a sector: u32), then the entries (sector, sectors, flags, bytes
//! of a mark: u64), each in a sector of its own with the data after it. All numbers are
//! little-endian. An entry is written before the write or the flush completes in the guest, and a
//! flush writes the super block. QEMU logs a write when it is complete; that is before every flush
//! that the guest asks for afterwards.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, ensure};

use crate::machine::copy_sparse;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;

/// Bytes of the super block and of an entry that mean something.
const SUPER_BYTES: usize = 28;
const ENTRY_BYTES: usize = 32;

const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// Sizes that a sector can have, in bytes.
const SECTOR_BYTES: [u64; 4] = [512, 1024, 2048, 4096];

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Where on the disk it was written, in bytes.
    pub offset: u64,
    /// How much, in bytes; 0 for a flush.
    pub length: u64,
    flags: u64,
    /// Where its data is in the log, in bytes.
    data_at: u64,
}

impl LogEntry {
    /// Whether everything before it is durable.
    pub fn is_flush(&self) -> bool {
        self.flags & FLUSH != 0
    }

    /// Whether it is itself durable once it is done.
    fn is_durable(&self) -> bool {
        self.flags & FUA != 0
    }

    /// Whether it changes the disk. What is discarded keeps its content here: that is one of the
    /// contents it may have.
    fn is_write(&self) -> bool {
        self.length > 0 && self.flags & (DISCARD | MARK) == 0
    }
}

/// A log that is complete up to where its super block says.
#[derive(Debug)]
pub struct WriteLog {
    path: PathBuf,
    file: File,
    entries: Vec<LogEntry>,
}

/// A moment at which the power fails, and what the disk had done by then of what it was not asked
/// to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// So many entries had been made.
    pub end: usize,
    /// So many of them were made durable by a flush.
    pub durable: usize,
    /// The later ones that reached the disk nevertheless, ascending.
    pub kept: Vec<usize>,
}

impl WriteLog {
    /// Reads the entries; their data stays in the file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(host(path))?;
        let (count, sector_bytes) = super_block(path, &file)?;
        let length = file.metadata().map_err(host(path))?.len();
        let mut entries = Vec::new();
        let mut at = sector_bytes;
        for entry in 0..count {
            let truncated = || {
                anyhow!(
                    "{}: entry {entry} goes from byte {at} beyond the end of the log, or of what a disk can have",
                    path.display()
                )
            };
            let mut header = [0; ENTRY_BYTES];
            read(path, &file, &mut header, at)?.ok_or_else(truncated)?;
            let [sector, sectors, flags, marked] = [0, 8, 16, 24].map(|from| number(&header, from, 8));
            let known = FLUSH | FUA | DISCARD | MARK;
            ensure!(
                flags & !known == 0,
                "{}: entry {entry} at byte {at} has the flags {flags:#x}, and those above {known:#x} are not known",
                path.display()
            );
            let size = sectors.checked_mul(sector_bytes).ok_or_else(truncated)?;
            let offset = sector.checked_mul(sector_bytes).ok_or_else(truncated)?;
            offset.checked_add(size).filter(|end| i64::try_from(*end).is_ok()).ok_or_else(truncated)?;
            let data = if flags & DISCARD != 0 { 0 } else { size };
            let data = if flags & MARK != 0 { marked } else { data };
            let data_at = at.checked_add(sector_bytes).ok_or_else(truncated)?;
            let end = data.checked_next_multiple_of(sector_bytes).and_then(|data| data_at.checked_add(data));
            let end = end.filter(|_| data == 0 || data_at.saturating_add(data) <= length);
            let end = end.ok_or_else(truncated)?;
            entries.push(LogEntry { offset, length: size, flags, data_at });
            at = end;
        }
        Ok(Self { path: path.to_owned(), file, entries })
    }

    /// The entries, in the order in which they were written.
    pub fn entries(&self) -> &[LogEntry] {
        &self.entries
    }

    /// The cut after the first `end` entries on a disk without a cache.
    pub fn prefix(&self, end: usize) -> Cut {
        let end = end.min(self.entries.len());
        let durable = self.entries[..end].iter().rposition(LogEntry::is_flush).map_or(0, |flush| flush + 1);
        let kept = (durable..end).filter(|entry| self.entries[*entry].is_write()).collect();
        Cut { end, durable, kept }
    }

    /// The cut after the first `end` entries on a disk that did those writes since the last flush
    /// for which `is_kept` says so. What was written through is always kept.
    pub fn subset(&self, end: usize, mut is_kept: impl FnMut() -> bool) -> Cut {
        let mut cut = self.prefix(end);
        cut.kept.retain(|entry| self.entries[*entry].is_durable() || is_kept());
        cut
    }

    fn write(&self, entry: &LogEntry, path: &Path, image: &File) -> Result<()> {
        const PART: usize = 64 << 10;
        let mut part = vec![0; PART];
        let mut done = 0;
        while entry.is_write() && done < entry.length {
            let size = usize::try_from(entry.length - done).unwrap_or(PART).min(PART);
            self.file.read_exact_at(&mut part[..size], entry.data_at + done).map_err(host(&self.path))?;
            image.write_all_at(&part[..size], entry.offset + done).map_err(host(path))?;
            done += size as u64;
        }
        Ok(())
    }
}

/// How many entries a log has which QEMU is writing: at least those up to the last flush that the
/// guest believes to be done.
pub fn position(path: &Path) -> Result<usize> {
    let file = File::open(path).map_err(host(path))?;
    let (count, _) = super_block(path, &file)?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

/// Makes the images of cuts, each from the one before it.
#[derive(Debug)]
pub struct Replay<'a> {
    log: &'a WriteLog,
    path: PathBuf,
    image: File,
    /// So many entries are on the image.
    applied: usize,
}

impl<'a> Replay<'a> {
    /// Begins with the image at `first`, as the disk was before the log, and keeps a copy of it at
    /// `path` that goes on with the cuts.
    pub fn new(log: &'a WriteLog, first: &Path, path: &Path) -> Result<Self> {
        copy_sparse(first, path).map_err(host(path))?;
        let image = OpenOptions::new().write(true).open(path).map_err(host(path))?;
        Ok(Self { log, path: path.to_owned(), image, applied: 0 })
    }

    /// Writes the disk that a cut leaves to `to`. Cuts come in the order of what is durable: what
    /// is on the image is not taken back.
    ///
    /// # Errors
    /// The host failed, or the cut is before the one before it.
    pub fn cut(&mut self, cut: &Cut, to: &Path) -> Result<()> {
        ensure!(
            cut.durable >= self.applied,
            "{}: entry {} is on the image, and the cut is before it",
            self.path.display(),
            self.applied
        );
        for entry in &self.log.entries[self.applied..cut.durable] {
            self.log.write(entry, &self.path, &self.image)?;
        }
        self.applied = cut.durable;
        copy_sparse(&self.path, to).map_err(host(to))?;
        let image = OpenOptions::new().write(true).open(to).map_err(host(to))?;
        for entry in &cut.kept {
            self.log.write(&self.log.entries[*entry], to, &image)?;
        }
        Ok(())
    }
}

/// Number of entries, and bytes of a sector.
fn super_block(path: &Path, file: &File) -> Result<(u64, u64)> {
    let mut bytes = [0; SUPER_BYTES];
    read(path, file, &mut bytes, 0)?;
    let [magic, version, count] = [0, 8, 16].map(|from| number(&bytes, from, 8));
    let sector_bytes = number(&bytes, 24, 4);
    let values: [(_, _, &[u64]); 3] = [
        ("magic number", magic, &[MAGIC]),
        ("version", version, &[VERSION]),
        ("sector's size", sector_bytes, &SECTOR_BYTES),
    ];
    for (what, value, expected) in values {
        ensure!(
            expected.contains(&value),
            "{} is not a log of writes that is understood: its {what} is {value:#x}, not {:#x}",
            path.display(),
            expected[0]
        );
    }
    Ok((count, sector_bytes))
}

/// Fills `buffer`, or answers nothing when the file ends before.
fn read(path: &Path, file: &File, buffer: &mut [u8], at: u64) -> Result<Option<()>> {
    match file.read_exact_at(buffer, at) {
        Ok(()) => Ok(Some(())),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(host(path)(error)),
    }
}

/// A little-endian number of `size` bytes.
fn number(bytes: &[u8], from: usize, size: usize) -> u64 {
    bytes[from..from + size].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn host(path: &Path) -> impl FnOnce(io::Error) -> anyhow::Error {
    move |source| anyhow!("{}: {source}", path.display())
}

#[cfg(test)]
mod tests;
