//! Symbol addresses in the kallsyms table: a 32-bit offset for each symbol.
//!
//! Offsets count from a base after them, or from their own place, and lie before the names (to 6.3)
//! or after the tokens. The right reading is the only one in which they ascend, as the kernel's own
//! search needs, and in which the code begins where the image does.

use super::{Names, Tokens};
use crate::little_endian::{u32_at, u64_at};

/// Kernel addresses have their top bits set
/// (arch/x86/include/asm/page_64_types.h:__START_KERNEL_map).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// How a number stands for an address.
#[derive(Clone, Copy, Debug)]
enum Reading {
    /// Numbers that are not negative are absolute, for per-CPU data; the others count down from the
    /// base (CONFIG_KALLSYMS_ABSOLUTE_PERCPU, to 6.14).
    AbsolutePerCpu(u64),
    /// Every number counts from the base.
    FromBase(u64),
    /// Every number counts from where it stands.
    FromItself,
}

impl Reading {
    fn address(self, offset: u32, at: u64) -> u64 {
        let signed = i64::from(offset.cast_signed());
        match self {
            Self::AbsolutePerCpu(_) if signed >= 0 => u64::from(offset),
            Self::AbsolutePerCpu(base) => base.wrapping_sub(1).wrapping_add_signed(signed.wrapping_neg()),
            Self::FromBase(base) => base.wrapping_add(offset.into()),
            Self::FromItself => at.wrapping_add_signed(signed),
        }
    }
}

/// The addresses of all names, in the order of these.
pub(super) fn find(base: u64, memory: &[u8], tokens: &Tokens, names: &Names) -> Option<Vec<u64>> {
    let bytes = 4 * names.count;
    let behind = tokens.end.next_multiple_of(names.alignment);
    // The base stands right before the number of symbols.
    let before = (names.start & !7).checked_sub(8).and_then(|relative_base| {
        let end = (relative_base.checked_sub(bytes)?) & !7;
        Some((end, relative_base))
    });
    let with_base = before.into_iter().chain([(behind, (behind + bytes).next_multiple_of(names.alignment))]);
    let of_base = with_base.flat_map(|(start, at)| {
        let relative_base = u64_at(memory, at).filter(|found| *found >= KERNEL_MAP);
        let readings = relative_base.map(|base| [Reading::AbsolutePerCpu(base), Reading::FromBase(base)]);
        readings.into_iter().flatten().map(move |reading| (start, reading))
    });
    let mut readings = of_base.chain([(behind, Reading::FromItself)]);
    readings.find_map(|(start, reading)| read(base, memory, start, names.count, reading))
}

fn read(base: u64, memory: &[u8], start: usize, count: usize, reading: Reading) -> Option<Vec<u64>> {
    let mut addresses: Vec<u64> = Vec::with_capacity(count);
    for index in 0..count {
        let at = start.checked_add(4 * index)?;
        let address = reading.address(u32_at(memory, at)?, base.wrapping_add(at as u64));
        if addresses.last().is_some_and(|last| *last > address) {
            return None;
        }
        addresses.push(address);
    }
    let last_is_in_kernel = addresses.last().is_some_and(|last| *last >= KERNEL_MAP);
    // A table with one address only is not one.
    let differ = addresses.first() != addresses.last();
    (last_is_in_kernel && differ).then_some(addresses)
}
