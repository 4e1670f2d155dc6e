//! Tests of queues and fan-out: the items of a subscriber, their order, and the sum of every ledger
//! term.

mod terms;

use std::sync::Arc;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use proptest::prelude::*;
use tokio::sync::oneshot;

use super::samples::{group, hub, publish, source};
use super::*;
use crate::filter::Filter;
use crate::wire::{Projection, Task, read_batch};
use kprobed_host::kernel::ClockMapping;
use kprobed_lang::model::{Glob, Labels};

/// A subscriber that receives what is published from now on.
pub(super) fn subscribe(hub: &Arc<Hub>, probes: &[&str], limits: QueueLimits) -> Subscription {
    let probes = probes.iter().map(|glob| Glob::new(*glob)).collect();
    attached(hub, View { probes, limits, ..View::default() })
}

fn attached(hub: &Arc<Hub>, view: View) -> Subscription {
    let subscription = hub.subscribe(view);
    subscription.attach();
    subscription
}

fn events(events: u64) -> QueueLimits {
    QueueLimits { events, ..QueueLimits::default() }
}

/// All items that a subscription has now.
pub(super) fn taken(subscription: &Subscription) -> Vec<Item> {
    let mut items = Vec::new();
    while let Some(Ok(item)) = now(subscription.next()) {
        items.push(item);
    }
    items
}

/// The outcome of a future that is ready.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    futures_util::FutureExt::now_or_never(future)
}

pub(super) fn summary(items: &[Item]) -> Vec<String> {
    let text = |item: &Item| match item {
        Item::Batch(batch) => {
            let rows: u32 = read_batch(&batch.message).unwrap().groups.iter().map(|group| group.rows).sum();
            assert_eq!(u64::from(rows), batch.events);
            format!("{rows} of cpu{}", batch.cpu)
        }
        Item::Loss(loss) => {
            format!("{:?} {:?} on cpu{} before {}", loss.cause, loss.count, loss.cpu.unwrap(), loss.before_ns)
        }
        Item::Watermark(watermark_ns) => format!("watermark {watermark_ns}"),
        Item::Progress(sequence) => format!("at {sequence}"),
        Item::Mark(_) => "mark".to_owned(),
        Item::Epoch { .. } | Item::CaughtUp(_) => panic!("of a feed: {item:?}"),
    };
    items.iter().map(text).collect()
}

/// Whether the terms of a subscriber add up.
fn closes(counts: &QueueCounts) -> bool {
    let terms = [
        counts.not_selected,
        counts.filtered,
        counts.sampled_out,
        counts.limited,
        counts.dropped,
        counts.queued,
        counts.delivered,
    ];
    counts.read == terms.iter().sum::<u64>()
}

#[test]
fn a_full_queue_drops_the_oldest_and_says_so_first() {
    let hub = hub();
    let subscription = subscribe(&hub, &[], events(10));
    let source = source("a", 1);
    for (cpu, rows, time) in [(0, 4, 100), (1, 4, 200), (0, 4, 300), (0, 2, 400)] {
        publish(&hub, &source, cpu, rows, time);
    }
    // The queue dropped the first four for the third batch. CPU 1 lost nothing, so it gets no
    // report.
    assert_eq!(
        summary(&taken(&subscription)),
        ["4 of cpu1", "SubscriberQueue Some(4) on cpu0 before 300", "4 of cpu0", "2 of cpu0"]
    );
    let counts = hub.counts()[0].counts;
    assert_eq!((counts.read, counts.delivered, counts.dropped, counts.queued), (14, 10, 4, 0));
}

#[test]
fn who_has_read_all_of_a_queue_knows_all_that_it_dropped() {
    let hub = hub();
    let subscription = subscribe(&hub, &[], events(10));
    let source = source("a", 1);
    for (cpu, time) in [(0, 100), (1, 200), (1, 300)] {
        publish(&hub, &source, cpu, 4, time);
    }
    // No batch of the CPU follows that lost events.
    assert_eq!(
        summary(&taken(&subscription)),
        ["4 of cpu1", "4 of cpu1", "SubscriberQueue Some(4) on cpu0 before 0"]
    );
}

