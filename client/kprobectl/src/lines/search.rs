//! Where debug information of a build is looked for.
//!
//! Owns the order: the files that are given, the cache, `/usr/lib/debug`, debuginfod.

use std::fs;
use std::path::{Path, PathBuf};

use kprobed_lines::LinesError;

use super::debuginfod;
use super::file::{DebugFile, DebugFiles, is_package, of_package};
use crate::config::{user_directory, variable};

/// Files below a directory of modules, at most: a kernel has a few thousand.
const FILES_MAX: usize = 100_000;

/// A build of a kernel or of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Build {
    /// `uname -r` of the kernel; empty without a host.
    pub(crate) release: String,
    /// Its build id, in hexadecimal.
    pub(crate) id: String,
    /// Absent for the kernel itself.
    pub(crate) module: Option<String>,
}

impl Build {
    /// In words.
    pub(crate) fn text(&self) -> String {
        match &self.module {
            Some(module) => {
                format!("the module `{module}` of kernel {} (build {})", self.release, self.id)
            }
            None => format!("the kernel {} (build {})", self.release, self.id),
        }
    }
}

/// Directories and servers with debug information.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// Own indexes, by build id. Absent without a home.
    pub(super) cache: Option<PathBuf>,
    /// Usually `/usr/lib/debug`.
    pub(super) installed: PathBuf,
    /// Files of debuginfod, which its other clients share.
    pub(super) downloads: Option<PathBuf>,
    /// Addresses of servers.
    pub(super) servers: Vec<String>,
}

impl Places {
    /// Those of the user, from the environment.
    pub(crate) fn of_user() -> Self {
        let caches = user_directory("XDG_CACHE_HOME", ".cache");
        let servers = std::env::var("DEBUGINFOD_URLS").unwrap_or_default();
        Self {
            cache: caches.as_ref().map(|caches| caches.join("kprobed/lines")),
            installed: PathBuf::from("/usr/lib/debug"),
            downloads: variable("DEBUGINFOD_CACHE_PATH")
                .map(PathBuf::from)
                .or_else(|| caches.map(|caches| caches.join("debuginfod_client"))),
            servers: servers.split_ascii_whitespace().map(str::to_owned).collect(),
        }
    }

    /// Where the index of a build is kept.
    pub(crate) fn index(&self, build_id: &str) -> Option<PathBuf> {
        let is_id = !build_id.is_empty() && build_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.cache.as_ref().filter(|_| is_id).map(|cache| cache.join(build_id))
    }
}

/// The debug information of a build.
pub(super) async fn find(
    build: &Build,
    given: &[PathBuf],
    places: &Places,
) -> Result<DebugFiles, LinesError> {
    let local = {
        let (build, given, places) = (build.clone(), given.to_vec(), places.clone());
        tokio::task::spawn_blocking(move || {
            if given.is_empty() {
                Ok(installed(&build, &places))
            } else {
                of_given(&build, &given, &places).map(Some)
            }
        })
    };
    let local = local
        .await
        .map_err(|broken| LinesError::new(format!("looking for debug information ended: {broken}")))?;
    if let Some(found) = local? {
        return Ok(found);
    }
    let mut told = String::new();
    match debuginfod::debug_information(build, places).await {
        Ok(Some(path)) => return Ok(DebugFiles::alone(DebugFile::open(&path)?)),
        Ok(None) => {}
        Err(error) => told = format!("; debuginfod: {error}"),
    }
    let error = LinesError::new(format!("no debug information of {} is known here{told}", build.text()));
    let package = format!("linux-image-{}-dbg", build.release);
    Err(error.hint(format!(
        "on one machine `apt install {package}`, or give the file or its package with `--debug FILE`, or set DEBUGINFOD_URLS"
    )))
}

/// The file of this build among those that are given.
fn of_given(build: &Build, given: &[PathBuf], places: &Places) -> Result<DebugFiles, LinesError> {
    let (mut main, mut others, mut told) = (None, Vec::new(), Vec::new());
    for path in given {
        let file =
            if is_package(path) { of_package(path, build, places)? } else { Some(DebugFile::open(path)?) };
        let Some(file) = file else {
            told.push(format!("the package `{}` does not have it", path.display()));
            continue;
        };
        let identity = file.identity()?;
        let build_id = hex::encode(&identity.build_id);
        if main.is_none() && !identity.is_split && build_id == build.id {
            main = Some(file);
        } else {
            if !identity.is_split {
                told.push(format!("`{}` is of build {build_id}", path.display()));
            }
            others.push(file);
        }
    }
    match main {
        Some(main) => Ok(DebugFiles { main, others }),
        None => Err(LinesError::new(format!(
            "the debug information that is given is not of {}: {}",
            build.text(),
            told.join(", ")
        ))
        .hint("without `--debug` it is looked for by build id")),
    }
}

