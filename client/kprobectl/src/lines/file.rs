//! Files of debug information, open, and texts of sources, from the directories that are given.
//!
//! Packages (deb(5)) are read without unpacking them to disk.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use kprobed_host::kernel;
use kprobed_lines::{DebugInfo, Identity, Image, LinesError, write_index};
use memmap2::Mmap;

use super::search::{Build, Places, is_module};
use crate::config::replace;

/// Magic of an RPM package (lead of rpm(8)).
const RPM_MAGIC: [u8; 4] = [0xed, 0xab, 0xee, 0xdb];

/// A file with debug information, or an index of one.
pub(crate) struct DebugFile {
    path: PathBuf,
    /// Mapped or held: a kernel's file has half a gigabyte, of which an answer needs little.
    bytes: Box<dyn AsRef<[u8]> + Send + Sync>,
}

impl DebugFile {
    pub(crate) fn open(path: &Path) -> Result<Self, LinesError> {
        let map = File::open(path)
            .and_then(|file| map(&file))
            .map_err(|why| LinesError::new(format!("cannot read `{}`: {why}", path.display())))?;
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
    fn held(path: &Path, bytes: Vec<u8>) -> Self {
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
        let main = if is_package(path) {
            let nothing = || LinesError::new(format!("the package `{}` has no vmlinux", path.display()));
            unpacked(path, None)?.ok_or_else(nothing)?
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

/// Whether a file is a Debian package.
pub(super) fn is_package(path: &Path) -> bool {
    let mut magic = [0; 8];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && kernel::is_package(&magic)
}

/// The debug information of a build in a package, as an index: unpacking takes long, and so the cache keeps it.
/// `None`: the package has that of another build.
pub(super) fn of_package(
    path: &Path,
    build: &Build,
    places: &Places,
) -> Result<Option<DebugFile>, LinesError> {
    let kept = places.index(&build.id);
    let is_it = |file: &DebugFile| file.is_of(build);
    if let Some(known) = kept.as_ref().and_then(|kept| DebugFile::open(kept).ok()).filter(is_it) {
        return Ok(Some(known));
    }
    let Some(file) = unpacked(path, build.module.as_deref())?.filter(is_it) else { return Ok(None) };
    let index = DebugFiles::alone(file).index()?;
    // Without a cache it is made again next time.
    kept.and_then(|kept| keep(&kept, &index).ok());
    Ok(Some(DebugFile::held(path, index)))
}

/// The kernel, or a module, of a package.
fn unpacked(path: &Path, module: Option<&str>) -> Result<Option<DebugFile>, LinesError> {
    let package = DebugFile::open(path)?;
    let is_wanted = |place: &Path| {
        let name = place.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_kernel = || name == "vmlinux" || name.starts_with("vmlinux-");
        module.map_or_else(is_kernel, |module| is_module(place, module))
    };
    let found = kernel::file_of_package(package.bytes(), is_wanted).map_err(|error| {
        LinesError::new(format!("cannot read the package `{}`: {error}", path.display())).hint(format!(
            "unpack it (`dpkg-deb -x {} DIRECTORY`), and give the vmlinux or the module",
            path.display()
        ))
    })?;
    Ok(found.map(|bytes| DebugFile::held(path, bytes)))
}

/// Writes an index, whole or not at all.
pub(crate) fn keep(path: &Path, index: &[u8]) -> Result<(), LinesError> {
    let failed = |why: &dyn Display| LinesError::new(format!("cannot write `{}`: {why}", path.display()));
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(|why| failed(&why))?;
    }
    replace(path, index).map_err(|why| failed(&why))
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
    use std::io::Write as _;

    use super::*;

    const KERNEL: &[u8] = include_bytes!("../../../lines/tests/fixtures/kernel.elf");

    fn package(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, name, *content).unwrap();
        }
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&tar.into_inner().unwrap()).unwrap();
        let packed = packed.finish().unwrap();
        let mut archive = b"!<arch>\n".to_vec();
        writeln!(
            archive,
            "{:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`",
            "data.tar.gz",
            0,
            0,
            0,
            100_644,
            packed.len()
        )
        .unwrap();
        archive.extend(packed);
        archive
    }

    #[test]
    fn a_package_is_unpacked_once_and_known_by_build() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("linux-image-dbg.deb");
        let files: [(&str, &[u8]); 2] =
            [("./usr/share/doc/a", b"text"), ("./usr/lib/debug/boot/vmlinux-6.1", KERNEL)];
        fs::write(&path, package(&files)).unwrap();
        assert!(is_package(&path) && !is_package(Path::new("/nonexistent")));
        let places = Places { cache: Some(directory.path().join("cache")), ..Places::default() };
        let build = |id: &str, module: Option<&str>| Build {
            release: "6.1".to_owned(),
            id: id.to_owned(),
            module: module.map(str::to_owned),
        };
        let its = build("0123456789abcdef0123456789abcdef01234567", None);
        let found = of_package(&path, &its, &places).unwrap().unwrap();
        assert!(DebugInfo::is_index(found.bytes()));
        for other in [build("0a", None), build(&its.id, Some("absent"))] {
            // The cache is asked first: a module has a build of its own.
            let places = Places::default();
            assert!(of_package(&path, &other, &places).unwrap().is_none());
        }
        // The cache has it now.
        fs::write(&path, package(&[])).unwrap();
        assert!(of_package(&path, &its, &places).unwrap().is_some());
        assert!(of_package(&path, &its, &Places::default()).unwrap().is_none());
        let cut: PathBuf = directory.path().join("cut.deb");
        fs::write(&cut, &package(&files)[..200]).unwrap();
        let error = of_package(&cut, &its, &Places::default()).err().unwrap();
        assert!(error.hint_text().unwrap().contains("dpkg-deb -x"), "{error}");
    }

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
