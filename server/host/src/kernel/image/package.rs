//! Finding a kernel image in a file, a directory or a Debian package (deb(5)), without unpacking
//! the package to disk.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::super::ReadError;
use super::ImageError;
use super::unpack::reader;

/// Magic of a package file, which is an `ar` archive.
const AR_MAGIC: &[u8] = b"!<arch>\n";

const AR_HEADER_BYTES: usize = 60;

/// The image that a path leads to.
///
/// # Errors
/// See [`ImageError`].
pub(super) fn image(path: &Path) -> Result<Vec<u8>, ImageError> {
    let is_directory = path.is_dir();
    let path = if is_directory { in_directory(path)? } else { path.to_owned() };
    let bytes = fs::read(&path).map_err(|source| ImageError::Read(ReadError { path, source }))?;
    if is_directory || !is_package(&bytes) {
        return Ok(bytes);
    }
    file_of_package(&bytes, is_image)?.ok_or(ImageError::NoImage)
}

/// Whether a file of that place, such as `boot/vmlinuz-6.1.0-48-amd64`, is a kernel image.
fn is_image(place: &Path) -> bool {
    let parts: Vec<&str> =
        place.iter().filter_map(|part| part.to_str()).filter(|part| *part != ".").collect();
    match parts.as_slice() {
        ["boot", name] => name.starts_with("vmlinuz-"),
        // Since 6.1 distributions may keep it there (kernel-install(8)).
        ["usr", rest @ ..] | rest => matches!(rest, ["lib", "modules", _, "vmlinuz"]),
    }
}

fn in_directory(root: &Path) -> Result<PathBuf, ImageError> {
    let names = |directory: &Path| -> Result<Vec<PathBuf>, ImageError> {
        let path = root.join(directory);
        let failed = |source| ImageError::Read(ReadError { path: path.clone(), source });
        // A place that is not there has no image.
        if !path.is_dir() {
            return Ok(Vec::new());
        }
        let entries = fs::read_dir(&path).map_err(failed)?;
        entries.map(|entry| Ok(directory.join(entry.map_err(failed)?.file_name()))).collect()
    };
    let mut places = names(Path::new("boot"))?;
    for modules in ["lib/modules", "usr/lib/modules"] {
        places.extend(names(Path::new(modules))?.into_iter().map(|release| release.join("vmlinuz")));
    }
    places.retain(|place| is_image(place) && root.join(place).is_file());
    // A boot directory itself.
    if places.is_empty() {
        places = names(Path::new(""))?;
        places.retain(|place| {
            let name = place.to_string_lossy();
            (name.starts_with("vmlinuz-") || name == "vmlinuz" || name == "vmlinux")
                && root.join(place).is_file()
        });
    }
    places.sort();
    match places.as_slice() {
        [] => Err(ImageError::NoImage),
        [only] => Ok(root.join(only)),
        several => Err(ImageError::SeveralImages {
            found: several.iter().map(|place| format!("`{}`", place.display())).collect(),
        }),
    }
}

/// Whether bytes begin as a Debian package does.
pub fn is_package(bytes: &[u8]) -> bool {
    bytes.starts_with(AR_MAGIC)
}

