//! Tests of notations: how people write what is recorded, by name and by offset.

use std::collections::BTreeMap;

use kprobed_filter::Notation;
use kprobed_host::kernel::btf::TypeId;
use kprobed_host::samples::BtfWriter;

use super::world::Build;

/// A socket, as far as its members are shown in another way than as numbers.
fn types() -> BtfWriter {
    let mut w = BtfWriter::default();
    let int = w.int("int", 4, true);
    let (u8, u16) = (w.int("unsigned char", 1, false), w.int("short unsigned int", 2, false));
    let (u32, u64) = (w.int("unsigned int", 4, false), w.int("long unsigned int", 8, false));
    let bool = w.int("_Bool", 1, false);
    let long = w.int("long int", 8, true);
    let [be16, be32] = [("__be16", u16), ("__be32", u32)].map(|(name, ty)| w.typedef(name, ty));
    let kernel_dev = w.typedef("__kernel_dev_t", u32);
    let dev = w.typedef("dev_t", kernel_dev);
    let umode = w.typedef("umode_t", u16);
    let [read, write] = ["SHUT_RD", "SHUT_WR"].map(|name| w.name(name));
    let how = w.raw("shutdown", 6, 2, 4, &[read, 0, write, 1]);
    let v4 = w.structure("in_addr", 4, &[("s_addr", be32, 0, 0)]);
    let (bytes, words) = (w.array(u8, 16), w.array(be32, 4));
    let v6 = w.union("", 16, &[("u6_addr8", bytes), ("u6_addr32", words)]);
    let v6 = w.structure("in6_addr", 16, &[("in6_u", v6, 0, 0)]);
    let callback = w.prototype(TypeId::VOID, &[("n", int)]);
    let callback = w.pointer(callback);
    let addresses = w.structure("", 8, &[("daddr", be32, 0, 0), ("rcv", be32, 32, 0)]);
    let addresses = w.union("", 8, &[("pair", u64), ("", addresses)]);
    let doubtful = w.union("", 2, &[("port", be16), ("number", u16)]);
    let counter = w.structure("", 8, &[("counter", long, 0, 0)]);
    let counter = w.typedef("atomic_long_t", counter);
    let statistics = w.array(counter, 4);
    let sock = w.structure(
        "sock",
        128,
        &[
            ("", addresses, 0, 0),
            ("dport", be16, 64, 0),
            ("", doubtful, 80, 0),
            ("v4", v4, 96, 0),
            ("v6", v6, 128, 0),
            ("dev", dev, 256, 0),
            ("mode", umode, 288, 0),
            ("on", bool, 304, 0),
            ("how", how, 320, 0),
            ("ready", callback, 384, 0),
            ("statistics", statistics, 448, 0),
            ("plain", u32, 704, 0),
        ],
    );
    let sock = w.pointer(sock);
    w.function("connect", int, &[("sk", sock), ("how", how), ("dev", dev), ("count", long)]);
    w.function("lookup", sock, &[("mode", umode)]);
    w.function("is_on", bool, &[]);
    w.function("mapped", u32, &[]);
    w.function("opened", long, &[]);
    let regs = w.structure("pt_regs", 168, &[("r10", u64, 448, 0)]);
    let regs = w.pointer(regs);
    w.function("__x64_sys_make", long, &[("regs", regs)]);
    w.function("__do_sys_make", long, &[("dfd", int), ("mode", umode)]);
    let how = w.structure("open_how", 24, &[("flags", u64, 0, 0), ("mode", u64, 64, 0)]);
    let how = w.pointer(how);
    let file = w.structure("file", 16, &[("f_mode", u32, 0, 0), ("f_flags", u32, 32, 0)]);
    let file = w.pointer(file);
    w.function("do_sys_openat2", long, &[("dfd", int), ("how", how), ("file", file)]);
    w.function("do_sys_open", long, &[("dfd", int), ("flags", int)]);
    w.function("__x64_sys_open", long, &[("regs", regs)]);
    w.function("__do_sys_open", long, &[("dfd", int), ("flags", int)]);
    w
}

fn notations(text: &str) -> BTreeMap<String, Notation> {
    let code = vec![0x31, 0xc0, 0xc3];
    let names =
        ["connect", "lookup", "is_on", "mapped", "opened", "in_assembly", "do_sys_open", "do_sys_openat2"];
    let calls = ["__x64_sys_make", "__do_sys_make", "__x64_sys_open", "__do_sys_open"];
    let functions = names.iter().chain(&calls).map(|name| (*name, code.clone())).collect();
    let kernel = Build { id: &[1; 20], types, functions }.boot();
    kernel.know(text).notations().into_iter().collect()
}

/// The kind of each notation, by the name of the field.
fn shown(text: &str) -> String {
    let kind = |notation: &Notation| match notation {
        Notation::Names(names) => {
            names.iter().map(|(number, name)| format!("{number}={name}")).collect::<Vec<_>>().join("|")
        }
        other => format!("{other:?}"),
    };
    let fields = notations(text);
    fields.iter().map(|(name, notation)| format!("{name}:{}", kind(notation))).collect::<Vec<_>>().join(" ")
}

