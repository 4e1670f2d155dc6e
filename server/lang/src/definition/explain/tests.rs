//! Tests of explanations.

use super::super::ast::Definition;
use super::super::dialect::parse_any;
use super::super::features::Features;
use super::explain;
use crate::samples::{v6_1, v6_12};

fn text(definition: &str, features: &Features) -> String {
    let reading = parse_any(definition, features);
    match reading.result {
        Ok(Definition::Probe(probe)) => {
            let named = probe.clone().with_explicit_names();
            let group = named.group.as_ref().map_or("kprobes", |group| &group.text);
            let event = named.event.as_ref().map(|event| event.text.clone());
            let line = named.render(group, &event.unwrap_or_else(|| named.default_event_name()));
            explain(&probe, (reading.dialect, &line), features, &|_index| None)
        }
        other => panic!("{other:?}"),
    }
}

/// What is said about a single argument.
fn meaning(argument: &str, features: &Features) -> String {
    let told = text(&format!("r f {argument}"), features);
    told.lines().find_map(|line| line.strip_prefix("      ")).unwrap().to_owned()
}

#[test]
fn a_prototype() {
    assert_eq!(
        text("ip_rcv(x64 skb | int skb[32], NULL, x8[6] perm_addr+16[0]+558, char[16] name)", &v6_12()),
        "\
p:functions/ip_rcv ip_rcv skb=$arg1:x64 skb_2=+128($arg1):s32 perm_addr=+558(+16($arg3)):x8[6] name=+0($arg4):string
records each time ip_rcv is reached
  skb=$arg1:x64
      the first argument, in hexadecimal
  skb_2=+128($arg1):s32
      32 bits at offset 128 of what the first argument points to, as signed
  perm_addr=+558(+16($arg3)):x8[6]
      6 values of 8 bits, the first at offset 558 behind the pointer at offset 16 of what the third argument points to, in hexadecimal
  name=+0($arg4):string
      the string up to its NUL at the start of what the fourth argument points to
fields
  __probe_ip: symbol
  skb: x64
  skb_2: s32
  perm_addr: x8[6]
  name: string
assumed
  arguments are where the calling convention puts integers and pointers: di, si, dx, cx, r8, r9, then the stack; floating point and structures by value are counted differently
  offsets fit the structures of the running kernel: they change between versions and configurations
  an event with more than about 4000 bytes of strings is lost without being counted by the kernel
  there is a field `skb` already: this one is called `skb_2`
  the string is read up to its NUL, which can be more than 16 bytes: `u8[16]` reads exactly 16 bytes
"
    );
}

#[test]
fn words_of_2009() {
    assert_eq!(
        text("r:myretprobe do_sys_open rv ra", &v6_1()),
        "\
r:kprobes/myretprobe do_sys_open rv=$retval
in 2009: r:myretprobe do_sys_open rv
records each time do_sys_open returns
  rv=$retval
      the return value, in hexadecimal
fields
  __probe_func: symbol
  __probe_ret_ip: symbol
  rv: x64
assumed
  the return address is the field `__probe_ret_ip` of every event: no argument is added
"
    );
    let entry = text("p:myprobe do_sys_open dfd=a0 a1", &v6_1());
    assert!(entry.contains("\nin 2009: p:myprobe do_sys_open dfd=a0 a1\n"), "{entry}");
    let both = text("p:myprobe do_sys_open dfd=a0 path=+0(a1):string", &v6_1());
    assert!(!both.contains("in 2009"), "{both}");
}

#[test]
fn names_and_types_that_btf_knows() {
    assert_eq!(
        text("r5 ext4:ext4_sync_fs $retval sb->s_flags count:u16 $arg*", &v6_12()),
        "\
r5:kprobes/r_ext4_ext4_sync_fs_0 ext4:ext4_sync_fs arg1=$retval s_flags=sb->s_flags count=count:u16 $arg*
records each time ext4_sync_fs of module ext4 returns, of at most 5 executions at the same time
  arg1=$retval
      the return value, as in the kernel's BTF
  s_flags=sb->s_flags
      the member sb->s_flags, as in the kernel's BTF
  count=count:u16
      the low 16 bits of the parameter count, as unsigned
  $arg*
      every parameter of the function, with the names and types of the kernel's BTF
fields
  __probe_func: symbol
  __probe_ret_ip: symbol
  arg1: as in BTF
  s_flags: as in BTF
  count: u16
  $arg*: as in BTF
assumed
  names are those of the parameters in the BTF of the running kernel
  what has no type gets the one of the kernel's BTF, and is 64 bits in hexadecimal without it
"
    );
}

