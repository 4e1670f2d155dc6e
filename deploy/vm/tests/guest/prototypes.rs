//! Function prototypes as definitions: each feature of the language reads memory whose content is
//! known.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::DescribeFunctionRequest;

use crate::Test;
use crate::daemon::{DaemonGuest, Event};
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = tests! {
    Kernel {
        values_of_parameters,
        members_of_known_memory,
        arrays_and_texts,
        chains_of_pointers,
        fixed_addresses,
        structures_of_the_kernel,
        unions_of_every_parameter,
    }
};

/// What the workload seeks by: every part of it is negative as a signed number.
const DISTANCE: i64 = -0x0123_4567_091a_2b3d;
/// Where the workload writes.
const OFFSET: &str = "1234605616436508552";

/// A field with what it must be.
type Expected<'a> = (&'a str, &'a str);

/// Adds the prototype, has the workload make one call, and compares all fields of the only event.
fn compare(guest: &DaemonGuest, prototype: &str, call: &[&str], expected: &[Expected<'_>]) -> Result<Event> {
    let probe = guest.add(prototype)?;
    let schema = probe.schema.with_context(|| format!("{prototype}: no schema"))?;
    let names: Vec<_> = schema.fields.iter().map(|field| field.name.as_str()).collect();
    ensure!(names == expected.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "{prototype}: {names:?}");
    let recording = guest.record(|| guest.workload(call).map(drop))?;
    // Programs open files before they begin.
    let ours = |event: &&Event| ["(absent)", QUOTED_PATH].contains(&event.field("path"));
    let events: Vec<_> = recording.of(&probe.name, "workload").filter(ours).collect();
    let [event] = events[..] else { anyhow::bail!("{prototype}: {recording:?}\n{}", guest.log()) };
    for (name, value) in expected {
        let read = event.field(name);
        let read = if value.contains("+0x") { without_sizes(read) } else { read.to_owned() };
        ensure!(read == *value, "{prototype}\n{name} is {read}, not {value}");
    }
    guest.delete(&probe.name)?;
    Ok(event.clone())
}

/// Symbols without the sizes of their functions, which differ between kernels:
/// `write_null+0x0/0x20` is `write_null+0x0`.
fn without_sizes(shown: &str) -> String {
    let mut parts = shown.split('/');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |mut text, part| {
        text.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit() || c == 'x'));
        text
    })
}

fn values_of_parameters(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let distance = DISTANCE.to_string();
    // loff_t null_lseek(struct file *file, loff_t offset, int orig); 1 is SEEK_CUR.
    compare(
        &guest,
        "null_lseek(NULL, s8 s8 | s16 s16 | s32 s32 | s64 s64 | u8 u8 | u16 u16 | u32 u32 | u64 u64 | x8 x8 | x16 x16 | \
         x32 x32 | x64 x64, int whence)",
        &["seek", "/dev/null", &distance],
        &[
            ("s8", "-61"),
            ("s16", "-11069"),
            ("s32", "-152709949"),
            ("s64", &distance),
            ("u8", "195"),
            ("u16", "54467"),
            ("u32", "4142257347"),
            ("u64", "18364758546650092739"),
            ("x8", "0xc3"),
            ("x16", "0xd4c3"),
            ("x32", "0xf6e5d4c3"),
            ("x64", "0xfedcba98f6e5d4c3"),
            ("whence", "1"),
        ],
    )?;
    let (upper, lower) = if guest.has_feature("char")? { ("'A'", "'A'") } else { ("65", "65") };
    compare(
        &guest,
        "null_lseek(NULL, short a | unsigned short b | int c | unsigned int d | long e | unsigned long f | size_t g | \
         unsigned x16 h | unsigned s32 i, NULL)",
        &["seek", "/dev/null", &distance],
        &[
            ("a", "-11069"),
            ("b", "54467"),
            ("c", "-152709949"),
            ("d", "4142257347"),
            ("e", &distance),
            ("f", "18364758546650092739"),
            ("g", "18364758546650092739"),
            ("h", "54467"),
            ("i", "4142257347"),
        ],
    )?;
    compare(
        &guest,
        "null_lseek( NULL,char a|unsigned  char b , unsigned int whence )",
        &["seek", "/dev/null", "65"],
        &[("a", upper), ("b", lower), ("whence", "1")],
    )?;
    // No probe can add to a parameter.
    let refusal = guest.refusal("null_lseek(NULL, x64 a+8)")?;
    ensure!(refusal.reason == "NO_EQUIVALENT", "{refusal:?}");
    Ok(())
}

