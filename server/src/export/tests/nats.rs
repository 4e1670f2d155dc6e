//! Tests of the NATS exporter against the real server, which is killed and stopped.

mod server;

use std::process::Command;

use async_nats::jetstream::stream::Stream;
use kprobed_event::published::Subjects;
use kprobed_event::{LossCause, StreamItem};
use nix::sys::signal::Signal;

use kprobed_client::merge::{HostState, MergeOptions, MergedItem, MergedStream};
use kprobed_client::nats::{NatsOptions, NatsRequest, NatsSource, NatsStart, ProbePredicate};

pub(crate) use server::Server;

use super::*;
use kprobed_trace::pipeline::samples::{group, watermark};
use kprobed_trace::pipeline::{Draft, Loss};

pub(crate) fn nats(server: &Server, rest: &str) -> Export {
    let text =
        format!("[export.nats]\nurl = '{}'\n{rest}\n[export.nats.create]\nmax_mib = 256\n", server.url());
    let config: Config = toml::from_str(&text).unwrap();
    config.export
}

/// As [`Run::drained`], for a side that was away: it is tried again later and later.
pub(crate) async fn drained_again(run: &Run, exporters: &Exporters) -> ExporterLedger {
    let running = async {
        while exporters.statuses().remove(0).state() != ExporterState::Running {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), running).await.unwrap();
    run.drained(exporters).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_read_back_by_probe_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    let run = Run::start(directory.path()).await;
    let exporters = run.export(&nats(&server, ""));
    run.drained(&exporters).await;
    let (a, b) = (source("a", 1), source("b", 2));
    let mut expected = Vec::new();
    for batch in 1..=50 {
        let first_ns = batch * 1000;
        // Two probes in one batch of the log: they go to subjects of their own.
        let groups = vec![group(&a, 10, first_ns), group(&b, 5, first_ns + 100)];
        let clock =
            kprobed_host::kernel::ClockMapping { wall_offset_ns: 7, error_bound_ns: 0, sampled_at_ns: 0 };
        run.hub.publish(&Draft { cpu: 1, groups, tasks: vec![], symbols: vec![], clock });
        expected.extend((0..10).map(|row| ("kprobes/a".to_owned(), first_ns + row)));
        expected.extend((0..5).map(|row| ("kprobes/b".to_owned(), first_ns + 100 + row)));
        if batch == 25 {
            run.hub.publish_loss(Loss::on(1, LossCause::Overrun, Some(3), 26_000));
        }
    }
    let status = run.drained(&exporters).await;
    assert_eq!(terms(&status), Terms { acknowledged: 750, ..Terms::default() });
    let read = server.read().await;
    assert_eq!(read.events, expected);
    assert_eq!(read.losses, [(375, LossCause::Overrun, Some(3))]);
    assert_eq!((read.read, read.kernel.as_str(), read.log.repeated()), (750, "6.12.0", 0));
    assert_eq!(read.epochs, [run.log.now.epoch]);
    assert!(read.ids.values().all(|count| *count == 1), "{:?}", read.ids);
    let subjects = ["epoch", "kprobes.a", "kprobes.b", "ledger", "loss"];
    assert_eq!(read.subjects, subjects.map(|subject| format!("kprobed.here.{subject}")).into());
    let place = run.log.now.sequence + 750;
    assert_eq!(read.log.place().unwrap().sequence, place);
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_gets_everything_and_each_event_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start();
    let run = Run::start(directory.path()).await;
    let exporters = run.export(&nats(&server, ""));
    run.drained(&exporters).await;
    let a = source("a", 1);
    let mut expected = Vec::new();
    let mut more = |batches: u64| {
        for _ in 0..batches {
            let first_ns = (expected.len() as u64 + 1) * 10;
            publish(&run.hub, &a, 0, 100, first_ns);
            expected.extend(first_ns..first_ns + 100);
        }
    };
    for _ in 0..3 {
        more(500);
        // In the middle of what it gets.
        tokio::task::yield_now().await;
        server.kill();
        more(500);
        let error = failing(&exporters).await;
        assert!(error.contains("connect to") || error.contains("publish to"), "{error}");
        server.restart();
        drained_again(&run, &exporters).await;
    }
    more(10);
    let status = run.drained(&exporters).await;
    let acknowledged = expected.len() as u64;
    assert_eq!(terms(&status), Terms { acknowledged, ..Terms::default() });
    let read = server.read().await;
    assert_eq!(read.times(), expected);
    assert_eq!((read.losses.len(), read.read, read.log.incomplete()), (0, acknowledged, 0));
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_forgot_is_published_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start();
    let run = Run::start(directory.path()).await;
    let exporters = run.export(&nats(&server, ""));
    run.drained(&exporters).await;
    let a = source("a", 1);
    publish(&run.hub, &a, 0, 100, 1000);
    run.drained(&exporters).await;
    server.signal(Signal::SIGTERM);
    server.process.wait().unwrap();
    let (store, kept) = (server.directory.path().join("store"), server.directory.path().join("kept"));
    let copied = Command::new("cp").arg("-a").args([&store, &kept]).status().unwrap();
    assert!(copied.success());
    server.restart();
    publish(&run.hub, &a, 0, 100, 2000);
    drained_again(&run, &exporters).await;
    let before = exporters.statuses().remove(0).acknowledged;
    assert_eq!(before, 200);
    // Acknowledged, and gone with the power.
    server.kill();
    fs::remove_dir_all(&store).unwrap();
    fs::rename(&kept, &store).unwrap();
    server.restart();
    publish(&run.hub, &a, 0, 100, 3000);
    let all = async {
        loop {
            drained_again(&run, &exporters).await;
            let read = server.read().await;
            if read.events.len() == 300 {
                return read;
            }
        }
    };
    let read = tokio::time::timeout(Duration::from_mins(1), all).await.unwrap();
    let expected: Vec<u64> = (1..=3).flat_map(|batch| batch * 1000..batch * 1000 + 100).collect();
    assert_eq!((read.times(), read.losses.len()), (expected, 0));
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stuck_holds_up_nothing_else() {
    let (directory, place) = (tempfile::tempdir().unwrap(), Place::new());
    let server = Server::start();
    let run = Run::start(directory.path()).await;
    let exporters = run.export(&nats(&server, ""));
    run.drained(&exporters).await;
    let others = run.export(&jsonl(&place.file));
    run.drained(&others).await;
    let a = source("a", 1);
    server.signal(Signal::SIGSTOP);
    let mut expected = Vec::new();
    for batch in 1..=400 {
        publish(&run.hub, &a, 0, 100, batch * 1000);
        expected.extend(batch * 1000..batch * 1000 + 100);
    }
    run.drained(&others).await;
    assert_eq!(events(&place.file), expected);
    let error = failing(&exporters).await;
    assert!(error.contains("publish to") || error.contains("no answer within"), "{error}");
    let status = exporters.statuses().remove(0);
    assert!(exporters.accounts_close() && status.queued == Some(40_000), "{status:?}");
    // Now it also reads what came over the connection that was given up.
    server.signal(Signal::SIGCONT);
    let status = drained_again(&run, &exporters).await;
    assert_eq!(terms(&status), Terms { acknowledged: 40_000, ..Terms::default() });
    let read = server.read().await;
    assert_eq!((read.times(), read.losses.len(), read.read), (expected, 0, 40_000));
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_no_larger_than_they_may_be_and_restarts_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::with("max_payload: 16384");
    let a = source("a", 1);
    let mut expected = Vec::new();
    for round in 0..2_u64 {
        let run = Run::start(directory.path()).await;
        let exporters = run.export(&nats(&server, "probes = ['kprobes/a']"));
        run.drained(&exporters).await;
        for batch in 1..=100 {
            let first_ns = round * 100_000_000 + batch * 10_000;
            publish(&run.hub, &source("b", 2), 0, 1, first_ns - 5000);
            publish(&run.hub, &a, 0, 4000, first_ns);
            expected.extend(first_ns..first_ns + 4000);
        }
        let status = run.drained(&exporters).await;
        let expected = Terms { acknowledged: 400_000, not_selected: 100, ..Terms::default() };
        assert_eq!(terms(&status), expected);
        run.stop().await;
    }
    let read = server.read().await;
    assert_eq!(read.events.len(), expected.len());
    assert_eq!((read.times(), read.losses.len(), read.epochs.len()), (expected, 0, 2));
    // Batches have some 100 KB here.
    assert!(read.ids.len() > 400 && read.largest <= 16 << 10, "{}, {}", read.ids.len(), read.largest);
    assert!(read.ids.values().all(|count| *count == 1), "{:?}", read.ids);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_used_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "secret-word\n").unwrap();
    let server = Server::with("authorization { token: 'secret-word' }");
    let run = Run::start(directory.path()).await;
    let exporters = run.export(&nats(&server, ""));
    let error = failing(&exporters).await;
    assert!(error.contains("authorization"), "{error}");
    let with_token = format!("token_file = '{}'", token.display());
    let exporters = run.export(&nats(&server, &with_token));
    run.drained(&exporters).await;
    publish(&run.hub, &source("a", 1), 0, 10, 1000);
    let status = run.drained(&exporters).await;
    assert_eq!(status.acknowledged, 10);

    let mut missing = nats(&server, &format!("{with_token}\nstream = 'OTHER'"));
    missing.nats.as_mut().unwrap().create = None;
    let error = failing(&run.export(&missing)).await;
    assert!(error.contains("`OTHER`") && error.contains("[export.nats.create]"), "{error}");
    run.stop().await;
}

