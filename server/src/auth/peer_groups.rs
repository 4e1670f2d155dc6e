//! Groups of the process at the other end of a unix socket.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr;

use libc::{gid_t, socklen_t};

/// Room for the groups of most processes. The kernel says how many there are if there are more.
const USUAL: usize = 64;

/// The supplementary groups that the process had when it connected (`SO_PEERGROUPS`,
/// net/core/sock.c:sk_getsockopt, since 4.13): those by which the kernel let it open the socket, and
/// not what a user database says of its user.
///
/// # Errors
/// Those of getsockopt(2).
pub(crate) fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<gid_t> = vec![0; USUAL];
    loop {
        let bytes = groups.len().saturating_mul(size_of::<gid_t>());
        let mut length = socklen_t::try_from(bytes).map_err(io::Error::other)?;
        #[expect(unsafe_code, reason = "no crate in use has this option")]
        // SAFETY: the kernel writes at most `length` bytes to the buffer, which has that many, and
        // `length` outlives the call.
        let failed = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                ptr::from_mut(&mut length),
            )
        } != 0;
        let count = usize::try_from(length).map_err(io::Error::other)? / size_of::<gid_t>();
        if !failed {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // `length` is what is needed then.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_groups_are_those_of_the_process() {
        let (near, _far) = UnixStream::pair().unwrap();
        let own: Vec<u32> =
            nix::unistd::getgroups().unwrap().into_iter().map(nix::unistd::Gid::as_raw).collect();
        assert_eq!(peer_groups(near.as_fd()).unwrap(), own);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(peer_groups(file.as_fd()).is_err());
    }
}
