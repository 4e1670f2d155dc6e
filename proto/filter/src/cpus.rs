//! CPU lists of filters: `CPUS{LIST}`.
//!
//! Owns their grammar (lib/bitmap-str.c:bitmap_parselist): numbers and ranges with commas or blanks
//! between them, `all`, and `A-B:USED/GROUP` for the first `USED` of every `GROUP`. `N`, the last CPU of
//! the host, is not known here.

/// The kernel has room for no more (`NR_CPUS` with arch/x86/Kconfig:MAXSMP).
const CPUS_MAX: u32 = 8192;

/// CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CpuSet {
    /// One bit for each, up to the last word that has one.
    words: Vec<u64>,
}

impl CpuSet {
    /// Reads a list.
    ///
    /// # Errors
    /// What is wrong with it, to be read after "the list of CPUs".
    pub(super) fn parse(list: &str) -> Result<Self, String> {
        let mut set = Self { words: Vec::new() };
        for region in list.split(|c: char| c == ',' || c.is_ascii_whitespace()) {
            if !region.is_empty() {
                set.insert_region(region)?;
            }
        }
        if set.words.is_empty() { Err("holds no CPU".to_owned()) } else { Ok(set) }
    }

    fn insert_region(&mut self, region: &str) -> Result<(), String> {
        let (range, pattern) = match region.split_once(':') {
            Some((range, pattern)) => (range, Some(pattern)),
            None => (region, None),
        };
        let is_range = range.contains('-') || range.eq_ignore_ascii_case("all");
        let (first, last) = if range.eq_ignore_ascii_case("all") {
            (0, CPUS_MAX - 1)
        } else {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            (number(first)?, number(last)?)
        };
        if first > last {
            return Err(format!("has a range `{range}` that ends before it begins"));
        }
        let (used, group) = match pattern {
            None => (1, 1),
            Some(_) if !is_range => return Err(format!("has a pattern without a range in `{region}`")),
            Some(pattern) => {
                let malformed = || format!("has `:{pattern}` where `:USED/GROUP` was expected");
                let (used, group) = pattern.split_once('/').ok_or_else(malformed)?;
                (number(used)?, number(group)?)
            }
        };
        if group == 0 || used > group {
            return Err(format!("has groups in `{region}` that are smaller than what is used of them"));
        }
        for cpu in first..=last {
            if (cpu - first) % group < used {
                self.insert(cpu);
            }
        }
        Ok(())
    }

    fn insert(&mut self, cpu: u32) {
        let word = (cpu / 64) as usize;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        if let Some(word) = self.words.get_mut(word) {
            *word |= 1 << (cpu % 64);
        }
    }

    /// Whether a CPU is in it.
    #[inline]
    pub(super) fn contains(&self, cpu: u32) -> bool {
        self.words.get((cpu / 64) as usize).is_some_and(|word| word >> (cpu % 64) & 1 != 0)
    }

    /// The CPU, if there is only one.
    pub(super) fn single(&self) -> Option<u32> {
        let mut ranges = self.ranges();
        match (ranges.next(), ranges.next()) {
            (Some((first, last)), None) if first == last => Some(first),
            _ => None,
        }
    }

    /// The first and last CPU of every run of them, ascending.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u32, u32)> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = (next..CPUS_MAX).find(|cpu| self.contains(*cpu))?;
            let last = (first..CPUS_MAX).take_while(|cpu| self.contains(*cpu)).last()?;
            next = last + 1;
            Some((first, last))
        })
    }
}

fn number(text: &str) -> Result<u32, String> {
    if text == "N" {
        return Err("asks for `N`, which only the kernel knows".to_owned());
    }
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits {
        return Err(format!("has `{text}` where a number was expected"));
    }
    let number = text.parse().ok().filter(|number| *number < CPUS_MAX);
    number.ok_or_else(|| format!("has `{text}`, and there are at most {CPUS_MAX} CPUs"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges(list: &str) -> Vec<(u32, u32)> {
        CpuSet::parse(list).unwrap().ranges().collect()
    }

    #[test]
    fn lists_are_those_of_the_kernel() {
        assert_eq!(ranges("3"), [(3, 3)]);
        assert_eq!(ranges("0-1, 4 6-7,5"), [(0, 1), (4, 7)]);
        assert_eq!(ranges("0-1023:2/256"), [(0, 1), (256, 257), (512, 513), (768, 769)]);
        assert_eq!(ranges("All"), [(0, CPUS_MAX - 1)]);
        assert_eq!(ranges("8191"), [(8191, 8191)]);
        assert_eq!(CpuSet::parse("5").unwrap().single(), Some(5));
        assert_eq!(CpuSet::parse("5,7").unwrap().single(), None);
        assert_eq!(CpuSet::parse("5-6").unwrap().single(), None);
        for bad in [
            "", ",", "x", "1-", "-1", "3-1", "8192", "0-N", "1:1/2", "0-3:1", "0-3:0/2", "0-3:3/2", "0-3:1/0",
        ] {
            assert!(CpuSet::parse(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_list_is_survived(list in "[0-9N,:/ al-]{0,12}|\\PC{0,12}") {
            if let Ok(set) = CpuSet::parse(&list) {
                let mut seen = 0;
                for (first, last) in set.ranges() {
                    prop_assert!(first <= last && seen <= first);
                    prop_assert!((first..=last).all(|cpu| set.contains(cpu)) && !set.contains(last + 1));
                    seen = last + 2;
                }
                prop_assert!(seen > 0);
            }
        }
    }
}