/// The first file of a Debian package whose path is wanted. `None`: it has none.
///
/// # Errors
/// [`ImageError::Package`], [`ImageError::Packing`] and [`ImageError::Unpack`].
pub fn file_of_package(
    package: &[u8],
    is_wanted: impl Fn(&Path) -> bool,
) -> Result<Option<Vec<u8>>, ImageError> {
    let damaged = |reason: String| ImageError::Package { reason };
    let packed = member(package, "data.tar").ok_or_else(|| damaged("it has no `data.tar`".to_owned()))?;
    let mut archive = tar::Archive::new(reader(packed)?);
    for entry in archive.entries().map_err(|error| damaged(error.to_string()))? {
        let mut entry = entry.map_err(|error| damaged(error.to_string()))?;
        let place = entry.path().map_err(|error| damaged(error.to_string()))?.into_owned();
        if is_wanted(&place) && entry.header().entry_type().is_file() {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).map_err(|error| damaged(error.to_string()))?;
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

/// The content of the first member of an `ar` archive whose name begins with `name`.
fn member<'a>(archive: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = archive.strip_prefix(AR_MAGIC)?;
    loop {
        let (header, behind) = rest.split_at_checked(AR_HEADER_BYTES)?;
        let length = std::str::from_utf8(header.get(48..58)?).ok()?.trim_end();
        let length: usize = length.parse().ok()?;
        if header.starts_with(name.as_bytes()) {
            return behind.get(..length);
        }
        // Members begin at even offsets.
        rest = behind.get(length.checked_add(length % 2)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;

    fn ar(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = AR_MAGIC.to_vec();
        for (name, content) in members {
            writeln!(archive, "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`", 0, 0, 0, 100_644, content.len())
                .unwrap();
            archive.extend_from_slice(content);
            archive.resize(archive.len().next_multiple_of(2), b'\n');
        }
        archive
    }

    fn package(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut tar =
            tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_cksum();
            tar.append_data(&mut header, name, *content).unwrap();
        }
        let data = tar.into_inner().unwrap().finish().unwrap();
        ar(&[("debian-binary", b"2.0\n\n"), ("control.tar.xz", b"odd"), ("data.tar.gz", &data)])
    }

    #[test]
    fn the_image_of_a_package_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("linux-image.deb");
        for place in ["./boot/vmlinuz-6.1.0-48-amd64", "usr/lib/modules/7.2/vmlinuz"] {
            fs::write(&file, package(&[("./boot/config-6.1", b"x"), (place, b"kernel"), ("z", b"y")]))
                .unwrap();
            assert_eq!(image(&file).unwrap(), b"kernel", "{place}");
        }
        fs::write(&file, package(&[("./usr/share/doc/linux-image", b"x")])).unwrap();
        assert!(matches!(image(&file), Err(ImageError::NoImage)));
        fs::write(&file, ar(&[("debian-binary", b"2.0\n")])).unwrap();
        assert!(matches!(image(&file), Err(ImageError::Package { .. })));
        let whole = package(&[("boot/vmlinuz-1", &[7; 4000])]);
        fs::write(&file, &whole[..whole.len() - 40]).unwrap();
        assert!(matches!(image(&file), Err(ImageError::Package { .. })));
        assert!(matches!(image(&directory.path().join("absent")), Err(ImageError::Read(_))));
    }

    #[test]
    fn the_image_of_a_directory_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        assert!(matches!(image(root), Err(ImageError::NoImage)));
        fs::create_dir_all(root.join("boot")).unwrap();
        fs::write(root.join("boot/vmlinuz-6.1"), "one").unwrap();
        fs::write(root.join("boot/System.map-6.1"), "no").unwrap();
        assert_eq!(image(root).unwrap(), b"one");
        assert_eq!(image(&root.join("boot")).unwrap(), b"one");
        fs::create_dir_all(root.join("usr/lib/modules/7.2")).unwrap();
        assert_eq!(image(root).unwrap(), b"one", "a release without an image");
        fs::write(root.join("usr/lib/modules/7.2/vmlinuz"), "two").unwrap();
        let Err(ImageError::SeveralImages { found, .. }) = image(root) else { panic!() };
        assert_eq!(found, ["`boot/vmlinuz-6.1`", "`usr/lib/modules/7.2/vmlinuz`"]);
    }

    proptest! {
        #[test]
        fn any_archive_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), length in "[0-9 -]{10}") {
            let mut archive = [AR_MAGIC, &bytes].concat();
            if let Some(field) = archive.get_mut(56..66) {
                field.copy_from_slice(length.as_bytes());
            }
            let _ = member(&archive, "data.tar");
        }
    }
}
