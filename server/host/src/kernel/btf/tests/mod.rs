//! Round trips and malformed files of BTF.

mod properties;
mod real;
pub(crate) use std::sync::Arc;

use super::{Btf, BtfError, KernelTypes, Kind, TypeId};
use crate::samples::BtfWriter;

/// Some types as the kernel has them.
fn sample() -> (BtfWriter, TypeId) {
    let mut w = BtfWriter::default();
    let int = w.int("int", 4, true);
    let char = w.int("char", 1, false);
    let const_char = w.modifier(10, "", char);
    let text = w.pointer(const_char);
    let qstr = w.structure("qstr", 16, &[("hash_len", int, 0, 0), ("name", text, 64, 0)]);
    let inner = w.union("", 8, &[("d_inode", text), ("d_next", int)]);
    let comm = w.array(char, 16);
    let dentry = w.structure(
        "dentry",
        64,
        &[
            ("flag", int, 0, 3),
            ("state", int, 3, 5),
            ("", inner, 64, 0),
            ("d_name", qstr, 128, 0),
            ("comm", comm, 256, 0),
        ],
    );
    let alias = w.typedef("dentry_t", dentry);
    let pointer = w.pointer(alias);
    let callback = w.prototype(TypeId::VOID, &[("", pointer), ("", int)]);
    let callback = w.pointer(callback);
    w.function("walk", int, &[("dentry", pointer), ("name", text), ("done", callback), ("", TypeId::VOID)]);
    w.function("again", TypeId::VOID, &[]);
    (w, dentry)
}

#[test]
fn types_are_read_as_written() {
    let (writer, dentry) = sample();
    let btf = Btf::parse(writer.finish()).unwrap();
    assert_eq!(btf.functions.len(), 2);
    let walk = btf.functions("walk").next().unwrap();
    let prototype = btf.prototype(walk).unwrap();
    assert_eq!(
        btf.prototype_text(&prototype, "walk").unwrap(),
        "int walk(dentry_t *dentry, const char *name, void (*done)(dentry_t *, int), ...)"
    );
    let again = btf.prototype(btf.functions("again").next().unwrap()).unwrap();
    assert_eq!(btf.prototype_text(&again, "again").unwrap(), "void again(void)");
    assert_eq!(btf.functions("wal").count() + btf.functions("walks").count(), 0);

    let Kind::Composite(composite) = btf.resolved(dentry).unwrap().kind else { panic!() };
    let at = |name: &str| btf.member(composite, name).unwrap().map(|at| (at.bit_offset, at.member.bits));
    assert_eq!(at("flag"), Some((0, Some(3))));
    assert_eq!(at("state"), Some((3, Some(5))));
    assert_eq!(at("d_name"), Some((128, None)));
    assert_eq!(at("d_next"), Some((64, None)), "a member of an anonymous union");
    assert_eq!(at("name"), None, "a member of a member");
    assert_eq!(at(""), None);
    let comm = btf.member(composite, "comm").unwrap().unwrap().member.ty;
    assert_eq!(btf.declaration(comm, "comm").unwrap(), "char comm[16]");
    assert_eq!(btf.size(comm).unwrap(), Some(16));
    assert_eq!(btf.size(TypeId::VOID).unwrap(), None);
}

#[test]
fn enumerators_have_their_values() {
    const SIGNED: u32 = 1 << 31;
    let mut w = BtfWriter::default();
    let [a, b] = ["A", "B"].map(|name| w.name(name));
    let signed = w.raw("signed", 6, SIGNED | 2, 4, &[a, u32::MAX, b, 1]);
    let unsigned = w.raw("unsigned", 6, 1, 4, &[a, u32::MAX]);
    let wide = w.raw("wide", 19, 2, 8, &[a, 1, 2, b, u32::MAX, u32::MAX]);
    let lost = w.raw("lost", 6, 1, 4, &[12345, 0]);
    let btf = Btf::parse(w.finish()).unwrap();
    let values = |ty: TypeId| {
        let Kind::Enum { values, .. } = btf.resolved(ty).unwrap().kind else { panic!() };
        values.iter().collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(values(signed).unwrap(), [(-1, "A"), (1, "B")]);
    assert_eq!(values(unsigned).unwrap(), [(0xffff_ffff, "A")]);
    assert_eq!(values(wide).unwrap(), [((2 << 32) + 1, "A"), (-1, "B")]);
    assert_eq!(values(lost).unwrap_err(), BtfError::NoSuchName { offset: 12345 });
}

#[test]
fn modules_go_on_where_the_kernel_ends() {
    let (writer, dentry) = sample();
    let base = Arc::new(Btf::parse(writer.finish()).unwrap());
    let mut module = BtfWriter::on_top_of(&base);
    let pointer = module.pointer(dentry);
    module.function("ext4_lookup", TypeId(1), &[("dentry", pointer)]);
    let split = Btf::parse_split(module.finish(), Arc::clone(&base)).unwrap();
    let function = split.functions("ext4_lookup").next().unwrap();
    let prototype = split.prototype(function).unwrap();
    assert_eq!(
        split.prototype_text(&prototype, "ext4_lookup").unwrap(),
        "int ext4_lookup(struct dentry *dentry)"
    );
    assert_eq!(split.functions("walk").count(), 0, "functions of the kernel are requested there");
    assert_eq!(split.types().count(), 3);
}

#[test]
fn bad_files_are_refused_with_the_place() {
    let (writer, _) = sample();
    let good = writer.finish();
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        Btf::parse(bytes).unwrap_err()
    };
    let message = |change: &dyn Fn(&mut Vec<u8>)| refused(change).to_string();
    assert_eq!(message(&|bytes| bytes.truncate(23)), "not BTF: 23 bytes are shorter than the header");
    assert_eq!(message(&|bytes| bytes[0] = 0), "not BTF: the magic is 0xeb00, not 0xeb9f");
    assert_eq!(message(&|bytes| bytes[2] = 2), "BTF version 2 is not supported, only version 1");
    let cut = message(&|bytes| bytes.truncate(200));
    assert!(cut.starts_with("the type section of ") && cut.ends_with(" does not fit the file"), "{cut}");
    let unclosed = message(&|bytes| *bytes.last_mut().unwrap() = b'x');
    assert!(unclosed.starts_with("the string section at offset "), "{unclosed}");
    // The kind of the first type.
    assert_eq!(
        refused(&|bytes| bytes[24 + 7] = 20),
        BtfError::UnknownKind { id: TypeId(1), offset: 24, kind: 20 }
    );
    // A structure with more members than the file has bytes.
    assert_eq!(
        refused(&|bytes| (bytes[28], bytes[29], bytes[31]) = (0xff, 0xff, 4)),
        BtfError::CutOff { id: TypeId(1), offset: 24 }
    );
}

