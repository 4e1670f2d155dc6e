//! Tests of name resolution: what names and types become, and how they are refused.

use std::fs;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;

use crate::validate::check;
use crate::validate::typed::{Resolution, describe_function, has_parameter, resolve};
use kprobed_host::kernel::btf::{Btf, TypeId};
use kprobed_host::kernel::{KernelFacts, KernelPaths};
use kprobed_host::samples::BtfWriter;
use kprobed_host::samples::core;
use kprobed_lang::definition::{Definition, Diagnostic, Features, parse};

const SYMBOLS: &str = "\
ffffffff81000000 T _stext
ffffffff81000000 T vfs_open
ffffffff81000010 T task_look
ffffffff81000020 T nothing
ffffffff81000030 T printk
ffffffff81000040 T by_value
ffffffff81000050 t twice
ffffffff81000060 t vfs_open.isra.0
ffffffff81000068 t load_phdrs
ffffffff8100006c t load_phdrs
ffffffff81000070 T asm_entry
ffffffff81000080 T __x64_sys_close
ffffffff81000090 t lost.constprop.0.isra.0
ffffffff810000a0 t kept.cold
ffffffff810000a8 T read_file
ffffffff810000b0 T _etext
ffffffff810000b0 d event_enter__close
ffffffff810000c0 T _end
ffffffffc0000000 t ext4_open\t[ext4]
";

/// The README of a kernel that resolves names by itself, and that of one that does not.
pub(crate) const NATIVE: &str =
    "f[:[<group> <argname>[->field kernel return probes support %pd/%pD char, string ustring symstr";
pub(crate) const OTHER: &str = "char, string ustring symstr";

const CALL_SITES: &str = "\
ffffffff81000000 vfs_open
ffffffff81000010 task_look
ffffffff81000040 by_value
ffffffff81000080 __x64_sys_close
ffffffff81000090 lost.constprop.0.isra.0
ffffffff810000a0 kept.cold
ffffffffc0000000 ext4_open [ext4]
";

/// How the kernel describes the event of a system call.
const CLOSE: &str = "\
name: sys_enter_close
format:
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:int __syscall_nr;	offset:8;	size:4;	signed:1;
	field:unsigned int fd;	offset:16;	size:8;	signed:0;
	field:const char * name;	offset:24;	size:8;	signed:0;

print fmt: \"fd: 0x%08lx\"
";

pub(crate) struct Kernel {
    pub(super) facts: KernelFacts,
    pub(crate) features: Features,
    pub(crate) paths: KernelPaths,
    _directory: TempDir,
}

