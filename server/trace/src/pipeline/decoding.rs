//! Decoding of one reader: records of ring buffer pages become published batches.
//!
//! Owns the one loop that every record goes through, whether its page was just read or was held
//! during a hand-over. Never reads pages, and never knows which instance they come from.

use std::path::PathBuf;
use std::sync::Arc;

use super::collector::Collector;
use super::counters::BufferCounters;
use super::known::Known;
use super::names::Distinct;
use super::ring::{Gap, PageRead};
use super::source::{SourceTable, Sources};
use super::stacks::Waiting;
use super::{AddressNames, Draft, Group, Hub, Loss, LossCause, TaskNames};
use crate::decode::{Columns, FieldKind, StackFormat, Value, WINDOW_BYTES};
use crate::wire::Symbol;
use kprobed_host::kernel::{ClockMapping, FactsCache};
use kprobed_host::ring::{PageError, Record};
use kprobed_host::tracefs::Tracefs;
use kprobed_host::tracefs::format::Format;

/// The tables that one reader decodes with, and the hub that it publishes to.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) sources: Arc<SourceTable>,
    pub(super) hub: Arc<Hub>,
    tasks: TaskNames,
    addresses: AddressNames,
    /// Absent if the kernel describes none that is known: then it records no call stacks either.
    stacks: Option<StackFormat>,
}

impl Target {
    pub(super) fn new(
        sources: Arc<SourceTable>,
        hub: Arc<Hub>,
        (tracefs, procfs): (Tracefs, PathBuf),
        facts: Arc<FactsCache>,
    ) -> Self {
        let stacks = tracefs.format_text("ftrace", "kernel_stack").ok();
        let stacks = stacks.and_then(|text| StackFormat::of(&Format::parse(&text).ok()?));
        let (tasks, addresses) = (TaskNames::new(tracefs, procfs), AddressNames::new(facts));
        Self { sources, hub, tasks, addresses, stacks }
    }
}

/// The work for one CPU.
#[derive(Debug)]
pub(super) struct Decoding<'a> {
    pub(super) cpu: u32,
    pub(super) counters: &'a BufferCounters,
    pub(super) collector: &'a mut Collector,
    pub(super) target: &'a mut Target,
}

/// Records that are being decoded, in the order in which they were recorded.
pub(super) struct RecordDecoding<'d, 'a, 'p> {
    decoding: &'d mut Decoding<'a>,
    sources: Arc<Sources>,
    known: Known<'p>,
}

impl<'a> Decoding<'a> {
    /// Takes one page.
    pub(super) fn page(&mut self, read: &PageRead<'_>) {
        let page = match &read.page {
            Ok(page) => page,
            Err(error) => return self.malformed(error),
        };
        let mut records = self.begin(1);
        if let Some(gap) = read.gap {
            records.gap(gap, page.timestamp_ns());
        }
        let walked = page.records().each(|record, onward| records.event(&record, onward));
        if let Err(error) = walked {
            records.malformed(&error);
        }
        records.end();
    }

    /// Takes the records of this number of pages. Call it after they were read: the source table
    /// knows each event before the event is enabled.
    pub(super) fn begin<'p>(&mut self, pages: u64) -> RecordDecoding<'_, 'a, 'p> {
        self.counters.pages.add(pages);
        let sources = self.target.sources.current();
        RecordDecoding { decoding: self, sources, known: Known::default() }
    }

    fn malformed(&mut self, error: &PageError) {
        tracing::warn!(cpu = self.cpu, %error, "malformed ring-buffer page: its rest is skipped");
        self.collector.undecodable += 1;
        self.counters.undecodable.add(1);
        self.counters.malformed.add(1);
    }

    /// The event that has waited longest for its call stack: the time at which its batch begins, its group and its row.
    pub(super) fn waiting_event(&self) -> Option<(u64, usize, usize)> {
        let (group, row) = self.collector.waiting.first()?;
        Some((self.collector.base_ns(), group, row))
    }

