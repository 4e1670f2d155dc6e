//! Tests of ledger terms: every counter of a subscriber counts.

use super::*;

/// The sum of both. A term without a line here does not compile.
fn sum(a: QueueCounts, b: QueueCounts) -> QueueCounts {
    let span = |mut a: Span, b: Span| {
        a.note(b.first_ns);
        a.note(b.last_ns);
        a
    };
    QueueCounts {
        read: a.read + b.read,
        not_selected: a.not_selected + b.not_selected,
        filtered: a.filtered + b.filtered,
        sampled_out: a.sampled_out + b.sampled_out,
        limited: a.limited + b.limited,
        dropped: a.dropped + b.dropped,
        dropped_span: span(a.dropped_span, b.dropped_span),
        queued: a.queued + b.queued,
        delivered: a.delivered + b.delivered,
        delivered_span: span(a.delivered_span, b.delivered_span),
        replayed: a.replayed + b.replayed,
        expired: a.expired + b.expired,
        loss_records: a.loss_records + b.loss_records,
    }
}

#[test]
fn every_term_of_a_subscriber_counts() {
    let hub = hub();
    let (a, b) = (source("a", 1), source("b", 2));
    let of_a = || View { probes: vec![Glob::new("kprobes/a")], ..View::default() };
    let filtered = View { filter: Some(Filter::parse("pid >= 4").unwrap()), ..of_a() };
    let subscriptions = [
        filtered,
        View { sample_one_in: 4, ..of_a() },
        View { max_events_per_second: 3, ..of_a() },
        View { limits: events(15), ..of_a() },
    ]
    .map(|view| attached(&hub, view));
    publish(&hub, &a, 0, 10, 1000);
    publish(&hub, &b, 0, 7, 2000);
    // Each subscriber takes its items, and then gets more than its queue holds.
    assert!(subscriptions.iter().all(|subscription| !taken(subscription).is_empty()));
    publish(&hub, &a, 0, 10, 3000);
    publish(&hub, &a, 0, 10, 4000);
    let [first, .., last] = &subscriptions;
    assert!(matches!(now(last.next()), Some(Ok(Item::Loss(_)))), "what was dropped comes first");
    // Events and losses of a client that reads the history.
    let groups = vec![group(&a, 10, 1000)];
    let clock = ClockMapping { wall_offset_ns: 0, error_bound_ns: 0, sampled_at_ns: 0 };
    let draft = Draft { cpu: 0, groups, tasks: vec![], symbols: vec![], clock };
    first.replay(&Replay::default(), &draft, (0, 0), &mut ReplayStart::default());
    first.count_loss(5);

    let counts = hub.counts();
    assert!(counts.iter().all(|subscriber| closes(&subscriber.counts)), "{counts:?}");
    let all = counts.into_iter().map(|subscriber| subscriber.counts).fold(QueueCounts::default(), sum);
    let QueueCounts {
        read,
        not_selected,
        filtered,
        sampled_out,
        limited,
        dropped,
        dropped_span,
        queued,
        delivered,
        delivered_span,
        replayed,
        expired,
        loss_records,
    } = all;
    assert_eq!((read, not_selected), (4 * 37, 4 * 7));
    for (term, count) in [
        ("filtered", filtered),
        ("sampled_out", sampled_out),
        ("limited", limited),
        ("dropped", dropped),
        ("dropped_span", dropped_span.last_ns),
        ("queued", queued),
        ("delivered", delivered),
        ("delivered_span", delivered_span.last_ns),
        ("replayed", replayed),
        ("expired", expired),
        ("loss_records", loss_records),
    ] {
        assert!(count > 0, "nothing counted `{term}`: {all:?}");
    }
}