/// Who orders events by time takes them as whole up to a watermark: what the queue dropped of them is known then.
#[test]
fn what_a_queue_dropped_is_told_before_a_watermark() {
    let hub = hub();
    let subscription = attached(&hub, View { order: Order::Time, limits: events(5), ..View::default() });
    let source = source("a", 1);
    publish(&hub, &source, 1, 3, 100);
    publish(&hub, &source, 0, 3, 200);
    hub.publish_watermark(250);
    publish(&hub, &source, 1, 1, 300);
    assert_eq!(
        summary(&taken(&subscription)),
        ["3 of cpu0", "SubscriberQueue Some(3) on cpu1 before 300", "watermark 250", "1 of cpu1"]
    );
}

/// One of several publishers, on a CPU of its own.
fn publish_all(hub: &Arc<Hub>, cpu: u32, batches: u64) {
    let source = source("a", cpu + 1);
    for batch in 1..=batches {
        publish(hub, &source, cpu, 1 + batch * u64::from(cpu + 1) % 37, batch * 1000);
        if batch.is_multiple_of(10) {
            hub.publish_loss(Loss::on(cpu, LossCause::Overrun, Some(batch), batch * 1000 + 1));
            hub.publish_watermark(batch);
        }
    }
}

#[test]
fn with_several_publishers_everybody_gets_everything_once_in_the_order_of_the_log() {
    const CPUS: u32 = 6;
    const BATCHES: u64 = 150;
    let hub = hub();
    let unlimited = QueueLimits { events: u64::MAX, bytes: u64::MAX, ..QueueLimits::default() };
    let view = |filter: &str, order| View {
        filter: (!filter.is_empty()).then(|| Filter::parse(filter).unwrap()),
        order,
        limits: unlimited,
        ..View::default()
    };
    // One is quick, the others keep the publishers busy for different times.
    let views = [
        view("", Order::Time),
        view("pid >= 5", Order::PerCpu),
        View { sample_one_in: 3, ..view("", Order::PerCpu) },
        View { max_events_per_second: 100, ..view("", Order::PerCpu) },
        View { limits: events(50), ..view("pid >= 1", Order::PerCpu) },
    ];
    let subscriptions: Vec<_> = views.into_iter().map(|view| attached(&hub, view)).collect();
    let later = std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            let hub = &hub;
            scope.spawn(move || publish_all(hub, cpu, BATCHES));
        }
        // Others come and go meanwhile.
        let mut later = Vec::new();
        while hub.sequence() < 1000 {
            drop(attached(&hub, view("", Order::PerCpu)));
            let subscription = hub.subscribe(view("", Order::PerCpu));
            let begin = subscription.attach();
            later.push((begin, subscription));
        }
        later
    });
    let end = hub.sequence();
    for (begin, subscription) in
        later.iter().map(|(begin, one)| (*begin, one)).chain([(0, &subscriptions[0])])
    {
        let (mut next, mut batches, mut watermark) = (begin, [0; CPUS as usize], 0);
        for item in taken(subscription) {
            match item {
                Item::Batch(batch) => {
                    assert_eq!(batch.sequence, next, "none is missing, none comes twice");
                    next += batch.log_events;
                    // Batches of a CPU are numbered by their time.
                    let number = batch.span.first_ns / 1000;
                    let known = &mut batches[batch.cpu as usize];
                    assert!(*known == 0 || number == *known + 1, "{number} after {known}");
                    *known = number;
                }
                Item::Loss(loss) => {
                    let known = batches[loss.cpu.unwrap() as usize];
                    assert!(known == 0 || loss.count == Some(known), "{loss:?} after batch {known}");
                }
                Item::Watermark(time) => {
                    assert!(time > watermark, "{time} after {watermark}");
                    watermark = time;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(next, end);
    }
    for subscription in &subscriptions {
        let last = subscription.counts();
        assert!(last.read == end && closes(&last), "{last:?}");
        taken(subscription);
        assert!(closes(&subscription.counts()), "{:?}", subscription.counts());
    }
}

#[test]
fn losses_of_the_kernel_survive_the_queue() {
    let hub = hub();
    let subscription = subscribe(&hub, &[], events(5));
    let source = source("a", 1);
    let overrun = |count| Loss::on(0, LossCause::Overrun, Some(count), 1);
    publish(&hub, &source, 0, 3, 100);
    hub.publish_loss(overrun(7));
    publish(&hub, &source, 0, 3, 200);
    hub.publish_loss(overrun(5));
    publish(&hub, &source, 0, 5, 300);
    let told = summary(&taken(&subscription));
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told[..2].contains(&"SubscriberQueue Some(6) on cpu0 before 300".to_owned()), "{told:?}");
    assert!(told[..2].contains(&"Overrun Some(7) on cpu0 before 300".to_owned()), "{told:?}");
    assert_eq!(told[2..], ["Overrun Some(5) on cpu0 before 1", "5 of cpu0"]);
}

#[test]
fn losses_of_any_cpu_survive_the_queue() {
    let hub = hub();
    let subscription = subscribe(&hub, &[], events(5));
    let source = source("a", 1);
    publish(&hub, &source, 0, 3, 100);
    hub.publish_loss(Loss { before_ns: 150, ..Loss::anywhere(LossCause::Reset, None) });
    publish(&hub, &source, 0, 3, 200);
    publish(&hub, &source, 1, 5, 300);
    let items = taken(&subscription);
    let reset = |item: &Item| matches!(item, Item::Loss(Loss { cause: LossCause::Reset, cpu: None, .. }));
    let dropped = |item: &Item| {
        let Item::Loss(loss) = item else { return false };
        (loss.cause, loss.cpu, loss.count) == (LossCause::SubscriberQueue, Some(0), Some(6))
    };
    // The queue dropped everything of CPU 0, and the next event is of another CPU.
    assert!(items.len() == 3 && reset(&items[0]) && matches!(&items[1], Item::Batch(_)), "{items:?}");
    assert!(dropped(&items[2]), "{items:?}");
    assert_eq!(hub.counts()[0].counts.loss_records, 2);
}

#[test]
fn losses_do_not_pile_up() {
    let hub = hub();
    let subscription = subscribe(&hub, &["rare"], events(10));
    let a = source("a", 1);
    for time in 0..1000 {
        for cpu in 0..2 {
            hub.publish_loss(Loss::on(cpu, LossCause::Overrun, Some(1), time));
            publish(&hub, &a, cpu, 1, time);
        }
    }
    assert_eq!(
        summary(&taken(&subscription)),
        ["Overrun Some(1000) on cpu0 before 999", "Overrun Some(1000) on cpu1 before 999"]
    );
}

#[test]
fn only_what_was_asked_for_is_delivered() {
    let hub = hub();
    let wanted = subscribe(&hub, &["kprobes/a*"], events(100));
    let (a, b) = (source("a", 1), source("b", 2));
    publish(&hub, &a, 0, 2, 1);
    publish(&hub, &b, 0, 3, 2);
    assert_eq!(summary(&taken(&wanted)), ["2 of cpu0"]);
    let counts = hub.counts()[0].counts;
    assert_eq!((counts.read, counts.delivered, counts.not_selected), (5, 2, 3));
}

#[test]
fn a_batch_larger_than_the_queue_still_arrives() {
    let hub = hub();
    let subscription = subscribe(&hub, &[], events(2));
    publish(&hub, &source("a", 1), 0, 9, 1);
    assert_eq!(summary(&taken(&subscription)), ["9 of cpu0"]);
}

#[tokio::test]
async fn closing_delivers_what_is_queued_and_then_ends() {
    let hub = hub();
    let subscription = subscribe(&hub, &[], events(100));
    publish(&hub, &source("a", 1), 0, 1, 1);
    hub.close();
    assert!(matches!(subscription.next().await, Ok(Item::Batch(_))));
    assert_eq!(subscription.next().await.unwrap_err(), End::Stopping);
    assert!(subscribe(&hub, &[], events(1)).next().await.is_err(), "a late subscriber ends at once");
}

#[tokio::test]
async fn a_waiting_subscriber_is_woken() {
    let hub = hub();
    let subscription = subscribe(&hub, &[], events(100));
    let publisher = Arc::clone(&hub);
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        publish(&publisher, &source("a", 1), 0, 1, 1);
    });
    assert!(subscription.next().await.is_ok());
    thread.join().unwrap();
}