    /// Publishes the collected events. Call stacks that were not read until now are lost.
    pub(super) fn flush(&mut self) {
        let Self { cpu, counters, collector, target } = self;
        if collector.events == 0 {
            return;
        }
        counters.read.add(collector.events as u64);
        for times in collector.groups.iter().map(|group| &group.columns.timestamps_ns) {
            counters.read_span.note(times.first().copied().unwrap_or_default());
            counters.read_span.note(times.last().copied().unwrap_or_default());
        }
        if !target.hub.pass_over(collector.events as u64) {
            collector.drop_empty();
            target.publish(*cpu, &mut collector.groups);
        }
        collector.clear();
    }
}

impl Target {
    /// Publishes the events of a batch, with the names of the tasks and addresses that occur in
    /// them.
    fn publish(&mut self, cpu: u32, groups: &mut Vec<Group>) {
        let Self { hub, tasks, addresses, .. } = self;
        addresses.refresh();
        for group in &mut *groups {
            group.columns.name_addresses(|address, text| addresses.append_name(address, text));
        }
        let mut tids = Distinct::new();
        for group in &*groups {
            tids.add_all(&group.columns.tids, i32::from_le_bytes, |tid| tid.unsigned_abs() as usize);
        }
        let tasks: Vec<_> = tids.into_values().into_iter().filter_map(|tid| tasks.task(tid)).collect();
        let mut occurring = Distinct::new();
        // Functions begin at multiples of 16.
        let slot = |address: u64| (address >> 4) as usize;
        for group in &*groups {
            occurring.add_all(&group.columns.ips, u64::from_le_bytes, slot);
            occurring.add_all(&group.columns.return_ips, u64::from_le_bytes, slot);
            each_address(group, |address| occurring.add(address, slot(address)));
        }
        let symbols: Vec<_> = occurring
            .into_values()
            .into_iter()
            .filter_map(|address| Some(Symbol { address, text: addresses.name(address)? }))
            .collect();
        let clock = ClockMapping::sample();
        let draft = Draft { cpu, groups: std::mem::take(groups), tasks, symbols, clock };
        hub.publish(&draft);
        // Their memory is used again.
        *groups = draft.groups;
    }
}

impl<'p> RecordDecoding<'_, '_, 'p> {
    /// Takes an event, and the bytes of its page from its payload on (or the payload alone).
    #[inline]
    pub(super) fn event(&mut self, record: &Record<'p>, onward: &'p [u8]) {
        if self.known.take(record, onward) {
            self.decoding.collector.events += 1;
        } else {
            // A copy, so that the record of the usual way need not be in memory.
            self.other(*record, onward);
        }
    }

    /// The kernel lost events, the last of them before that time.
    pub(super) fn gap(&mut self, gap: Gap, before_ns: u64) {
        let counters = self.decoding.counters;
        counters.overrun.add(gap.count.unwrap_or(0));
        counters.overrun_span.note(before_ns);
        self.flush();
        let loss = Loss::on(self.decoding.cpu, LossCause::Overrun, gap.count, before_ns);
        self.decoding.target.hub.publish_loss(loss);
    }

    /// The rest of a page is malformed.
    pub(super) fn malformed(&mut self, error: &PageError) {
        self.decoding.malformed(error);
    }

    /// Publishes the collected events if they are enough for a batch.
    pub(super) fn flush_if_full(&mut self) {
        self.known.decode_into(self.decoding.collector);
        if self.decoding.collector.is_full() {
            self.flush();
        }
    }

    /// There are no more records.
    pub(super) fn end(mut self) {
        self.flush_if_full();
    }

    /// Publishes the collected events.
    fn flush(&mut self) {
        self.known.end(self.decoding.collector);
        self.decoding.flush();
    }

