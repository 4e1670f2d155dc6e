//! Pages that are read and not yet published, while two instances record the same events.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use super::cpu::Ring;
use super::cut::{Seen, Side, identity};
use kprobed_host::ring::{Lost, Page, PageError, PageLayout, Record};
use kprobed_host::tracefs::Instance;

/// Bytes that one reader holds at most of one CPU's buffer. What comes after that waits there.
const HELD_BYTES_MAX: usize = 16 << 20;

/// Bytes that are read of one buffer before the other has its turn: both are overwritten when they are not read.
const TURN_BYTES: usize = 256 << 10;

/// A page, as long as it has data.
#[derive(Debug)]
pub(super) struct HeldPage {
    bytes: Vec<u8>,
    lost: HeldLost,
    /// Time of its first event; 0 when it makes no sense.
    begun_ns: u64,
}

/// What was lost before a held page. It has to be counted when the page is read: what the buffer counts goes on.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeldLost {
    /// Nothing.
    Nothing,
    /// So many events, as far as that is known.
    Events(Option<u64>),
}

/// What stands on held pages, in the order in which it was recorded.
#[derive(Debug)]
pub(super) enum Piece<'p> {
    /// An event.
    Record(Record<'p>),
    /// So many events were lost before that time.
    Lost(Option<u64>, u64),
    /// Bytes that make no sense, with the time of what was before them.
    Bad(PageError, u64),
}

impl Piece<'_> {
    /// When.
    pub(super) const fn time_ns(&self) -> u64 {
        match self {
            Self::Record(record) => record.timestamp_ns,
            Self::Lost(_, time_ns) | Self::Bad(_, time_ns) => *time_ns,
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
    /// Pages, and how many events were lost before each.
    #[cfg(test)]
    pub(super) fn of(pages: Vec<(Vec<u8>, HeldLost)>, layout: &PageLayout) -> Self {
        let mut held = Self::default();
        for (bytes, lost) in pages {
            let begun_ns = Page::parse(&bytes, layout).map_or(0, |page| page.timestamp_ns());
            held.push(HeldPage { bytes, lost, begun_ns });
        }
        held
    }

    /// Number of pages.
    pub(super) const fn len(&self) -> usize {
        self.pages.len()
    }

    fn push(&mut self, page: HeldPage) {
        self.bytes += page.bytes.len();
        self.pages.push(page);
    }

    /// Whether everything up to that time is held.
    fn reaches(&self, time_ns: u64) -> bool {
        self.pages.last().is_some_and(|page| page.begun_ns > time_ns)
    }

    /// Takes out the pages with nothing but what is earlier than that: those before the last one that was begun earlier.
    fn take_earlier(&mut self, time_ns: u64) -> Self {
        let begun_earlier = |page: &HeldPage| (1..time_ns).contains(&page.begun_ns);
        let count = self.pages.iter().rposition(begun_earlier).unwrap_or(0);
        let earlier = Self { pages: self.pages.drain(..count).collect(), bytes: 0 };
        let bytes = earlier.pages.iter().map(|page| page.bytes.len()).sum();
        self.bytes -= bytes;
        Self { bytes, ..earlier }
    }

    /// What stands on them.
    pub(super) fn pieces<'p>(&'p self, layout: &'p PageLayout) -> impl Iterator<Item = Piece<'p>> {
        self.pages.iter().flat_map(|held| {
            let (page, error) = match Page::parse(&held.bytes, layout) {
                Ok(page) => (Some(page), None),
                Err(error) => (None, Some(Piece::Bad(error, 0))),
            };
            let lost = match (held.lost, page) {
                (HeldLost::Events(count), Some(page)) => Some(Piece::Lost(count, page.timestamp_ns())),
                _ => None,
            };
            let mut last_ns = page.map_or(0, |page| page.timestamp_ns());
            let records = page.into_iter().flat_map(|page| page.records()).map(move |record| match record {
                Ok(record) => {
                    last_ns = record.timestamp_ns;
                    Piece::Record(record)
                }
                Err(error) => Piece::Bad(error, last_ns),
            });
            error.into_iter().chain(lost).chain(records)
        })
    }

    /// Adds the events of `window` with an id in `both` to `seen`. Answers whether nothing is missing among them.
    pub(super) fn note(
        &self,
        of: Side,
        cpu: u32,
        layout: &PageLayout,
        wanted: &Wanted,
        seen: &mut Vec<Seen>,
    ) -> bool {
        let mut previous_ns = 0;
        for piece in self.pieces(layout) {
            // What comes after the window does not matter.
            if previous_ns > *wanted.window.end() {
                break;
            }
            match piece {
                Piece::Record(Record { timestamp_ns: time_ns, payload }) => {
                    previous_ns = time_ns;
                    if let Some((id, line)) = identity(payload, cpu)
                        && wanted.window.contains(&time_ns)
                        && wanted.both.contains(&id)
                    {
                        seen.push(Seen { line, time_ns, side: of });
                    }
                }
                // The gap ends here. What the next instance has lost before the window it had recorded just as well.
                Piece::Lost(_, time_ns) if of == Side::Last && time_ns <= *wanted.window.start() => {}
                Piece::Lost(..) | Piece::Bad(..) => return false,
            }
        }
        true
    }
}

/// Where it can be gone over to the next instance.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Begins after the next instance was switched on, lasts a grace period of the kernel, and ended one ago. In nanoseconds of the trace
    /// clock.
    pub window: RangeInclusive<u64>,
    /// Ids of the events that were recorded in both instances all the time.
    pub both: HashSet<u16>,
    /// Whether nothing is recorded in the last instance any more.
    pub has_ended: bool,
}

