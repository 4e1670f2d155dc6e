//! Queues and fan-out: what is told, in which order, and that every term of the ledger adds up.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::decode::{Plan, PlanOptions};
use crate::kernel::ClockMapping;
use crate::model::{Glob, ProbeName, ProbeUid};
use crate::tracefs::format::Format;

const FORMAT: &str = "name: a\nID: 7\nformat:\n\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
\tfield:unsigned long __probe_ip;\toffset:8;\tsize:8;\tsigned:0;\n\n\
print fmt: \"(%lx)\", REC->__probe_ip\n";

fn source(event: &str, schema_id: u32) -> Arc<EventSource> {
    let plan = Plan::compile(&Format::parse(FORMAT).unwrap(), &PlanOptions::default()).unwrap();
    let name = ProbeName::new("kprobes", event).unwrap();
    Arc::new(EventSource::new(schema_id, ProbeUid(schema_id.into()), name, plan))
}

/// A batch of `rows` events of one probe, the first of them at `first_ns`.
fn batch(source: &Arc<EventSource>, cpu: u32, rows: u64, first_ns: u64) -> Batch {
    let mut columns = source.plan.columns();
    for row in 0..rows {
        let mut record = [0u8; 16];
        record[0] = 7;
        source.plan.decode(&record, first_ns + row, &mut columns).unwrap();
    }
    let groups = vec![Group { source: Arc::clone(source), columns }];
    let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0 };
    Batch { cpu, groups, tasks: Vec::new(), symbols: Vec::new(), clock }
}

/// Everything that a subscription has now.
fn taken(subscription: &Subscription) -> Vec<Item> {
    let mut items = Vec::new();
    while let Some(item) = now(subscription.next()).flatten() {
        items.push(item);
    }
    items
}

/// The outcome of a future that is ready.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    futures_util::FutureExt::now_or_never(future)
}

fn summary(items: &[Item]) -> Vec<String> {
    let text = |item: &Item| match item {
        Item::Batch { batch, selected } => {
            let rows: usize = selected.iter().map(|index| batch.groups[*index].columns.len()).sum();
            format!("{rows} of cpu{}", batch.cpu)
        }
        Item::Loss(loss) => {
            format!("{:?} {:?} on cpu{} before {}", loss.cause, loss.count, loss.cpu, loss.before_ns)
        }
    };
    items.iter().map(text).collect()
}

#[test]
fn a_full_queue_drops_the_oldest_and_says_so_first() {
    let hub = Hub::default();
    let subscription = hub.subscribe(Vec::new(), 10);
    let source = source("a", 1);
    for (cpu, rows, time) in [(0, 4, 100), (1, 4, 200), (0, 4, 300), (0, 2, 400)] {
        hub.publish(batch(&source, cpu, rows, time));
    }
    // The first four went for the third batch. CPU 1 lost nothing, so it hears nothing.
    assert_eq!(
        summary(&taken(&subscription)),
        ["4 of cpu1", "SubscriberQueue Some(4) on cpu0 before 300", "4 of cpu0", "2 of cpu0"]
    );
    let counts = hub.counts()[0];
    assert_eq!((counts.read, counts.delivered, counts.dropped, counts.queued), (14, 10, 4, 0));
}

#[test]
fn losses_of_the_kernel_survive_the_queue() {
    let hub = Hub::default();
    let subscription = hub.subscribe(Vec::new(), 5);
    let source = source("a", 1);
    let overrun = |count| Loss { cause: LossCause::Overrun, cpu: 0, count: Some(count), before_ns: 1 };
    hub.publish(batch(&source, 0, 3, 100));
    hub.publish_loss(overrun(7));
    hub.publish(batch(&source, 0, 3, 200));
    hub.publish_loss(overrun(5));
    hub.publish(batch(&source, 0, 5, 300));
    let told = summary(&taken(&subscription));
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told[..2].contains(&"SubscriberQueue Some(6) on cpu0 before 300".to_owned()), "{told:?}");
    assert!(told[..2].contains(&"Overrun Some(7) on cpu0 before 300".to_owned()), "{told:?}");
    assert_eq!(told[2..], ["Overrun Some(5) on cpu0 before 1", "5 of cpu0"]);
}