/// Addresses of symbols, as the guest's own root reads them.
fn addresses<const N: usize>(guest: &DaemonGuest, names: [&str; N]) -> Result<[u64; N]> {
    let pattern = names.map(|name| format!(" {name}$")).join("|");
    let text = guest.shell(&format!("grep -E '{pattern}' /proc/kallsyms"))?;
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let [address, _, name] = words[..] else { anyhow::bail!("{line}") };
        let address = u64::from_str_radix(address, 16)?;
        ensure!(address != 0 && found.insert(name, address).is_none(), "{text}");
    }
    let mut addresses = [0; N];
    for (address, name) in addresses.iter_mut().zip(names) {
        *address = *found.get(name).with_context(|| format!("{name} is not in\n{text}"))?;
    }
    Ok(addresses)
}

/// What the workload writes to `/dev/null`: memory of a known content, which begins with a number,
/// and holds pointers to memory of the kernel that can be read in another way too.
struct Known {
    words: Vec<u64>,
    /// Where `linux_banner` is, which is the text of `/proc/version`.
    banner: u64,
}

impl Known {
    fn new(guest: &DaemonGuest) -> Result<Self> {
        let [banner, command_line, function] =
            addresses(guest, ["linux_banner", "saved_command_line", "write_null"])?;
        let words = vec![
            0x1122_3344_5566_7788,
            banner,
            command_line,
            DISTANCE.cast_unsigned(),
            u64::from_le_bytes(*b"ABCDEFGH"),
            u64::from_le_bytes(*b"IJKLMNO\0"),
            function,
            0,
            u64::from_le_bytes([1, 2, 3, 4, 5, 6, 7, 8]),
        ];
        Ok(Self { words, banner })
    }