fn vmlinux() -> BtfWriter {
    let mut w = BtfWriter::default();
    let int = w.int("int", 4, true);
    let u32 = w.int("unsigned int", 4, false);
    let u64 = w.int("long unsigned int", 8, false);
    w.pointer(int);
    let bool = w.int("_Bool", 1, false);
    let u8 = w.int("unsigned char", 1, false);
    let const_u8 = w.modifier(10, "", u8);
    // As in real kernels, by chance: type number 8.
    let char = w.int("char", 1, false);
    assert_eq!(char, TypeId(8));
    let name = w.pointer(const_u8);
    let text = w.pointer(char);
    let inode = w.structure("inode", 16, &[("i_ino", u64, 64, 0)]);
    let inode = w.pointer(inode);
    let opaque = w.raw("secret", 7, 0, 0, &[]);
    let opaque = w.pointer(opaque);
    let qstr_hash = w.structure("", 8, &[("hash", u32, 0, 0), ("len", u32, 32, 0)]);
    let qstr_union = w.union("", 8, &[("", qstr_hash), ("hash_len", u64)]);
    let qstr = w.structure("qstr", 16, &[("", qstr_union, 0, 0), ("name", name, 64, 0)]);
    // A directory entry points to another one.
    let dentry = w.pointer(TypeId(qstr.0 + 2));
    let entry = w.structure(
        "dentry",
        64,
        &[
            ("d_inode", inode, 0, 0),
            ("d_name", qstr, 128, 0),
            ("d_parent", dentry, 256, 0),
            ("d_fsdata", opaque, 320, 0),
        ],
    );
    assert_eq!(entry.0, qstr.0 + 2);
    let fs_type = w.structure("file_system_type", 8, &[("name", text, 0, 0)]);
    let fs_type = w.pointer(fs_type);
    let super_block = w.structure("super_block", 48, &[("s_type", fs_type, 320, 0)]);
    let super_block = w.pointer(super_block);
    let vfsmount = w.structure("vfsmount", 16, &[("mnt_root", dentry, 0, 0), ("mnt_sb", super_block, 64, 0)]);
    let mnt = w.pointer(vfsmount);
    let mount = w.pointer(TypeId(mnt.0 + 2));
    let of_mount =
        [("mnt_parent", mount, 128, 0), ("mnt_mountpoint", dentry, 192, 0), ("mnt", vfsmount, 256, 0)];
    let mount = w.structure("mount", 64, &of_mount);
    assert_eq!(mount.0, mnt.0 + 2);
    let whole_path = w.structure("path", 16, &[("mnt", mnt, 0, 0), ("dentry", dentry, 64, 0)]);
    let const_path = w.modifier(10, "", whole_path);
    let path = w.pointer(const_path);
    let file = w.structure("file", 32, &[("f_path", whole_path, 128, 0)]);
    let file = w.pointer(file);
    w.function("read_file", file, &[("file", file), ("entry", dentry), ("count", u64)]);
    w.function("vfs_open", int, &[("path", path), ("flags", u32), ("how", text)]);

    let counter = w.structure("", 4, &[("counter", int, 0, 0)]);
    let atomic = w.typedef("atomic_t", counter);
    let comm = w.array(char, 16);
    let numbers = w.array(u32, 3);
    let table = w.array(u64, 100);
    let pair = w.structure("pair", 8, &[("a", int, 0, 0), ("b", int, 32, 0)]);
    let state = w.raw("state", 6, 0, 4, &[]);
    let task = w.structure(
        "task_struct",
        1024,
        &[
            ("flag", u32, 32, 1),
            ("level", u32, 45, 6),
            ("usage", atomic, 64, 0),
            ("comm", comm, 128, 0),
            ("numbers", numbers, 256, 0),
            ("table", table, 512, 0),
            ("pair", pair, 384, 0),
            ("state", state, 448, 0),
            ("on_cpu", bool, 480, 0),
            ("name", name, 7168, 0),
        ],
    );
    let task_pointer = w.pointer(task);
    w.function("task_look", task_pointer, &[("task", task_pointer)]);
    w.function("nothing", TypeId::VOID, &[]);
    w.function("printk", int, &[("fmt", text), ("", TypeId::VOID)]);
    let kuid = w.structure("kuid", 4, &[("val", u32, 0, 0)]);
    let two = w.structure("two", 16, &[("a", u64, 0, 0), ("b", u64, 64, 0)]);
    let large = w.structure("large", 24, &[("a", u64, 0, 0), ("b", u64, 64, 0), ("c", u64, 128, 0)]);
    w.function("by_value", u64, &[("uid", kuid), ("large", large), ("two", two), ("last", task_pointer)]);
    w.function("twice", int, &[("a", int)]);
    w.function("twice", int, &[("b", u64)]);
    w.function("load_phdrs", int, &[("elf_ex", task_pointer)]);
    let registers = ["di", "si", "dx", "r10", "r8", "r9"];
    let registers: Vec<_> = (0..).step_by(64).zip(registers).map(|(at, name)| (name, u64, at, 0)).collect();
    let registers = w.structure("pt_regs", 48, &registers);
    let registers = w.modifier(10, "", registers);
    let registers = w.pointer(registers);
    w.function("__x64_sys_close", u64, &[("regs", registers)]);
    w.structure("close", 4, &[("fd", u32, 0, 0)]);
    w
}

