//! The kprobe blacklist, from debugfs `kprobes/blacklist`.
//!
//! Owns the ranges that the kernel itself never lets be probed (`NOKPROBE_SYMBOL`, `.noinstr`, entry code;
//! kernel/kprobes.c:within_kprobe_blacklist).

/// Address ranges that can not be probed.
#[derive(Debug, Default)]
pub struct Blacklist {
    /// Start and end (exclusive), by start.
    ranges: Vec<(u64, u64)>,
}

impl Blacklist {
    /// Parses lines of the form `0xSTART-0xEND<TAB>SYMBOL`. Lines of another form are left out.
    pub fn parse(text: &str) -> Self {
        let hex = |word: &str| u64::from_str_radix(word.trim().trim_start_matches("0x"), 16).ok();
        let mut ranges: Vec<_> = text
            .lines()
            .filter_map(|line| {
                let (start, end) = line.split('\t').next()?.split_once('-')?;
                Some((hex(start)?, hex(end)?))
            })
            .collect();
        ranges.sort_unstable();
        Self { ranges }
    }

    /// Whether `address` lies in one of the ranges. Ranges may overlap, and some are nested in a section's.
    pub fn contains(&self, address: u64) -> bool {
        self.ranges.iter().take_while(|(start, _)| *start <= address).any(|(_, end)| address < *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_half_open_and_may_nest() {
        let list = Blacklist::parse("0x100-0x200\tsection\n0x110-0x120\tinner\nnonsense\n0x300-0x310\tx\n");
        for (address, inside) in
            [(0xff, false), (0x100, true), (0x130, true), (0x200, false), (0x30f, true), (0x310, false)]
        {
            assert_eq!(list.contains(address), inside, "{address:#x}");
        }
    }
}
