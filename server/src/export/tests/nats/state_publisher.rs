//! Tests of published states and hit counts: as a reader has them, whenever it connects and
//! whatever the server lost.

use kprobed_client::api::WatchEvent;
use kprobed_client::nats::{HostWatched, NatsWatch, NatsWatchRequest};

use super::*;
use crate::control::{Probe, ProbeState, Registry, test_probe};
use crate::export::nats::{Connection, StatePublisher};
use kprobed_lang::model::{HitProfile, Hits, ProbeName, ProbeUid};

/// What publishes states and hits of a run.
fn state_publisher(
    run: &Run,
    server: &Server,
    registry: &Arc<Registry>,
    counts: &Arc<Mutex<Vec<HitProfile>>>,
) -> Exporters {
    let settings = nats(server, "profile_interval_s = 1").nats.unwrap();
    let exporters = Exporters::default();
    let shared = Arc::new(Shared::new("nats", "here".to_owned(), Arc::clone(&run.hub), run.log.now));
    exporters.add(Arc::clone(&shared));
    let counts = Arc::clone(counts);
    let states = StatePublisher {
        connection: Connection::new(&settings, &run.host.hostname).unwrap(),
        host: run.host.clone(),
        selection: Selection::default(),
        states: true,
        profile_interval: Some(Duration::from_millis(20)),
        counts: Box::new(move || {
            let counts = counts.lock().unwrap().clone();
            Box::pin(async move { Ok(counts) })
        }),
        registry: Arc::clone(registry),
        shared,
        tasks: run.tasks.clone(),
    };
    run.tasks.spawn("states", states.run());
    exporters
}