pub(crate) fn kernel(readme: &str) -> Kernel {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    let types = vmlinux().finish();
    let base = Btf::parse(types.clone()).unwrap();
    let mut module = BtfWriter::on_top_of(&base);
    // The pointer to `struct inode` of the kernel.
    let inode = base.types().flatten().find(|ty| ty.name == "inode").unwrap().id;
    let pointer = module.pointer(inode);
    module.function("ext4_open", TypeId(1), &[("inode", pointer), ("a0", TypeId(1))]);
    file("kernel/btf/vmlinux", &types);
    file("kernel/btf/ext4", &module.finish());
    file("kallsyms", SYMBOLS.as_bytes());
    file("available_filter_functions_addrs", CALL_SITES.as_bytes());
    file("events/syscalls/sys_enter_close/format", CLOSE.as_bytes());
    file("README", readme.as_bytes());
    file("kcore", &core(&[(0xffff_ffff_8100_0000, vec![0x90; 0x100])]));
    let root = || directory.path().to_owned();
    let paths = KernelPaths { procfs: root(), sysfs: root(), debugfs: root(), tracefs: root() };
    let facts = KernelFacts::read(&paths).unwrap();
    let features = Features::from_readme(readme).with_types(true);
    Kernel { facts, features, paths, _directory: directory }
}

impl Kernel {
    pub(super) fn resolve(&self, text: &str) -> Result<Resolution, Vec<Diagnostic>> {
        match parse(text, &self.features)? {
            Definition::Probe(definition) => resolve(&definition, &self.facts, &self.features),
            Definition::Delete(_) => unreachable!("{text}"),
        }
    }

    /// The arguments of the line for the kernel.
    pub(super) fn args(&self, text: &str) -> String {
        let resolution = self.resolve(text).unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
        let line = resolution.definition.with_explicit_names().render("g", "e");
        line.splitn(3, ' ').nth(2).unwrap_or_default().to_owned()
    }

    fn warnings(&self, text: &str) -> Vec<&'static str> {
        self.resolve(text).unwrap().definition.warnings.iter().map(|warning| warning.code.name()).collect()
    }

    /// Checks code and place (the `^` in `marked`) of the first problem; returns its hint.
    pub(super) fn refused(&self, marked: &str, code: &str) -> String {
        let caret = marked.find('^').unwrap();
        let text = marked.replacen('^', "", 1);
        let problems = self.resolve(&text).unwrap_err();
        let problem = &problems[0];
        assert_eq!((problem.code.name(), problem.span.start), (code, caret), "{text}: {problem:?}");
        problem.hint.clone().unwrap_or_default()
    }
}

#[test]
fn a_place_at_a_distance_is_known_by_its_function() {
    for readme in [NATIVE, OTHER] {
        let kernel = kernel(readme);
        let problem = kernel.resolve("p _stext+104 n=elf_ex->e_phnum").unwrap_err().remove(0);
        assert_eq!(problem.code.name(), "NO_BTF_ENTRY");
        assert!(problem.message.contains("`_stext+104` is one of 2 functions `load_phdrs`"), "{problem:?}");
        assert_eq!(
            kernel.refused("p _stext+16 ^task->comm", "NO_BTF_ENTRY"),
            "write `task_look`: the probe point is its entry"
        );
        let described = describe_function("load_phdrs", None, &kernel.facts).unwrap();
        assert_eq!((described.same_name, described.other_prototypes.len()), (2, 0));
        for (place, told) in [
            ("_stext+104", "load_phdrs+0x0 (_stext+104)"),
            ("_stext+109", "load_phdrs+0x1 (_stext+108)"),
            ("_stext+16", "task_look+0x0"),
        ] {
            let Ok(Definition::Probe(definition)) = parse(&format!("p {place}"), &kernel.features) else {
                panic!()
            };
            assert_eq!(check(&definition, &kernel.facts).told_location(), told);
        }
    }
}

