//! Helpers of several benchmarks: code to decode, and the processor time of threads.

#![allow(dead_code, reason = "each benchmark needs a part of it")]
#![allow(clippy::allow_attributes, reason = "what is dead differs between benchmarks")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The kernel that is requested: `KPROBED_BENCH_KERNEL`, a vmlinux or a bzImage.
pub(crate) fn kernel() -> Option<PathBuf> {
    std::env::var_os("KPROBED_BENCH_KERNEL").map(PathBuf::from)
}

/// The `.text` of a vmlinux or bzImage, without what the kernel has patched at boot.
pub(crate) fn kernel_text(path: &Path) -> Vec<u8> {
    let image = fs::read(path).unwrap();
    let elf = if image.starts_with(b"\x7fELF") { image } else { unpacked(&image) };
    section(&elf, ".text").unwrap()
}

/// The vmlinux in a bzImage: where it lies is in the header (Documentation/arch/x86/boot.rst, since
/// 2.08), how it is packed in its first bytes.
fn unpacked(image: &[u8]) -> Vec<u8> {
    let u32_at = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(&image[0x202..0x206], b"HdrS", "neither an ELF file nor a bzImage");
    let payload = (usize::from(image[0x1f1]) + 1) * 512 + u32_at(0x248);
    let packed = &image[payload..payload + u32_at(0x24c)];
    let tool = match packed {
        [0xfd, b'7', b'z', ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0x1f, 0x8b, ..] => "gzip",
        [0x02, 0x21, 0x4c, 0x18, ..] => "lz4",
        _ => panic!("packed in a way that this benchmark does not know"),
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("vmlinux.packed");
    fs::write(&file, packed).unwrap();
    // The length follows the packed data; the tools report it as garbage when they have done their
    // work.
    let output = Command::new(tool).arg("-dc").stdin(fs::File::open(&file).unwrap()).output();
    output.unwrap_or_else(|error| panic!("{tool}: {error}")).stdout
}

fn section(elf: &[u8], name: &str) -> Option<Vec<u8>> {
    let number = |at: usize, bytes: usize| {
        elf.get(at..at + bytes)?
            .iter()
            .rev()
            .try_fold(0, |number, byte| Some(number << 8 | usize::from(*byte)))
    };
    let (table, count, names) = (number(40, 8)?, number(60, 2)?, number(62, 2)?);
    let header = |index: usize| table + index * 64;
    let name_table = number(header(names) + 24, 8)?;
    (0..count).map(header).find_map(|header| {
        let start = name_table + number(header, 4)?;
        let is_named = elf.get(start..start + name.len() + 1)? == [name.as_bytes(), b"\0"].concat();
        let (offset, size) = (number(header + 24, 8)?, number(header + 32, 8)?);
        if is_named { elf.get(offset..offset + size).map(<[u8]>::to_vec) } else { None }
    })
}

/// How much of something is done: all of it by `cargo bench`, a little by `cargo test`, which only
/// looks whether the benchmark runs.
pub(crate) fn much(bench: usize, test: usize) -> usize {
    if std::env::args().any(|argument| argument == "--bench") { bench } else { test }
}

/// The shortest of several runs; of one run in a test.
pub(crate) fn shortest(runs: usize, mut run: impl FnMut()) -> Duration {
    let runs = much(runs, 1);
    let time = |()| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    std::iter::repeat_n((), runs).map(time).min().unwrap_or_default()
}

/// Processor time of all threads whose name starts like this (`schedstat`, in nanoseconds).
pub(crate) fn cpu_time_of(threads: &str) -> Duration {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let read = |task: &Path, file: &str| fs::read_to_string(task.join(file)).unwrap_or_default();
    let nanos = |task: PathBuf| read(&task, "schedstat").split(' ').next()?.parse::<u64>().ok();
    Duration::from_nanos(tasks.filter(|task| read(task, "comm").starts_with(threads)).filter_map(nanos).sum())
}

/// A number of `/proc/self/status`, in KiB.
pub(crate) fn status_kib(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}
