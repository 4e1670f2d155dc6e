//! SQLite on simulated disks: the file system (`sqlite3_vfs`) through which it reaches a [`Disk`].
//!
//! Names are `/NUMBER/FILE`. As on Linux, the name of a file that SQLite makes for itself reaches
//! the disk with its first sync.
#![expect(unsafe_code, reason = "SQLite is written in C, and is to run as it is")]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use libsqlite3_sys::{
    self as sqlite, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs, sqlite3_vfs_find,
    sqlite3_vfs_register,
};

use super::disk::{Call, Disk};

/// The name of the file system in SQLite.
pub(super) const NAME: &str = "kprobed-disk";
const C_NAME: &CStr = c"kprobed-disk";

/// The name of the database on every disk.
pub(super) const DATABASE: &str = "kprobed.db";

const POWERSAFE_OVERWRITE: c_int = 0x1000;

/// The lock of the writer (WAL_WRITE_LOCK). For the other locks, SQLite waits ten seconds, whatever
/// timeout is set.
const WRITE_LOCK: c_int = 0;

static DISKS: Mutex<Option<HashMap<u64, Arc<Disk>>>> = Mutex::new(None);

/// Registers a disk with SQLite, until it is dropped.
pub(super) struct Mounted(u64);

impl Mounted {
    pub(super) fn new(disk: &Arc<Disk>) -> Self {
        static REGISTER: Once = Once::new();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        REGISTER.call_once(register);
        // Never used again: a connection may still be closing in a thread of its own.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
        disks.get_or_insert_default().insert(number, Arc::clone(disk));
        Self(number)
    }

    pub(super) fn path(&self) -> String {
        format!("/{}/{DATABASE}", self.0)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(disks) = &mut *DISKS.lock().unwrap_or_else(PoisonError::into_inner) {
            disks.remove(&self.0);
        }
    }
}

/// The disk and the file of a path.
fn find(path: *const c_char) -> Option<(Arc<Disk>, String)> {
    if path.is_null() {
        return None;
    }
    // SAFETY: SQLite's paths end with a zero, and are valid during the call.
    let path = unsafe { CStr::from_ptr(path) }.to_str().ok()?;
    let (number, name) = path.strip_prefix('/')?.split_once('/')?;
    let disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
    Some((Arc::clone(disks.as_ref()?.get(&number.parse().ok()?)?), name.to_owned()))
}

/// An open file. SQLite makes room for it, and gives it back to every function.
#[repr(C)]
struct OpenFile {
    base: sqlite3_file,
    inner: *mut Inner,
}

struct Inner {
    disk: Arc<Disk>,
    name: String,
    /// Whether it shares memory with other connections.
    shares: bool,
}

fn inner<'a>(file: *mut sqlite3_file) -> &'a mut Inner {
    // SAFETY: SQLite gives back what `open` filled, and uses a connection from one thread at a
    // time.
    let file = unsafe { &mut *file.cast::<OpenFile>() };
    // SAFETY: `open` made it, and only `close` frees it, which is called last.
    unsafe { &mut *file.inner }
}

fn code(outcome: Result<(), c_int>) -> c_int {
    outcome.err().unwrap_or(sqlite::SQLITE_OK)
}

fn put<T>(at: *mut T, value: T) {
    if !at.is_null() {
        // SAFETY: a result that SQLite wants is a valid place for one.
        unsafe { at.write(value) };
    }
}

fn size(number: impl TryInto<usize>) -> usize {
    number.try_into().unwrap_or_default()
}