#[test]
fn names_become_offsets_on_every_kernel() {
    for readme in [NATIVE, OTHER] {
        let kernel = kernel(readme);
        for (text, args) in [
            ("p vfs_open flags", "flags=$arg2:u32"),
            ("p vfs_open x=path", "x=$arg1:x64"),
            ("p vfs_open ino=path->dentry->d_inode->i_ino", "ino=+8(+0(+8($arg1))):u64"),
            ("p vfs_open n=path->dentry->d_name.name:string", "n=+0(+24(+8($arg1))):string"),
            ("p vfs_open n=path->dentry->d_name.len", "n=+20(+8($arg1)):u32"),
            ("p vfs_open path->dentry->d_name.hash_len:x64", "hash_len=+16(+8($arg1)):x64"),
            ("p vfs_open how:string", "how=+0($arg3):string"),
            ("p vfs_open how:ustring", "how=+0($arg3):ustring"),
            ("p vfs_open +0(+8(path)):x32 y=+4(path):string", "arg1=+0(+8($arg1)):x32 y=+4($arg1):string"),
            ("p vfs_open %di $comm x=$arg1", "arg1=%di arg2=$comm x=$arg1"),
            ("p vfs_open $arg*", "path=$arg1:x64 flags=$arg2:u32 how=$arg3:x64"),
            ("p vfs_open %ax $arg* %bx", "arg1=%ax path=$arg1:x64 flags=$arg2:u32 how=$arg3:x64 arg5=%bx"),
            ("p ext4_open inode->i_ino", "i_ino=+8($arg1):u64"),
            // Nothing to resolve.
            ("p asm_entry x=$arg1 %di", "x=$arg1 arg2=%di"),
        ] {
            assert_eq!(kernel.args(text), args, "{text}");
        }
    }
}

#[test]
fn default_types_say_what_is_there() {
    let kernel = kernel(OTHER);
    for (member, shown) in [
        ("flag", "+4($arg1):b1@0/32"),
        ("level", "+4($arg1):b6@13/32"),
        ("usage", "+8($arg1):s32"),
        ("usage.counter", "+8($arg1):s32"),
        ("comm", "+16($arg1):string"),
        ("numbers", "+32($arg1):u32[3]"),
        ("table", "+64($arg1):u64[64]"),
        ("pair", "+48($arg1):x64"),
        ("state", "+56($arg1):s32"),
        ("on_cpu", "+60($arg1):u8"),
        ("name", "+896($arg1):x64"),
        ("comm:u8[4]", "+16($arg1):u8[4]"),
        ("name:string", "+0(+896($arg1)):string"),
    ] {
        assert_eq!(kernel.args(&format!("p task_look x=task->{member}")), format!("x={shown}"), "{member}");
    }
    assert_eq!(kernel.warnings("p task_look task->table"), ["PART_OF_VALUE"]);
    assert_eq!(kernel.warnings("p task_look task->level:u8"), ["PART_OF_VALUE"], "the whole byte is read");
    assert_eq!(kernel.warnings("p task_look task->level task->comm task"), [""; 0]);
    assert_eq!(kernel.args("r task_look $retval->comm c=$retval"), "comm=+16($retval):string c=$retval:x64");
}

#[test]
fn members_are_named_after_themselves() {
    for kernel in [kernel(NATIVE), kernel(OTHER)] {
        for (text, args) in [
            ("p task_look task->usage", "usage=+8($arg1):s32"),
            ("p task_look task->usage.counter task->pair.a", "counter=+8($arg1):s32 a=+48($arg1):s32"),
            (
                "p task_look task->pair.a usage=%di task->usage",
                "a=+48($arg1):s32 usage=%di arg3=+8($arg1):s32",
            ),
            ("p task_look task->usage x=%di task->usage", "arg1=+8($arg1):s32 x=%di arg3=+8($arg1):s32"),
            ("p vfs_open path->dentry->d_inode->i_ino flags", "i_ino=+8(+0(+8($arg1))):u64 flags=$arg2:u32"),
        ] {
            assert_eq!(kernel.args(text), args, "{text}");
        }
    }
}

