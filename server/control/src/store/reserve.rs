//! Reserve: room on the disk for what the database has none for. What is owed to the database: corrections after a disk
//! has failed, and changes that disarm probes and found no room.
//!
//! Owns the file `kprobed.reserve`. It is made beforehand, with all its blocks, and is written in place: a full disk
//! takes that. (A file system that never writes in place can refuse it all the same.) It has what is owed to the
//! database, as records one after the other; what is paid is overwritten. A record that was not written whole was
//! never acknowledged. Owns what each write that is owed does too. Never decides what is owed:
//! [`super::connection`] does.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use kprobed_audit::Entry;
use serde::{Deserialize, Serialize};

use super::connection::Transaction;
use super::{Record, RequestKey, StoreError, audit, changes, files, requests};
use kprobed_lang::model::ProbeUid;

/// Hundreds of records: what disarms one probe takes one or two thousand bytes, with its entry of the audit log.
pub(super) const SIZE: usize = 512 << 10;

/// Number (8 bytes), length (4) and checksum (4) of a record.
const HEADER: usize = 16;

/// A file of [`SIZE`] bytes.
pub(super) trait Room: fmt::Debug + Send {
    fn write(&self, bytes: &[u8], at: usize) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
}

impl Room for File {
    fn write(&self, bytes: &[u8], at: usize) -> io::Result<()> {
        self.write_all_at(bytes, at as u64)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// The reserve.
#[derive(Debug)]
pub(super) struct Reserve {
    room: Box<dyn Room>,
    /// The number of the last record.
    last: i64,
    /// Where the next one is written.
    end: usize,
}

impl Reserve {
    /// Opens the file in this directory, or makes it. Returns what it has that is not `paid`.
    pub(super) fn open(directory: &Path, paid: i64) -> io::Result<(Self, Vec<Owed>)> {
        let path = directory.join(files::RESERVE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(files::FILE_MODE);
        let mut file = options.open(path)?;
        let mut bytes = Vec::with_capacity(SIZE);
        (&mut file).take(SIZE as u64).read_to_end(&mut bytes)?;
        let found = file.metadata()?;
        if bytes.len() < SIZE || found.blocks().saturating_mul(512) < SIZE as u64 {
            // Zeros, and no `fallocate`: to write into blocks that were only reserved takes room in some file systems.
            bytes.resize(SIZE, 0);
            file.write_all_at(&bytes, 0)?;
            file.sync_all()?;
            File::open(directory)?.sync_all()?;
        }
        Ok(Self::of(Box::new(file), &bytes, paid))
    }

    /// The reserve in a file with these bytes.
    pub(super) fn of(room: Box<dyn Room>, bytes: &[u8], paid: i64) -> (Self, Vec<Owed>) {
        let (mut owed, mut last, mut end) = (Vec::new(), paid, 0);
        while let Some((number, text)) = record(bytes.get(end..).unwrap_or_default()) {
            // What an earlier use of the file has left has lower numbers.
            if end > 0 && number <= last {
                break;
            }
            if number > paid {
                match serde_json::from_slice::<Vec<Owed>>(text) {
                    Ok(found) => owed.extend(found),
                    Err(error) => {
                        let text = String::from_utf8_lossy(text);
                        tracing::error!(number, %error, %text, "a record of the reserve cannot be read: it is left out");
                    }
                }
            }
            last = number;
            end += HEADER + text.len();
        }
        let (last, end) = if last <= paid { (paid, 0) } else { (last, end) };
        (Self { room, last, end }, owed)
    }

    /// The number of the last record.
    pub(super) const fn last(&self) -> i64 {
        self.last
    }

    /// Writes a record, and syncs it. If that fails, the next one takes its place, with another number: the disk may
    /// have the one that failed, which then counts as paid with it.
    pub(super) fn append(&mut self, owed: &[Owed]) -> io::Result<()> {
        let text = serde_json::to_vec(owed)?;
        let number = self.last + 1;
        let mut bytes = header(number, &text).to_vec();
        bytes.extend_from_slice(&text);
        let end = self.end + bytes.len();
        if end > SIZE {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the reserve is full"));
        }
        // What an earlier record has left behind it is not one that follows.
        bytes.resize(bytes.len() + HEADER.min(SIZE - end), 0);
        self.last = number;
        self.room.write(&bytes, self.end)?;
        self.room.sync()?;
        self.end = end;
        Ok(())
    }

    /// All of it is in the database, which says so: the next record is the first one.
    pub(super) fn empty(&mut self) {
        if self.end > 0
            && let Err(error) = self.room.write(&[0; HEADER], 0)
        {
            // The number says that it is paid.
            tracing::debug!(%error, "cannot empty the reserve");
        }
        self.end = 0;
    }
}

fn header(number: i64, text: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let mut sum = crc32fast::Hasher::new();
    for part in [&number.to_le_bytes()[..], &length.to_le_bytes(), text] {
        sum.update(part);
    }
    header[..8].copy_from_slice(&number.to_le_bytes());
    header[8..12].copy_from_slice(&length.to_le_bytes());
    header[12..].copy_from_slice(&sum.finalize().to_le_bytes());
    header
}

/// The number and the text of the record that these bytes begin with, if it is whole.
fn record(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (found, rest) = bytes.split_first_chunk::<HEADER>()?;
    let number = i64::from_le_bytes(found[..8].try_into().ok()?);
    let length = u32::from_le_bytes(found[8..12].try_into().ok()?);
    let text = rest.get(..usize::try_from(length).ok()?)?;
    (number > 0 && header(number, text) == *found).then_some((number, text))
}

/// A write that is owed until the database has it: every transaction is preceded by those that are owed. If the
/// daemon ends before, the reserve has it for the next start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Owed {
    /// The row of a probe is this, or none, and no change of it is under way.
    Row {
        /// The probe.
        uid: ProbeUid,
        /// What is stored of it.
        record: Option<Box<Record>>,
        /// The request that is carried out by that.
        request: Option<RequestKey>,
    },
    /// A change is under way that the disk may have as settled.
    Reopened {
        /// The probe.
        uid: ProbeUid,
        /// The probe before the change.
        before: Option<Box<Record>>,
        /// The probe as it was to be.
        after: Option<Box<Record>>,
        /// The request that counts as not carried out.
        request: Option<RequestKey>,
    },
    /// The change of a probe was not made after all.
    Reverted(ProbeUid),
    /// The audit log says this.
    Note(Box<Entry>),
}

impl Owed {
    pub(super) async fn apply(&self, transaction: &mut Transaction<'_>) -> Result<(), StoreError> {
        match self {
            Self::Row { uid, record, request } => {
                let transaction = transaction.connection();
                changes::write_row(transaction, *uid, record.as_deref()).await?;
                changes::end(transaction, &[*uid]).await?;
                if let Some(request) = request {
                    requests::remember(transaction, &[(request, *uid)]).await?;
                }
            }
            Self::Reopened { uid, before, after, request } => {
                let transaction = transaction.connection();
                changes::reopen(transaction, *uid, (before.as_deref(), after.as_deref())).await?;
                requests::forget(transaction, request.as_ref()).await?;
            }
            Self::Reverted(uid) => changes::end(transaction.connection(), &[*uid]).await?,
            Self::Note(entry) => audit::append(transaction, &[&**entry]).await?,
        }
        Ok(())
    }
}