/// Everything that a client has of a host that was published until now: events by probe and time,
/// and lost events.
async fn of_client(source: &NatsSource, host: &str, request: NatsRequest) -> (Vec<(String, u64)>, u64) {
    let request = NatsRequest { start: NatsStart::Oldest, until_now: true, ..request };
    let mut stream = source.open(host, request).await.unwrap();
    let (mut events, mut lost) = (Vec::new(), 0);
    while let Some(item) = stream.next().await.unwrap() {
        match item {
            StreamItem::Batch(batch) => {
                events.extend(batch.rows().map(|row| (row.probe().to_owned(), row.timestamp_ns())));
            }
            StreamItem::Loss(loss) => lost += loss.count.unwrap(),
            _ => {}
        }
    }
    (events, lost)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_reads_what_the_log_has_and_merges_hosts() {
    let mut server = Server::start();
    let (a, b) = (source("a", 1), source("b", 2));
    let mut runs = Vec::new();
    for name in ["web1.example.org", "db1"] {
        let directory = tempfile::tempdir().unwrap();
        let mut run = Run::start(directory.path()).await;
        run.host.hostname = name.to_owned();
        let exporters = run.export(&nats(&server, ""));
        run.drained(&exporters).await;
        runs.push((run, exporters, directory));
    }
    // The hosts take turns; each event has a time of its own.
    let publish_all = |rounds: std::ops::Range<u64>| {
        for round in rounds.clone() {
            for ((run, ..), offset) in runs.iter().zip([0, 500]) {
                publish(&run.hub, &a, 0, 3, round * 1000 + offset + 1);
                publish(&run.hub, &b, 1, 2, round * 1000 + offset + 200);
            }
        }
        for (run, ..) in &runs {
            watermark(&run.hub, rounds.end * 1000);
        }
    };
    publish_all(1..101);
    for (run, exporters, _) in &runs {
        run.drained(exporters).await;
    }
    let source = NatsSource::connect(NatsOptions::new(server.url())).await.unwrap();
    let hosts = source.hosts().await.unwrap();
    assert_eq!(hosts, ["db1", "web1.example.org"]);
    let expected = |offset: u64, probes: &[&str]| -> Vec<(String, u64)> {
        let of = |round: u64| {
            let first = round * 1000 + offset;
            let a = (first + 1..first + 4).map(|time| ("kprobes/a".to_owned(), time));
            a.chain((first + 200..first + 202).map(|time| ("kprobes/b".to_owned(), time)))
        };
        (1..101).flat_map(of).filter(|(probe, _)| probes.contains(&probe.as_str())).collect()
    };
    let all = NatsRequest::default();
    let both = ["kprobes/a", "kprobes/b"];
    assert_eq!(of_client(&source, "web1.example.org", all.clone()).await, (expected(0, &both), 0));
    assert_eq!(of_client(&source, "db1", all.clone()).await, (expected(500, &both), 0));
    let only_b = ProbePredicate::new(|probe| probe == "kprobes/b");
    let only_b = NatsRequest { probes: Some(only_b), ..NatsRequest::default() };
    assert_eq!(of_client(&source, "db1", only_b).await, (expected(500, &["kprobes/b"]), 0));
    assert_eq!(of_client(&source, "none", all).await, (Vec::new(), 0));

    // Both in one order of time. The server is killed and comes back while it is read.
    let request = NatsRequest { start: NatsStart::Oldest, ..NatsRequest::default() };
    let options = MergeOptions { max_wait: Duration::from_mins(5), ..MergeOptions::default() };
    let mut merged = MergedStream::from_nats(&source, hosts, &request, options);
    let mut expected: Vec<(&str, u64)> = Vec::new();
    for round in 1..201_u64 {
        for (host, offset) in [("web1.example.org", 0), ("db1", 500)] {
            let first = round * 1000 + offset;
            expected.extend([1, 2, 3, 200, 201].map(|event| (host, first + event)));
        }
    }
    let mut seen: Vec<(String, u64)> = Vec::new();
    let enough = expected.len();
    let is_back = AtomicBool::new(false);
    let read = async {
        while seen.len() < enough {
            match merged.next().await.unwrap() {
                MergedItem::Event(event) => {
                    assert!(!event.late);
                    seen.push((event.host.to_owned(), event.row.timestamp_ns()));
                }
                MergedItem::State(change) => {
                    assert_ne!(change.state, HostState::GivenUp, "{}", change.reason);
                }
                MergedItem::Loss { host, loss, .. } => panic!("{host}: {loss:?}"),
                _ => {}
            }
            if seen.len() == 100 {
                server.kill();
                server.restart();
                publish_all(101..201);
                is_back.store(true, Ordering::Relaxed);
            }
        }
    };
    // Readers of rings say again and again how far they are.
    let beat = async {
        for later in 0.. {
            if is_back.load(Ordering::Relaxed) {
                for (run, ..) in &runs {
                    watermark(&run.hub, 201_000 + later);
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let read = async {
        tokio::select! {
            () = read => {}
            () = beat => {}
        }
    };
    let read = tokio::time::timeout(Duration::from_mins(2), read).await;
    assert!(
        read.is_ok(),
        "{:?} {:?}",
        merged.accounts(),
        runs.iter().map(|run| run.1.statuses()).collect::<Vec<_>>()
    );
    let expected: Vec<_> = expected.into_iter().map(|(host, time)| (host.to_owned(), time)).collect();
    assert_eq!(seen, expected);
    let accounts = merged.accounts();
    assert!(accounts.iter().all(|account| account.lost == 0 && account.late == 0), "{accounts:?}");
    drop(merged);
    for (run, ..) in runs {
        run.stop().await;
    }
}

/// Waits for something of the stream.
async fn until(stream: &Stream, holds: impl Fn(u64, u64) -> bool) {
    let waiting = async {
        loop {
            let state = stream.get_info().await.unwrap().state;
            if holds(state.messages, state.bytes) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap();
}

/// What one host without events costs the stream in a day: nothing. Every sign of life was a stored
/// message before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_nothing_happens_to_stores_nothing_and_holds_up_no_other() {
    const HEARTBEAT_MS: u64 = 100;
    let server = Server::start();
    let a = source("a", 1);
    let mut runs = Vec::new();
    for name in ["busy", "idle"] {
        let directory = tempfile::tempdir().unwrap();
        let mut run = Run::start(directory.path()).await;
        run.host.hostname = name.to_owned();
        let exporters = run.export(&nats(&server, &format!("heartbeat_ms = {HEARTBEAT_MS}")));
        run.drained(&exporters).await;
        runs.push((run, exporters, directory));
    }
    let idle = &runs[1].0;
    watermark(&idle.hub, 1000);
    let stream = server.stream().await;
    until(&stream, |messages, _| messages >= 1).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let subjects = Subjects::new("kprobed").unwrap();
    let mut alive =
        client.subscribe(subjects.of("idle", &kprobed_event::published::Topic::Alive)).await.unwrap();
    // Signs come, and readers of rings go on meanwhile.
    let signs = async {
        let mut seen = 0;
        let mut time_ns = 2000;
        while seen < 20 {
            watermark(&idle.hub, time_ns);
            time_ns += 1000;
            if let Ok(sign) = tokio::time::timeout(
                Duration::from_millis(HEARTBEAT_MS),
                futures_util::StreamExt::next(&mut alive),
            )
            .await
            {
                let sign = sign.unwrap();
                seen += 1;
                if seen == 10 {
                    until(&stream, |messages, _| messages > 0).await;
                }
                let bytes = sign.length;
                assert!(bytes < 2000, "{bytes}");
            }
        }
        time_ns
    };
    let before = stream.get_info().await.unwrap().state;
    let time_ns = tokio::time::timeout(Duration::from_mins(1), signs).await.unwrap();
    let after = stream.get_info().await.unwrap().state;
    assert_eq!((after.messages, after.bytes), (before.messages, before.bytes), "20 signs of life");
    let each = before.bytes / before.messages;
    let day = 86_400_000 / 2000;
    println!(
        "a day of a host without events: {} bytes stored; as stored messages, one in 2 s, it would be {} MB",
        (after.bytes - before.bytes) * day / 20,
        each * day / 1_000_000
    );

    // A reader from now on sees the events of the other host, and waits for no host.
    let source = NatsSource::connect(NatsOptions::new(server.url())).await.unwrap();
    let options = MergeOptions { max_wait: Duration::from_mins(5), ..MergeOptions::default() };
    let hosts = source.hosts().await.unwrap();
    assert_eq!(hosts, ["busy", "idle"]);
    let oldest = NatsRequest { start: NatsStart::Oldest, ..NatsRequest::default() };
    for request in [NatsRequest::default(), oldest] {
        let mut merged = MergedStream::from_nats(&source, hosts.clone(), &request, options);
        let mut live = 0;
        let mut beat = tokio::time::interval(Duration::from_millis(50));
        let mut now_ns = time_ns;
        let read = async {
            loop {
                tokio::select! {
                    item = merged.next() => match item.unwrap() {
                        MergedItem::Event(event) => return (event.host.to_owned(), event.late),
                        MergedItem::State(change) => {
                            assert!(!matches!(change.state, HostState::Late | HostState::GivenUp), "{change:?}");
                            live += u32::from(change.state == HostState::Live);
                        }
                        _ => {}
                    },
                    _ = beat.tick() => {
                        now_ns += 1000;
                        // Not before both are read: from now on, nothing earlier counts.
                        if live == 2 || request.until_now {
                            publish(&runs[0].0.hub, &a, 0, 1, now_ns);
                        }
                        for (run, ..) in &runs {
                            watermark(&run.hub, now_ns + 500);
                        }
                    }
                }
            }
        };
        let read = tokio::time::timeout(Duration::from_mins(1), read).await.unwrap();
        assert_eq!(read, ("busy".to_owned(), false));
    }
    for (run, ..) in runs {
        run.stop().await;
    }
}
