//! Types of real kernels: files `*.vmlinux` in the directory that `KPROBED_BTF_DIRECTORY` names,
//! copies of `/sys/kernel/btf/vmlinux`.

use std::path::PathBuf;

use super::super::{Btf, Kind};

/// Files that hold the types of a whole kernel.
fn kernels() -> Vec<PathBuf> {
    let directory = std::env::var_os("KPROBED_BTF_DIRECTORY").expect("KPROBED_BTF_DIRECTORY is not set");
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|end| end == "vmlinux"));
    assert!(!found.is_empty(), "no files of kernels");
    found
}

#[test]
#[ignore = "needs copies of /sys/kernel/btf/vmlinux"]
fn every_function_of_a_kernel_can_be_described() {
    for path in kernels() {
        let btf = Btf::parse(std::fs::read(&path).unwrap()).unwrap();
        assert!(btf.functions.len() > 10_000, "{}", path.display());
        let mut described = 0;
        for ty in btf.types() {
            let ty = ty.unwrap();
            btf.type_text(ty.id).unwrap();
            if let Kind::Function(_) = ty.kind {
                let prototype = btf.prototype(ty.id).unwrap();
                btf.prototype_text(&prototype, ty.name).unwrap();
                for parameter in prototype.parameters() {
                    btf.size(parameter.unwrap().ty).unwrap();
                }
                described += 1;
            }
        }
        assert_eq!(described, btf.functions.len(), "{}", path.display());
        let held_bytes = btf.bytes.capacity() + 4 * (btf.offsets.capacity() + btf.functions.capacity());
        assert!(held_bytes < 16 << 20, "{held_bytes} bytes for {}", path.display());
    }
}