#[test]
fn an_element_of_an_array_is_a_value() {
    for kernel in [kernel(NATIVE), kernel(OTHER)] {
        for (text, args) in [
            ("p task_look task->numbers[0]", "numbers=+32($arg1):u32"),
            ("p task_look n=task->numbers[2]:x32", "n=+40($arg1):x32"),
            ("p task_look task->table[99]", "table=+856($arg1):u64"),
            ("p task_look task->comm[1]:char", "comm=+17($arg1):char"),
        ] {
            assert_eq!(kernel.args(text), args, "{text}");
        }
        let hint = kernel.refused("p task_look task->^numbers[3]", "NO_BTF_FIELD");
        assert_eq!(hint, "its elements are [0] to [2]");
        let hint = kernel.refused("p task_look task->^usage[0]", "NO_BTF_FIELD");
        assert_eq!(hint, "write `usage` without an index");
        let hint = kernel.refused("p task_look task->^name[0]", "NO_BTF_FIELD");
        assert_eq!(hint, "follow the pointer: NAME=+OFFSET(...name):TYPE");
        for index in ["", "01", "+1", "x", "0x1", "1][", "4294967296"] {
            let hint = kernel.refused(&format!("p task_look task->^numbers[{index}]"), "NO_BTF_FIELD");
            assert_eq!(hint, "an element of an array is `MEMBER[INDEX]`, with a decimal number", "{index}");
        }
    }
}

#[test]
fn kernels_that_know_names_give_types_to_numbers_too() {
    let (native, other) = (kernel(NATIVE), kernel(OTHER));
    for (text, args, elsewhere) in [
        ("p vfs_open $arg2", "flags=$arg2:u32", "arg1=$arg2"),
        ("p vfs_open $arg3:string", "how=+0($arg3):string", ""),
        ("p vfs_open x=$arg2 +0($arg1)", "x=$arg2 arg2=+0($arg1)", "x=$arg2 arg2=+0($arg1)"),
        ("p nothing $arg1", "arg1=$arg1", "arg1=$arg1"),
        ("p asm_entry $arg1", "arg1=$arg1", "arg1=$arg1"),
        ("r vfs_open $retval x=$retval:x8", "arg1=$retval:s32 x=$retval:x8", "arg1=$retval:s32 x=$retval:x8"),
        ("r nothing x=%ax +0($retval)", "", "x=%ax arg2=+0($retval)"),
        ("r nothing $retval", "", "arg1=$retval"),
        ("r asm_entry $retval", "arg1=$retval", "arg1=$retval"),
    ] {
        if !args.is_empty() {
            assert_eq!(native.args(text), args, "{text}");
        }
        if !elsewhere.is_empty() {
            assert_eq!(other.args(text), elsewhere, "{text}");
        }
    }
    assert_eq!(native.args("r vfs_open flags $retval"), "flags=$arg2:u32 arg2=$retval:s32");
    // The kernel would look up `ext4:ext4_open` in its types, and finds nothing.
    native.refused("p ext4:ext4_open ^inode", "NO_BTF_ENTRY");
    assert_eq!(other.args("p ext4:ext4_open inode"), "inode=$arg1:x64");
}