#[test]
fn a_dropped_subscription_is_gone() {
    let hub = hub();
    drop(subscribe(&hub, &[], events(1)));
    assert!(hub.counts().is_empty());
}

#[test]
fn the_newest_go_when_the_subscriber_wants_that() {
    let hub = hub();
    let limits = QueueLimits { overflow: Overflow::DropNewest, ..events(5) };
    let subscription = subscribe(&hub, &[], limits);
    let a = source("a", 1);
    for time in [100, 200, 300] {
        publish(&hub, &a, 0, 3, time);
    }
    // At once: whether and when that CPU has a next event is not known.
    assert_eq!(summary(&taken(&subscription)), ["3 of cpu0", "SubscriberQueue Some(6) on cpu0 before 0"]);
    publish(&hub, &a, 0, 2, 400);
    assert_eq!(summary(&taken(&subscription)), ["2 of cpu0"]);
    let counts = hub.counts()[0].counts;
    assert!(closes(&counts) && counts.dropped == 6 && counts.loss_records == 1, "{counts:?}");
    assert_eq!(counts.dropped_span, Span { first_ns: 200, last_ns: 300 });
}

#[test]
fn a_subscriber_can_ask_to_be_cut_off() {
    let hub = hub();
    let limits = QueueLimits { overflow: Overflow::Disconnect, ..events(5) };
    let subscription = subscribe(&hub, &[], limits);
    let a = source("a", 1);
    for time in [100, 200, 300] {
        publish(&hub, &a, 0, 3, time);
    }
    assert_eq!(summary(&taken(&subscription)), ["3 of cpu0"]);
    assert_eq!(now(subscription.next()).unwrap().unwrap_err(), End::Overflowed { sequence: 3 });
    assert!(closes(&hub.counts()[0].counts));
}

