//! Types for the stored kernels, whose own were not stored: prototypes of a few shapes, given to
//! functions in their order.

use kprobed_host::kernel::btf::{Btf, TypeId};
use kprobed_host::samples::BtfWriter;

/// Names of parameters, good ones for some functions.
pub(crate) const PARAMETERS: [&str; 10] =
    ["path", "flags", "how", "task", "fmt", "uid", "large", "two", "a0", "sa"];

/// The files of `/sys/kernel/btf`.
pub(crate) fn of_kernel(functions: &[String]) -> Vec<(&'static str, Vec<u8>)> {
    let types = vmlinux(functions).finish();
    let Ok(base) = Btf::parse(types.clone()) else { return Vec::new() };
    let mut module = BtfWriter::on_top_of(&base);
    let Some(inode) = base.types().flatten().find(|ty| ty.name == "inode").map(|ty| ty.id) else {
        return Vec::new();
    };
    let pointer = module.pointer(inode);
    module.function("virtrng_scan", TypeId(1), &[("inode", pointer), ("a0", TypeId(1))]);
    module.function("remove_common", TypeId(1), &[("inode", pointer), ("a0", TypeId(1))]);
    vec![("vmlinux", types), ("virtio_rng", module.finish())]
}

fn vmlinux(functions: &[String]) -> BtfWriter {
    let mut w = BtfWriter::default();
    let int = w.int("int", 4, true);
    let u32 = w.int("unsigned int", 4, false);
    let u64 = w.int("long unsigned int", 8, false);
    w.pointer(int);
    w.int("_Bool", 1, false);
    let u8 = w.int("unsigned char", 1, false);
    let const_u8 = w.modifier(10, "", u8);
    let char = w.int("char", 1, false);
    let name = w.pointer(const_u8);
    let text = w.pointer(char);
    let inode = w.structure("inode", 16, &[("i_ino", u64, 64, 0)]);
    let inode = w.pointer(inode);
    let opaque = w.raw("secret", 7, 0, 0, &[]);
    let opaque = w.pointer(opaque);
    let qstr = w.structure("qstr", 16, &[("hash", u32, 0, 0), ("len", u32, 32, 0), ("name", name, 64, 0)]);
    let dentry = w.structure(
        "dentry",
        64,
        &[("d_inode", inode, 0, 0), ("d_name", qstr, 128, 0), ("d_fsdata", opaque, 320, 0)],
    );
    let dentry = w.pointer(dentry);
    let path = w.structure("path", 16, &[("mnt", opaque, 0, 0), ("dentry", dentry, 64, 0)]);
    let path = w.pointer(path);
    let comm = w.array(char, 16);
    let table = w.array(u64, 100);
    let members = [
        ("flag", u32, 32, 1),
        ("level", u32, 45, 6),
        ("comm", comm, 128, 0),
        ("table", table, 512, 0),
        ("name", name, 7168, 0),
    ];
    let task = w.structure("task_struct", 1024, &members);
    let task = w.pointer(task);
    let kuid = w.structure("kuid", 4, &[("val", u32, 0, 0)]);
    let two = w.structure("two", 16, &[("a", u64, 0, 0), ("b", u64, 64, 0)]);
    let large = w.structure("large", 24, &[("a", u64, 0, 0), ("b", u64, 64, 0), ("c", u64, 128, 0)]);
    let long: Vec<String> = (0..6).map(|n| format!("parameter_with_a_rather_long_name_{n}")).collect();
    let long: Vec<(&str, TypeId)> = long.iter().map(|name| (name.as_str(), u64)).collect();
    for (index, function) in functions.iter().enumerate() {
        match index % 9 {
            0 => w.function(function, int, &[("path", path), ("flags", u32), ("how", text)]),
            1 => w.function(function, task, &[("task", task)]),
            2 => w.function(function, TypeId::VOID, &[]),
            3 => w.function(function, int, &[("fmt", text), ("", TypeId::VOID)]),
            4 => w.function(function, u64, &[("uid", kuid), ("large", large), ("two", two), ("task", task)]),
            5 => {
                w.function(function, int, &[("path", path)]);
                w.function(function, int, &[("flags", u64)])
            }
            6 => w.function(function, int, &[("a0", int), ("sa", u64), ("path", path)]),
            7 => w.function(function, int, &long),
            _ => continue,
        };
    }
    w
}
