//! Build ids of the running kernel, of its modules, and of kernel images.
//!
//! The linker puts a hash of what it links into a note. The kernel shows its own notes in
//! `/sys/kernel/notes` (kernel/ksysfs.c, since 2.6.23) and those of a module in
//! `/sys/module/NAME/notes/.note.gnu.build-id` (kernel/module/sysfs.c, since 2.6.23).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::read_text;
use crate::little_endian::u32_at;

/// Type of the note that holds a build id (`NT_GNU_BUILD_ID`), among those of the owner `GNU`.
const BUILD_ID: u32 = 3;

/// More bytes than any build id has: sha1 has 20.
const MAX_BYTES: usize = 64;

/// Where the running kernel, or an image, says which build it is.
#[derive(Debug, Default)]
pub struct BuildIds {
    release: String,
    kernel: Option<String>,
    /// Usually `/sys/module`; absent for an image, which has no modules.
    modules: Option<PathBuf>,
}

impl BuildIds {
    /// Of the kernel that shows itself in this procfs and sysfs.
    pub fn read(procfs: &Path, sysfs: &Path) -> Self {
        let notes = std::fs::read(sysfs.join("kernel/notes")).unwrap_or_default();
        let release = read_text(&procfs.join("sys/kernel/osrelease")).unwrap_or_default();
        Self {
            release: release.trim().to_owned(),
            kernel: build_id(&notes),
            modules: Some(sysfs.join("module")),
        }
    }

    /// Of an image of that release that has these notes.
    pub fn of_image(release: &str, notes: Option<&[u8]>) -> Self {
        Self { release: release.to_owned(), kernel: notes.and_then(build_id), modules: None }
    }

    /// The release of the kernel (`uname -r`), for people: many builds can have the same.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The build id of the kernel, in hexadecimal. Absent if it was linked without one.
    pub fn kernel(&self) -> Option<&str> {
        self.kernel.as_deref()
    }

    /// The build id of a module as it is loaded now, in hexadecimal. Absent when it is not loaded,
    /// or was linked without.
    pub fn module(&self, name: &str) -> Option<String> {
        if name.contains('/') || name.starts_with('.') {
            return None;
        }
        let notes = self.modules.as_ref()?.join(name).join("notes/.note.gnu.build-id");
        build_id(&std::fs::read(notes).ok()?)
    }
}

/// Finds the build id among notes (include/uapi/linux/elf.h:elf64_note): three numbers of 4 bytes,
/// then name and content, each up to the next multiple of 4.
fn build_id(notes: &[u8]) -> Option<String> {
    let mut rest = notes;
    loop {
        let (name_bytes, content_bytes, kind) = (u32_at(rest, 0)?, u32_at(rest, 4)?, u32_at(rest, 8)?);
        let name_end = 12_usize.checked_add(usize::try_from(name_bytes).ok()?)?;
        let content = name_end.checked_next_multiple_of(4)?;
        let content_end = content.checked_add(usize::try_from(content_bytes).ok()?)?;
        let (name, id) = (rest.get(12..name_end)?, rest.get(content..content_end)?);
        if kind == BUILD_ID && name == b"GNU\0" && !id.is_empty() && id.len() <= MAX_BYTES {
            let mut text = String::with_capacity(id.len() * 2);
            for byte in id {
                // Writing to a string does not fail.
                let _written = write!(text, "{byte:02x}");
            }
            return Some(text);
        }
        rest = rest.get(content_end.checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn note(name: &[u8], kind: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [u32::try_from(name.len()).unwrap(), u32::try_from(content.len()).unwrap(), kind] {
            bytes.extend(number.to_le_bytes());
        }
        for part in [name, content] {
            bytes.extend(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_build_id_is_found_among_other_notes() {
        let id = note(b"GNU\0", BUILD_ID, &[0xde, 0xad, 0, 1, 0xff]);
        let others = [note(b"Xen\0", 6, b"linux\0"), note(b"Linux\0", BUILD_ID, &[1])].concat();
        let found = build_id(&[others.clone(), id.clone(), others.clone()].concat());
        assert_eq!(found.as_deref(), Some("dead0001ff"));
        assert_eq!(build_id(&others), None);
        assert_eq!(build_id(&id[..id.len() - 4]), None, "it is cut off");
    }

    #[test]
    fn kernel_and_modules_say_which_build_they_are() {
        let sysfs = tempfile::tempdir().unwrap();
        let file = |path: &str, bytes: &[u8]| {
            let path = sysfs.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        file("kernel/notes", &note(b"GNU\0", BUILD_ID, &[0x12]));
        file("module/ext4/notes/.note.gnu.build-id", &note(b"GNU\0", BUILD_ID, &[0x34]));
        file("proc/sys/kernel/osrelease", b"6.1.0-56-amd64\n");
        let ids = BuildIds::read(&sysfs.path().join("proc"), sysfs.path());
        assert_eq!(ids.release(), "6.1.0-56-amd64");
        assert_eq!(ids.kernel(), Some("12"));
        assert_eq!(ids.module("ext4").as_deref(), Some("34"));
        assert_eq!(ids.module("xfs"), None);
        assert_eq!(ids.module("../module/ext4"), None, "no path is followed");
        let image = BuildIds::of_image("6.12", Some(&note(b"GNU\0", BUILD_ID, &[0x56])));
        assert_eq!((image.kernel(), image.module("ext4")), (Some("56"), None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(id) = build_id(&bytes) {
                prop_assert!(!id.is_empty() && id.len() <= 2 * MAX_BYTES);
            }
        }

        #[test]
        fn what_is_written_is_found(id in proptest::collection::vec(any::<u8>(), 1..=MAX_BYTES), before in 0_usize..5) {
            let bytes = [note(b"Linux\0", 1, &vec![7; before]), note(b"GNU\0", BUILD_ID, &id)].concat();
            let mut expected = String::new();
            id.iter().try_for_each(|byte| write!(expected, "{byte:02x}")).unwrap();
            prop_assert_eq!(build_id(&bytes), Some(expected));
        }
    }
}
