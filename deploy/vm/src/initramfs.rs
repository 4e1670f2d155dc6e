//! The initramfs of a guest: busybox, the agent, programs with their libraries, kernel modules, a
//! few files below `/etc`.
//!
//! Owns the layout of the guest's file system. Never decides which programs it gets.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use object::Object as _;

use crate::cpio::{Kind, Writer};
use crate::kernels::Kernel;
use crate::modules::{self, Module};
use crate::packages::search_path;
use crate::unpacked::Unpacked;

/// Modules for the devices that the machine has, by the names that the kernel gives them. Built-in
/// ones are skipped.
const NEEDED_MODULES: [&str; 3] = ["virtio_pci", "virtio_net", "virtio_blk"];
/// Modules that help, but that a kernel may do without: the random number device.
const WELCOME_MODULES: [&str; 1] = ["virtio_rng"];

/// Where packages of Debian have their libraries, those of systemd's own programs among them.
const LIBRARY_DIRECTORIES: [&str; 4] = [
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu/systemd",
    "usr/lib/x86_64-linux-gnu/systemd",
];

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n";
const GROUP: &str = "root:x:0:\nkprobed:x:900:\nnogroup:x:65534:\n";

/// A file of the host's that the guest gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFile {
    /// Where it is here. Its permission bits are kept; a dynamic program brings its libraries.
    pub host: PathBuf,
    /// Its absolute path there.
    pub guest: String,
}

/// The content of an initramfs, by path; what is added later wins.
#[derive(Clone, Debug, Default)]
pub struct Initramfs {
    members: BTreeMap<String, (u32, Kind)>,
}

impl Initramfs {
    /// The files of every guest: `agent` as `/init`, busybox, the modules of `kernel`, users and
    /// groups, host name.
    pub fn new(kernel: &Kernel, agent: &Path) -> Result<Self> {
        let mut this = Self::default();
        for directory in ["bin", "sbin", "lib", "lib64"] {
            this.members.insert(directory.to_owned(), (0o777, Kind::Symlink(format!("usr/{directory}"))));
            this.members.insert(format!("usr/{directory}"), (0o755, Kind::Directory));
        }
        for directory in ["dev", "proc", "sys", "tmp", "run", "root", "var/lib"] {
            this.insert(&format!("/{directory}"), 0o755, Kind::Directory)?;
        }
        // The kernel opens it for /init before /init can mount anything on /dev.
        this.insert("/dev/console", 0o600, Kind::CharacterDevice(5, 1))?;
        this.text("/etc/passwd", PASSWD)?;
        this.text("/etc/group", GROUP)?;
        this.text("/etc/hosts", "127.0.0.1 localhost\n")?;
        this.text("/etc/hostname", &format!("kprobed-{}\n", kernel.series))?;
        this.busybox()?;
        this.modules(kernel)?;
        this.add(&GuestFile { host: agent.to_owned(), guest: "/init".to_owned() })?;
        Ok(this)
    }

    /// Adds a file of the host's.
    pub fn add(&mut self, file: &GuestFile) -> Result<()> {
        self.with_libraries(&file.host, &file.guest, None)
    }

    /// Adds a file of an unpacked package at its place, `path` from the root on. A program brings its libraries,
    /// those of the package first.
    pub fn add_unpacked(&mut self, package: &Unpacked, path: &str) -> Result<()> {
        self.with_libraries(&package.program(path), &format!("/{path}"), Some(package))
    }

    fn with_libraries(&mut self, host: &Path, guest: &str, package: Option<&Unpacked>) -> Result<()> {
        let image = self.copy(host, guest)?;
        if !is_dynamic(&image) {
            return Ok(());
        }
        let first = package.map(|package| package.libraries(&LIBRARY_DIRECTORIES)).unwrap_or_default();
        for library in libraries(host, &first)? {
            let of_package =
                package.and_then(|package| Path::new(&library).strip_prefix(package.root()).ok());
            let place = of_package.map_or_else(|| library.clone(), |path| format!("/{}", path.display()));
            self.copy(Path::new(&library), &place)?;
        }
        Ok(())
    }

    /// Writes the archive.
    pub fn write(&self, to: &Path) -> Result<()> {
        let name = || to.display().to_string();
        let file = BufWriter::with_capacity(1 << 20, File::create(to).with_context(name)?);
        let mut writer = Writer::new(file);
        // In the order of their names, a directory comes before what is in it.
        for (path, (permissions, kind)) in &self.members {
            writer.member(path, *permissions, kind).with_context(name)?;
        }
        writer.finish().with_context(name).map(drop)
    }

    fn busybox(&mut self) -> Result<()> {
        let host = search_path("busybox").unwrap_or_else(|| "busybox".into());
        let listed = Command::new(&host).arg("--list").stdin(Stdio::null()).output();
        let listed = listed.context("cannot run busybox")?;
        for applet in String::from_utf8_lossy(&listed.stdout).lines().filter(|name| *name != "busybox") {
            self.insert(&format!("/bin/{applet}"), 0o777, Kind::Symlink("busybox".to_owned()))?;
        }
        self.add(&GuestFile { host, guest: "/bin/busybox".to_owned() })
    }

