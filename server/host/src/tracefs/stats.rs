//! Ring-buffer counters of one CPU, from `per_cpu/cpuN/stats`.

/// Counters of one CPU's ring buffer (kernel/trace/trace.c:tracing_stats_read). They start from
/// zero when the buffer is reset, which also happens when an event that was ever enabled in the
/// instance is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferStats {
    /// Events in the buffer that were not read yet.
    pub entries: u64,
    /// Events overwritten before they were read.
    pub overrun: u64,
    /// Events that the kernel gave up because too many writers were nested.
    pub commit_overrun: u64,
    /// Events that the kernel refused because the buffer was full and overwriting is off.
    pub dropped: u64,
    /// Events read.
    pub read: u64,
}

impl BufferStats {
    /// Parses `NAME: VALUE` lines. Missing lines count as 0: kernels differ in what they print.
    pub(super) fn parse(text: &str) -> Self {
        let value = |name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| *key == name)
                .and_then(|(_, value)| value.trim().parse().ok())
                .unwrap_or(0)
        };
        Self {
            entries: value("entries"),
            overrun: value("overrun"),
            commit_overrun: value("commit overrun"),
            dropped: value("dropped events"),
            read: value("read events"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found() {
        let text = "entries: 11\noverrun: 7\ncommit overrun: 1\nbytes: 868\noldest event ts:     1.590898\ndropped events: 2\nread events: 42\n";
        assert_eq!(
            BufferStats::parse(text),
            BufferStats { entries: 11, overrun: 7, commit_overrun: 1, dropped: 2, read: 42 }
        );
    }
}