/// Reads a watch until it knows so much; begins again when the server was away.
async fn watched(
    watch: &mut NatsWatch,
    enough: impl Fn(&[(WatchEvent, String, i64)]) -> bool,
) -> Vec<(WatchEvent, String, i64)> {
    let reading = async {
        let mut told = Vec::new();
        while !enough(&told) {
            match watch.next().await {
                Ok(HostWatched { host, message }) => {
                    assert_eq!(host, "here");
                    let (name, uid) = message
                        .probe
                        .as_ref()
                        .map(|probe| (probe.name.clone(), probe.uid))
                        .unwrap_or_default();
                    told.push((message.event(), name, uid));
                }
                Err(_) => {
                    while watch.reopen().await.is_err() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
        }
        told
    };
    tokio::time::timeout(Duration::from_mins(1), reading).await.unwrap()
}

fn of(told: &[(WatchEvent, String, i64)], event: WatchEvent) -> Vec<i64> {
    told.iter().filter(|told| told.0 == event).map(|told| told.2).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_of_probes_are_right_however_late_one_reads_and_whatever_the_server_lost() {
    use WatchEvent as Event;
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start();
    let run = Run::start(directory.path()).await;
    let events = run.export(&nats(&server, ""));
    run.drained(&events).await;
    let registry = Arc::<Registry>::default();
    let put = |uid: i64, state: ProbeState, revision| {
        let probe = Probe { state, ..test_probe(uid, &format!("kprobes/p{uid}")) };
        let probe = probe.with(|record| record.revision = revision);
        _ = registry.note_for_test(probe);
    };
    put(1, ProbeState::Armed, 1);
    put(2, ProbeState::Armed, 1);
    let exporters = state_publisher(&run, &server, &registry, &Arc::default());
    let states = |at_least: u64| {
        let exporters = exporters.clone();
        async move {
            let waiting = async {
                loop {
                    let counts = exporters.statuses().remove(0).states.unwrap_or_default();
                    if counts.states >= at_least && counts.error.is_empty() {
                        return counts.states;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(Duration::from_mins(1), waiting).await.unwrap()
        }
    };
    // Two probes and the roster.
    states(3).await;
    let source = NatsSource::connect(NatsOptions::new(server.url())).await.unwrap();
    assert_eq!(source.hosts_with_states().await.unwrap(), ["here"]);
    let mut watch = source.watch(NatsWatchRequest::default()).await.unwrap();
    let told = watched(&mut watch, |told| told.last().is_some_and(|told| told.0 == Event::Synced)).await;
    assert_eq!(of(&told, Event::Present), [1, 2]);
    // Every change, as it comes.
    put(2, ProbeState::Disabled, 2);
    put(3, ProbeState::Armed, 1);
    registry.remove_for_test("kprobes/p1");
    let told = watched(&mut watch, |told| told.len() == 3).await;
    let expected = [(Event::Changed, 2), (Event::Added, 3), (Event::Deleted, 1)];
    assert_eq!(told.iter().map(|told| (told.0, told.2)).collect::<Vec<_>>(), expected);
    // Away, while one goes and one comes; then without anything that was acknowledged.
    for round in 0..2_i64 {
        server.kill();
        if round == 1 {
            fs::remove_dir_all(server.directory.path().join("store")).unwrap();
        }
        put(10 + round, ProbeState::Armed, 1);
        if round == 0 {
            registry.remove_for_test("kprobes/p3");
        }
        let before = exporters.statuses().remove(0).states.unwrap().states;
        server.restart();
        states(before + 3).await;
        let late = async {
            // The stream is made again by the daemon: until then there is none.
            loop {
                if let Ok(source) = NatsSource::connect(NatsOptions::new(server.url())).await
                    && let Ok(watch) = source.watch(NatsWatchRequest::default()).await
                {
                    return (source, watch);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (_source, mut late) = tokio::time::timeout(Duration::from_mins(1), late).await.unwrap();
        let told = watched(&mut late, |told| told.last().is_some_and(|told| told.0 == Event::Synced)).await;
        let expected = if round == 0 { vec![10, 2] } else { vec![10, 11, 2] };
        assert_eq!(of(&told, Event::Present), expected, "round {round}");
        assert_eq!(of(&told, Event::Deleted), Vec::<i64>::new());
    }
    // Of one that is gone, nothing stays: deleted probes do not add up.
    put(20, ProbeState::Armed, 1);
    let before = states(0).await;
    for uid in 100..400 {
        put(uid, ProbeState::Armed, 1);
        registry.remove_for_test(&format!("kprobes/p{uid}"));
    }
    states(before + 600).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let stream = jetstream::new(client).get_stream("KPROBED_STATE").await.unwrap();
    until(&stream, |messages, _| messages < 60).await;
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_are_published_when_they_change() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    let run = Run::start(directory.path()).await;
    let counts: Arc<Mutex<Vec<HitProfile>>> = Arc::default();
    let count = |hits: u64| HitProfile {
        uid: ProbeUid(1),
        name: ProbeName::new("kprobes", "open").unwrap(),
        boot_id: run.host.boot_id.clone(),
        time: SystemTime::now(),
        hits: Hits { hits, nmissed: 1 },
    };
    let exporters = state_publisher(&run, &server, &Arc::default(), &counts);
    let profiles = |at_least: u64| {
        let exporters = exporters.clone();
        async move {
            let waiting = async {
                while exporters.statuses().remove(0).states.unwrap_or_default().profiles < at_least {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_mins(1), waiting).await.unwrap();
        }
    };
    for hits in 1..=3 {
        *counts.lock().unwrap() = vec![count(hits)];
        profiles(hits).await;
    }
    let source = NatsSource::connect(NatsOptions::new(server.url())).await.unwrap();
    let last = source.profiles(None, |_, _| true).await.unwrap();
    let found = |profiles: &[kprobed_client::nats::HostProfile]| -> Vec<(String, String, u64, u64)> {
        let one = |one: &kprobed_client::nats::HostProfile| {
            (one.host.clone(), one.profile.probe.clone(), one.profile.hits, one.profile.nmissed)
        };
        profiles.iter().map(one).collect()
    };
    let expected = |hits| ("here".to_owned(), "kprobes/open".to_owned(), hits, 1);
    assert_eq!(found(&last), [expected(3)]);
    let all = source.profiles(Some(SystemTime::UNIX_EPOCH), |_, _| true).await.unwrap();
    let mut hits: Vec<u64> = all.iter().map(|one| one.profile.hits).collect();
    // The last count before a change may be there twice: when it began, and when it was last seen.
    hits.dedup();
    assert_eq!(hits, [1, 2, 3]);
    assert!(source.profiles(None, |host, _| host != "here").await.unwrap().is_empty());
    // A reader of events does not see them.
    assert_eq!(of_client(&source, "here", NatsRequest::default()).await, (Vec::new(), 0));
    run.stop().await;
}