#[test]
fn bytes_bound_a_queue_too() {
    let hub = hub();
    let subscription = subscribe(&hub, &[], QueueLimits { bytes: 1500, ..QueueLimits::default() });
    let a = source("a", 1);
    for time in 0..4 {
        publish(&hub, &a, 0, 100, time * 1000);
    }
    let counts = hub.counts()[0].counts;
    assert!(counts.dropped > 0 && counts.queued > 0 && closes(&counts), "{counts:?}");
    assert_eq!(taken(&subscription).len() as u64, 1 + counts.queued / 100);
}

#[test]
fn one_in_ten_is_taken_of_all_batches_together() {
    let hub = hub();
    let subscription = attached(&hub, View { sample_one_in: 10, ..View::default() });
    let a = source("a", 1);
    for time in 0..7 {
        publish(&hub, &a, 0, 5, time * 100);
    }
    let mut tids = Vec::new();
    for item in taken(&subscription) {
        let Item::Batch(batch) = item else { panic!("{item:?}") };
        let message = read_batch(&batch.message).unwrap();
        tids.push(message.groups[0].tids.to_vec());
        assert_eq!(batch.log_events, 5);
    }
    assert_eq!(tids, vec![0_u32.to_le_bytes().to_vec(); 4]);
    let counts = hub.counts()[0].counts;
    assert!(closes(&counts) && counts.sampled_out == 31 && counts.delivered == 4, "{counts:?}");
}

