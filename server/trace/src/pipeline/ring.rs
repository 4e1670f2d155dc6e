//! Ring buffer of one CPU: its file, its pages, and the account of events that the kernel lost in
//! it.
//!
//! Owns the loop that reads pages. Never looks beyond the header of a page.
//!
//! Kernel facts: `read` of `per_cpu/cpuN/trace_pipe_raw` gives one sub-buffer
//! (kernel/trace/trace.c:tracing_buffers_read), and can return 0 without an end in sight. A CPU
//! that has not been online since the instance was made has the file, but no buffer: until then
//! `read` gives `ENODEV` (kernel/trace/ring_buffer.c:ring_buffer_alloc_read_page) and `poll` returns
//! at once with an error (ring_buffer_poll_wait).

use std::fs::File;
use std::io::{self, Read as _};

use nix::errno::Errno;

use super::commands::Inbox;
use super::counters::BufferCounters;
use super::{Hub, Loss, LossCause};
use kprobed_host::ring::{Lost, Page, PageError, PageLayout};
use kprobed_host::tracefs::{BufferStats, Instance, Tracefs, TracefsError};

/// Bytes of pages that are read from one buffer in one turn, so that a busy one does not keep the
/// others waiting. A turn ends with a batch: this is enough for full ones.
pub(super) const TURN_BYTES: usize = 1 << 20;

/// How far a turn goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Until the page that the kernel is still writing to, or until the reader has a command.
    Pages,
    /// Until nothing is left from before this time, in nanoseconds of the trace clock. Not until
    /// the buffer is empty: a CPU that records faster than the reader reads never empties it.
    Until(u64),
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Pages read.
    pub(super) pages: usize,
    /// Bytes of events on them.
    pub(super) data_bytes: u64,
    /// Whether the buffer was empty after them.
    pub(super) caught_up: bool,
    /// Whether all events read are published.
    pub(super) is_published: bool,
    /// Whether a page was malformed: another program may have changed the instance.
    pub(super) broken: bool,
}

impl Found {
    /// The result for no buffer.
    pub(super) const NOTHING: Self =
        Self { pages: 0, data_bytes: 0, caught_up: true, is_published: true, broken: false };

    /// The combined result of this and another buffer.
    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            pages: self.pages + other.pages,
            data_bytes: self.data_bytes + other.data_bytes,
            caught_up: self.caught_up && other.caught_up,
            is_published: self.is_published && other.is_published,
            broken: self.broken || other.broken,
        }
    }
}

/// Events that the kernel lost before a page. They must be counted when the page is read: the
/// buffer's own counter keeps growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// How many; absent if the number is unknown, and 0 if they were counted with an earlier gap.
    pub(super) count: Option<u64>,
}

/// One page as it was read.
#[derive(Debug)]
pub(super) struct PageRead<'b> {
    pub(super) bytes: &'b [u8],
    pub(super) page: Result<Page<'b>, PageError>,
    pub(super) gap: Option<Gap>,
}

/// The open ring buffer of one CPU of an instance, and the account of what the kernel lost in it.
#[derive(Debug)]
pub(super) struct Ring {
    /// The CPU.
    pub(super) cpu: u32,
    /// Its trace instance.
    pub(super) instance: Instance,
    /// The layout of its pages.
    pub(super) layout: PageLayout,
    file: File,
    /// The last read found no buffer: the CPU has not been online yet.
    is_absent: bool,
    /// Overruns reported since the buffer's own counters were at zero. Absent as long as the
    /// counters include overruns that an earlier run of the daemon reported, an unknown number of
    /// them.
    told_overruns: Option<u64>,
    /// A page had no room for its number of lost events: from then on the reader uses the buffer's
    /// counter, since the numbers on later pages can overlap with losses already reported.
    pub(super) asks_for_overruns: bool,
    /// The buffer's counters when they were last read; `told_overruns` replaces its overruns.
    known: BufferStats,
    /// How many more events the kernel counts as read than the daemon has read: it grows when another
    /// program reads the buffer. Absent until the two counts are compared for the first time, and
    /// after a page whose events could not be counted.
    read_by_others: Option<i64>,
}

