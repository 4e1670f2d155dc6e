//! Writer of cpio archives in the `newc` format, which the kernel unpacks as its initramfs.
//!
//! Owns the format (Documentation/driver-api/early-userspace/buffer-format.rst). Never knows what a
//! guest needs, and never reads the host's files. Own code: a member is a header of 13 hexadecimal
//! numbers, a name and padding, and the tests read it back with busybox.

use std::io::{self, Write};

/// Type and content of an archive member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A directory.
    Directory,
    /// A regular file with its bytes.
    File(Vec<u8>),
    /// A symbolic link with its target.
    Symlink(String),
    /// A character device with its major and minor number.
    CharacterDevice(u32, u32),
}

/// Writes members one after the other; everything belongs to root.
#[derive(Debug)]
pub(crate) struct Writer<W> {
    to: W,
    /// Inode numbers only have to differ: equal ones would be hard links.
    inode: u32,
}

impl<W: Write> Writer<W> {
    /// An empty archive.
    pub(crate) fn new(to: W) -> Self {
        Self { to, inode: 0 }
    }

    /// Adds a member. `path` has no leading slash, and its directory was added before.
    /// `permissions` are the low 12 bits of the mode. Fails with `InvalidInput` for more than 4
    /// GiB.
    pub(crate) fn member(&mut self, path: &str, permissions: u32, kind: &Kind) -> io::Result<()> {
        self.inode += 1;
        let (type_bits, links, device, data): (_, _, _, &[u8]) = match kind {
            Kind::Directory => (0o040_000, 2, (0, 0), &[]),
            Kind::File(bytes) => (0o100_000, 1, (0, 0), bytes),
            Kind::Symlink(target) => (0o120_000, 1, (0, 0), target.as_bytes()),
            Kind::CharacterDevice(major, minor) => (0o020_000, 1, (*major, *minor), &[]),
        };
        self.entry(path, self.inode, type_bits | (permissions & 0o7777), links, device, data)
    }

    /// Writes the closing member and gives the underlying writer back.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, 0, 1, (0, 0), &[])?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn entry(
        &mut self,
        path: &str,
        inode: u32,
        mode: u32,
        links: u32,
        device: (u32, u32),
        data: &[u8],
    ) -> io::Result<()> {
        let length = |bytes: usize| {
            u32::try_from(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
        };
        let (size, name_size) = (length(data.len())?, length(path.len() + 1)?);
        // inode mode uid gid links mtime size, major and minor of the file system, of the device,
        // name size, checksum
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.to.write_all(b"070701")?;
        for field in fields {
            write!(self.to, "{field:08X}")?;
        }
        self.to.write_all(path.as_bytes())?;
        self.to.write_all(&[0])?;
        // The header is 110 bytes long; name and data are each padded to a multiple of four,
        // counted from the header's start.
        self.pad(110 + path.len() + 1)?;
        self.to.write_all(data)?;
        self.pad(data.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.to.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    type Member = (String, u32, Kind);

    /// A reader for what the writer writes: enough to prove the round trip.
    fn read(mut bytes: &[u8]) -> Vec<Member> {
        let mut members = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |index: usize| {
                let digits = std::str::from_utf8(&bytes[6 + 8 * index..14 + 8 * index]).unwrap();
                u32::from_str_radix(digits, 16).unwrap()
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let device = (field(9), field(10));
            let name = String::from_utf8(bytes[110..109 + name_size].to_vec()).unwrap();
            let data_at = (110 + name_size).next_multiple_of(4);
            let data = bytes[data_at..data_at + size].to_vec();
            bytes = &bytes[(data_at + size).next_multiple_of(4)..];
            if name == "TRAILER!!!" {
                assert!(bytes.is_empty());
                return members;
            }
            let kind = match mode & 0o170_000 {
                0o040_000 => Kind::Directory,
                0o100_000 => Kind::File(data),
                0o120_000 => Kind::Symlink(String::from_utf8(data).unwrap()),
                0o020_000 => Kind::CharacterDevice(device.0, device.1),
                other => panic!("type {other:o}"),
            };
            members.push((name, mode & 0o7777, kind));
        }
    }

    fn kind() -> impl Strategy<Value = Kind> {
        prop_oneof![
            Just(Kind::Directory),
            vec(any::<u8>(), 0..50).prop_map(Kind::File),
            "[a-z/.]{1,20}".prop_map(Kind::Symlink),
            (0..4096u32, 0..4096u32).prop_map(|(major, minor)| Kind::CharacterDevice(major, minor)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(members in vec(("[a-z/]{1,20}", 0..0o10_000u32, kind()), 0..8)) {
            let mut writer = Writer::new(Vec::new());
            for (path, permissions, kind) in &members {
                writer.member(path, *permissions, kind).unwrap();
            }
            prop_assert_eq!(read(&writer.finish().unwrap()), members);
        }
    }

    #[test]
    fn busybox_reads_what_is_written() {
        // The one reader that did not come from here. A machine of a developer that has not booted a
        // guest yet is without it, CI is not.
        let started = std::process::Command::new("busybox")
            .args(["cpio", "-t"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn();
        if started.is_err() && std::env::var_os("CI").is_none() {
            return;
        }
        let mut child = started.unwrap();
        let mut writer = Writer::new(Vec::new());
        writer.member("etc", 0o755, &Kind::Directory).unwrap();
        writer.member("etc/x", 0o644, &Kind::File(b"abcde".to_vec())).unwrap();
        writer.member("link", 0o777, &Kind::Symlink("etc/x".into())).unwrap();
        child.stdin.take().unwrap().write_all(&writer.finish().unwrap()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "etc\netc/x\nlink\n");
    }
}