#[test]
fn a_filter_selects_rows_by_fields_tasks_and_names() {
    let hub = hub();
    let view = |filter: &str| View { filter: Some(Filter::parse(filter).unwrap()), ..View::default() };
    let some = attached(&hub, view("pid > 1 && pid < 4 && comm == \"three\""));
    let all = attached(&hub, view("probe == \"kprobes/a\" || host != \"here\""));
    let none = attached(&hub, view("no_such_field == 1"));
    let groups = vec![group(&source("a", 1), 6, 100)];
    let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
    let task = |tid, comm: &'static [u8]| Task { tid, comm: comm.into(), tgid: tid };
    let tasks = vec![task(1, b"one"), task(2, b"two"), task(3, b"three")];
    hub.publish(&Draft { cpu: 0, groups, tasks, symbols: vec![], clock });
    let items = taken(&some);
    let [Item::Batch(batch)] = items.as_slice() else { panic!("{items:?}") };
    let message = read_batch(&batch.message).unwrap();
    assert_eq!(message.groups[0].tids.as_ref(), 3_i32.to_le_bytes());
    assert_eq!(message.tasks.len(), 1, "only the tasks that occur: {:?}", message.tasks);
    assert_eq!(summary(&taken(&all)), ["6 of cpu0"]);
    assert!(taken(&none).is_empty());
    let filtered: Vec<_> = hub.counts().iter().map(|subscriber| subscriber.counts.filtered).collect();
    assert_eq!(filtered, [5, 0, 6]);
    assert!(hub.counts().iter().all(|subscriber| closes(&subscriber.counts)));
}

#[test]
fn labels_select_probes_in_all_ways() {
    let hub = hub();
    let label = |name: &str, schema_id: u32, labels: &[(&str, &str)]| {
        let origin = source(name, schema_id);
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        origin.origin.set_labels(Labels::new(labels).unwrap());
        origin
    };
    let a = label("a", 1, &[("team", "net"), ("tier", "1")]);
    let b = label("b", 2, &[("team", "storage")]);
    let c = label("c", 3, &[]);
    let selectors = [
        ("team=net", "1 - -"),
        ("team!=net", "- 2 3"),
        ("team in (net,storage), tier!=1", "- 2 -"),
        ("team notin (net)", "- 2 3"),
        ("team", "1 2 -"),
        ("!team", "- - 3"),
        ("", "1 2 3"),
    ];
    let subscriptions =
        selectors.map(|(text, _)| attached(&hub, View { labels: text.parse().unwrap(), ..View::default() }));
    // As many events as the number of the probe.
    let told = |subscription: &Subscription| {
        let batches = taken(subscription);
        let has =
            |rows: u64| batches.iter().any(|item| matches!(item, Item::Batch(batch) if batch.events == rows));
        [1, 2, 3].map(|rows| if has(rows) { rows.to_string() } else { "-".to_owned() }).join(" ")
    };
    let publish_all =
        || [(&a, 1), (&b, 2), (&c, 3)].map(|(origin, rows)| publish(&hub, origin, 0, rows, 100));
    publish_all();
    for (subscription, (text, expected)) in subscriptions.iter().zip(selectors) {
        assert_eq!(told(subscription), expected, "{text}");
    }
    // Labels that change count from the next event on.
    c.origin.set_labels(Labels::new([("team".to_owned(), "net".to_owned())]).unwrap());
    hub.selections_changed();
    publish_all();
    assert_eq!(
        subscriptions.each_ref().map(told),
        ["1 - 3", "- 2 -", "- 2 3", "- 2 -", "1 2 3", "- - -", "1 2 3"]
    );
    assert!(hub.counts().iter().all(|subscriber| closes(&subscriber.counts)));
}

#[test]
fn a_limit_on_the_rate_is_told_and_counted() {
    let hub = hub();
    let subscription = attached(&hub, View { max_events_per_second: 8, ..View::default() });
    let a = source("a", 1);
    publish(&hub, &a, 0, 10, 1_000_000_000);
    publish(&hub, &a, 0, 10, 1_500_000_000);
    assert_eq!(
        summary(&taken(&subscription)),
        [
            "8 of cpu0",
            "RateLimit Some(2) on cpu0 before 1500000000",
            "4 of cpu0",
            "RateLimit Some(6) on cpu0 before 0"
        ]
    );
    let counts = hub.counts()[0].counts;
    assert!(closes(&counts) && counts.limited == 8, "{counts:?}");
}