    fn modules(&mut self, kernel: &Kernel) -> Result<()> {
        let Some(directory) = &kernel.modules else { return Ok(()) };
        let found = modules::closure(directory, &NEEDED_MODULES, &WELCOME_MODULES)?;
        for (position, Module { name, image }) in found.into_iter().enumerate() {
            // The agent loads them in the order of their names.
            let path = format!("/lib/kprobed-guest/modules/{position:02}-{name}.ko");
            self.insert(&path, 0o644, Kind::File(image))?;
        }
        Ok(())
    }

    /// Copies one file and gives back its content.
    fn copy(&mut self, host: &Path, guest: &str) -> Result<Vec<u8>> {
        let name = || host.display().to_string();
        let image = fs::read(host).with_context(name)?;
        let permissions = fs::metadata(host).with_context(name)?.permissions().mode();
        self.insert(guest, permissions & 0o7777, Kind::File(image.clone()))?;
        Ok(image)
    }

    /// Adds a file with this text, which every user can read.
    pub(crate) fn text(&mut self, path: &str, content: &str) -> Result<()> {
        self.insert(path, 0o644, Kind::File(content.as_bytes().to_vec()))
    }

    fn insert(&mut self, path: &str, permissions: u32, kind: Kind) -> Result<()> {
        let path =
            member_path(path).with_context(|| format!("{path:?} is not an absolute path in the guest"))?;
        for (slash, _) in path.match_indices('/') {
            self.members.entry(path[..slash].to_owned()).or_insert((0o755, Kind::Directory));
        }
        self.members.insert(path, (permissions, kind));
        Ok(())
    }
}

/// An absolute guest path as an archive member: no leading slash, and below `usr` what is reached
/// through the links `/bin`, `/sbin`, `/lib` and `/lib64`.
fn member_path(path: &str) -> Option<String> {
    let path = path.strip_prefix('/')?;
    if path.is_empty() || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return None;
    }
    let below_usr =
        path.split_once('/').is_some_and(|(top, _)| matches!(top, "bin" | "sbin" | "lib" | "lib64"));
    Some(if below_usr { format!("usr/{path}") } else { path.to_owned() })
}

/// Whether the dynamic linker loads this program or library.
fn is_dynamic(image: &[u8]) -> bool {
    object::File::parse(image).is_ok_and(|file| file.section_by_name(".dynamic").is_some())
}

/// Paths of the libraries and of the dynamic linker that `program` needs. Those in `first` (as `LD_LIBRARY_PATH`
/// lists directories) are taken before this machine's.
fn libraries(program: &Path, first: &OsStr) -> Result<Vec<String>> {
    let mut command = Command::new("ldd");
    command.arg(program).env("LC_ALL", "C").env("LD_LIBRARY_PATH", first);
    let output = command.stdin(Stdio::null()).output();
    let output = output.context("cannot run ldd")?;
    ldd_paths(&String::from_utf8_lossy(&output.stdout)).with_context(|| program.display().to_string())
}

/// The paths in what `ldd` printed.
fn ldd_paths(text: &str) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for line in text.lines().map(str::trim) {
        let (name, found) = line.split_once(" => ").map_or((line, line), |(name, found)| (name, found));
        if found.starts_with("not found") {
            bail!("it needs the library {name}, which this machine does not have");
        }
        if let Some(path) = found.split_whitespace().next().filter(|path| path.starts_with('/')) {
            paths.push(path.to_owned());
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_is_understood() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            ldd_paths(text).unwrap(),
            ["/lib/x86_64-linux-gnu/libgcc_s.so.1", "/lib64/ld-linux-x86-64.so.2"]
        );
        let error = ldd_paths("\tlibx.so => not found\n").unwrap_err();
        assert!(error.to_string().contains("the library libx.so,"), "{error}");
        assert_eq!(ldd_paths("\tstatically linked\n").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn this_test_program_is_dynamic_and_a_text_is_not() {
        assert!(is_dynamic(&fs::read(std::env::current_exe().unwrap()).unwrap()));
        assert!(!is_dynamic(b"#!/bin/sh\n") && !is_dynamic(b"\x7fELF\x02\x01\x01"));
    }

    #[test]
    fn guest_paths() {
        assert_eq!(member_path("/bin/sh").as_deref(), Some("usr/bin/sh"));
        assert_eq!(member_path("/root/x y").as_deref(), Some("root/x y"));
        assert_eq!(member_path("/lib").as_deref(), Some("lib"));
        for bad in ["relative", "/", "/a/../b", "/a//b", ""] {
            assert_eq!(member_path(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_program_brings_its_libraries_and_directories() {
        let mut content = Initramfs::default();
        let host = std::env::current_exe().unwrap();
        content.add(&GuestFile { host, guest: "/opt/tests/program".to_owned() }).unwrap();
        assert!(matches!(content.members["opt/tests"], (0o755, Kind::Directory)));
        let (permissions, _) = content.members["opt/tests/program"];
        assert_eq!(permissions & 0o111, 0o111);
        assert!(content.members.keys().any(|path| path.starts_with("usr/lib") && path.contains("libc.so")));
        let names: Vec<_> = content.members.keys().collect();
        for path in &names {
            if let Some((parent, _)) = path.rsplit_once('/') {
                assert!(names.iter().position(|p| *p == parent) < names.iter().position(|p| p == path));
            }
        }
    }
}
