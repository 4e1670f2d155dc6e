//! Pages that are read and not yet published, while two instances record the same events.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use super::cpu::Ring;
use super::cut::{Seen, Side, identity};
use crate::ring::{Lost, Page, PageError, PageLayout, Record};
use crate::tracefs::Instance;

/// Bytes that one reader holds at most. What comes after that waits in the kernel's buffers.
const HELD_BYTES_MAX: usize = 64 << 20;

/// A page, as long as it has data.
#[derive(Debug)]
pub(super) struct HeldPage {
    bytes: Vec<u8>,
    lost: HeldLost,
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
pub(super) struct HeldPages(Vec<HeldPage>);

impl HeldPages {
    /// Pages, and how many events were lost before each.
    #[cfg(test)]
    pub(super) fn of(pages: Vec<(Vec<u8>, HeldLost)>) -> Self {
        Self(pages.into_iter().map(|(bytes, lost)| HeldPage { bytes, lost }).collect())
    }

    /// Number of pages.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// What stands on them.
    pub(super) fn pieces<'p>(&'p self, layout: &'p PageLayout) -> impl Iterator<Item = Piece<'p>> {
        self.0.iter().flat_map(|held| {
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
    fn note(&self, of: Side, cpu: u32, layout: &PageLayout, wanted: &Wanted, seen: &mut Vec<Seen>) -> bool {
        for piece in self.pieces(layout) {
            match piece {
                Piece::Record(Record { timestamp_ns: time_ns, payload }) => {
                    if let Some((id, line)) = identity(payload, cpu)
                        && wanted.window.contains(&time_ns)
                        && wanted.both.contains(&id)
                    {
                        seen.push(Seen { line, time_ns, side: of });
                    }
                }
                // The gap ends here; where it begins is not known.
                Piece::Lost(_, time_ns) if time_ns <= *wanted.window.start() => {}
                Piece::Lost(..) | Piece::Bad(..) => return false,
            }
        }
        true
    }
}

/// Which events are looked for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// When.
    pub(super) window: RangeInclusive<u64>,
    /// Their ids.
    pub(super) both: HashSet<u16>,
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
    bytes: usize,
}

/// The buffers of the next instance that one reader is to read.
#[derive(Debug)]
pub(super) struct NextRings {
    pub(super) instance: Instance,
    pub(super) layout: PageLayout,
    pub(super) rings: Vec<Ring>,
}

impl Held {
    /// Holds nothing yet. `rings` are in the order of the reader's CPUs.
    pub(super) fn new(next: NextRings) -> Self {
        let cpu = |next| HeldCpu { next, last_pages: HeldPages::default(), next_pages: HeldPages::default() };
        let cpus = next.rings.into_iter().map(cpu).collect();
        Self { instance: next.instance, layout: next.layout, cpus, bytes: 0 }
    }

    /// Reads what there is on one CPU, until what is found is later than `until_ns` or the buffer is empty. Answers how many pages there were.
    pub(super) fn read(
        &mut self,
        index: usize,
        last: &mut Ring,
        (instance, layout): (&Instance, &PageLayout),
        buffer: &mut [u8],
        until_ns: u64,
    ) -> usize {
        let Some(cpu) = self.cpus.get_mut(index) else { return 0 };
        let sides = [
            (&mut cpu.next, &mut cpu.next_pages, &self.instance, &self.layout),
            (last, &mut cpu.last_pages, instance, layout),
        ];
        let mut read = 0;
        for (ring, pages, instance, layout) in sides {
            while self.bytes < HELD_BYTES_MAX {
                let Some(bytes) = ring.read_page(buffer) else { break };
                let page = Page::parse(bytes, layout);
                let data_bytes = page.as_ref().map_or(bytes.len(), Page::data_bytes);
                let time_ns = page.as_ref().map_or(0, Page::timestamp_ns);
                let lost = match page.map_or(Lost::None, |page| page.lost()) {
                    Lost::None => HeldLost::Nothing,
                    Lost::Count(count) => HeldLost::Events(ring.lost(Some(count), instance)),
                    Lost::Unknown => HeldLost::Events(ring.lost(None, instance)),
                };
                // What is behind the data, a count of what was lost excepted, is nothing.
                let length = (layout.sub_buffer_bytes() - layout.data_capacity_bytes())
                    .saturating_add(data_bytes)
                    .saturating_add(size_of::<u64>());
                let bytes = bytes.get(..length).unwrap_or(bytes);
                self.bytes += bytes.len();
                pages.0.push(HeldPage { bytes: bytes.to_vec(), lost });
                read += 1;
                if time_ns > until_ns {
                    break;
                }
            }
        }
        read
    }

    /// Every copy of what is wanted. Absent when some are missing.
    pub(super) fn seen(&self, numbers: &[u32], layout: &PageLayout, wanted: &Wanted) -> Option<Vec<Seen>> {
        let mut seen = Vec::new();
        for (held, cpu) in self.cpus.iter().zip(numbers) {
            let whole = held.last_pages.note(Side::Last, *cpu, layout, wanted, &mut seen)
                && held.next_pages.note(Side::Next, *cpu, &self.layout, wanted, &mut seen);
            if !whole {
                return None;
            }
        }
        (self.bytes < HELD_BYTES_MAX).then_some(seen)
    }
}
