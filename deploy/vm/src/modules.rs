//! Kernel modules that a guest loads at boot: their files, in the order of their dependencies,
//! decompressed.
//!
//! Debian's packages have no `modules.dep` (it is made at installation), so dependencies come from
//! the modules' own `.modinfo` sections. Never loads anything into the host's kernel.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use object::{Object as _, ObjectSection as _};

/// A module, ready for `finit_module`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// Its name as the kernel spells it: underscores only.
    pub(crate) name: String,
    /// The uncompressed ELF image.
    pub(crate) image: Vec<u8>,
}

/// The modules `needed`, those of `welcome` that are there, and what they depend on, dependencies first, without those
/// that are built into the kernel. `directory` is `lib/modules/RELEASE`.
pub(crate) fn closure(directory: &Path, needed: &[&str], welcome: &[&str]) -> Result<Vec<Module>> {
    let builtin_list = directory.join("modules.builtin");
    // A missing list means that nothing is known to be built in; a needed module is then an error
    // below.
    let builtin_list = fs::read_to_string(builtin_list).unwrap_or_default();
    let mut search = Search {
        directory,
        builtin: builtin_list.lines().filter_map(module_name).collect(),
        files: HashMap::new(),
        seen: HashSet::new(),
        ordered: Vec::new(),
    };
    search.index(&directory.join("kernel"))?;
    let present: Vec<_> = welcome.iter().filter(|name| search.files.contains_key(**name)).collect();
    for name in needed.iter().chain(present) {
        search.visit(name)?;
    }
    Ok(search.ordered)
}

struct Search<'a> {
    directory: &'a Path,
    builtin: HashSet<String>,
    files: HashMap<String, PathBuf>,
    seen: HashSet<String>,
    ordered: Vec<Module>,
}

impl Search<'_> {
    fn index(&mut self, directory: &Path) -> Result<()> {
        let name = || directory.display().to_string();
        for entry in fs::read_dir(directory).with_context(name)? {
            let path = entry.with_context(name)?.path();
            if path.is_dir() {
                self.index(&path)?;
            } else if let Some(name) = path.to_str().and_then(module_name) {
                self.files.insert(name, path);
            }
        }
        Ok(())
    }

    fn visit(&mut self, name: &str) -> Result<()> {
        let name = name.replace('-', "_");
        if self.builtin.contains(&name) || !self.seen.insert(name.clone()) {
            return Ok(());
        }
        let Some(path) = self.files.get(&name) else {
            bail!("the kernel modules in {} have no {name}, which the guest needs", self.directory.display());
        };
        let image = decompressed(path)?;
        for dependency in dependencies(&image) {
            self.visit(&dependency)?;
        }
        self.ordered.push(Module { name, image });
        Ok(())
    }
}

/// `kernel/drivers/char/hw_random/virtio-rng.ko.xz` is the module `virtio_rng`.
fn module_name(path: &str) -> Option<String> {
    let (stem, compression) = path.rsplit('/').next()?.split_once(".ko")?;
    matches!(compression, "" | ".xz" | ".zst").then(|| stem.replace('-', "_"))
}

fn decompressed(path: &Path) -> Result<Vec<u8>> {
    let stored = fs::read(path).with_context(|| path.display().to_string())?;
    let damaged = || format!("cannot decompress {}", path.display());
    let mut image = Vec::new();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => lzma_rust2::XzReader::new(stored.as_slice(), false).read_to_end(&mut image),
        Some("zst") => ruzstd::decoding::StreamingDecoder::new(stored.as_slice())
            .with_context(damaged)?
            .read_to_end(&mut image),
        _ => return Ok(stored),
    }
    .with_context(damaged)?;
    Ok(image)
}

fn modinfo(image: &[u8]) -> Option<&[u8]> {
    let file = object::File::parse(image).ok()?;
    file.section_by_name(".modinfo")?.data().ok()
}

