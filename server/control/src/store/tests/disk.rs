//! A simulated disk in memory: it knows which writes were synced, and fails on request.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kprobed_fake::Life;
use libsqlite3_sys as sqlite;

/// Calls that SQLite makes to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Read,
    Write,
    Sync,
    Truncate,
    Delete,
    Lock,
}

/// How calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Writes find no room. Half of each write is stored.
    Full,
    /// Everything that goes to the disk fails. Half of each write is stored.
    Io,
    /// Only syncing fails: the disk reports the error late.
    Sync,
    ReadOnly,
    /// The file system says that it is damaged.
    Corrupt,
    /// Another process has a lock.
    Busy,
}

impl Trouble {
    pub(crate) const ALL: [Self; 6] =
        [Self::Full, Self::Io, Self::Sync, Self::ReadOnly, Self::Corrupt, Self::Busy];

    /// The code of SQLite that such a call returns.
    fn code(self, call: Call) -> Option<i32> {
        match (self, call) {
            (Self::Full, Call::Write) => Some(sqlite::SQLITE_FULL),
            (Self::Io, Call::Read) => Some(sqlite::SQLITE_IOERR_READ),
            (Self::Io, Call::Write) => Some(sqlite::SQLITE_IOERR_WRITE),
            (Self::Io | Self::Sync, Call::Sync) => Some(sqlite::SQLITE_IOERR_FSYNC),
            (Self::Io, Call::Truncate) => Some(sqlite::SQLITE_IOERR_TRUNCATE),
            (Self::Io, Call::Delete) => Some(sqlite::SQLITE_IOERR_DELETE),
            (Self::ReadOnly, Call::Write | Call::Truncate | Call::Delete) => Some(sqlite::SQLITE_READONLY),
            (Self::Corrupt, Call::Read | Call::Write) => Some(sqlite::SQLITE_IOERR_CORRUPTFS),
            (Self::Busy, Call::Lock) => Some(sqlite::SQLITE_BUSY),
            _ => None,
        }
    }
}

/// Which calls fail: `count` of those that can, beginning with `first`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) trouble: Trouble,
    pub(crate) first: u64,
    pub(crate) calls: u64,
}

/// What a power cut leaves of the writes that were not synced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// All writes: the daemon was killed, and the machine goes on.
    Nothing,
    /// None.
    Everything,
    /// Some: each bit of the number decides about one write.
    Some(u64),
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(at, written) => {
                let end = at + written.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*at..end].copy_from_slice(written);
            }
            Self::Truncate(length) => bytes.resize(*length, 0),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Content {
    now: Vec<u8>,
    /// What was synced. Absent while not even the name was.
    durable: Option<Vec<u8>>,
    since: Vec<Change>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, Content>,
    plan: Option<Plan>,
    /// Calls that the plan could have made fail, and those that it did.
    counted: u64,
    failed: u64,
    writes: u64,
    /// The process that has the disk, if it can be killed, and before which change of the disk it is.
    life: Option<Arc<Life>>,
    killed_at: Option<u64>,
    /// Changes of the disk by that process.
    changes: u64,
    /// A file whose calls do not fail.
    spared: Option<&'static str>,
    /// Memory that connections share, by file.
    shared: BTreeMap<String, Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// How many connections have it.
    users: u32,
    parts: Vec<Box<[u64]>>,
}

/// The disk.
#[derive(Debug, Default)]
pub(crate) struct Disk(Mutex<State>);