fn register() {
    // SAFETY: may be called at any time.
    let usual = unsafe { sqlite3_vfs_find(ptr::null()) };
    // SAFETY: the default file system lives as long as the process.
    let usual = unsafe { usual.as_ref() }.unwrap();
    let vfs = sqlite3_vfs {
        iVersion: 1,
        szOsFile: c_int::try_from(size_of::<OpenFile>()).unwrap(),
        zName: C_NAME.as_ptr(),
        pNext: ptr::null_mut(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        xSleep: Some(sleep),
        ..*usual
    };
    // SAFETY: it is never freed.
    let registered = unsafe { sqlite3_vfs_register(Box::leak(Box::new(vfs)), 0) };
    assert_eq!(registered, sqlite::SQLITE_OK);
}

/// SQLite sleeps for up to ten seconds in all if a lock is refused that is never held for long. No
/// other process uses these disks, so there is nothing to wait for.
unsafe extern "C" fn sleep(_: *mut sqlite3_vfs, microseconds: c_int) -> c_int {
    microseconds
}

static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

unsafe extern "C" fn open(
    _vfs: *mut sqlite3_vfs,
    path: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // A file without methods is not closed.
    put(
        file.cast::<OpenFile>(),
        OpenFile { base: sqlite3_file { pMethods: ptr::null() }, inner: ptr::null_mut() },
    );
    let (disk, name) = if path.is_null() {
        (Disk::with_file("temporary"), "temporary".to_owned())
    } else {
        match find(path) {
            Some(found) => found,
            None => return sqlite::SQLITE_CANTOPEN,
        }
    };
    if let Err(code) = disk.open(&name, flags & sqlite::SQLITE_OPEN_CREATE != 0) {
        return code;
    }
    let inner = Box::into_raw(Box::new(Inner { disk, name, shares: false }));
    put(file.cast::<OpenFile>(), OpenFile { base: sqlite3_file { pMethods: &raw const METHODS }, inner });
    put(out_flags, flags);
    sqlite::SQLITE_OK
}

unsafe extern "C" fn delete(_vfs: *mut sqlite3_vfs, path: *const c_char, _sync: c_int) -> c_int {
    find(path).map_or(sqlite::SQLITE_IOERR_DELETE, |(disk, name)| code(disk.delete(&name)))
}

unsafe extern "C" fn access(
    _vfs: *mut sqlite3_vfs,
    path: *const c_char,
    _flags: c_int,
    out: *mut c_int,
) -> c_int {
    put(out, find(path).is_some_and(|(disk, name)| disk.exists(&name)).into());
    sqlite::SQLITE_OK
}

unsafe extern "C" fn full_pathname(
    _vfs: *mut sqlite3_vfs,
    path: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite's paths end with a zero, and are valid during the call.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    if path.len() > size(room) {
        return sqlite::SQLITE_CANTOPEN;
    }
    // SAFETY: there is room for it, and the two do not overlap.
    unsafe { ptr::copy_nonoverlapping(path.as_ptr().cast(), out, path.len()) };
    sqlite::SQLITE_OK
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    let inner = ptr::from_mut(inner(file));
    // SAFETY: `open` made it so, and SQLite does not come back after this.
    drop(unsafe { Box::from_raw(inner) });
    sqlite::SQLITE_OK
}

unsafe extern "C" fn read(
    file: *mut sqlite3_file,
    into: *mut c_void,
    length: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite gives so many bytes to read into.
    let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), size(length)) };
    let inner = inner(file);
    match inner.disk.read(&inner.name, size(at), into) {
        Ok(read) if read == into.len() => sqlite::SQLITE_OK,
        Ok(_) => sqlite::SQLITE_IOERR_SHORT_READ,
        Err(code) => code,
    }
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    bytes: *const c_void,
    length: c_int,
    at: sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite gives so many bytes to write.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size(length)) };
    let inner = inner(file);
    code(inner.disk.write(&inner.name, size(at), bytes))
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, length: sqlite3_int64) -> c_int {
    let inner = inner(file);
    code(inner.disk.truncate(&inner.name, size(length)))
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, _flags: c_int) -> c_int {
    let inner = inner(file);
    code(inner.disk.sync(&inner.name))
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, out: *mut sqlite3_int64) -> c_int {
    let inner = inner(file);
    put(out, inner.disk.length(&inner.name).try_into().unwrap_or(i64::MAX));
    sqlite::SQLITE_OK
}

/// Only one connection closes as the last one, and deletes the log.
unsafe extern "C" fn lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    let Inner { disk, name, .. } = inner(file);
    let is_shared = level >= sqlite::SQLITE_LOCK_EXCLUSIVE && disk.sharing(name) > 1;
    if is_shared { sqlite::SQLITE_BUSY } else { sqlite::SQLITE_OK }
}

unsafe extern "C" fn unlock(_file: *mut sqlite3_file, _level: c_int) -> c_int {
    sqlite::SQLITE_OK
}

unsafe extern "C" fn check_reserved_lock(_file: *mut sqlite3_file, out: *mut c_int) -> c_int {
    put(out, 0);
    sqlite::SQLITE_OK
}

unsafe extern "C" fn file_control(_file: *mut sqlite3_file, _what: c_int, _value: *mut c_void) -> c_int {
    sqlite::SQLITE_NOTFOUND
}

unsafe extern "C" fn sector_size(_file: *mut sqlite3_file) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_file: *mut sqlite3_file) -> c_int {
    POWERSAFE_OVERWRITE
}

unsafe extern "C" fn shm_map(
    file: *mut sqlite3_file,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    let Inner { disk, name, shares } = inner(file);
    if !*shares {
        *shares = true;
        disk.share(name, true);
    }
    let words = (extend != 0).then(|| size(bytes).div_ceil(8));
    put(out, disk.shared(name, size(region), words).map_or(ptr::null_mut(), <*mut u64>::cast));
    sqlite::SQLITE_OK
}

unsafe extern "C" fn shm_lock(file: *mut sqlite3_file, first: c_int, _count: c_int, flags: c_int) -> c_int {
    let takes_to_write = first == WRITE_LOCK && flags & sqlite::SQLITE_SHM_LOCK != 0;
    if takes_to_write { code(inner(file).disk.trouble(Call::Lock)) } else { sqlite::SQLITE_OK }
}

unsafe extern "C" fn shm_barrier(_file: *mut sqlite3_file) {}

unsafe extern "C" fn shm_unmap(file: *mut sqlite3_file, _delete: c_int) -> c_int {
    let Inner { disk, name, shares } = inner(file);
    if std::mem::take(shares) {
        disk.share(name, false);
    }
    sqlite::SQLITE_OK
}