    /// Compares what is recorded when the workload writes it:
    /// `ssize_t write_null(struct file *file, const char *buf, size_t count, loff_t *ppos)`.
    fn compare(&self, guest: &DaemonGuest, prototype: &str, expected: &[Expected<'_>]) -> Result<Event> {
        let words: Vec<_> = self.words.iter().map(|word| format!("{word:x}")).collect();
        let mut call = vec!["write", "/dev/null", OFFSET];
        call.extend(words.iter().map(String::as_str));
        compare(guest, prototype, &call, expected)
    }

    /// Its first bytes, as an array is shown.
    fn shown(&self, count: usize) -> String {
        let bytes = self.words.iter().flat_map(|word| word.to_le_bytes()).take(count);
        format!("{{{}}}", bytes.map(|byte| format!("{byte:#x}")).collect::<Vec<_>>().join(","))
    }
}

fn members_of_known_memory(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let known = Known::new(&guest)?;
    let (a, h) = if guest.has_feature("char")? { ("'A'", "'H'") } else { ("65", "72") };
    // Indices count elements, offsets count bytes; numbers are decimal, hexadecimal or octal.
    known.compare(
        &guest,
        "write_null(NULL, x8 i8[3] | x16 i16[2] | x32 i32[1] | x64 i64[3] | char i_char[0x20] | short i_short[014] | \
         int i_int[6] | long i_long[3] | size_t i_size[0] | x8 o8+1[2] | x16 o16+2[1] | x32 o32+1[0] | x8 twice+1+2[0] | \
         x64 o64+4[1] | unsigned char o_char+39[0], size_t count, s64 pos[0] | x32 high+4[0])",
        &[
            ("i8", "0x55"),
            ("i16", "0x3344"),
            ("i32", "0x11223344"),
            ("i64", "0xfedcba98f6e5d4c3"),
            ("i_char", a),
            ("i_short", "-11069"),
            ("i_int", "-152709949"),
            ("i_long", &DISTANCE.to_string()),
            ("i_size", OFFSET),
            ("o8", "0x55"),
            ("o16", "0x3344"),
            ("o32", "0x44556677"),
            ("twice", "0x55"),
            ("o64", &format!("{:#x}", (known.words[1] >> 32) | (known.words[2] << 32))),
            ("o_char", h),
            ("count", "72"),
            ("pos", OFFSET),
            ("high", "0x11223344"),
        ],
    )?;
    known.compare(
        &guest,
        "write_null(NULL, s8 a[24] | u8 b[24] | s16 c[12] | u16 d[12] | s32 e[6] | u32 f[6] | s64 g[3] | u64 h[3] | \
         unsigned short i+24[0] | unsigned int j+24[0] | unsigned long k+24[0] | unsigned x32 l+24[0])",
        &[
            ("a", "-61"),
            ("b", "195"),
            ("c", "-11069"),
            ("d", "54467"),
            ("e", "-152709949"),
            ("f", "4142257347"),
            ("g", &DISTANCE.to_string()),
            ("h", "18364758546650092739"),
            ("i", "54467"),
            ("j", "4142257347"),
            ("k", "18364758546650092739"),
            ("l", "4142257347"),
        ],
    )?;
    Ok(())
}

fn arrays_and_texts(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let known = Known::new(&guest)?;
    known.compare(
        &guest,
        "write_null(NULL, x8[6] a+1 | x16[3] b+2 | x32[2] c | x64[1] d+24 | s8[2] e+24 | u16[2] f+24 | short[2] g[12] | \
         unsigned int[1] h+24 | long[1] i[3] | char[8] text+32 | string tail+36 | string all+4+28 | symbol[2] zero+48 | \
         x8[72] long, NULL, x8[3] pos)",
        &[
            ("a", "{0x77,0x66,0x55,0x44,0x33,0x22}"),
            ("b", "{0x5566,0x3344,0x1122}"),
            ("c", "{0x55667788,0x11223344}"),
            ("d", "{0xfedcba98f6e5d4c3}"),
            ("e", "{-61,-44}"),
            ("f", "{54467,63205}"),
            ("g", "{-11069,-2331}"),
            ("h", "{4142257347}"),
            ("i", &format!("{{{DISTANCE}}}")),
            // An array of characters is read up to its NUL, whatever its length.
            ("text", "\"ABCDEFGHIJKLMNO\""),
            ("tail", "\"EFGHIJKLMNO\""),
            ("all", "\"ABCDEFGHIJKLMNO\""),
            ("zero", "{write_null+0x0,0x0}"),
            // More elements than an array of the kernel has.
            ("long_0", &known.shown(64)),
            ("long_64", "{0x1,0x2,0x3,0x4,0x5,0x6,0x7,0x8}"),
            ("pos", "{0x88,0x77,0x66}"),
        ],
    )?;
    Ok(())
}

/// `/proc/version`, which `linux_banner` holds, and `/proc/cmdline`, which `saved_command_line`
/// holds.
fn texts(guest: &DaemonGuest) -> Result<(String, String)> {
    let version = guest.shell("cat /proc/version")?;
    let command_line = guest.shell("cat /proc/cmdline")?;
    ensure!(version.starts_with("Linux version ") && command_line.len() > 16, "{version}{command_line}");
    Ok((version.trim_end().to_owned(), command_line.trim_end_matches('\n').to_owned()))
}

fn chains_of_pointers(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let known = Known::new(&guest)?;
    let (version, command_line) = texts(&guest)?;
    let command_bytes = command_line.bytes().skip(8).take(5);
    let command_bytes = command_bytes.map(|byte| format!("{byte:#x}")).collect::<Vec<_>>().join(",");
    known.compare(
        &guest,
        "write_null(NULL, x8 a+8[0]+6[0] | x8 b+8[0]+6 | x8 c[8][6] | x16 d[4][3] | x64 e[1][0] | x8[7] f+8[0]+6 | x8[1] g+8[0]+6 | \
         x8[5] h+16[0][0]+8 | char[5] i+8[0]+6)",
        &[
            ("a", "0x76"),
            ("b", "0x76"),
            ("c", "0x76"),
            ("d", "0x6576"),
            ("e", &format!("{:#x}", u64::from_le_bytes(*b"Linux ve"))),
            ("f", "{0x76,0x65,0x72,0x73,0x69,0x6f,0x6e}"),
            ("g", "{0x76}"),
            ("h", &format!("{{{command_bytes}}}")),
            ("i", &format!("\"{}\\n\"", &version[6..])),
        ],
    )?;
    let command_tail = format!("\"{}\"", &command_line[8..]);
    let command_line = format!("\"{command_line}\"");
    known.compare(
        &guest,
        "write_null(NULL, string a+8[0] | string b+8[0]+0 | string c+8[0]+6 | string d[2] | string e+16[0][0] | string f[4][0] | \
         string g+16[0]+0[0]+8 | string bad[2][0])",
        &[
            ("a", &format!("\"{version}\\n\"")),
            ("b", &format!("\"{version}\\n\"")),
            ("c", &format!("\"{}\\n\"", &version[6..])),
            ("d", &format!("\"{version}\\n\"")),
            ("e", &command_line),
            ("f", &command_line),
            ("g", &command_tail),
            // The banner is not a pointer.
            ("bad", "(fault)"),
        ],
    )?;
    if fixture.proves_reads() {
        let prototype = "write_null(NULL, string bad[2][0] | x32 worse[2][0][0] | x16[2] worst[4][0][0])";
        known.compare(
            &guest,
            prototype,
            &[("bad", "(fault)"), ("worse", "(fault)"), ("worst", "{(fault),(fault)}")],
        )?;
    }
    Ok(())
}

fn fixed_addresses(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let known = Known::new(&guest)?;
    let (version, command_line) = texts(&guest)?;
    let banner = format!("{:#x}", known.banner);
    let unnamed = format!("mem_{:x}", known.banner);
    // Fixed addresses take no parameter, alone or in a union.
    let prototype = format!(
        "write_null(string a={banner} | x8 {banner}, u8 $linux_banner, NULL, x64 pointer+16[0] | string b=$linux_banner | \
         x8[5] c=$linux_banner | x8[5] d={banner}, size_t count | x64 start=$saved_command_line, x16 pos[1])"
    );
    let text = format!("\"{version}\\n\"");
    let pointer = format!("{:#x}", known.words[2]);
    let heap =
        guest.add("p:heap null_lseek text=+0(@saved_command_line):string start=@saved_command_line:x64")?;
    let recording = guest.record(|| guest.workload(&["seek", "/dev/null", "1"]).map(drop))?;
    let events: Vec<_> = recording.of(&heap.name, "workload").collect();
    let [event] = events[..] else { anyhow::bail!("{recording:?}") };
    ensure!(event.field("text") == format!("\"{command_line}\""), "{event:?}");
    known.compare(
        &guest,
        &prototype,
        &[
            ("a", &text),
            (&unnamed, "0x4c"),
            ("linux_banner", "76"),
            ("pointer", &pointer),
            ("b", &text),
            ("c", "{0x4c,0x69,0x6e,0x75,0x78}"),
            ("d", "{0x4c,0x69,0x6e,0x75,0x78}"),
            ("count", "72"),
            ("start", event.field("start")),
            ("pos", "0x5566"),
        ],
    )?;
    Ok(())
}

/// Offset of a member in the structure that this path of `write_null` leads to, in bytes.
fn offset(guest: &DaemonGuest, path: &str, member: &str) -> Result<u64> {
    let request = DescribeFunctionRequest {
        function: "write_null".to_owned(),
        path: path.to_owned(),
        ..Default::default()
    };
    let structure = guest.wait_for(guest.client.describe_function(request))??.structure;
    let members = structure.with_context(|| format!("{path}: no structure"))?.members;
    let found = members.into_iter().find(|one| one.name == member);
    Ok(found.with_context(|| format!("{path} has no {member}"))?.offset_bytes)
}

fn structures_of_the_kernel(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    let known = Known::new(&guest)?;
    let mounts = guest.shell("cat /proc/mounts")?;
    let dev = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words[1] == "/dev");
    let file_system = format!("\"{}\"", dev.with_context(|| mounts.clone())?[2]);
    let inode = offset(&guest, "file", "f_inode")?;
    let superblock = offset(&guest, "file->f_inode", "i_sb")?;
    let kind = offset(&guest, "file->f_inode->i_sb", "s_type")?;
    let id = offset(&guest, "file->f_inode->i_sb", "s_id")?;
    let name = offset(&guest, "file->f_inode->i_sb->s_type", "name")?;
    let device = offset(&guest, "file->f_inode", "i_rdev")?;
    let operations = offset(&guest, "file", "f_op")?;
    let write = offset(&guest, "file->f_op", "write")?;
    let seek = offset(&guest, "file->f_op", "llseek")?;
    let prototype = format!(
        "write_null(string type+{inode}[0]+{superblock}[0]+{kind}[0]+{name}[0] | char[32] id+{inode}[0]+{superblock}[0]+{id} | \
         u32 device+{inode}[0]+{device}[0] | symbol write+{operations}[0]+{write}[0] | symbol seek+{operations}[0]+{seek} | \
         symbol[1] both+{operations}[0]+{write}, symbol function[6])"
    );
    known.compare(
        &guest,
        &prototype,
        &[
            ("type", &file_system),
            ("id", &file_system),
            // 1:3, with 20 bits for the minor number (include/linux/kdev_t.h:MKDEV).
            ("device", "1048579"),
            ("write", "write_null+0x0"),
            ("seek", "null_lseek+0x0"),
            ("both", "{write_null+0x0}"),
            ("function", "write_null+0x0"),
        ],
    )?;
    Ok(())
}