#[test]
fn members_are_written_as_their_types_say() {
    for (text, expected) in [
        ("p connect sk->daddr sk->dport", "daddr:NetworkOrder dport:NetworkOrder"),
        ("p connect sk->dport:x16 n=sk->dport:u32", "dport:NetworkOrder"),
        ("p connect sk->dport:s16", ""),
        ("p connect sk->v4 sk->v6 w=sk->v6.in6_u.u6_addr8", "v4:Ipv4 v6:Ipv6"),
        ("p connect sk->dev sk->mode sk->on", "dev:Device mode:Octal on:Bool"),
        ("p connect sk->how x=how:u32", "how:0=SHUT_RD|1=SHUT_WR x:0=SHUT_RD|1=SHUT_WR"),
        ("p connect sk->port sk->number", "port:NetworkOrder"),
        ("p connect sk->plain sk count", ""),
        ("p connect dev", "dev:Device"),
    ] {
        assert_eq!(shown(text), expected, "{text}");
    }
}

/// Without names, on any kernel.
#[test]
fn what_lies_at_an_offset_is_written_so_too() {
    for (text, expected) in [
        ("p connect a=+0($arg1):u32 b=+4(%di):x32 c=+0(%di):u64", "a:NetworkOrder b:NetworkOrder"),
        ("p connect a=+8(%di):u16 b=+8(%di):u32 c=+9(%di):u8", "a:NetworkOrder"),
        ("p connect a=+10(%di):u16", ""),
        ("p connect a=+12(%di):u32 b=+16(%di):u8[16] c=+16(%di):u32", "a:Ipv4 b:Ipv6 c:NetworkOrder"),
        ("p connect a=+32(%di):u32 b=+36(%di):u16 c=+38(%di):u8", "a:Device b:Octal c:Bool"),
        ("p connect a=$arg2:s32 b=%dx:u32 c=%dx", "a:0=SHUT_RD|1=SHUT_WR b:Device"),
        ("p connect+1 a=+8(%di):u16", ""),
        ("p in_assembly a=+8(%di):u16", ""),
    ] {
        assert_eq!(shown(text), expected, "{text}");
    }
}

#[test]
fn arguments_of_system_calls_are_written_as_their_types_say() {
    for (text, expected) in [
        ("p __x64_sys_make mode=+104($arg1):u16 all=+104(%di):u64 dfd=+112(%di):u16", "mode:Octal"),
        ("p __x64_sys_make mode=+0(+104(%di)):u16 other=+104(%si):u16", ""),
        ("p __do_sys_make m=%si:u16 n=+104(%di):u16", "m:Octal"),
    ] {
        assert_eq!(shown(text), expected, "{text}");
    }
}

#[test]
fn flags_of_open_are_known_by_their_names() {
    for (text, expected) in [
        ("p do_sys_openat2 how->flags how->mode", "flags:OpenFlags"),
        ("p do_sys_openat2 f=+0(%si):x64 half=+0(%si):u32 mode=+8(%si):u64", "f:OpenFlags"),
        ("p do_sys_openat2 file->f_flags file->f_mode low=file->f_flags:u16", "f_flags:OpenFlags"),
        ("p do_sys_open flags x=%si:x32 all=%si dfd", "flags:OpenFlags x:OpenFlags"),
        ("p __x64_sys_open a=+104(%di):x32 all=+104(%di):u64", "a:OpenFlags"),
        // Parts of them, and other types.
        ("p do_sys_open bits=%si:b2@6/32", ""),
        ("p do_sys_openat2 f=+4(%dx):u8[4] s=+0(%si):symbol bits=+0(%si):b2@6/64", ""),
        ("p __x64_sys_open a=+104(%di):u8[4] bits=+104(%di):b2@6/32", ""),
    ] {
        assert_eq!(shown(text), expected, "{text}");
    }
}

#[test]
fn results_can_be_errors() {
    for (text, expected) in [
        ("r connect ret=$retval:s32 wide=$retval all=%ax:s32", "all:Errno ret:Errno wide:Errno"),
        ("r lookup ret=$retval x=$retval:x64 n=$retval:s32", "ret:Errno x:Errno"),
        ("r is_on ret=$retval:u8 n=$retval:s8", "n:Bool ret:Bool"),
        ("r mapped ret=$retval:u32 n=$retval:s32", ""),
        // A `long`, of which half is recorded.
        ("r opened ret=$retval:s32 all=$retval:s64 low=$retval:u32", "all:Errno ret:Errno"),
        // Its types are not known.
        ("r in_assembly ret=$retval:s32 long=$retval:s64 n=$retval", "long:Errno ret:Errno"),
        ("p connect count=$arg4:s64", ""),
    ] {
        assert_eq!(shown(text), expected, "{text}");
    }
}