#[test]
fn refusals_are_those_of_the_kernel() {
    let native = kernel(NATIVE);
    for (marked, code) in [
        ("p vfs_open ^hoge", "NO_BTFARG"),
        ("p vfs_open x=^hoge", "NO_BTFARG"),
        ("p vfs_open +0(^hoge)", "NO_BTFARG"),
        ("p vfs_open ^$arg4", "NO_BTFARG"),
        ("p vfs_open path->^hoge", "NO_BTF_FIELD"),
        ("p vfs_open path->dentry->d_name.^hoge", "NO_BTF_FIELD"),
        ("p vfs_open flags->^a", "NO_PTR_STRCT"),
        ("p vfs_open path->dentry->d_name->^len", "NO_PTR_STRCT"),
        ("p vfs_open how->^x", "BAD_BTF_TID"),
        ("p vfs_open path->dentry->d_fsdata->^x", "BAD_BTF_TID"),
        ("p vfs_open path->dentry.^x", "BAD_BTF_TID"),
        ("p vfs_open ^flags:string", "BAD_TYPE4STR"),
        ("p vfs_open ^path:string", "BAD_TYPE4STR"),
        ("p nothing ^x", "NO_BTF_ENTRY"),
        ("p asm_entry $arg1:^string", "BAD_STRING"),
        ("r asm_entry $retval:^string", "BAD_STRING"),
        ("r vfs_open ^$retval:string", "BAD_TYPE4STR"),
        ("p asm_entry ^x", "NO_BTF_ENTRY"),
        ("p _stext ^x", "NO_BTF_ENTRY"),
        ("r nothing ^$retval", "NO_RETVAL"),
        ("r nothing +8(^$retval)", "NO_RETVAL"),
        ("r asm_entry $retval->^x", "NO_BTF_ENTRY"),
        ("p nothing ^$arg*", "NOSUP_BTFARG"),
        ("p asm_entry ^$arg*", "NOSUP_BTFARG"),
        ("p printk ^$arg*", "NO_ARG_BODY"),
        ("p vfs_open path=%di ^$arg*", "USED_ARG_NAME"),
    ] {
        native.refused(marked, code);
    }
    // It has looked up the types before, and found a function without parameters.
    native.refused("p nothing $arg1 ^x", "NO_BTFARG");
    let words = "$arg1 ".repeat(26).replace("$arg1", "$arg1:x64");
    let long = format!("p vfs_open {}", words.trim_end());
    assert_eq!(native.resolve(&long).unwrap_err()[0].code.name(), "ARGS_2LONG");
}

#[test]
fn hints_offer_names_that_there_are() {
    let kernel = kernel(OTHER);
    let hint = kernel.refused("p vfs_open ^flgs", "NO_BTFARG");
    assert_eq!(hint, "did you mean `flags`? Its parameters are `path`, `flags`, `how`");
    assert_eq!(
        kernel.refused("p vfs_open ^x", "NO_BTFARG"),
        "its parameters are `path`, `flags`, `how`; `kprobectl vars vfs_open` shows its variables, by debug information"
    );
    assert_eq!(
        kernel.refused("p vfs_open ^if", "NO_BTFARG"),
        "a filter does not belong into a definition: give it with `--filter`"
    );
    assert_eq!(kernel.refused("p task_look task->^com", "NO_BTF_FIELD"), "did you mean `comm`?");
    assert_eq!(kernel.refused("p task_look task->^counter", "NO_BTF_FIELD"), "did you mean `usage.counter`?");
    assert_eq!(kernel.refused("p vfs_open path->dentry->^len", "NO_BTF_FIELD"), "did you mean `d_name.len`?");
    let all = kernel.refused("p task_look task->^nonsense", "NO_BTF_FIELD");
    assert!(all.starts_with("its members are `flag`, `level`,") && all.ends_with("and 2 more"), "{all}");
    assert!(kernel.refused("p vfs_open.isra.0 ^path", "NO_BTF_ENTRY").contains("made it from `vfs_open`"));
    assert_eq!(
        kernel.refused("p vfs_open path->dentry->d_name->^len", "NO_PTR_STRCT"),
        "write `.len`: the structure itself is there"
    );
    assert_eq!(
        kernel.refused("p vfs_open ^path:string", "BAD_TYPE4STR"),
        "if it points to a string, write `+0(path):string`"
    );
}

#[test]
fn no_wrong_register_is_read() {
    for readme in [NATIVE, OTHER] {
        let kernel = kernel(readme);
        // `large` is on the stack and takes no register, `two` takes two.
        assert_eq!(kernel.args("p by_value uid last"), "uid=$arg1:u32 last=$arg4:x64");
        assert_eq!(kernel.args("p by_value last->comm"), "comm=+16($arg4):string");
        assert_eq!(kernel.args("p by_value large two"), "large=$arg7:x64 two=$arg2:x64");
        assert_eq!(kernel.warnings("p by_value large two uid"), ["PART_OF_VALUE"; 2]);
        // A number that was written stays the same number.
        assert_eq!(kernel.args("p by_value x=$arg4 uid"), "x=$arg4 uid=$arg1:u32");
    }
}

