//! One reader's work on the pages of one CPU: from bytes to published batches.

use super::collector::{BATCH_EVENTS, Collector, Pending, fits};
use super::counters::BufferCounters;
use super::cut::{Cuts, Side};
use super::held::{HeldPages, Piece};
use super::seen::Distinct;
use super::source::{SourceTable, Sources};
use super::{AddressNames, Draft, Group, Hub, Loss, LossCause, TaskNames};
use crate::decode::{FieldKind, Plan, Value, WINDOW_BYTES, Window};
use crate::wire::Symbol;
use kprobed_host::kernel::ClockMapping;
use kprobed_host::ring::{Lost, Page, PageLayout, Record};

/// How much was lost, given the number on the page, if it has one.
pub(super) type CountLost<'a> = &'a mut dyn FnMut(Option<u64>) -> Option<u64>;

/// What a page was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageTaken {
    /// Bytes of events.
    pub(super) data_bytes: usize,
    /// When it was begun, in nanoseconds of the trace clock: everything before that was in the pages before it.
    pub(super) begun_ns: u64,
}

/// Events whose records only have to be long enough, and where they are collected: nearly all records are of one of a few such. Whoever
/// closes a batch forgets them, for what is known holds for one batch only.
#[derive(Default)]
struct Known {
    slots: [Option<KnownEvent>; 8],
    /// Time of the first event of the batch.
    base_ns: u64,
}

#[derive(Clone, Copy)]
struct KnownEvent {
    id: u16,
    bytes: usize,
    group: usize,
}

impl Known {
    /// The group that a record belongs to, and what is decoded of it, when nothing else has to be asked.
    #[inline]
    fn find<'p>(&self, record: &Record<'p>, onward: &'p [u8]) -> Option<(usize, Window<'p>)> {
        let bytes = onward.first_chunk::<WINDOW_BYTES>()?;
        let id = u16::from_le_bytes(*bytes.first_chunk()?);
        let event = self.slots.get(usize::from(id) % self.slots.len())?.as_ref()?;
        let is_known = event.id == id && record.payload.len() >= event.bytes;
        (is_known && fits(self.base_ns, record.timestamp_ns))
            .then_some((event.group, Window { timestamp_ns: record.timestamp_ns, bytes }))
    }

    fn learn(&mut self, group: usize, plan: &Plan, base_ns: u64) {
        self.base_ns = base_ns;
        let slot = usize::from(plan.id()) % self.slots.len();
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = Some(KnownEvent { id: plan.id(), bytes: plan.fixed_bytes(), group });
        }
    }
}

/// What a turn works with.
pub(super) struct Turn<'a> {
    pub(super) cpu: u32,
    pub(super) layout: &'a PageLayout,
    pub(super) sources: &'a SourceTable,
    pub(super) counters: &'a BufferCounters,
    pub(super) hub: &'a Hub,
    pub(super) tasks: &'a mut TaskNames,
    pub(super) addresses: &'a mut AddressNames,
}

