//! The function that the uprobe of the workload is placed on.

#![expect(
    unsafe_code,
    reason = "its instructions have to be known, and its name has to be one that bpftrace finds"
)]

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;

/// Takes four arguments and returns. It begins with a no-operation of five bytes: the kernel need
/// not step over it in a buffer of its own, which would cost ten times what the event costs, and
/// from 6.18 on replaces it by a call.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn kprobed_bench_four(_first: u64, _second: u64, _third: u64, _fourth: u64) {
    std::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret");
}

/// Where it lies, as `uprobe_events` wants it: a file, and the place in it.
pub(crate) fn place() -> anyhow::Result<(PathBuf, u64)> {
    let address = kprobed_bench_four as *const () as usize as u64;
    let maps = fs::read_to_string("/proc/self/maps").context("/proc/self/maps")?;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(offset)) = (words.next(), words.nth(1)) else { continue };
        let Some((start, end)) = range.split_once('-') else { continue };
        let [start, end, offset] = [start, end, offset].map(|digits| u64::from_str_radix(digits, 16));
        let (start, end, offset) = (start?, end?, offset?);
        if (start..end).contains(&address) {
            return Ok((std::env::current_exe()?, address - start + offset));
        }
    }
    anyhow::bail!("the function of the workload is in none of the mappings")
}
