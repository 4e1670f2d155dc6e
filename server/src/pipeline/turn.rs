//! One reader's work on the pages of one CPU: from bytes to published batches.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::counters::BufferCounters;
use super::source::Sources;
use super::{AddressNames, Batch, EventSource, Group, Hub, Loss, LossCause, TaskNames};
use crate::decode::{Columns, FieldKind, Value};
use crate::kernel::ClockMapping;
use crate::ring::{Lost, Page, PageLayout};

/// Events after which a batch is closed: large enough to make the cost of a message small, small enough to stay in the cache.
const BATCH_EVENTS: usize = 4096;

/// How much was lost, given the number on the page, if it has one.
pub(super) type CountLost<'a> = &'a mut dyn FnMut(Option<u64>) -> Option<u64>;

/// What is collected for the next batch of one CPU.
#[derive(Debug, Default)]
pub(super) struct Collector {
    groups: Vec<(Arc<EventSource>, Columns)>,
    events: usize,
    /// Records that could not be decoded since the last event that could.
    undecodable: u64,
}

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
    /// Takes one page. Returns how many bytes of events it had; 0 when it makes no sense.
    pub(super) fn page(
        &mut self,
        bytes: &[u8],
        collector: &mut Collector,
        count_lost: CountLost<'_>,
    ) -> usize {
        let page = match Page::parse(bytes, self.layout) {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(cpu = self.cpu, %error, "a page makes no sense");
                collector.undecodable += 1;
                self.counters.undecodable.add(1);
                return 0;
            }
        };
        self.counters.pages.add(1);
        self.overrun(page.lost(), page.timestamp_ns(), collector, count_lost);
        for record in page.records() {
            match record {
                Ok(record) => self.record(record.timestamp_ns, record.payload, collector),
                Err(error) => {
                    tracing::warn!(cpu = self.cpu, %error, "the rest of a page makes no sense");
                    collector.undecodable += 1;
                    self.counters.undecodable.add(1);
                }
            }
        }
        page.data_bytes()
    }

    /// The kernel lost events before this page.
    fn overrun(&mut self, lost: Lost, before_ns: u64, collector: &mut Collector, count_lost: CountLost<'_>) {
        let count = match lost {
            Lost::None => return,
            Lost::Count(count) => count_lost(Some(count)),
            Lost::Unknown => count_lost(None),
        };
        self.counters.overrun.add(count.unwrap_or(0));
        self.flush(collector);
        self.hub.publish_loss(Loss { cause: LossCause::Overrun, cpu: self.cpu, count, before_ns });
    }

    fn record(&mut self, timestamp_ns: u64, payload: &[u8], collector: &mut Collector) {
        let Some(source) = self.sources.lookup(payload) else {
            // Not ours: somebody has switched another event on in our instance.
            self.counters.undecodable.add(1);
            collector.undecodable += 1;
            return;
        };
        if collector.undecodable > 0 {
            self.tell_undecodable(collector, timestamp_ns);
        }
        match source.plan.decode(payload, timestamp_ns, collector.columns_of(source)) {
            Ok(()) => {
                source.read.add(1);
                self.counters.read.add(1);
                collector.events += 1;
                if collector.events >= BATCH_EVENTS {
                    self.flush(collector);
                }
            }
            Err(error) => {
                tracing::warn!(probe = %source.name, %error, "an event makes no sense");
                source.undecodable.add(1);
                self.counters.undecodable.add(1);
                collector.undecodable += 1;
            }
        }
    }

    fn tell_undecodable(&mut self, collector: &mut Collector, before_ns: u64) {
        let count = Some(std::mem::take(&mut collector.undecodable));
        self.flush(collector);
        self.hub.publish_loss(Loss { cause: LossCause::Undecodable, cpu: self.cpu, count, before_ns });
    }

    /// Publishes what was collected.
    pub(super) fn flush(&mut self, collector: &mut Collector) {
        if collector.events == 0 {
            return;
        }
        collector.events = 0;
        let groups: Vec<_> = std::mem::take(&mut collector.groups)
            .into_iter()
            .filter(|(_, columns)| !columns.is_empty())
            .map(|(source, columns)| Group { source, columns })
            .collect();
        self.addresses.refresh();
        let tids: BTreeSet<i32> =
            groups.iter().flat_map(|group| group.columns.tids.iter().copied()).collect();
        let tasks = tids.into_iter().filter_map(|tid| Some((tid, self.tasks.name(tid)?))).collect();
        let addresses: BTreeSet<u64> = groups.iter().flat_map(addresses).collect();
        let symbols = addresses.into_iter().filter_map(|a| Some((a, self.addresses.name(a)?))).collect();
        self.hub.publish(Batch { cpu: self.cpu, groups, tasks, symbols, clock: ClockMapping::sample() });
    }
}

impl Collector {
    fn columns_of(&mut self, source: &Arc<EventSource>) -> &mut Columns {
        // A CPU's events come from few probes at a time: looking along a short list beats hashing.
        let known = self.groups.iter().position(|(known, _)| Arc::ptr_eq(known, source));
        let index = known.unwrap_or_else(|| {
            self.groups.push((Arc::clone(source), source.plan.columns()));
            self.groups.len() - 1
        });
        &mut self.groups[index].1
    }
}

/// All kernel addresses in a group that are shown as symbols.
fn addresses(group: &Group) -> Vec<u64> {
    let columns = &group.columns;
    let mut found = columns.ips.clone();
    found.dedup();
    found.extend_from_slice(&columns.return_ips);
    for (index, field) in group.source.schema().fields.iter().enumerate() {
        if field.kind != FieldKind::Symbol {
            continue;
        }
        let Some(column) = columns.fields.get(index) else { continue };
        let elements = field.array_len.unwrap_or(1) as usize;
        for row in 0..columns.len() {
            for element in 0..elements {
                if let Some(Value::Symbol(address)) = column.value(row, element) {
                    found.push(address);
                }
            }
        }
    }
    found
}