#[test]
fn losses_do_not_pile_up() {
    let hub = Hub::default();
    let subscription = hub.subscribe(vec![Glob::new("rare")], 10);
    let a = source("a", 1);
    for time in 0..1000 {
        for cpu in 0..2 {
            hub.publish_loss(Loss { cause: LossCause::Overrun, cpu, count: Some(1), before_ns: time });
            hub.publish(batch(&a, cpu, 1, time));
        }
    }
    assert_eq!(
        summary(&taken(&subscription)),
        ["Overrun Some(1000) on cpu0 before 999", "Overrun Some(1000) on cpu1 before 999"]
    );
}

#[test]
fn only_what_was_asked_for_is_delivered() {
    let hub = Hub::default();
    let wanted = hub.subscribe(vec![Glob::new("kprobes/a*")], 100);
    let (a, b) = (source("a", 1), source("b", 2));
    hub.publish(batch(&a, 0, 2, 1));
    hub.publish(batch(&b, 0, 3, 2));
    assert_eq!(summary(&taken(&wanted)), ["2 of cpu0"]);
    let counts = hub.counts()[0];
    assert_eq!((counts.read, counts.delivered, counts.not_selected), (5, 2, 3));
}

#[test]
fn a_batch_larger_than_the_queue_still_arrives() {
    let hub = Hub::default();
    let subscription = hub.subscribe(Vec::new(), 2);
    hub.publish(batch(&source("a", 1), 0, 9, 1));
    assert_eq!(summary(&taken(&subscription)), ["9 of cpu0"]);
}

#[tokio::test]
async fn closing_delivers_what_is_queued_and_then_ends() {
    let hub = Hub::default();
    let subscription = hub.subscribe(Vec::new(), 100);
    hub.publish(batch(&source("a", 1), 0, 1, 1));
    hub.close();
    assert!(matches!(subscription.next().await, Some(Item::Batch { .. })));
    assert!(subscription.next().await.is_none());
    assert!(hub.subscribe(Vec::new(), 1).next().await.is_none(), "a late subscriber ends at once");
}

#[tokio::test]
async fn a_waiting_subscriber_is_woken() {
    let hub = Arc::new(Hub::default());
    let subscription = hub.subscribe(Vec::new(), 100);
    let publisher = Arc::clone(&hub);
    let thread = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        publisher.publish(batch(&source("a", 1), 0, 1, 1));
    });
    assert!(subscription.next().await.is_some());
    thread.join().unwrap();
}

#[test]
fn a_dropped_subscription_is_gone() {
    let hub = Hub::default();
    drop(hub.subscribe(Vec::new(), 1));
    assert!(hub.counts().is_empty());
}

proptest! {
    #[test]
    fn every_event_is_accounted_for(
        capacity in 0u64..40,
        steps in proptest::collection::vec((0u32..3, 1u64..20, any::<bool>()), 0..40),
    ) {
        let hub = Hub::default();
        let subscription = hub.subscribe(vec![Glob::new("kprobes/a")], capacity);
        let (a, b) = (source("a", 1), source("b", 2));
        let (mut received, mut told) = (0, 0);
        let mut take = || {
            if let Some(Some(item)) = now(subscription.next()) {
                match item {
                    Item::Batch { batch, .. } => received += batch.events(),
                    Item::Loss(loss) => told += loss.count.unwrap(),
                }
            }
        };
        for (index, (cpu, rows, read)) in steps.iter().enumerate() {
            hub.publish(batch(if rows % 3 == 0 { &b } else { &a }, *cpu, *rows, index as u64 * 100));
            if *read {
                take();
            }
        }
        for _ in 0..200 {
            take();
        }
        let counts = hub.counts()[0];
        prop_assert_eq!(counts.read, steps.iter().map(|(_, rows, _)| rows).sum::<u64>());
        prop_assert_eq!(counts.read, counts.delivered + counts.queued + counts.dropped + counts.not_selected);
        prop_assert_eq!((counts.delivered, counts.queued), (received, 0));
        prop_assert!(told <= counts.dropped);
        // Whatever is not told yet waits for the next event of its CPU.
        for cpu in 0..3 {
            hub.publish(batch(&a, cpu, 1, 1_000_000));
            for item in taken(&subscription) {
                if let Item::Loss(loss) = item {
                    told += loss.count.unwrap();
                }
            }
        }
        prop_assert_eq!(told, hub.counts()[0].dropped);
    }
}