/// What the workload opens.
const PATH: &str = "/tmp/prototypes";
const QUOTED_PATH: &str = "\"/tmp/prototypes\"";

fn unions_of_every_parameter(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // O_CREAT | O_WRONLY | O_CLOEXEC, 0640; the kernel adds O_LARGEFILE. Both are members of a
    // structure on the kernel's stack.
    compare(
        &guest,
        "do_sys_openat2(int dfd | unsigned int dfd | s8 a | u16 b | x32 c, string path | x8[8] raw | string tail+5, \
         x64[3] how | x64 flags[0] | x16 mode[4] | unsigned short mode+8[0] | NULL)",
        &["open", PATH, "524353", "416", "1"],
        &[
            ("dfd", "-100"),
            ("dfd_2", "4294967196"),
            ("a", "-100"),
            ("b", "65436"),
            ("c", "0xffffff9c"),
            ("path", QUOTED_PATH),
            ("raw", "{0x2f,0x74,0x6d,0x70,0x2f,0x70,0x72,0x6f}"),
            ("tail", "\"prototypes\""),
            ("how", "{0x88041,0x1a0,0x0}"),
            ("flags", "0x88041"),
            ("mode", "0x1a0"),
            ("mode_2", "416"),
        ],
    )?;
    Ok(())
}