#[test]
fn who_wants_the_same_gets_the_same_bytes() {
    let hub = hub();
    let [one, two] = [(); 2].map(|()| attached(&hub, View::default()));
    let other = attached(&hub, View { projection: Projection::new(vec!["tid".into()]), ..View::default() });
    publish(&hub, &source("a", 1), 0, 50, 100);
    let messages: Vec<_> = [one, two, other]
        .iter()
        .map(|subscription| match taken(subscription).remove(0) {
            Item::Batch(batch) => batch.message,
            item => panic!("{item:?}"),
        })
        .collect();
    assert_eq!(messages[0].as_ptr(), messages[1].as_ptr());
    assert!(messages[2].len() < messages[0].len());
}

#[test]
fn watermarks_are_for_those_who_want_order_and_do_not_pile_up() {
    let hub = hub();
    let plain = attached(&hub, View::default());
    let ordered = attached(&hub, View { order: Order::Time, ..View::default() });
    let a = source("a", 1);
    for time in [100, 200, 200, 150, 300] {
        hub.publish_watermark(time);
    }
    publish(&hub, &a, 0, 1, 400);
    hub.publish_watermark(500);
    assert_eq!(summary(&taken(&ordered)), ["watermark 300", "1 of cpu0", "watermark 500"]);
    assert_eq!(summary(&taken(&plain)), ["1 of cpu0"]);
}

#[test]
fn readers_wake_up_without_events_only_as_long_as_a_subscriber_asks_for_it() {
    let hub = hub();
    let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap());
    hub.wake_with(vec![Arc::clone(&wake)]);
    let now = || (hub.heartbeat().map(|beat| beat.as_millis()), wake.read().is_ok());
    let asking =
        |ms| View { order: Order::Time, heartbeat: Some(Duration::from_millis(ms)), ..View::default() };
    let _plain = attached(&hub, View { order: Order::Time, ..View::default() });
    assert_eq!(now(), (None, false));
    let slow = attached(&hub, asking(500));
    assert_eq!(now(), (Some(500), true));
    let fast = attached(&hub, asking(100));
    assert_eq!(now(), (Some(100), true));
    let same = attached(&hub, asking(500));
    assert_eq!(now(), (Some(100), false));
    drop(fast);
    assert_eq!(now(), (Some(500), true));
    drop((slow, same));
    assert_eq!(now(), (None, false));
}

proptest! {
    #[test]
    fn every_event_is_accounted_for(
        capacity in 0u64..40,
        steps in proptest::collection::vec((0u32..3, 1u64..20, any::<bool>()), 0..40),
    ) {
        let hub = hub();
        let subscription = subscribe(&hub, &["kprobes/a"], events(capacity));
        let (a, b) = (source("a", 1), source("b", 2));
        let (mut received, mut told) = (0, 0);
        let mut take = || {
            if let Some(Ok(item)) = now(subscription.next()) {
                match item {
                    Item::Batch(batch) => received += batch.events,
                    Item::Loss(loss) => told += loss.count.unwrap(),
                    _ => {}
                }
            }
        };
        for (index, (cpu, rows, read)) in steps.iter().enumerate() {
            publish(&hub, if rows % 3 == 0 { &b } else { &a }, *cpu, *rows, index as u64 * 100);
            if *read {
                take();
            }
        }
        for _ in 0..200 {
            take();
        }
        let counts = hub.counts()[0].counts;
        prop_assert_eq!(counts.read, steps.iter().map(|(_, rows, _)| rows).sum::<u64>());
        prop_assert!(closes(&counts));
        prop_assert_eq!((counts.delivered, counts.queued), (received, 0));
        prop_assert!(told <= counts.dropped);
        // A loss that is not reported yet waits for the next event of its CPU.
        for cpu in 0..3 {
            publish(&hub, &a, cpu, 1, 1_000_000);
            for item in taken(&subscription) {
                if let Item::Loss(loss) = item {
                    told += loss.count.unwrap();
                }
            }
        }
        prop_assert_eq!(told, hub.counts()[0].counts.dropped);
    }
}

