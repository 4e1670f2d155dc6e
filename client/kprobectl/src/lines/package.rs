//! Packages with debug information (deb(5)), which are read without unpacking them to disk.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use kprobed_host::kernel::{file_of_package, is_package as has_magic};
use kprobed_lines::LinesError;

use super::file::{DebugFile, DebugFiles};
use super::search::{Build, Places, is_module};
use crate::config::replace;

/// Whether a file is a Debian package.
pub(super) fn is_package(path: &Path) -> bool {
    let mut magic = [0; 8];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && has_magic(&magic)
}

/// The debug information of a build in a package, as an index: unpacking takes long, and so the cache keeps it.
/// `None`: the package has that of another build.
pub(super) fn debug_information(
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
pub(super) fn unpacked(path: &Path, module: Option<&str>) -> Result<Option<DebugFile>, LinesError> {
    let package = DebugFile::open(path)?;
    let is_wanted = |place: &Path| {
        let name = place.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_kernel = || name == "vmlinux" || name.starts_with("vmlinux-");
        module.map_or_else(is_kernel, |module| is_module(place, module))
    };
    let found = file_of_package(package.bytes(), is_wanted).map_err(|error| {
        LinesError::new(format!("cannot read the package `{}`: {error}", path.display())).hint(format!(
            "unpack it (`dpkg-deb -x {} DIRECTORY`), and give the vmlinux or the module",
            path.display()
        ))
    })?;
    Ok(found.map(|bytes| DebugFile::held(path, bytes)))
}

/// Writes an index, whole or not at all.
pub(crate) fn keep(path: &Path, index: &[u8]) -> Result<(), LinesError> {
    let failed =
        |why: &dyn std::fmt::Display| LinesError::new(format!("cannot write `{}`: {why}", path.display()));
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(|why| failed(&why))?;
    }
    replace(path, index).map_err(|why| failed(&why))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::path::PathBuf;

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
        std::fs::write(&path, package(&files)).unwrap();
        assert!(is_package(&path) && !is_package(Path::new("/nonexistent")));
        let places = Places { cache: Some(directory.path().join("cache")), ..Places::default() };
        let build = |id: &str, module: Option<&str>| Build {
            release: "6.1".to_owned(),
            id: id.to_owned(),
            module: module.map(str::to_owned),
        };
        let its = build("0123456789abcdef0123456789abcdef01234567", None);
        let found = debug_information(&path, &its, &places).unwrap().unwrap();
        assert!(kprobed_lines::DebugInfo::is_index(found.bytes()));
        for other in [build("0a", None), build(&its.id, Some("absent"))] {
            // The cache is asked first: a module has a build of its own.
            let places = Places::default();
            assert!(debug_information(&path, &other, &places).unwrap().is_none());
        }
        // The cache has it now.
        std::fs::write(&path, package(&[])).unwrap();
        assert!(debug_information(&path, &its, &places).unwrap().is_some());
        assert!(debug_information(&path, &its, &Places::default()).unwrap().is_none());
        let cut: PathBuf = directory.path().join("cut.deb");
        std::fs::write(&cut, &package(&files)[..200]).unwrap();
        let error = debug_information(&cut, &its, &Places::default()).err().unwrap();
        assert!(error.hint_text().unwrap().contains("dpkg-deb -x"), "{error}");
    }
}