impl Ring {
    /// Opens the buffer of a CPU. Events that it lost before are not counted.
    pub(super) fn open(instance: &Instance, layout: PageLayout, cpu: u32) -> Result<Self, TracefsError> {
        let before = instance.stats(cpu)?;
        Ok(Self::new(instance.clone(), layout, cpu, instance.open_raw(cpu)?, &before))
    }

    /// `before` are the buffer's counters before the first read.
    pub(super) fn new(
        instance: Instance,
        layout: PageLayout,
        cpu: u32,
        file: File,
        before: &BufferStats,
    ) -> Self {
        Self {
            cpu,
            instance,
            layout,
            file,
            is_absent: false,
            told_overruns: (before.overrun == 0).then_some(0),
            asks_for_overruns: false,
            known: *before,
            read_by_others: None,
        }
    }

    /// The daemon has read `seen` events until now, and none of them from another buffer since the
    /// counters of this one were last read.
    pub(super) fn compare_from(&mut self, seen: u64) {
        self.read_by_others = Some(difference(self.known.read, seen));
    }

    /// Its file, to be polled; `None` as long as the CPU has no buffer, which no poll waits for.
    pub(super) fn polled(&self) -> Option<&File> {
        (!self.is_absent).then_some(&self.file)
    }

    /// A page had events that cannot be counted: the next look begins the comparison anew.
    pub(super) fn compare_anew(&mut self) {
        self.read_by_others = None;
    }