/// The kernel takes the size of a number for a type that it points to.
#[test]
fn numbers_that_the_kernel_follows_are_followed_with_a_warning() {
    let native = kernel(NATIVE);
    assert_eq!(native.args("r by_value $retval:string"), "arg1=+0($retval):string");
    assert_eq!(native.warnings("r by_value $retval:string"), ["PART_OF_VALUE"]);
    kernel(OTHER).refused("p vfs_open x=^path->dentry->d_name.hash_len:string", "BAD_TYPE4STR");
}

#[test]
fn functions_of_one_name_are_not_mixed_up() {
    assert_eq!(kernel(NATIVE).warnings("p twice a"), ["AMBIGUOUS_TYPES"], "the kernel takes the first");
    let hint = kernel(OTHER).refused("p ^twice a", "NO_BTF_ENTRY");
    assert!(hint.contains("int twice(int a)") && hint.contains("int twice(long unsigned int b)"), "{hint}");
}

#[test]
fn limits_hold_for_what_the_kernel_gets() {
    let kernel = kernel(OTHER);
    let words: Vec<String> = (0..7).map(|index| format!("t{index}=task->table")).collect();
    let text = format!("p task_look {}", words.join(" "));
    let problems = kernel.resolve(&text).unwrap_err();
    assert_eq!(problems[0].code.name(), "EVENT_TOO_BIG");
    assert_eq!(&text[problems[0].span.range()], "task->table", "the expression of the seventh is too much");
}

#[test]
fn parameters_are_known_to_the_dialects() {
    let kernel = kernel(OTHER);
    let has = |function, name| has_parameter(&kernel.facts, None, function, name);
    assert_eq!(has("vfs_open", "path"), Some(true));
    assert_eq!(has("vfs_open", "a0"), Some(false));
    assert_eq!(has("ext4_open", "a0"), Some(true), "of a module");
    assert_eq!(has("asm_entry", "a0"), Some(false), "without types there are no names");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// For any text, the result is a line that means the same when it is parsed again, or problems
    /// at places in the text.
    #[test]
    fn any_names_are_survived(
        words in proptest::collection::vec(
            "(x[0-9]=)?(\\$arg[*0-9]|\\$retval|path|task|flags|how|last|uid|inode)((->|\\.|-)(dentry|d_name|name|comm|table|level|usage|x)(\\[[0-9]{1,2}\\])?){0,3}(:(string|u8|x64|u8\\[3\\]))?",
            0..5),
        function in "(vfs_open|task_look|nothing|printk|by_value|twice|asm_entry|ext4_open|ext4:ext4_open)",
        letter in "[pr]",
    ) {
        thread_local! {
            static KERNELS: [Arc<Kernel>; 2] = [NATIVE, OTHER].map(|readme| Arc::new(kernel(readme)));
        }
        let text = format!("{letter}:g/e {function} {}", words.join(" "));
        for kernel in KERNELS.with(Clone::clone) {
            match kernel.resolve(&text) {
                Ok(resolution) => {
                    let line = resolution.definition.with_explicit_names().render("g", "e");
                    let again = kernel.resolve(&line);
                    prop_assert!(again.is_ok(), "{} {:?}", line, again);
                    let read = again.unwrap().definition.with_explicit_names().render("g", "e");
                    // An untyped `$retval` has the type of the function on kernels that know it.
                    prop_assert_eq!(read, line);
                    for note in &resolution.notes {
                        prop_assert!(!note.path.is_empty() && !note.declaration.is_empty());
                    }
                }
                Err(problems) => {
                    prop_assert!(!problems.is_empty());
                    for problem in problems {
                        prop_assert!(problem.span.end <= text.len() && problem.span.start <= problem.span.end);
                    }
                }
            }
        }
    }
}