/// What one reader holds of one CPU.
#[derive(Debug)]
pub(super) struct HeldCpu {
    pub(super) next: Ring,
    pub(super) last_pages: HeldPages,
    pub(super) next_pages: HeldPages,
}

/// What one reader holds.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) instance: Instance,
    pub(super) layout: PageLayout,
    /// In the order of the reader's CPUs.
    pub(super) cpus: Vec<HeldCpu>,
    /// Nothing was recorded in the next instance before this time.
    since_ns: u64,
    /// The last instance is asked how much its gaps are: what it loses later may be counted with them.
    asked: bool,
}

/// The buffers of the next instance that one reader is to read.
#[derive(Debug)]
pub(super) struct NextRings {
    pub(super) instance: Instance,
    pub(super) layout: PageLayout,
    pub(super) rings: Vec<Ring>,
}

/// What was found on one CPU.
#[derive(Debug)]
pub(super) struct HeldFound {
    /// Pages.
    pub(super) pages: usize,
    /// Whether everything is held up to the time that was asked for.
    pub(super) is_all: bool,
    /// What is to be published at once: the last instance has recorded it alone.
    pub(super) earlier: HeldPages,
}

impl Held {
    /// Holds nothing yet. `rings` are in the order of the reader's CPUs. Nothing is recorded in them before now.
    pub(super) fn new(next: NextRings, now_ns: u64) -> Self {
        let cpu = |next| HeldCpu { next, last_pages: HeldPages::default(), next_pages: HeldPages::default() };
        let cpus = next.rings.into_iter().map(cpu).collect();
        Self { instance: next.instance, layout: next.layout, cpus, since_ns: now_ns, asked: false }
    }

    /// Reads what there is on one CPU: not later than `until_ns`, and not much at once. `last` is of the instance and the layout beside it.
    pub(super) fn read(
        &mut self,
        index: usize,
        last: &mut Ring,
        (instance, layout): (&Instance, &PageLayout),
        buffer: &mut [u8],
        until_ns: u64,
    ) -> HeldFound {
        let Some(cpu) = self.cpus.get_mut(index) else {
            return HeldFound { pages: 0, is_all: true, earlier: HeldPages::default() };
        };
        let mut next = BufferRead { ring: &mut cpu.next, instance: &self.instance, layout: &self.layout };
        let (next_pages, next_all) = next.read(&mut cpu.next_pages, buffer, until_ns);
        let mut last = BufferRead { ring: last, instance, layout };
        let (last_pages, last_all) = last.read(&mut cpu.last_pages, buffer, until_ns);
        self.asked |= last.ring.asks_for_overruns();
        HeldFound {
            pages: next_pages + last_pages,
            is_all: next_all && last_all,
            earlier: cpu.last_pages.take_earlier(self.since_ns),
        }
    }

    /// Every copy of what is wanted. Absent when some are missing.
    pub(super) fn seen(&self, numbers: &[u32], layout: &PageLayout, wanted: &Wanted) -> Option<Vec<Seen>> {
        // As long as more is recorded, a number that was asked for may count what the next instance has.
        if self.asked && !wanted.has_ended {
            return None;
        }
        let mut seen = Vec::new();
        for (held, cpu) in self.cpus.iter().zip(numbers) {
            let whole = held.last_pages.note(Side::Last, *cpu, layout, wanted, &mut seen)
                && held.next_pages.note(Side::Next, *cpu, &self.layout, wanted, &mut seen);
            if !whole {
                return None;
            }
        }
        Some(seen)
    }
}

/// One buffer, as its pages come to be held.
struct BufferRead<'a> {
    ring: &'a mut Ring,
    instance: &'a Instance,
    layout: &'a PageLayout,
}

impl BufferRead<'_> {
    /// Answers how many pages there were, and whether everything up to `until_ns` is held now.
    fn read(&mut self, pages: &mut HeldPages, buffer: &mut [u8], until_ns: u64) -> (usize, bool) {
        let (count, bytes_before) = (pages.len(), pages.bytes);
        while !pages.reaches(until_ns) {
            if pages.bytes >= HELD_BYTES_MAX || pages.bytes - bytes_before >= TURN_BYTES {
                return (pages.len() - count, false);
            }
            let Some(bytes) = self.ring.read_page(buffer) else { break };
            let page = Page::parse(bytes, self.layout);
            let data_bytes = page.as_ref().map_or(bytes.len(), Page::data_bytes);
            let begun_ns = page.as_ref().map_or(0, Page::timestamp_ns);
            let lost = match page.map_or(Lost::None, |page| page.lost()) {
                Lost::None => HeldLost::Nothing,
                Lost::Count(count) => HeldLost::Events(self.ring.lost(Some(count), self.instance)),
                Lost::Unknown => HeldLost::Events(self.ring.lost(None, self.instance)),
            };
            // What is behind the data, a count of what was lost excepted, is nothing.
            let length = (self.layout.sub_buffer_bytes() - self.layout.data_capacity_bytes())
                .saturating_add(data_bytes)
                .saturating_add(size_of::<u64>());
            let bytes = bytes.get(..length).unwrap_or(bytes).to_vec();
            pages.push(HeldPage { bytes, lost, begun_ns });
        }
        (pages.len() - count, true)
    }
}
