//! Validation of the paths in the configuration. Reads the file system and never changes it.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path, PathBuf};

use super::problem::Problem;
use super::{Declared, Host, Listen, Spool, State, Tracing};
use crate::health::read_labels;

/// Longest name of a socket, in bytes (`struct sockaddr_un`, without the NUL at its end).
const SOCKET_NAME_BYTES: usize = 107;

/// Suffix of the name of a socket until its owner and mode are set.
pub(crate) const SOCKET_SUFFIX: &str = ".new";

/// The socket.
pub(super) fn socket(listen: &Listen) -> Option<Problem> {
    let path = &listen.unix;
    let problem = |why: &str, hint: &str| Some(Problem::value("listen.unix", path.display(), why, hint));
    if let Some(why) = not_absolute(path) {
        return problem(why, "use an absolute path, for example `/run/kprobed/kprobed.sock`");
    }
    let most = SOCKET_NAME_BYTES - SOCKET_SUFFIX.len();
    let length = path.as_os_str().as_bytes().len();
    if length > most {
        let why = format!("it has {length} bytes, and the name of a socket can have {most}");
        return problem(&why, "use a shorter path, for example `/run/kprobed/kprobed.sock`");
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let why = format!("there is {} of that name", kind(&found));
            problem(&why, "use another path: the daemon replaces sockets only")
        }
        _ => not_a_directory(path.parent()?)
            .and_then(|why| problem(&why, "use a path whose parents are directories")),
    }
}

/// The directory of the state.
pub(super) fn state(state: &State) -> Option<Problem> {
    let path = &state.directory;
    let problem = |why: &str, hint: &str| Some(Problem::value("state.directory", path.display(), why, hint));
    if let Some(why) = not_absolute(path) {
        return problem(why, "use an absolute path, for example `/var/lib/kprobed`");
    }
    not_a_directory(path)
        .and_then(|why| problem(&why, "use the path of a directory; it is made if it is missing"))
}

/// The procfs.
pub(super) fn procfs(tracing: &Tracing) -> Option<Problem> {
    let path = &tracing.procfs;
    let problem = |why: &str| {
        let hint = "use the path on which the procfs of the host is mounted, mostly `/proc`";
        Some(Problem::value("tracing.procfs", path.display(), why, hint))
    };
    match not_absolute(path) {
        Some(why) => problem(why),
        None if path.join("self/task").is_dir() => None,
        None => problem("no procfs is mounted there"),
    }
}

/// The directory of the history.
pub(super) fn spool(spool: &Spool, state: &State) -> Option<Problem> {
    if !spool.enabled {
        return None;
    }
    let problem =
        |why: &str, hint: &str| Some(Problem::value("spool.directory", spool.directory.display(), why, hint));
    let (path, state) = (plain(&state.directory.join(&spool.directory)), plain(&state.directory));
    if state.starts_with(&path) {
        let why = if path == state {
            "that is the directory of the state itself"
        } else {
            "the directory of the state is in it, and the daemon closes this one to everybody else"
        };
        return problem(why, "use a directory of its own, for example `spool`");
    }
    not_a_directory(&path)
        .and_then(|why| problem(&why, "use the path of a directory; it is made if it is missing"))
}

/// The directory of declarations. Whether it exists is not asked: it may come later.
pub(super) fn declarations(declared: &Declared, state: &State) -> Option<Problem> {
    let path = &declared.directory;
    let problem =
        |why: &str, hint: &str| Some(Problem::value("declarations.directory", path.display(), why, hint));
    if path.as_os_str().is_empty() || path.as_os_str().as_bytes().contains(&0) {
        return problem("it is not a path", "use `probes.d`, or an absolute path; it need not exist");
    }
    if plain(path).starts_with(plain(&state.directory)) {
        let hint = "use a directory of its own, for example `/etc/kprobed/probes.d`";
        return problem("it is in the directory of the state, which belongs to the daemon", hint);
    }
    None
}

/// The problem of the file of labels. One that cannot be read may appear later.
pub(super) fn labels_file(host: &Host) -> Option<Problem> {
    let path = host.labels_file.as_ref()?;
    if let Some(why) = not_absolute(path) {
        let hint = "use for example `/etc/podinfo/labels`, or leave the setting out";
        return Some(Problem::value("host.labels_file", path.display(), why, hint));
    }
    let why = read_labels(path).err()?;
    let message = format!("the labels of the host cannot be read: {why}");
    Some(Problem::warning("host.labels_file", message, "write `KEY=\"VALUE\"` in each line of that file"))
}

fn not_absolute(path: &Path) -> Option<&'static str> {
    if path.as_os_str().is_empty() {
        Some("it is empty")
    } else if path.as_os_str().as_bytes().contains(&0) {
        Some("it contains a NUL")
    } else if !path.is_absolute() {
        Some("it is relative, and a daemon has no directory of its own to begin from")
    } else {
        None
    }
}

/// Why there cannot be a directory of that name: it, or something above it, is something else.
fn not_a_directory(path: &Path) -> Option<String> {
    path.ancestors().find_map(|path| match fs::metadata(path) {
        Ok(found) if found.is_dir() => Some(None),
        Ok(found) => Some(Some(format!("`{}` is {}", path.display(), kind(&found)))),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        // A path that cannot be read now is reported when it is used.
        Err(_) => Some(None),
    })?
}

fn kind(found: &fs::Metadata) -> &'static str {
    let kind = found.file_type();
    if kind.is_dir() {
        "a directory"
    } else if kind.is_file() {
        "a file"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "something that is neither a file nor a directory"
    }
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}
