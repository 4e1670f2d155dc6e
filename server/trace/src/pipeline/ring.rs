//! The ring buffer of one CPU: its file, its pages, and the account of what the kernel lost in it.
//!
//! Owns the loop that reads pages. Never looks at what is on them beyond their header.
//!
//! Kernel facts: `read` of `per_cpu/cpuN/trace_pipe_raw` gives one sub-buffer
//! (kernel/trace/trace.c:tracing_buffers_read), and can return 0 without an end in sight.

use std::fs::File;
use std::io::{self, Read as _};

use super::commands::Inbox;
use super::counters::BufferCounters;
use super::{Hub, Loss, LossCause};
use kprobed_host::ring::{Lost, Page, PageError, PageLayout};
use kprobed_host::tracefs::{BufferStats, Instance, Tracefs, TracefsError};

/// Bytes of pages that one buffer may have in one turn, so that a busy one does not keep the others
/// waiting.
pub(super) const TURN_BYTES: usize = 256 << 10;

/// How far a turn goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// Until the page that the kernel is still writing to, or somebody asks the reader for
    /// something.
    Pages,
    /// Until nothing is left from before this time, in nanoseconds of the trace clock. Not until
    /// nothing is left at all: a CPU that records faster than it is read would never come to that.
    Until(u64),
}

/// What a turn found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Pages read.
    pub(super) pages: usize,
    /// Bytes of events on them.
    pub(super) data_bytes: u64,
    /// Whether there was nothing behind them.
    pub(super) caught_up: bool,
    /// Whether everything that was read is published.
    pub(super) is_published: bool,
    /// Whether a page was malformed: somebody may have changed the instance.
    pub(super) broken: bool,
}

impl Found {
    /// Nothing, in no buffer.
    pub(super) const NOTHING: Self =
        Self { pages: 0, data_bytes: 0, caught_up: true, is_published: true, broken: false };

    /// What was found in this and in another buffer.
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

/// Events that the kernel lost before a page. They have to be counted when the page is read: the
/// counter of the buffer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// How many; absent if nobody knows, and 0 if they were counted with an earlier gap.
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
    cpu: u32,
    instance: Instance,
    layout: PageLayout,
    file: File,
    /// Overruns told since the buffer's own counters were at zero. Absent as long as an earlier run
    /// of the daemon has told some of them, nobody knows how many.
    told_overruns: Option<u64>,
    /// A page had no room for its number of lost events: from there on the buffer's counter is
    /// asked, since later numbers on pages can overlap with what was told.
    ask_for_overruns: bool,
    /// What the buffer counted when it was last asked; of its overruns only `told_overruns` counts.
    known: BufferStats,
}

impl Ring {
    /// Opens the buffer of a CPU. What it has lost before is not counted.
    pub(super) fn open(instance: &Instance, layout: PageLayout, cpu: u32) -> Result<Self, TracefsError> {
        let before = instance.stats(cpu)?;
        Ok(Self::new(instance.clone(), layout, cpu, instance.open_raw(cpu)?, &before))
    }

    /// `before` is what the buffer counted before anything is read of it here.
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
            told_overruns: (before.overrun == 0).then_some(0),
            ask_for_overruns: false,
            known: *before,
        }
    }

    /// The CPU.
    pub(super) const fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Its instance.
    pub(super) const fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The layout of its pages.
    pub(super) const fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// Its file, to be polled.
    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// Whether a number of lost events was not on its page, so that the buffer's counter is asked
    /// from then on.
    pub(super) const fn asks_for_overruns(&self) -> bool {
        self.ask_for_overruns
    }

    /// Reads pages as far as `depth` says, and shows each to `take`. In no case many more bytes
    /// than `bytes_max`, and nothing more once `inbox` has a command, unless everything up to a
    /// time is wanted.
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
                // Half a page is where the kernel is writing: come back when there is more, instead
                // of chasing it.
                Depth::Pages => data_bytes * 2 < bytes.len(),
                Depth::Until(time_ns) => begun_ns > time_ns,
            };
            if found.caught_up || (depth == Depth::Pages && inbox.has_command()) {
                break;
            }
        }
        found
    }

    /// The next page, unless there is none, or it cannot be read.
    fn read_page<'b>(&mut self, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
        // The kernel may answer 0 without being at an end, when a page is swapped at that very
        // moment.
        let mut empty_answers = 0;
        loop {
            match self.file.read(buffer) {
                Ok(0) if empty_answers < 3 => empty_answers += 1,
                Ok(0) => return None,
                Ok(length) => return buffer.get(..length),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => {
                    tracing::error!(cpu = self.cpu, %error, "cannot read events");
                    return None;
                }
            }
        }
    }

    /// Opens the file again, after somebody has changed the size of sub-buffers
    /// (kernel/trace/trace.c:buffer_subbuf_size_write, since 6.8). Returns whether the size is
    /// another one.
    pub(super) fn reopen(&mut self, tracefs: &Tracefs) -> Result<bool, TracefsError> {
        let text = self.instance.header_page(tracefs)?;
        let Ok(layout) = PageLayout::parse(&text) else { return Ok(false) };
        self.file = self.instance.open_raw(self.cpu)?;
        Ok(std::mem::replace(&mut self.layout, layout) != layout)
    }

    /// The kernel has emptied the buffer and set its counters to zero.
    pub(super) fn was_reset(&mut self) {
        (self.told_overruns, self.known) = (Some(0), BufferStats::default());
    }

    /// How many events a page's loss flag stands for; absent for some, and 0 if they were counted
    /// before. `counted` is the number on the page, if it had room for one.
    fn lost(&mut self, counted: Option<u64>) -> Option<u64> {
        let Some(told) = self.told_overruns else { return counted };
        self.ask_for_overruns |= counted.is_none();
        if !self.ask_for_overruns {
            self.told_overruns = Some(told + counted.unwrap_or(0));
            return counted;
        }
        let stats = self.instance.stats(self.cpu).ok()?;
        self.told_overruns = Some(stats.overrun);
        Some(stats.overrun.saturating_sub(told))
    }

    /// Counts events that the kernel did not let into the buffer, and notices if another program
    /// has emptied it.
    pub(super) fn look_at_stats(&mut self, counters: &BufferCounters, hub: &Hub) {
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
        // Nothing unread is left, so that no overrun is left to be told either.
        if self.told_overruns.is_none() && stats.entries == 0 {
            self.told_overruns = Some(stats.overrun);
        }
        let known = std::mem::replace(&mut self.known, stats);
        for (now, before, counter, cause) in [
            (stats.commit_overrun, known.commit_overrun, &counters.commit_overrun, LossCause::CommitOverrun),
            (stats.dropped, known.dropped, &counters.dropped_events, LossCause::DroppedEvents),
        ] {
            let more = now.saturating_sub(before);
            if more > 0 {
                counter.add(more);
                hub.publish_loss(Loss::on(self.cpu, cause, Some(more), 0));
            }
        }
    }
}
