//! Held pages of a hand-over: read and not yet published, while two instances record the same
//! events.
//!
//! Owns the bytes of those pages, the gaps between them, and the walk over both. Never decides
//! which instance an event is taken from: `cutover` does.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use super::super::ring::{Gap, PageRead};
use super::cutover::{EventCopy, Side, identity};
use kprobed_host::ring::{Page, PageError, PageLayout, Record};

/// The bytes of a page, as far as there is data on it.
#[derive(Debug)]
struct HeldPage {
    bytes: Vec<u8>,
    gap: Option<Gap>,
    /// Time of its first event; 0 if it is malformed.
    begun_ns: u64,
}

/// Events, gaps and malformed bytes of held pages, in the order in which they were recorded.
#[derive(Debug)]
pub(super) enum HeldRecord<'p> {
    /// An event.
    Event(Record<'p>),
    /// Events were lost before that time.
    Lost(Gap, u64),
    /// Malformed bytes, with the time of the record before them.
    Malformed(PageError, u64),
}

impl HeldRecord<'_> {
    /// When.
    pub(super) const fn time_ns(&self) -> u64 {
        match self {
            Self::Event(record) => record.timestamp_ns,
            Self::Lost(_, time_ns) | Self::Malformed(_, time_ns) => *time_ns,
        }
    }
}

/// All pages that are held of one CPU's buffer.
#[derive(Debug, Default)]
pub(super) struct HeldPages {
    pages: Vec<HeldPage>,
    bytes: usize,
}

impl HeldPages {
    /// Number of pages.
    pub(super) const fn len(&self) -> usize {
        self.pages.len()
    }

    /// Bytes that they take.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a page, with what was lost before it.
    pub(super) fn push(&mut self, read: &PageRead<'_>, layout: &PageLayout) {
        let PageRead { bytes, page, gap } = read;
        let data_bytes = page.as_ref().map_or(bytes.len(), Page::data_bytes);
        let begun_ns = page.as_ref().map_or(0, Page::timestamp_ns);
        // The bytes after the data hold nothing but a count of lost events, if one is stored there.
        let length = (layout.sub_buffer_bytes() - layout.data_capacity_bytes())
            .saturating_add(data_bytes)
            .saturating_add(size_of::<u64>());
        let bytes = bytes.get(..length).unwrap_or(bytes).to_vec();
        self.bytes += bytes.len();
        self.pages.push(HeldPage { bytes, gap: *gap, begun_ns });
    }

    /// Whether everything up to that time is held.
    pub(super) fn reaches(&self, time_ns: u64) -> bool {
        self.pages.last().is_some_and(|page| page.begun_ns > time_ns)
    }

    /// Takes out the pages whose events are all earlier than that: those before the last page that
    /// begins earlier.
    pub(super) fn take_earlier(&mut self, time_ns: u64) -> Self {
        let begun_earlier = |page: &HeldPage| (1..time_ns).contains(&page.begun_ns);
        let count = self.pages.iter().rposition(begun_earlier).unwrap_or(0);
        let earlier = Self { pages: self.pages.drain(..count).collect(), bytes: 0 };
        let bytes = earlier.pages.iter().map(|page| page.bytes.len()).sum();
        self.bytes -= bytes;
        Self { bytes, ..earlier }
    }

    /// The records of all pages, in order.
    pub(super) fn records<'p>(&'p self, layout: &'p PageLayout) -> impl Iterator<Item = HeldRecord<'p>> {
        self.pages.iter().flat_map(|held| {
            let (page, error) = match Page::parse(&held.bytes, layout) {
                Ok(page) => (Some(page), None),
                Err(error) => (None, Some(HeldRecord::Malformed(error, 0))),
            };
            let lost = held.gap.zip(page).map(|(gap, page)| HeldRecord::Lost(gap, page.timestamp_ns()));
            let mut last_ns = page.map_or(0, |page| page.timestamp_ns());
            let records = page.into_iter().flat_map(|page| page.records()).map(move |record| match record {
                Ok(record) => {
                    last_ns = record.timestamp_ns;
                    HeldRecord::Event(record)
                }
                Err(error) => HeldRecord::Malformed(error, last_ns),
            });
            error.into_iter().chain(lost).chain(records)
        })
    }

    /// Adds the events of `window` with an id in `both` to `copies`. Returns whether nothing is
    /// missing among them.
    pub(super) fn note(
        &self,
        of: Side,
        cpu: u32,
        layout: &PageLayout,
        window: &HandoverWindow,
        copies: &mut Vec<EventCopy>,
    ) -> bool {
        let mut previous_ns = 0;
        for held in self.records(layout) {
            // What comes after the window does not matter.
            if previous_ns > *window.window.end() {
                break;
            }
            match held {
                HeldRecord::Event(Record { timestamp_ns: time_ns, payload }) => {
                    previous_ns = time_ns;
                    if let Some((id, task)) = identity(payload, cpu)
                        && window.window.contains(&time_ns)
                        && window.both.contains(&id)
                    {
                        copies.push(EventCopy { task, time_ns, side: of });
                    }
                }
                // The gap of the old instance ends before the window, so that no copy in the window
                // is missing.
                HeldRecord::Lost(_, time_ns) if of == Side::Old && time_ns <= *window.window.start() => {}
                HeldRecord::Lost(..) | HeldRecord::Malformed(..) => return false,
            }
        }
        true
    }
}

/// A time in which two instances recorded the same events, so that readers can change over within
/// it.
#[derive(Clone, Debug)]
pub struct HandoverWindow {
    /// Begins after the new instance was switched on, lasts a grace period of the kernel, and ended
    /// one ago. In nanoseconds of the trace clock.
    pub window: RangeInclusive<u64>,
    /// Ids of the events that were recorded in both instances all the time.
    pub both: HashSet<u16>,
    /// Whether nothing is recorded in the old instance any more.
    pub has_ended: bool,
}