/// Fields are named by the written name.
#[test]
fn arguments_that_only_the_kernel_can_name() {
    let long = "b".repeat(40);
    let told = text(&format!("p f $arg1:string {long}"), &v6_12());
    assert!(told.contains("\n  $arg1:string\n      the string up to its NUL at"), "{told}");
    assert!(told.contains(&format!("\n  $arg1: string\n  {long}: as in BTF\n")), "{told}");
}

#[test]
fn every_expression_and_type() {
    let cases = [
        ("%ax", "the register ax, in hexadecimal"),
        ("%ax:u8", "the low 8 bits of the register ax, as unsigned"),
        ("%ax:b4@8/32", "bits 8 to 11 of the low 32 bits of the register ax, as unsigned"),
        ("%ax:b1@3/64", "bit 3 of the register ax, as unsigned"),
        ("%ax:symbol", "the register ax, shown as the symbol at that address"),
        ("%ax:symstr", "the name of the symbol at this address: the register ax"),
        ("$stack0", "the word at the top of the stack, in hexadecimal"),
        ("$stack7:s64", "word 7 above the top of the stack, as signed"),
        ("-8($stack):x32", "32 bits at offset -8 of what the stack pointer points to, in hexadecimal"),
        ("$comm", "the name of the current task"),
        ("\\5", "the number 5, in hexadecimal"),
        ("\\\"hi\":string", "the text \"hi\""),
        ("@jiffies", "64 bits at the start of the kernel's jiffies, in hexadecimal"),
        ("@jiffies-8:u32", "32 bits at offset -8 of the kernel's jiffies, as unsigned"),
        ("@0x1000:string", "the string up to its NUL at address 0x1000"),
        ("+0(@0x1000):u8", "8 bits at the target of the pointer at address 0x1000, as unsigned"),
        ("+u4(%si):u16", "16 bits at offset 4 of what the register si points to in user memory, as unsigned"),
        (
            "+0(%si):ustring",
            "the string up to its NUL in user memory at the start of what the register si points to",
        ),
        (
            "+8(%si):string[3]",
            "3 values of 64 bits, the first at offset 8 of what the register si points to, each the address of a string",
        ),
    ];
    for (argument, expected) in cases {
        for features in [v6_1(), v6_12()] {
            assert_eq!(meaning(argument, &features), expected, "{argument}");
        }
    }
    let modern = [
        ("$arg9:char", "the low 8 bits of the 9th argument, as a character"),
        ("$arg1:%pd", "the name in the struct dentry at which the first argument points"),
        (
            "+8($arg1):%pD",
            "the file name of the struct file at which the pointer at offset 8 of what the first argument points to points",
        ),
        (
            "file->f_path.dentry:string",
            "the string up to its NUL at the start of what the member file->f_path.dentry points to",
        ),
        ("$retval->x", "the member ->x of the return value, as in the kernel's BTF"),
    ];
    for (argument, expected) in modern {
        assert_eq!(meaning(argument, &v6_12()), expected, "{argument}");
    }
}

#[test]
fn faults_that_can_not_be_told_from_values() {
    let without = Features { ustring: false, ..v6_12() };
    let unproven = "nothing shows whether `x=+8($arg1):u64` could be read: its values are unproven, and shown with `(?)`";
    assert!(text("p f x=+8($arg1):u64", &without).contains(unproven));
    assert!(!text("p f x=+8($arg1):u64", &v6_12()).contains("unproven"));
}

#[test]
fn what_would_harm_the_kernel_is_explained() {
    let told = text("p f who=%ax:symstr", &v6_12());
    assert!(told.contains("  who=%ax:symstr\n"), "{told}");
    assert!(
        told.contains("the kernel gets `:symbol` for `who=%ax:symstr`, and the daemon finds the name"),
        "{told}"
    );
    assert!(told.contains("writes a zero byte 511 bytes behind the start of the text"), "{told}");
    assert!(told.contains("  who: symstr\n"), "{told}");
}
