//! One reader's work on the pages of one CPU: from bytes to published batches.

use super::collector::{Collector, Pending};
use super::counters::BufferCounters;
use super::seen::Distinct;
use super::source::Sources;
use super::{AddressNames, Draft, Group, Hub, Loss, LossCause, TaskNames};
use crate::decode::{FieldKind, Value};
use crate::kernel::ClockMapping;
use crate::ring::{Lost, Page, PageLayout, Record};
use crate::wire::Symbol;

/// How much was lost, given the number on the page, if it has one.
pub(super) type CountLost<'a> = &'a mut dyn FnMut(Option<u64>) -> Option<u64>;

/// What a turn works with.
pub(super) struct Turn<'a> {
    pub(super) cpu: u32,
    pub(super) layout: &'a PageLayout,
    pub(super) sources: &'a Sources,
    pub(super) counters: &'a BufferCounters,
    pub(super) hub: &'a Hub,
    pub(super) tasks: &'a mut TaskNames,
    pub(super) addresses: &'a mut AddressNames,
}

impl Turn<'_> {
    /// Takes one page. Returns how many bytes of events it had; absent when it makes no sense.
    pub(super) fn page(
        &mut self,
        bytes: &[u8],
        collector: &mut Collector,
        count_lost: CountLost<'_>,
    ) -> Option<usize> {
        let page = match Page::parse(bytes, self.layout) {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(cpu = self.cpu, %error, "a page makes no sense");
                collector.undecodable += 1;
                self.counters.undecodable.add(1);
                return None;
            }
        };
        self.counters.pages.add(1);
        self.overrun(page.lost(), page.timestamp_ns(), collector, count_lost);
        let mut pending = Pending::default();
        let mut guess = 0;
        let walked = page.records().each(|record| {
            if collector.is_far(record.timestamp_ns) {
                pending.decode_into(collector);
                self.flush(collector);
                collector.is_far(record.timestamp_ns);
            }
            self.record(record, collector, &mut pending, &mut guess);
        });
        if let Err(error) = walked {
            tracing::warn!(cpu = self.cpu, %error, "the rest of a page makes no sense");
            collector.undecodable += 1;
            self.counters.undecodable.add(1);
        }
        pending.decode_into(collector);
        if collector.is_full() {
            self.flush(collector);
        }
        Some(page.data_bytes())
    }

    /// The kernel lost events before this page.
    fn overrun(&mut self, lost: Lost, before_ns: u64, collector: &mut Collector, count_lost: CountLost<'_>) {
        let count = match lost {
            Lost::None => return,
            Lost::Count(count) => count_lost(Some(count)),
            Lost::Unknown => count_lost(None),
        };
        self.counters.overrun.add(count.unwrap_or(0));
        self.counters.overrun_span.note(before_ns);
        self.flush(collector);
        self.hub.publish_loss(Loss::on(self.cpu, LossCause::Overrun, count, before_ns));
    }

    fn record<'p>(
        &mut self,
        record: Record<'p>,
        collector: &mut Collector,
        pending: &mut Pending<'p>,
        guess: &mut usize,
    ) {
        let Some(source) = self.sources.lookup(record.payload) else {
            // Not ours: somebody has switched another event on in our instance.
            self.counters.undecodable.add(1);
            collector.undecodable += 1;
            return;
        };
        if collector.undecodable > 0 {
            self.tell_undecodable(collector, pending, record.timestamp_ns);
        }
        *guess = collector.group_of(source, *guess);
        let decoded = if source.plan.is_fixed() {
            source.plan.admit(record.payload).map(|()| pending.push(*guess, record))
        } else {
            let Some(group) = collector.groups.get_mut(*guess) else { return };
            source.plan.decode(record.payload, record.timestamp_ns, &mut group.columns).map(|()| {
                source.read.add(1);
                source.read_span.note(record.timestamp_ns);
            })
        };
        match decoded {
            Ok(()) => collector.events += 1,
            Err(error) => {
                tracing::warn!(probe = %source.origin.name, %error, "an event makes no sense");
                source.undecodable.add(1);
                self.counters.undecodable.add(1);
                collector.undecodable += 1;
            }
        }
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