    /// Takes one record that the known events do not take.
    #[cold]
    #[inline(never)]
    fn other(&mut self, record: Record<'p>, onward: &'p [u8]) {
        let sources = Arc::clone(&self.sources);
        let Some(source) = sources.lookup(record.payload) else { return self.of_no_source(record.payload) };
        if self.decoding.collector.is_far(record.timestamp_ns) {
            self.flush();
            self.decoding.collector.is_far(record.timestamp_ns);
        }
        if self.decoding.collector.undecodable > 0 {
            self.tell_undecodable(record.timestamp_ns);
        }
        let Self { decoding, known, .. } = self;
        let collector = &mut *decoding.collector;
        let index = collector.group_of(source);
        let plan = &source.plan;
        if plan.is_fixed() {
            if onward.len() >= WINDOW_BYTES && record.payload.len() >= plan.fixed_bytes() {
                known.learn(index, plan, collector);
                if known.take(&record, onward) {
                    collector.events += 1;
                    return;
                }
            }
            // The last record of its page is decoded after all waiting ones.
            known.decode_into(collector);
        }
        let Some(group) = collector.groups.get_mut(index) else { return };
        match plan.decode(record.payload, record.timestamp_ns, &mut group.columns) {
            Ok(()) => {
                source.read.add(1);
                source.read_span.note(record.timestamp_ns);
                collector.events += 1;
                if plan.has_stack()
                    && let Some(event) = waiting(&group.columns, index)
                {
                    collector.waiting.add(event);
                }
            }
            Err(error) => {
                tracing::warn!(probe = %source.origin.name, %error, "malformed event");
                source.undecodable.add(1);
                self.undecodable();
            }
        }
    }

    /// Takes a record that belongs to no probe: the call stack of an event, or an event that another program has
    /// enabled in the daemon's instance.
    fn of_no_source(&mut self, record: &[u8]) {
        let Some(format) = self.decoding.target.stacks.filter(|format| format.is_of(record)) else {
            return self.undecodable();
        };
        self.decoding.counters.stacks.add(1);
        let collector = &mut *self.decoding.collector;
        if let Some(stack) = format.read(record)
            && let Some(Waiting { group, row, .. }) = collector.waiting.take(stack.tid, stack.flags)
            && let Some(group) = collector.groups.get_mut(group)
        {
            group.columns.put_stack(row, &stack);
            // The next event may wait again, until the end of the page and beyond.
            self.flush_if_full();
        }
    }

    /// Counts a record that could not be decoded. The gap is reported before the next record that
    /// can.
    fn undecodable(&mut self) {
        self.decoding.counters.undecodable.add(1);
        self.decoding.collector.undecodable += 1;
        self.known.end(self.decoding.collector);
    }

    fn tell_undecodable(&mut self, before_ns: u64) {
        let count = Some(std::mem::take(&mut self.decoding.collector.undecodable));
        self.flush();
        let loss = Loss::on(self.decoding.cpu, LossCause::Undecodable, count, before_ns);
        self.decoding.target.hub.publish_loss(loss);
    }
}

/// The last event of these columns, which waits for its call stack.
fn waiting(columns: &Columns, group: usize) -> Option<Waiting> {
    let row = columns.len().checked_sub(1)?;
    Some(Waiting { tid: columns.tid(row)?, flags: columns.flags(row)?, group, row })
}

/// All kernel addresses in the fields of a group that are shown as symbols.
fn each_address(group: &Group, mut found: impl FnMut(u64)) {
    let columns = &group.columns;
    for (index, field) in group.origin.schema.fields.iter().enumerate() {
        if field.kind != FieldKind::Symbol {
            continue;
        }
        let Some(column) = columns.fields.get(index) else { continue };
        // One row stands for all if they are equal.
        let rows = if column.values.once().is_some() { 1 } else { columns.len() };
        for row in 0..rows {
            for element in 0..field.values_per_row() {
                if let Some(Value::Symbol(address)) = column.value(row, element) {
                    found(address);
                }
            }
        }
    }
}