#[test]
fn marks_are_never_dropped_and_stand_behind_what_was_published() {
    let hub = hub();
    let a = source("a", 1);
    for overflow in [Overflow::DropNewest, Overflow::DropOldest] {
        let subscription = subscribe(&hub, &[], QueueLimits { overflow, ..events(5) });
        let (other, first) = (hub.subscribe(View::default()), hub.sequence());
        publish(&hub, &a, 0, 3, 100);
        assert_eq!(other.attach_with_mark(&subscription, oneshot::channel().0), first + 3);
        publish(&hub, &a, 0, 3, 200);
        let told = match overflow {
            Overflow::DropNewest => ["3 of cpu0", "mark", "SubscriberQueue Some(3) on cpu0 before 0"],
            _ => ["mark", "SubscriberQueue Some(3) on cpu0 before 200", "3 of cpu0"],
        };
        assert_eq!(summary(&taken(&subscription)), told);
        assert_eq!(summary(&taken(&other)), ["3 of cpu0"]);
    }
}

#[test]
fn who_selects_nothing_hears_how_far_the_log_is() {
    let hub = hub();
    let subscription = subscribe(&hub, &["nothing/*"], events(10));
    let a = source("a", 1);
    let half = 1 << 15;
    publish(&hub, &a, 0, half, 1000);
    assert!(taken(&subscription).is_empty());
    for _ in 0..5 {
        publish(&hub, &a, 0, half, 1000);
    }
    assert_eq!(summary(&taken(&subscription)), ["at 196608"], "told once");
}

#[test]
fn watermarks_and_progress_do_not_pile_up_together() {
    let hub = hub();
    let probes = vec![Glob::new("nothing/*")];
    let subscription = attached(&hub, View { probes, order: Order::Time, ..View::default() });
    let a = source("a", 1);
    for round in 1..=3 {
        publish(&hub, &a, 0, 1 << 16, 1_000_000 * round);
        hub.publish_watermark(round);
    }
    assert_eq!(summary(&taken(&subscription)), ["at 196608", "watermark 3"]);
}

#[test]
fn publishers_do_not_wait_for_a_change_of_selections() {
    let hub = &hub();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    // A selection that takes long.
    let permits = Permits::new(true, move |_name, _uid| {
        begun.send(()).unwrap();
        released.lock().unwrap().recv().is_ok()
    });
    let subscription = attached(hub, View { permits: Some(permits), ..View::default() });
    std::thread::scope(|scope| {
        scope.spawn(|| publish(hub, &source("a", 1), 0, 1, 100));
        has_begun.recv().unwrap();
        let (tell, thread) = std::sync::mpsc::channel();
        scope.spawn(move || {
            tell.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
            hub.selections_changed();
        });
        // It sleeps, or has ended because it has nothing to wait for.
        let state = std::path::Path::new("/proc").join(thread.recv().unwrap()).join("stat");
        while std::fs::read_to_string(&state).is_ok_and(|state| !state.contains(") S ")) {
            std::thread::yield_now();
        }
        let (answer, answers) = std::sync::mpsc::channel();
        scope.spawn(move || answer.send(hub.sequence()));
        let sequence = answers.recv_timeout(Duration::from_secs(10));
        release.send(()).unwrap();
        assert_eq!(sequence, Ok(1));
    });
    assert_eq!(summary(&taken(&subscription)), ["1 of cpu0"]);
}

#[test]
fn the_past_is_thinned_out_from_where_it_begins() {
    let hub = hub();
    let groups = vec![group(&source("a", 1), 100, 1000)];
    let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
    let draft = Draft { cpu: 0, groups, tasks: vec![], symbols: vec![], clock };
    let last_fifty = || ReplayStart { skip: 50, ..ReplayStart::default() };
    let sampled = hub.subscribe(View { sample_one_in: 10, ..View::default() });
    let (delivery, loss) = sampled.replay(&Replay::default(), &draft, (0, 0), &mut last_fifty());
    assert_eq!(delivery.map(|delivery| delivery.events), Some(5));
    assert!(loss.is_none());
    let limited = hub.subscribe(View { max_events_per_second: 20, ..View::default() });
    let (delivery, loss) = limited.replay(&Replay::default(), &draft, (0, 0), &mut last_fifty());
    assert_eq!(delivery.map(|delivery| delivery.events), Some(20));
    assert_eq!(loss.and_then(|loss| loss.count), Some(30));
    let counts = limited.counts();
    assert_eq!((counts.replayed, counts.loss_records), (20, 1));
}