impl Disk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A disk with one empty file.
    pub(crate) fn with_file(name: &str) -> Arc<Self> {
        let disk = Self::default();
        let content = Content { durable: Some(Vec::new()), ..Content::default() };
        disk.lock().files.insert(name.to_owned(), content);
        Arc::new(disk)
    }

    /// The disk after the machine has come up again.
    pub(crate) fn after(&self, cut: Cut) -> Arc<Self> {
        let mut files = BTreeMap::new();
        for (name, content) in &self.lock().files {
            let bytes = match (cut, &content.durable) {
                (Cut::Nothing, _) => content.now.clone(),
                (Cut::Everything | Cut::Some(_), None) => continue,
                (Cut::Everything, Some(durable)) => durable.clone(),
                (Cut::Some(bits), Some(durable)) => {
                    let mut bytes = durable.clone();
                    for (number, change) in content.since.iter().enumerate() {
                        if (bits >> (number % 64)) & 1 == 1 {
                            change.apply(&mut bytes);
                        }
                    }
                    bytes
                }
            };
            let content = Content { durable: Some(bytes.clone()), now: bytes, since: Vec::new() };
            files.insert(name.clone(), content);
        }
        Arc::new(Self(Mutex::new(State { files, ..State::default() })))
    }

    /// The disk belongs to this process: it changes nothing once that was killed.
    pub(crate) fn belongs_to(&self, life: &Arc<Life>) {
        let mut state = self.lock();
        (state.life, state.killed_at, state.changes) = (Some(Arc::clone(life)), None, 0);
    }

    /// Counts the changes of the disk anew. Its process is killed before that one, if it comes to it.
    pub(crate) fn kill_at(&self, change: Option<u64>) {
        let mut state = self.lock();
        (state.killed_at, state.changes) = (change, 0);
    }

    pub(crate) fn fail(&self, plan: Option<Plan>) {
        let mut state = self.lock();
        (state.plan, state.counted, state.failed) = (plan, 0, 0);
    }

    /// The calls to a file do not fail.
    pub(crate) fn spare(&self, name: Option<&'static str>) {
        self.lock().spared = name;
    }

    /// The same for disks whose files have the same.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, content) in &self.lock().files {
            (name, &content.now).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// What a file has now.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        self.lock().files.get(name).map(|content| content.now.clone()).unwrap_or_default()
    }

    /// A connection begins or ends to share memory about a file.
    pub(crate) fn share(&self, name: &str, begins: bool) {
        let mut state = self.lock();
        let Shared { users, parts } = state.shared.entry(name.to_owned()).or_default();
        *users = if begins { *users + 1 } else { users.saturating_sub(1) };
        if *users == 0 {
            parts.clear();
        }
    }

    /// How many connections share memory about a file.
    pub(crate) fn sharing(&self, name: &str) -> u32 {
        self.lock().shared.get(name).map_or(0, |shared| shared.users)
    }

    /// A part of that memory, which is made if need be.
    pub(crate) fn shared(&self, name: &str, part: usize, words: Option<usize>) -> Option<*mut u64> {
        let mut state = self.lock();
        let parts = &mut state.shared.entry(name.to_owned()).or_default().parts;
        while let Some(words) = words.filter(|_| parts.len() <= part) {
            parts.push(vec![0; words].into());
        }
        parts.get_mut(part).map(|part| part.as_mut_ptr())
    }

    /// Calls that have failed since the plan was made.
    pub(crate) fn failed(&self) -> u64 {
        self.lock().failed
    }

    /// Writes since the disk was made.
    pub(crate) fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// Whether this call fails, and with what.
    pub(crate) fn trouble(&self, call: Call) -> Result<(), i32> {
        self.lock().trouble(call)
    }

    pub(crate) fn open(&self, name: &str, create: bool) -> Result<(), i32> {
        let mut state = self.lock();
        if !state.files.contains_key(name) {
            if !create {
                return Err(sqlite::SQLITE_CANTOPEN);
            }
            state.files.insert(name.to_owned(), Content::default());
        }
        Ok(())
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.lock().files.contains_key(name)
    }

    pub(crate) fn delete(&self, name: &str) -> Result<(), i32> {
        let mut state = self.lock();
        state.trouble_of(name, Call::Delete)?;
        state.files.remove(name).map(drop).ok_or(sqlite::SQLITE_IOERR_DELETE_NOENT)
    }

    /// Returns how many bytes the file had; the rest is zero.
    pub(crate) fn read(&self, name: &str, at: usize, into: &mut [u8]) -> Result<usize, i32> {
        let mut state = self.lock();
        state.trouble_of(name, Call::Read)?;
        into.fill(0);
        let content = state.files.get(name).ok_or(sqlite::SQLITE_IOERR_READ)?;
        let there = content.now.get(at..).unwrap_or_default();
        let length = there.len().min(into.len());
        into[..length].copy_from_slice(&there[..length]);
        Ok(length)
    }

    pub(crate) fn write(&self, name: &str, at: usize, bytes: &[u8]) -> Result<(), i32> {
        let mut state = self.lock();
        if state.is_over() {
            return Err(sqlite::SQLITE_IOERR_WRITE);
        }
        state.writes += 1;
        let outcome = state.trouble_of(name, Call::Write);
        if state.is_over() {
            return outcome;
        }
        let is_torn = outcome.is_err_and(|code| code != sqlite::SQLITE_READONLY);
        let written = match outcome {
            Ok(()) => bytes,
            Err(_) if is_torn => &bytes[..bytes.len() / 2],
            Err(_) => &[],
        };
        state.change(name, Change::Write(at, written.to_vec()))?;
        outcome
    }

    pub(crate) fn truncate(&self, name: &str, length: usize) -> Result<(), i32> {
        let mut state = self.lock();
        state.trouble_of(name, Call::Truncate)?;
        state.change(name, Change::Truncate(length))
    }

    pub(crate) fn sync(&self, name: &str) -> Result<(), i32> {
        let mut state = self.lock();
        state.trouble_of(name, Call::Sync)?;
        let content = state.files.get_mut(name).ok_or(sqlite::SQLITE_IOERR_FSYNC)?;
        content.durable = Some(content.now.clone());
        content.since.clear();
        Ok(())
    }

    pub(crate) fn length(&self, name: &str) -> usize {
        self.lock().files.get(name).map_or(0, |content| content.now.len())
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.life.as_ref().is_some_and(|life| life.is_over())
    }

    fn trouble_of(&mut self, name: &str, call: Call) -> Result<(), i32> {
        if self.spared == Some(name) { Ok(()) } else { self.trouble(call) }
    }

    fn trouble(&mut self, call: Call) -> Result<(), i32> {
        if matches!(call, Call::Write | Call::Sync | Call::Truncate | Call::Delete) {
            if self.killed_at == Some(self.changes)
                && let Some(life) = &self.life
            {
                life.end();
            }
            self.changes += 1;
        }
        if self.is_over() {
            return Err(sqlite::SQLITE_IOERR);
        }
        let Some(plan) = self.plan else { return Ok(()) };
        let Some(code) = plan.trouble.code(call) else { return Ok(()) };
        let number = self.counted;
        self.counted += 1;
        if number < plan.first || number - plan.first >= plan.calls {
            return Ok(());
        }
        self.failed += 1;
        Err(code)
    }

    fn change(&mut self, name: &str, change: Change) -> Result<(), i32> {
        let content = self.files.get_mut(name).ok_or(sqlite::SQLITE_IOERR_WRITE)?;
        change.apply(&mut content.now);
        content.since.push(change);
        Ok(())
    }
}
