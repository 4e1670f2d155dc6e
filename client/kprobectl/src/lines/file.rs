//! Files of debug information, open, and texts of sources, from the directories that are given.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use kprobed_lines::{DebugInfo, Identity, Image, LinesError, write_index};
use memmap2::Mmap;

use super::package;
use super::search::Build;

/// Magic of an RPM package (lead of rpm(8)).
const RPM_MAGIC: [u8; 4] = [0xed, 0xab, 0xee, 0xdb];

/// A file with debug information, or an index of one.
pub(crate) struct DebugFile {
    path: PathBuf,
    /// Mapped or held: a kernel's file has half a gigabyte, of which an answer needs little.
    bytes: Box<dyn AsRef<[u8]> + Send + Sync>,
}

/// A path that cannot be read.
pub(super) fn unreadable(path: &Path, why: &io::Error) -> LinesError {
    LinesError::new(format!("cannot read `{}`: {why}", path.display()))
}

impl DebugFile {
    pub(crate) fn open(path: &Path) -> Result<Self, LinesError> {
        let map = File::open(path).and_then(|file| map(&file)).map_err(|why| unreadable(path, &why))?;
        if map.starts_with(&RPM_MAGIC) {
            let path = path.display();
            let error = LinesError::new(format!("`{path}` is an RPM package, which is not read as it is"));
            return Err(error.hint(format!(
                "unpack it (`rpm2cpio {path} | cpio -id`), and give the vmlinux or the module"
            )));
        }
        Ok(Self { path: path.to_owned(), bytes: Box::new(map) })
    }

    /// What was made in memory, under a name for messages.
    pub(super) fn held(path: &Path, bytes: Vec<u8>) -> Self {
        Self { path: path.to_owned(), bytes: Box::new(bytes) }
    }

    #[cfg(test)]
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    /// What it is of.
    pub(crate) fn identity(&self) -> Result<Identity, LinesError> {
        Identity::read(self.bytes()).map_err(|error| self.named(&error))
    }

    /// Whether it is of this build.
    pub(super) fn is_of(&self, build: &Build) -> bool {
        self.identity().is_ok_and(|identity| hex::encode(identity.build_id) == build.id)
    }

    fn named(&self, error: &LinesError) -> LinesError {
        let named = LinesError::new(format!("`{}`: {}", self.path.display(), error.message()));
        match error.hint_text() {
            Some(hint) => named.hint(hint),
            None => named,
        }
    }
}

#[expect(
    unsafe_code,
    reason = "a map is as long as its file, which may be cut off meanwhile; nothing else reads a part"
)]
fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the bytes are only read, and every value of them is one. Whoever brings debug information up to date
    // replaces files as a whole: package managers and debuginfod do.
    unsafe { Mmap::map(file) }
}

/// A file with what belongs to it: a supplementary file, split files.
pub(crate) struct DebugFiles {
    pub(super) main: DebugFile,
    pub(super) others: Vec<DebugFile>,
}

impl DebugFiles {
    /// A file, to which nothing else belongs.
    pub(super) fn alone(main: DebugFile) -> Self {
        Self { main, others: Vec::new() }
    }

    /// A file or a package of a kernel, alone.
    pub(crate) fn of(path: &Path) -> Result<Self, LinesError> {
        let main = if package::is_package(path) {
            let nothing = || LinesError::new(format!("the package `{}` has no vmlinux", path.display()));
            package::unpacked(path, None)?.ok_or_else(nothing)?
        } else {
            DebugFile::open(path)?
        };
        Ok(Self::alone(main))
    }

    /// What they are of.
    pub(crate) fn identity(&self) -> Result<Identity, LinesError> {
        self.main.identity()
    }

