//! Listening: the unix socket with its owner and mode, and what to do about an address that cannot be taken.

use std::fmt;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use nix::sys::prctl::set_dumpable;
use nix::unistd::{Group, getegid, setgid};
use tokio::net::{UnixListener, UnixStream};

use crate::config::SOCKET_SUFFIX;
use crate::health::{NETWORK_HINT, is_of_closed_network};
use crate::start_error::StartError;

/// Why the daemon cannot listen on an address: the path of a socket, or address and port.
fn refused(address: &str, why: impl fmt::Display, hint: impl Into<String>) -> StartError {
    StartError::new(format!("cannot listen on `{address}`: {why}")).fix(hint)
}

/// What the system says of an address.
pub(super) fn failed(address: &str, error: &io::Error) -> StartError {
    let setting = if address.starts_with('/') { "listen.unix" } else { "listen.tcp" };
    let hint = match error.kind() {
        _ if is_of_closed_network(error) => {
            format!("{NETWORK_HINT}, or let kprobed-tcp.socket open the address")
        }
        io::ErrorKind::AddrInUse => {
            format!("stop the process that listens there, or set `{setting}` to another place")
        }
        io::ErrorKind::AddrNotAvailable => "use an address that this host has (`ip address`)".to_owned(),
        io::ErrorKind::PermissionDenied => {
            format!("run the daemon as root, or set `{setting}` to a place that its user may take")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("set `{setting}` to a path in a file system that can be written, such as /run")
        }
        _ => format!("set `{setting}` to another place"),
    };
    refused(address, error, hint)
}

/// Makes the group of the unix socket that of this process, if it may do that: it can give away its capabilities then,
/// and files that it makes have the group already. Their modes let only root read them.
pub fn join_group(name: &str) {
    let Some(group) = Group::from_name(name).ok().flatten() else { return };
    if getegid() == group.gid {
        return;
    }
    // A process that has changed its group is not dumpable (kernel/cred.c:commit_creds): a second daemon could not
    // read in /proc who has the instance, and a crash would leave no core.
    if let Err(error) = setgid(group.gid).and_then(|()| set_dumpable(true)) {
        tracing::debug!(%error, name, "cannot run with the group of the socket");
    }
}

/// Binds the socket so that only root and the group can ever open it: it gets its name after its
/// owner and mode are set.
pub(super) async fn unix(path: &Path, group: &str) -> Result<UnixListener, StartError> {
    let address = path.display().to_string();
    let failed = |error| failed(&address, &error);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            let why = "there is something of that name that is not a socket";
            return Err(refused(&address, why, "remove it, or set `listen.unix` to another path"));
        }
        // What a daemon that was killed has left does not answer.
        Ok(_) if UnixStream::connect(path).await.is_ok() => {
            let why = "another process listens there";
            return Err(refused(&address, why, "stop it, or set `listen.unix` to another place"));
        }
        _ => {}
    }
    let unnamed = unnamed(path);
    if let Err(error) = std::fs::remove_file(&unnamed)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(failed(error));
    }
    let listener = UnixListener::bind(&unnamed).map_err(failed)?;
    let gid = Group::from_name(group).ok().flatten().map(|group| group.gid.as_raw());
    let mode = if gid.is_some() { 0o660 } else { 0o600 };
    std::fs::set_permissions(&unnamed, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
    if let Some(gid) = gid {
        give_to(&unnamed, gid).map_err(|error| {
            let why = format!("cannot give the socket to the group `{group}`: {error}");
            let hint = format!(
                "run the daemon with that group (`Group={group}` in a drop-in for kprobed.service), or let kprobed.socket open the \
                 socket (`SocketGroup={group}`)"
            );
            refused(&address, why, hint)
        })?;
    }
    std::fs::rename(&unnamed, path).map_err(failed)?;
    Ok(listener)
}

/// A file of the group of the daemon has it already: the unit allows no change of owners.
fn give_to(path: &Path, gid: u32) -> io::Result<()> {
    if std::fs::symlink_metadata(path)?.gid() == gid {
        return Ok(());
    }
    chown(path, None, Some(gid))
}

/// The name of a socket until its rights are set.
fn unnamed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(SOCKET_SUFFIX);
    name.into()
}