impl Turn<'_> {
    /// Takes one page. Absent when it makes no sense.
    pub(super) fn page(
        &mut self,
        bytes: &[u8],
        collector: &mut Collector,
        count_lost: CountLost<'_>,
    ) -> Option<PageTaken> {
        let page = match Page::parse(bytes, self.layout) {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(cpu = self.cpu, %error, "malformed ring-buffer page");
                collector.undecodable += 1;
                self.counters.undecodable.add(1);
                return None;
            }
        };
        self.counters.pages.add(1);
        self.overrun(page.lost(), page.timestamp_ns(), collector, count_lost);
        // Only after the page was read: whatever stands on it was known before it was switched on.
        let sources = self.sources.current();
        let mut pending = Pending::default();
        let mut known = Known::default();
        let walked = page.records().each(|record, onward| {
            if let Some((group, window)) = known.find(&record, onward) {
                collector.events += 1;
                if pending.push(group, window) {
                    pending.decode_into(collector);
                }
            } else {
                self.record(record, onward, &sources, collector, &mut pending, &mut known);
            }
        });
        if let Err(error) = walked {
            tracing::warn!(cpu = self.cpu, %error, "malformed ring-buffer page: its rest is skipped");
            collector.undecodable += 1;
            self.counters.undecodable.add(1);
        }
        pending.decode_into(collector);
        if collector.is_full() {
            self.flush(collector);
        }
        Some(PageTaken { data_bytes: page.data_bytes(), begun_ns: page.timestamp_ns() })
    }

    /// Takes what was held of two instances, in the order of time, each event from one of them. Without cuts there is only one.
    pub(super) fn held(
        &mut self,
        (last, last_layout): (&HeldPages, &PageLayout),
        (next, next_layout): (&HeldPages, &PageLayout),
        cuts: Option<&Cuts>,
        collector: &mut Collector,
    ) {
        let cpu = self.cpu;
        let taken = |side| {
            move |piece: &Piece<'_>| match (piece, cuts) {
                (Piece::Record(record), Some(cuts)) => {
                    cuts.takes(side, cpu, record.timestamp_ns, record.payload)
                }
                (Piece::Lost(_, end_ns), Some(cuts)) => cuts.takes_gap(side, *end_ns),
                _ => side == Side::Last,
            }
        };
        let mut last_pieces = last.pieces(last_layout).filter(taken(Side::Last)).peekable();
        let mut next_pieces = next.pieces(next_layout).filter(taken(Side::Next)).peekable();
        let sources = self.sources.current();
        let mut pending = Pending::default();
        let mut known = Known::default();
        self.counters.pages.add((last.len() + if cuts.is_some() { next.len() } else { 0 }) as u64);
        loop {
            let next_is_first = match (last_pieces.peek(), next_pieces.peek()) {
                (None, None) => break,
                (last, None) => last.is_none(),
                (None, Some(_)) => true,
                (Some(last), Some(next)) => next.time_ns() < last.time_ns(),
            };
            match if next_is_first { next_pieces.next() } else { last_pieces.next() } {
                Some(Piece::Record(record)) => {
                    self.record(record, record.payload, &sources, collector, &mut pending, &mut known);
                }
                Some(Piece::Lost(count, before_ns)) => {
                    pending.decode_into(collector);
                    self.lost(count, before_ns, collector);
                    known = Known::default();
                }
                Some(Piece::Bad(error, _)) => {
                    tracing::warn!(cpu = self.cpu, %error, "malformed ring-buffer page: its rest is skipped");
                    collector.undecodable += 1;
                    self.counters.undecodable.add(1);
                }
                None => break,
            }
            if collector.events >= BATCH_EVENTS {
                pending.decode_into(collector);
                self.flush(collector);
                known = Known::default();
            }
        }
        pending.decode_into(collector);
        self.flush(collector);
    }

    /// The kernel lost events before this page.
    fn overrun(&mut self, lost: Lost, before_ns: u64, collector: &mut Collector, count_lost: CountLost<'_>) {
        let count = match lost {
            Lost::None => return,
            Lost::Count(count) => count_lost(Some(count)),
            Lost::Unknown => count_lost(None),
        };
        self.lost(count, before_ns, collector);
    }

    fn lost(&mut self, count: Option<u64>, before_ns: u64, collector: &mut Collector) {
        self.counters.overrun.add(count.unwrap_or(0));
        self.counters.overrun_span.note(before_ns);
        self.flush(collector);
        self.hub.publish_loss(Loss::on(self.cpu, LossCause::Overrun, count, before_ns));
    }

    /// Takes one record, of which nothing is known yet.
    #[inline(never)]
    fn record<'p>(
        &mut self,
        record: Record<'p>,
        onward: &'p [u8],
        sources: &Sources,
        collector: &mut Collector,
        pending: &mut Pending<'p>,
        known: &mut Known,
    ) {
        if collector.is_far(record.timestamp_ns) {
            pending.decode_into(collector);
            self.flush(collector);
            collector.is_far(record.timestamp_ns);
            *known = Known::default();
        }
        let Some(source) = sources.lookup(record.payload) else {
            // Not ours: somebody has switched another event on in our instance.
            self.undecodable(collector, known);
            return;
        };
        if collector.undecodable > 0 {
            self.tell_undecodable(collector, pending, record.timestamp_ns);
            *known = Known::default();
        }
        let index = collector.group_of(source);
        let plan = &source.plan;
        if plan.is_fixed() {
            if let Some(bytes) = onward.first_chunk()
                && record.payload.len() >= plan.fixed_bytes()
            {
                pending.expect(index);
                known.learn(index, plan, collector.base_ns());
                collector.events += 1;
                if pending.push(index, Window { timestamp_ns: record.timestamp_ns, bytes }) {
                    pending.decode_into(collector);
                }
                return;
            }
            // The last one of its page comes after all that wait.
            pending.decode_into(collector);
        }
        let Some(group) = collector.groups.get_mut(index) else { return };
        match plan.decode(record.payload, record.timestamp_ns, &mut group.columns) {
            Ok(()) => {
                source.read.add(1);
                source.read_span.note(record.timestamp_ns);
                collector.events += 1;
            }
            Err(error) => {
                tracing::warn!(probe = %source.origin.name, %error, "malformed event");
                source.undecodable.add(1);
                self.undecodable(collector, known);
            }
        }
    }

    /// Counts a record that could not be decoded; it is told before the next one that can.
    fn undecodable(&self, collector: &mut Collector, known: &mut Known) {
        self.counters.undecodable.add(1);
        collector.undecodable += 1;
        *known = Known::default();
    }

    fn tell_undecodable(&mut self, collector: &mut Collector, pending: &mut Pending<'_>, before_ns: u64) {
        let count = Some(std::mem::take(&mut collector.undecodable));
        pending.decode_into(collector);
        self.flush(collector);
        self.hub.publish_loss(Loss::on(self.cpu, LossCause::Undecodable, count, before_ns));
    }

    /// Publishes what was collected.
    pub(super) fn flush(&mut self, collector: &mut Collector) {
        if collector.events == 0 {
            return;
        }
        self.counters.read.add(collector.events as u64);
        for times in collector.groups.iter().map(|group| &group.columns.timestamps_ns) {
            self.counters.read_span.note(times.first().copied().unwrap_or_default());
            self.counters.read_span.note(times.last().copied().unwrap_or_default());
        }
        if !self.hub.is_wanted() {
            self.hub.pass_over(collector.events as u64);
            collector.clear();
            return;
        }
        self.addresses.refresh();
        collector.drop_empty();
        for group in &mut collector.groups {
            group.columns.name_addresses(|address, text| self.addresses.append_name(address, text));
        }
        let groups = &collector.groups;
        let mut tids = Distinct::new();
        for tid in groups.iter().flat_map(|group| &group.columns.tids) {
            tids.add(*tid, tid.unsigned_abs() as usize);
        }
        let tasks: Vec<_> = tids.into_values().into_iter().filter_map(|tid| self.tasks.task(tid)).collect();
        let mut addresses = Distinct::new();
        for group in groups {
            each_address(group, |address| addresses.add(address, (address >> 4) as usize));
        }
        let addresses = addresses.into_values().into_iter();
        let symbols: Vec<_> = addresses
            .filter_map(|address| Some(Symbol { address, text: self.addresses.name(address)? }))
            .collect();
        let clock = ClockMapping::sample();
        self.hub.publish(&Draft { cpu: self.cpu, groups, tasks: &tasks, symbols: &symbols, clock });
        collector.clear();
    }
}

/// All kernel addresses in a group that are shown as symbols.
fn each_address(group: &Group, mut found: impl FnMut(u64)) {
    let columns = &group.columns;
    columns.ips.iter().chain(&columns.return_ips).for_each(|address| found(*address));
    for (index, field) in group.origin.schema.fields.iter().enumerate() {
        if field.kind != FieldKind::Symbol {
            continue;
        }
        let Some(column) = columns.fields.get(index) else { continue };
        let elements = field.array_len.unwrap_or(1) as usize;
        for row in 0..columns.len() {
            for element in 0..elements {
                if let Some(Value::Symbol(address)) = column.value(row, element) {
                    found(address);
                }
            }
        }
    }
}