/// What is on this machine.
fn installed(build: &Build, places: &Places) -> Option<DebugFiles> {
    let (first, rest) = build.id.split_at_checked(2)?;
    let mut paths: Vec<PathBuf> = places.index(&build.id).into_iter().collect();
    paths.extend(places.downloads.as_ref().map(|cache| cache.join(&build.id).join("debuginfo")));
    paths.push(places.installed.join(format!(".build-id/{first}/{rest}.debug")));
    let (release, root) = (&build.release, &places.installed);
    match &build.module {
        None => {
            paths.push(root.join(format!("boot/vmlinux-{release}")));
            paths.push(root.join(format!("lib/modules/{release}/vmlinux")));
        }
        Some(module) => {
            let mut left = FILES_MAX;
            modules(&root.join("lib/modules").join(release), module, &mut left, &mut paths);
        }
    }
    // A file of another build, or a damaged one, is none.
    let mut files = paths.iter().filter_map(|path| DebugFile::open(path).ok());
    files.find(|file| file.is_of(build)).map(DebugFiles::alone)
}

/// The files below a directory that a module of this name may be in.
fn modules(directory: &Path, name: &str, left: &mut usize, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        *left = left.saturating_sub(1);
        if *left == 0 {
            return;
        }
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            modules(&path, name, left, found);
        } else if is_module(&path, name) {
            found.push(path);
        }
    }
}

/// Whether a file is that of a module: its hyphens are underscores in the name.
pub(super) fn is_module(path: &Path, name: &str) -> bool {
    let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
    let stem = file.strip_suffix(".debug").unwrap_or(file).strip_suffix(".ko");
    stem.is_some_and(|stem| stem.replace('-', "_") == name)
}

#[cfg(test)]
mod tests {
    use kprobed_lines::{Image, write_index};

    use super::*;

    const KERNEL: &[u8] = include_bytes!("../../../lines/tests/fixtures/kernel.elf");
    const MODULE: &[u8] = include_bytes!("../../../lines/tests/fixtures/module-5.o");
    const ID: &str = "0123456789abcdef0123456789abcdef01234567";

    fn build(id: &str) -> Build {
        Build { release: "6.12.1".to_owned(), id: id.to_owned(), module: None }
    }

    #[tokio::test]
    async fn debug_information_is_looked_for_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places {
            cache: Some(directory.path().join("cache")),
            installed: directory.path().join("debug"),
            downloads: Some(directory.path().join("downloads")),
            servers: Vec::new(),
        };
        let put = |place: &str, bytes: &[u8]| {
            let path = directory.path().join(place);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            path
        };
        let error = find(&build(ID), &[], &places).await.err().unwrap();
        assert!(error.hint_text().unwrap().contains("apt install linux-image-6.12.1-dbg"), "{error}");
        // The last place first: each further one is before it.
        let index = write_index(&Image::read(KERNEL).unwrap(), None, &[]).unwrap();
        for (place, bytes) in [
            ("debug/lib/modules/6.12.1/vmlinux", KERNEL),
            ("debug/boot/vmlinux-6.12.1", KERNEL),
            ("debug/.build-id/01/23456789abcdef0123456789abcdef01234567.debug", KERNEL),
            ("downloads/0123456789abcdef0123456789abcdef01234567/debuginfo", KERNEL),
            ("cache/0123456789abcdef0123456789abcdef01234567", index.as_slice()),
        ] {
            let path = put(place, bytes);
            let found = find(&build(ID), &[], &places).await.unwrap();
            assert_eq!(found.main.path(), path);
        }
        // A damaged file is passed over, and so is one of another build.
        put("cache/0123456789abcdef0123456789abcdef01234567", &index[..20]);
        let found = find(&build(ID), &[], &places).await.unwrap();
        assert!(found.main.path().ends_with("debuginfo"));
        assert!(find(&build("0a0b"), &[], &places).await.is_err());
        // What is given is the only place.
        let given = [put("kernel", KERNEL), put("module", MODULE)];
        let found = find(&build(ID), &given, &places).await.unwrap();
        assert_eq!((found.main.path(), found.others.len()), (given[0].as_path(), 1));
        let error = find(&build(ID), &given[1..], &places).await.err().unwrap();
        assert!(error.message().contains("is not of the kernel 6.12.1"), "{error}");
        let rpm = put("kernel-debuginfo.rpm", &[0xed, 0xab, 0xee, 0xdb, 3, 0]);
        let error = find(&build(ID), &[rpm], &places).await.err().unwrap();
        assert!(error.hint_text().unwrap().contains("rpm2cpio"), "{error}");
    }

    #[test]
    fn a_module_is_found_by_its_name() {
        for (file, name, is_it) in [
            ("nf_tables.ko", "nf_tables", true),
            ("nf-tables.ko.debug", "nf_tables", true),
            ("nf_tables.ko.xz", "nf_tables", false),
            ("tables.ko", "nf_tables", false),
        ] {
            assert_eq!(is_module(Path::new(file), name), is_it, "{file}");
        }
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("lib/modules/6.12.1/kernel/net");
        fs::create_dir_all(&root).unwrap();
        for name in ["a.ko", "nf-tables.ko", "b.ko"] {
            fs::write(root.join(name), MODULE).unwrap();
        }
        let (mut found, mut left) = (Vec::new(), FILES_MAX);
        modules(directory.path(), "nf_tables", &mut left, &mut found);
        assert_eq!(found, [root.join("nf-tables.ko")]);
    }
}