    /// Reads pages as far as `depth` says, and shows each to `take`. It stops soon after
    /// `bytes_max` bytes, and once `inbox` has a command, unless `depth` asks for everything up to
    /// a time.
    pub(super) fn read(
        &mut self,
        buffer: &mut Vec<u8>,
        depth: Depth,
        bytes_max: usize,
        inbox: &Inbox,
        mut take: impl FnMut(PageRead<'_>),
    ) -> Found {
        let sub_buffer_bytes = self.layout.sub_buffer_bytes();
        if buffer.len() < sub_buffer_bytes {
            buffer.resize(sub_buffer_bytes, 0);
        }
        let mut found = Found { caught_up: false, ..Found::NOTHING };
        let mut bytes_read = 0;
        while bytes_read < bytes_max {
            let room = buffer.get_mut(..sub_buffer_bytes).unwrap_or_default();
            let Some(bytes) = self.read_page(room) else {
                found.caught_up = true;
                break;
            };
            found.pages += 1;
            bytes_read += bytes.len();
            let page = Page::parse(bytes, &self.layout);
            let gap = match page.as_ref().map_or(Lost::None, Page::lost) {
                Lost::None => None,
                Lost::Count(count) => Some(Gap { count: self.lost(Some(count)) }),
                Lost::Unknown => Some(Gap { count: self.lost(None) }),
            };
            let header = page.as_ref().ok().map(|page| (page.data_bytes(), page.timestamp_ns()));
            take(PageRead { bytes, page, gap });
            let Some((data_bytes, begun_ns)) = header else {
                found.broken = true;
                continue;
            };
            found.data_bytes += data_bytes as u64;
            found.caught_up = match depth {
                // A page that is less than half full is the one that the kernel writes to: the
                // reader stops here instead of chasing the writer.
                Depth::Pages => data_bytes * 2 < bytes.len(),
                Depth::Until(time_ns) => begun_ns > time_ns,
            };
            if found.caught_up || (depth == Depth::Pages && inbox.has_command()) {
                break;
            }
        }
        found
    }

    /// The next page. `None` if there is none, or if it cannot be read.
    fn read_page<'b>(&mut self, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        // The kernel may return 0 although there are events, if a page is swapped at that moment.
        let mut empty_answers = 0;
        loop {
            let answer = self.file.read(buffer);
            self.is_absent = has_no_buffer(&answer);
            match answer {
                Ok(0) if empty_answers < 3 => empty_answers += 1,
                Ok(0) => return None,
                Ok(length) => return buffer.get(..length),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) if self.is_absent => return None,
                Err(error) => {
                    tracing::error!(cpu = self.cpu, %error, "cannot read events");
                    return None;
                }
            }
        }
    }

    /// Opens the file again, after another program has changed the size of sub-buffers
    /// (kernel/trace/trace.c:buffer_subbuf_size_write, since 6.8). Returns whether the size has
    /// changed.
    pub(super) fn reopen(&mut self, tracefs: &Tracefs) -> Result<bool, TracefsError> {
        let text = self.instance.header_page(tracefs)?;
        let Ok(layout) = PageLayout::parse(&text) else { return Ok(false) };
        self.file = self.instance.open_raw(self.cpu)?;
        Ok(std::mem::replace(&mut self.layout, layout) != layout)
    }

    /// Notes that the kernel has emptied the buffer and set its counters to zero. How many of the events
    /// that the daemon has read were recorded since then is not known: the next look says from where on
    /// the counters are compared.
    pub(super) fn was_reset(&mut self) {
        (self.told_overruns, self.known) = (Some(0), BufferStats::default());
        self.compare_anew();
    }

    /// How many events a page's loss flag stands for; absent if the number is unknown, and 0 if
    /// they were counted before. `counted` is the number on the page, if it had room for one.
    fn lost(&mut self, counted: Option<u64>) -> Option<u64> {
        let Some(told) = self.told_overruns else { return counted };
        self.asks_for_overruns |= counted.is_none();
        if !self.asks_for_overruns {
            self.told_overruns = Some(told + counted.unwrap_or(0));
            return counted;
        }
        let stats = self.instance.stats(self.cpu).ok()?;
        self.told_overruns = Some(stats.overrun);
        Some(stats.overrun.saturating_sub(told))
    }

    /// Counts events that the kernel did not record in the buffer, and those that another program has
    /// read from it, and notices if another program has emptied it. `seen` is absent while the daemon
    /// has read events that it does not count yet.
    pub(super) fn look_at_stats(&mut self, counters: &BufferCounters, seen: Option<u64>, hub: &Hub) {
        let Ok(stats) = self.instance.stats(self.cpu) else { return };
        // No counter ever falls, unless the buffer is reset.
        let fell = [
            (stats.overrun, self.told_overruns.unwrap_or(0)),
            (stats.commit_overrun, self.known.commit_overrun),
            (stats.dropped, self.known.dropped),
            (stats.read, self.known.read),
        ];
        if fell.iter().any(|(now, before)| now < before) {
            tracing::warn!(cpu = self.cpu, "another program has emptied the ring buffer");
            self.was_reset();
            counters.resets.add(1);
            hub.publish_loss(Loss::on(self.cpu, LossCause::Reset, None, 0));
        }
        // The buffer has no unread events, so that no overrun is left to report either.
        if self.told_overruns.is_none() && stats.entries == 0 {
            self.told_overruns = Some(stats.overrun);
        }
        let known = std::mem::replace(&mut self.known, stats);
        let taken = seen.map_or(0, |seen| {
            let now = difference(stats.read, seen);
            let before = self.read_by_others.replace(now).unwrap_or(now);
            u64::try_from(now.saturating_sub(before)).unwrap_or(0)
        });
        for (more, counter, cause) in [
            (
                stats.commit_overrun.saturating_sub(known.commit_overrun),
                &counters.commit_overrun,
                LossCause::CommitOverrun,
            ),
            (stats.dropped.saturating_sub(known.dropped), &counters.dropped_events, LossCause::DroppedEvents),
            (taken, &counters.taken, LossCause::Taken),
        ] {
            if more > 0 {
                counter.add(more);
                hub.publish_loss(Loss::on(self.cpu, cause, Some(more), 0));
            }
        }
    }
}

/// How many more events the kernel counts as read than the daemon does.
fn difference(by_kernel: u64, by_daemon: u64) -> i64 {
    by_kernel.wrapping_sub(by_daemon).cast_signed()
}

/// Whether a read says that its CPU has no buffer yet.
fn has_no_buffer(answer: &io::Result<usize>) -> bool {
    matches!(answer, Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32))
}