fn dependencies(image: &[u8]) -> Vec<String> {
    let modinfo = modinfo(image).unwrap_or_default();
    modinfo
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(b"depends="))
        .flat_map(|list| list.split(|byte| *byte == b','))
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest ELF file with a `.modinfo` section that says `depends=`.
    fn module(depends: &str) -> Vec<u8> {
        let modinfo = format!("license=GPL\0depends={depends}\0");
        let names = b"\0.modinfo\0";
        let mut image = vec![0; 64];
        image[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        image.extend_from_slice(modinfo.as_bytes());
        let names_at = image.len();
        image.extend_from_slice(names);
        let table_at = image.len() as u64;
        for (name, offset, size) in [(1u32, 64, modinfo.len()), (0, names_at, names.len())] {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[0x18..0x20].copy_from_slice(&(offset as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(size as u64).to_le_bytes());
            image.extend_from_slice(&header);
        }
        image[0x28..0x30].copy_from_slice(&table_at.to_le_bytes());
        image[0x3a] = 64;
        image[0x3c] = 2;
        image[0x3e] = 1;
        image
    }

    /// `module("")`, as the kernel's build packs it: `xz --check=crc32 --lzma2=dict=1MiB`.
    const PACKED: &[u8] =
        b"\xfd\x37\x7a\x58\x5a\x00\x00\x01\x69\x22\xde\x36\x02\x00\x21\x01\x10\x00\x00\x00\xa8\x70\x8e\x86\
          \xe0\x00\xde\x00\x43\x5d\x00\x3f\x91\x45\x84\x68\x3d\x89\xa6\xdb\x6a\x38\x37\xba\x10\x1e\xe8\xf4\
          \xaf\x59\x52\xa7\x0e\xdd\x71\x46\x47\xa7\xbe\x2e\xfd\x9c\x8c\x3a\x0a\x0b\x83\xca\x30\x69\x4b\x7e\
          \x54\x9d\xf1\xd6\xc1\x2a\x01\x42\x47\x2b\xd0\xf6\xa4\x5e\x18\xa2\x54\x37\x7d\x21\x95\xef\xa3\x05\
          \x40\x00\x00\x00\xf9\x44\x17\x36\x00\x01\x5b\xdf\x01\x00\x00\x00\x04\xa3\x05\x16\x3e\x30\x0d\x8b\
          \x02\x00\x00\x00\x00\x01\x59\x5a";

    fn tree(modules: &[(&str, &str)], builtin: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("kernel/drivers/x")).unwrap();
        fs::write(tree.path().join("modules.builtin"), builtin).unwrap();
        for (file, depends) in modules {
            fs::write(tree.path().join("kernel/drivers/x").join(file), module(depends)).unwrap();
        }
        tree
    }

    fn names(modules: &[Module]) -> Vec<&str> {
        modules.iter().map(|module| module.name.as_str()).collect()
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let tree =
            tree(&[("virtio-a.ko", "ring,base"), ("ring.ko", "base"), ("base.ko", ""), ("other.ko", "")], "");
        assert_eq!(
            names(&closure(tree.path(), &["virtio_a", "ring"], &["absent"]).unwrap()),
            ["base", "ring", "virtio_a"]
        );
    }

    #[test]
    fn bytes_that_are_no_module_depend_on_nothing() {
        let whole = module("base");
        assert_eq!(dependencies(&whole), ["base"]);
        for length in 0..whole.len() {
            assert_eq!(dependencies(&whole[..length]), Vec::<String>::new(), "{length}");
        }
    }

    #[test]
    fn what_is_built_in_is_not_loaded() {
        let tree = tree(&[("net.ko", "virtio-pci")], "kernel/drivers/virtio/virtio_pci.ko\n");
        assert_eq!(names(&closure(tree.path(), &["net", "virtio_pci"], &[]).unwrap()), ["net"]);
    }

    #[test]
    fn a_missing_module_is_named() {
        let tree = tree(&[("net.ko", "gone")], "");
        let error = closure(tree.path(), &["net"], &[]).unwrap_err().to_string();
        assert!(error.contains(" have no gone, which the guest needs"), "{error}");
    }

    #[test]
    fn compressed_modules_are_opened() {
        let tree = tree(&[], "");
        let image = module("");
        fs::write(tree.path().join("kernel/a.ko.xz"), PACKED).unwrap();
        let packed = ruzstd::encoding::compress_to_vec(
            image.as_slice(),
            ruzstd::encoding::CompressionLevel::Uncompressed,
        );
        fs::write(tree.path().join("kernel/b.ko.zst"), packed).unwrap();
        let found = closure(tree.path(), &["a"], &["b"]).unwrap();
        assert!(found.iter().all(|module| module.image == image));
        assert_eq!(found.len(), 2);
        fs::write(tree.path().join("kernel/c.ko.xz"), b"not xz").unwrap();
        let error = closure(tree.path(), &["c"], &[]).unwrap_err().to_string();
        assert!(error.starts_with("cannot decompress "), "{error}");
    }
}