#[test]
fn loops_end() {
    let mut w = BtfWriter::default();
    // Two that are each other: const -> volatile -> const; an array of itself; a structure in
    // itself.
    w.modifier(10, "", TypeId(2));
    w.modifier(9, "", TypeId(1));
    w.array(TypeId(3), u32::MAX);
    w.structure("", 8, &[("", TypeId(4), 0, 0)]);
    w.pointer(TypeId(5));
    w.pointer(TypeId(99));
    let btf = Btf::parse(w.finish()).unwrap();
    assert_eq!(btf.resolved(TypeId(1)).unwrap_err(), BtfError::TooDeep { id: TypeId(1) });
    assert!(matches!(btf.size(TypeId(3)).unwrap_err(), BtfError::TooDeep { .. }));
    let Kind::Composite(itself) = btf.ty(TypeId(4)).unwrap().kind else { panic!() };
    assert!(matches!(btf.member(itself, "x").unwrap_err(), BtfError::TooDeep { .. }));
    assert!(matches!(btf.type_text(TypeId(5)).unwrap_err(), BtfError::TooDeep { .. }));
    assert_eq!(btf.type_text(TypeId(6)).unwrap_err(), BtfError::NoSuchType { id: TypeId(99) });
}

/// Functions whose parameters are functions, 12 of them at each of 14 levels: 12^14 words.
#[test]
fn texts_have_an_end() {
    let mut w = BtfWriter::default();
    let mut ty = w.int("int", 4, true);
    for _ in 0..14 {
        ty = w.prototype(TypeId(1), &[("", ty); 12]);
    }
    w.raw("deep", 12, 0, ty.0, &[]);
    let btf = Btf::parse(w.finish()).unwrap();
    assert!(matches!(btf.type_text(ty).unwrap_err(), BtfError::TooLong { .. }));
    let prototype = btf.prototype(btf.functions("deep").next().unwrap()).unwrap();
    assert!(matches!(btf.prototype_text(&prototype, "deep").unwrap_err(), BtfError::TooLong { .. }));
    assert!(btf.declaration(TypeId(1), &"x".repeat(1 << 20)).is_err(), "a name counts as well");
}

#[test]
fn files_are_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let btf = directory.path().join("kernel/btf");
    std::fs::create_dir_all(&btf).unwrap();
    let types = KernelTypes::new(directory.path());
    assert!(!types.available());
    let (writer, _) = sample();
    std::fs::write(btf.join("vmlinux"), writer.finish()).unwrap();
    assert!(types.available());
    let vmlinux = types.vmlinux().unwrap();
    let mut module = BtfWriter::on_top_of(&vmlinux);
    module.function("of_module", TypeId(1), &[]);
    std::fs::write(btf.join("ext4"), module.finish()).unwrap();
    assert_eq!(types.module("ext4").unwrap().functions.len(), 1);
    assert!(types.module("xfs").unwrap_err().to_string().starts_with("cannot read `"));
    for no_module in ["vmlinux", "../btf/ext4", "."] {
        assert!(types.module(no_module).is_err(), "{no_module}");
    }
    // A new version of the module is seen when modules have changed; the kernel's own types are not
    // read again.
    module.function("of_module_too", TypeId(1), &[]);
    std::fs::write(btf.join("ext4"), module.finish()).unwrap();
    std::fs::remove_file(btf.join("vmlinux")).unwrap();
    assert_eq!(types.module("ext4").unwrap().functions.len(), 1);
    assert_eq!(types.without_modules().module("ext4").unwrap().functions.len(), 2);
}