    /// Asks what they say. Refusals of the debug information itself do not name the file.
    pub(crate) fn with<T>(
        &self,
        ask: impl FnOnce(&DebugInfo<'_>) -> Result<T, LinesError>,
    ) -> Result<T, LinesError> {
        if DebugInfo::is_index(self.main.bytes()) {
            let info = DebugInfo::from_index(self.main.bytes()).map_err(|error| self.main.named(&error))?;
            return ask(&info);
        }
        self.images(|image, supplementary, split| {
            let info =
                DebugInfo::read(image, supplementary, split).map_err(|error| self.main.named(&error))?;
            ask(&info)
        })
    }

    /// An index of them.
    pub(crate) fn index(&self) -> Result<Vec<u8>, LinesError> {
        if DebugInfo::is_index(self.main.bytes()) {
            return Ok(self.main.bytes().to_vec());
        }
        self.images(|image, supplementary, split| {
            write_index(image, supplementary, split).map_err(|error| self.main.named(&error))
        })
    }

    fn images<T>(
        &self,
        take: impl FnOnce(&Image<'_>, Option<&Image<'_>>, &[Image<'_>]) -> Result<T, LinesError>,
    ) -> Result<T, LinesError> {
        let image = Image::read(self.main.bytes()).map_err(|error| self.main.named(&error))?;
        let named = image.supplementary().and_then(|(path, id)| self.supplementary(path, id));
        let supplementary = named.as_ref().map(|file| Image::read(file.bytes())).transpose()?;
        let mut split = Vec::new();
        for file in &self.others {
            if file.identity().is_ok_and(|identity| identity.is_split) {
                split.push(Image::read(file.bytes()).map_err(|error| file.named(&error))?);
            }
        }
        take(&image, supplementary.as_ref(), &split)
    }

    /// The supplementary file of this build: beside the main file, or where distributions have them (dwz(1)).
    fn supplementary(&self, path: &str, id: &[u8]) -> Option<DebugFile> {
        let beside = self.main.path.parent().map(|directory| directory.join(path));
        let id_text = hex::encode(id);
        let by_id = id_text
            .split_at_checked(2)
            .map(|(first, rest)| PathBuf::from(format!("/usr/lib/debug/.build-id/{first}/{rest}.debug")));
        let given = self.others.iter().map(|file| file.path.clone());
        let mut places = given.chain(beside).chain(by_id).filter_map(|path| DebugFile::open(&path).ok());
        places.find(|file| file.identity().is_ok_and(|identity| identity.build_id == id))
    }
}

/// Directories with sources.
pub(crate) struct Sources {
    directories: Vec<PathBuf>,
    read: RefCell<HashMap<String, Option<String>>>,
}

impl Sources {
    pub(crate) fn new(directories: &[PathBuf]) -> Self {
        Self { directories: directories.to_vec(), read: RefCell::default() }
    }

    /// The text of a source. Debug information has its path in the tree of the kernel, or where it was built: a
    /// directory may be any of those above the source.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.read.borrow_mut().entry(path.to_owned()).or_insert_with(|| self.look_up(path)).clone()
    }

    /// One line of a source, from 1.
    pub(crate) fn line(&self, path: &str, number: u32) -> Option<String> {
        let number = usize::try_from(number).ok()?.checked_sub(1)?;
        self.text(path)?.lines().nth(number).map(str::to_owned)
    }

    fn look_up(&self, path: &str) -> Option<String> {
        let parts: Vec<_> = Path::new(path).components().collect();
        let names: Vec<PathBuf> =
            (0..parts.len()).map(|skipped| parts.iter().skip(skipped).collect()).collect();
        let is_inside =
            |name: &&PathBuf| name.is_relative() && !name.components().any(|part| part.as_os_str() == "..");
        let found = names.iter().filter(is_inside).find_map(|name| {
            let read = |directory: &PathBuf| fs::read(directory.join(name)).ok();
            self.directories.iter().find_map(read)
        });
        found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_may_be_any_above_the_source() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("fs")).unwrap();
        fs::write(directory.path().join("fs/read_write.c"), "one\ntwo\n").unwrap();
        fs::write(directory.path().join("other.c"), "other\n").unwrap();
        let sources = Sources::new(&[PathBuf::from("/nonexistent"), directory.path().to_owned()]);
        for path in ["fs/read_write.c", "./fs/read_write.c", "/build/linux-6.1/fs/read_write.c"] {
            assert_eq!(sources.line(path, 2).as_deref(), Some("two"), "{path}");
        }
        let below = Sources::new(&[directory.path().join("fs")]);
        assert_eq!(below.line("fs/read_write.c", 1).as_deref(), Some("one"));
        for path in ["fs/absent.c", "", "/", "../other.c/.."] {
            assert_eq!(below.line(path, 1), None, "{path}");
        }
        assert_eq!((sources.line("other.c", 0), sources.line("other.c", 2)), (None, None));
    }
}
