//! Tests of merged events: hosts that are ahead, hang, die and come back.

mod harness;

use std::io::Read as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use kprobed_client::ConnectOptions;
use kprobed_client::event::StreamRequest;
use kprobed_client::fleet::{Host, Outcome};
use kprobed_client::merge::{HostState, MergeOptions, MergedItem, MergedStream};
use serde_json::Value;

use super::command::kprobectl_in;
use super::fake::{Scripted, Way, interrupt};

pub(crate) use harness::{
    DEADLINE, Observer, account, assert_closed, context, let_time_pass, numbers, of_type,
};

/// In order but for those that are marked, and marked only if they are not.
fn assert_order(objects: &[Value]) {
    let mut latest = String::new();
    for event in of_type(objects, "event") {
        let at = event["corrected_time"].as_str().unwrap();
        assert_eq!(event["late"], at < latest.as_str(), "{event}");
        latest = latest.max(at.to_owned());
    }
}

/// Which of three fakes records the event with this number.
fn sender(number: i64) -> usize {
    match number % 6 {
        1 | 3 => 1,
        2 => 2,
        _ => 0,
    }
}

#[test]
fn events_of_hosts_whose_clocks_differ_come_in_the_order_in_which_they_happened() {
    let base = Instant::now();
    let fakes = [
        Scripted::start(Way::Unix, base, Duration::ZERO),
        Scripted::start(Way::Tcp, base, Duration::from_secs(7_000)),
        Scripted::start(Way::Tcp, base, Duration::from_secs(3)),
    ];
    let names = ["a", "bb", "ccc"];
    let hosts: Vec<_> = names.iter().copied().zip(fakes.iter().map(Scripted::address)).collect();
    let context = context(&hosts);
    let mut observer = Observer::start(context.path(), &["-o", "json", "-n", "60"]);
    assert_eq!(observer.observing(), "observing 3 of 3 hosts");
    for number in 0..60 {
        fakes[sender(number.into())].record([number]);
        let_time_pass();
    }
    let (code, objects, messages) = observer.end();
    assert_eq!(numbers(&objects), (0..60).collect::<Vec<_>>(), "{messages}");
    assert_eq!(code, 0, "{messages}");
    assert_order(&objects);
    assert_closed(&objects, 3);
    for event in of_type(&objects, "event") {
        assert_eq!(event["host"], names[sender(event["tid"].as_i64().unwrap())]);
        assert_eq!(event["late"], false);
    }
    // Their wall clocks all have the same offset to their trace clocks, so that they differ as
    // these do.
    let ahead = |host: &str| account(&objects, host)["clock"]["ahead_ns"].as_i64().unwrap();
    let bound = |host: &str| account(&objects, host)["clock"]["error_bound_ns"].as_i64().unwrap();
    for (host, seconds) in [("bb", 7_000_i64), ("ccc", 3)] {
        let apart = (ahead(host) - ahead("a") - seconds * 1_000_000_000).abs();
        assert!(apart <= bound(host) + bound("a"), "{host}: {apart} ns");
    }
    let live = of_type(&objects, "host_state").into_iter().filter(|one| one["state"] == "live");
    assert!(live.clone().all(|one| one["clock"]["error_bound_ns"].is_u64()), "{objects:?}");
    assert_eq!(live.count(), 3);
}

#[test]
fn people_see_the_host_in_each_line_and_the_ledgers_at_the_end() {
    let base = Instant::now();
    let fakes = [("web1", Way::Unix), ("db", Way::Tcp)]
        .map(|(name, way)| (name, Scripted::start(way, base, Duration::from_secs(5))));
    let context = context(&fakes.each_ref().map(|(name, fake)| (*name, fake.address())));
    let mut observer = Observer::start(context.path(), &["-n", "2"]);
    observer.observing();
    fakes[0].1.record([11]);
    observer.until(|line| line.contains("-11 "));
    fakes[1].1.record([12]);
    observer.until(|line| line.contains("-12 "));
    let messages: Vec<_> = observer.messages.iter().collect();
    assert_eq!(observer.seen[0], "HOST TIME [CPU] COMM-TID PROBE (LOCATION) FIELDS");
    assert!(observer.seen[1].starts_with("web1 "), "{:?}", observer.seen);
    assert!(observer.seen[2].starts_with("db   "), "{:?}", observer.seen);
    assert!(observer.seen[2].ends_with("[000] <...>-12 kprobes/open"), "{:?}", observer.seen);
    assert_eq!(
        messages,
        [
            "hosts: 2 targeted = 2 answered + 0 refused + 0 failed + 0 timed out + 0 unreachable + 0 not tried",
            "2 shown, 0 lost"
        ]
    );
    assert_eq!(observer.child.wait().unwrap().code(), Some(0));
}

#[test]
fn time_begins_when_every_host_is_known() {
    let base = Instant::now();
    let fake = Scripted::start(Way::Tcp, base, Duration::ZERO);
    let directory = tempfile::tempdir().unwrap();
    let [_, hung, _] = odd_hosts(directory.path());
    let context = context(&[("web", fake.address()), hung]);
    let begun = Instant::now();
    let arguments = ["-o", "json", "--for", "200ms", "--max-wait", "800ms", "--tolerate", "50%"];
    let mut observer = Observer::start(context.path(), &arguments);
    assert_eq!(observer.observing(), "observing 1 of 2 hosts");
    fake.record([1]);
    let (code, objects, messages) = observer.end();
    assert_eq!(code, 0, "{messages}");
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_closed(&objects, 2);
    assert_eq!(numbers(&objects), [1]);
    assert_eq!(account(&objects, "hung")["outcome"], "timed_out");
}

/// A socket without a listener, one that never answers, and one that closes every connection.
pub(crate) fn odd_hosts(directory: &Path) -> [(&'static str, String); 3] {
    let at = |name: &str| directory.join(name);
    drop(UnixListener::bind(at("dead")).unwrap());
    let hung = UnixListener::bind(at("hung")).unwrap();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in hung.incoming() {
            held.push(stream);
        }
    });
    let broken = UnixListener::bind(at("broken")).unwrap();
    std::thread::spawn(move || {
        for stream in broken.incoming() {
            stream.unwrap().read_exact(&mut [0; 30]).ok();
        }
    });
    ["dead", "hung", "broken"].map(|name| (name, at(name).display().to_string()))
}

#[test]
fn dead_and_hung_hosts_are_told_and_hold_up_nobody_for_ever() {
    let base = Instant::now();
    let fake = Scripted::start(Way::Unix, base, Duration::ZERO);
    let directory = tempfile::tempdir().unwrap();
    let mut hosts = odd_hosts(directory.path()).to_vec();
    hosts.push(("web", fake.address()));
    let context = context(&hosts);
    let mut observer = Observer::start(context.path(), &["-o", "json", "--max-wait", "700ms"]);
    assert_eq!(observer.observing(), "observing 1 of 4 hosts");
    fake.record(0..5);
    observer.until_number(4);
    interrupt(&observer.child);
    let (code, objects, messages) = observer.end();
    assert_eq!(code, 4, "one of them broke off: {messages}");
    assert_closed(&objects, 4);
    assert_eq!(numbers(&objects), [0, 1, 2, 3, 4]);
    let outcomes = ["dead", "hung", "web"].map(|host| account(&objects, host)["outcome"].clone());
    assert_eq!(outcomes, ["unreachable", "timed_out", "answered"]);
    let states = |host: &str| -> Vec<_> {
        let states = of_type(&objects, "host_state").into_iter().filter(|one| one["host"] == host);
        states.map(|one| one["state"].as_str().unwrap()).collect()
    };
    assert_eq!(states("dead"), ["connecting", "lost", "late"]);
    assert_eq!(states("web"), ["connecting", "live"]);
    assert!(account(&objects, "dead")["reason"].as_str().unwrap().contains("refused"), "{objects:?}");
    // The rest of the run can be asked again.
    let arguments = ["config", "get-hosts", "--hosts", "@failed", "-o", "json"];
    let again = kprobectl_in(context.path(), &arguments).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&again.stdout).matches("\"name\"").count(), 3);
}

#[test]
fn a_host_that_dies_is_released_and_goes_on_at_its_place_when_it_is_back() {
    for way in [Way::Unix, Way::Tcp] {
        let base = Instant::now();
        let staying = Scripted::start(Way::Unix, base, Duration::ZERO);
        let mut dying = Scripted::start(way, base, Duration::from_secs(100));
        let context = context(&[("staying", staying.address()), ("dying", dying.address())]);
        let mut observer = Observer::start(context.path(), &["-o", "json", "--max-wait", "600ms"]);
        observer.observing();
        dying.record([0]);
        let_time_pass();
        staying.record([1]);
        observer.until_number(1);
        dying.kill();
        observer.until_state("dying", "lost");
        // These events are in its history, and the observer does not see them yet.
        dying.record([2, 3]);
        let_time_pass();
        staying.record([4]);
        observer.until_state("dying", "late");
        observer.until_number(4);
        dying.revive();
        observer.until_number(3);
        staying.record([5]);
        observer.until_number(5);
        dying.record([6]);
        observer.until_number(6);
        interrupt(&observer.child);
        let (code, objects, messages) = observer.end();
        assert_eq!(code, 0, "{messages}");
        assert_closed(&objects, 2);
        assert_order(&objects);
        assert_eq!(numbers(&objects), [0, 1, 4, 2, 3, 5, 6], "each once, over {way:?}");
        let late: Vec<_> = of_type(&objects, "event").into_iter().filter(|one| one["late"] == true).collect();
        assert_eq!(late.iter().map(|one| one["tid"].as_i64().unwrap()).collect::<Vec<_>>(), [2, 3]);
        let states: Vec<_> = of_type(&objects, "host_state")
            .into_iter()
            .filter(|one| one["host"] == "dying")
            .map(|one| one["state"].as_str().unwrap())
            .collect();
        assert_eq!(states, ["connecting", "live", "lost", "late", "back"]);
        let back = of_type(&objects, "host_state").into_iter().find(|one| one["state"] == "back").unwrap();
        assert!(back["away_ns"].as_u64().unwrap() >= 500_000_000, "{back}");
        assert_eq!(account(&objects, "dying")["interruptions"], 1);
        assert_eq!(account(&objects, "dying")["outcome"], "answered");
    }
}

#[test]
fn what_the_history_forgot_while_a_host_was_away_is_a_gap_of_that_host() {
    let base = Instant::now();
    let staying = Scripted::start(Way::Unix, base, Duration::ZERO);
    let mut dying = Scripted::start(Way::Unix, base, Duration::ZERO);
    let context = context(&[("staying", staying.address()), ("dying", dying.address())]);
    let mut observer = Observer::start(context.path(), &["-o", "json", "--max-wait", "30s"]);
    observer.observing();
    dying.record([0]);
    observer.until_number(0);
    dying.kill();
    observer.until_state("dying", "lost");
    dying.record(1..8);
    dying.forget_history();
    staying.record([8]);
    let_time_pass();
    dying.revive();
    dying.record([9]);
    observer.until_number(9);
    interrupt(&observer.child);
    let (code, objects, messages) = observer.end();
    assert_eq!(code, 0, "{messages}");
    assert_closed(&objects, 2);
    // It was waited for: nothing is late.
    assert_eq!(numbers(&objects), [0, 8, 9]);
    let losses = of_type(&objects, "loss");
    assert_eq!(losses.len(), 1);
    assert_eq!((&losses[0]["host"], &losses[0]["count"]), (&"dying".into(), &7.into()));
    assert_eq!(account(&objects, "dying")["lost"], 7);
}

fn states(objects: &[Value], host: &str) -> Vec<String> {
    let states = of_type(objects, "host_state").into_iter().filter(|one| one["host"] == host);
    states.map(|one| one["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_malformed_message_is_a_gap_and_its_events_are_asked_for_again() {
    let base = Instant::now();
    let well = Scripted::start(Way::Unix, base, Duration::ZERO);
    let ill = Scripted::start(Way::Tcp, base, Duration::from_secs(7));
    let context = context(&[("well", well.address()), ("ill", ill.address())]);
    let mut observer = Observer::start(context.path(), &["-o", "json"]);
    observer.observing();
    ill.record([0]);
    observer.until_number(0);
    ill.set_malformed(1);
    ill.record([1]);
    let_time_pass();
    well.record([2]);
    observer.until_number(2);
    ill.record([3]);
    observer.until_number(3);
    interrupt(&observer.child);
    let (code, objects, messages) = observer.end();
    assert_eq!(code, 0, "{messages}");
    assert_closed(&objects, 2);
    assert_order(&objects);
    assert_eq!(numbers(&objects), [0, 1, 2, 3], "each once, and in order");
    let gaps = of_type(&objects, "gap");
    assert_eq!(gaps.len(), 1);
    assert_eq!((&gaps[0]["host"], &gaps[0]["cause"]), (&"ill".into(), &"malformed".into()));
    let reason = "the daemon sent a malformed message: `tids` of `kprobes/open` has 1 bytes for 1 rows";
    assert_eq!(gaps[0]["reason"], reason);
    assert!(gaps[0]["cursor"].is_string(), "{gaps:?}");
    assert_eq!(states(&objects, "ill"), ["connecting", "live", "lost", "back"]);
    let account = account(&objects, "ill");
    assert_eq!((&account["malformed"], &account["interruptions"]), (&1.into(), &1.into()));
}

#[test]
fn a_host_whose_message_is_malformed_twice_at_one_place_is_given_up() {
    let base = Instant::now();
    let well = Scripted::start(Way::Unix, base, Duration::ZERO);
    let ill = Scripted::start(Way::Tcp, base, Duration::ZERO);
    let context = context(&[("well", well.address()), ("ill", ill.address())]);
    let mut observer = Observer::start(context.path(), &["-o", "json"]);
    observer.observing();
    ill.record([0]);
    observer.until_number(0);
    ill.set_malformed(u32::MAX);
    ill.record([1]);
    observer.until_state("ill", "given_up");
    well.record([2]);
    observer.until_number(2);
    interrupt(&observer.child);
    let (code, objects, messages) = observer.end();
    assert_eq!(code, 4, "{messages}");
    assert_closed(&objects, 2);
    assert_eq!(numbers(&objects), [0, 2]);
    assert_eq!(of_type(&objects, "gap").len(), 2);
    let account = account(&objects, "ill");
    assert_eq!((&account["outcome"], &account["malformed"]), (&"failed".into(), &2.into()));
    let reason = account["reason"].as_str().unwrap();
    assert!(reason.ends_with(" has 1 bytes for 1 rows, twice at the same place"), "{reason}");
    assert!(messages.contains("2 shown, at least 0 lost"), "{messages}");
    assert!(messages.ends_with("\n  the last events may be missing: ill did not send them"), "{messages}");
}

#[test]
fn a_silent_host_is_late_and_back_without_a_new_connection() {
    let base = Instant::now();
    let fakes = [Way::Unix, Way::Tcp].map(|way| Scripted::start(way, base, Duration::ZERO));
    let context = context(&[("one", fakes[0].address()), ("two", fakes[1].address())]);
    let mut observer =
        Observer::start(context.path(), &["-o", "json", "--max-wait", "400ms", "--tolerate", "1"]);
    observer.observing();
    fakes[1].set_silent(true);
    fakes[0].record([0]);
    observer.until_state("two", "late");
    observer.until_number(0);
    fakes[1].record([1]);
    fakes[1].set_silent(false);
    observer.until_number(1);
    fakes[1].set_silent(true);
    observer.until_state("two", "late");
    interrupt(&observer.child);
    let (code, objects, messages) = observer.end();
    assert_eq!(code, 0, "one may fail: {messages}");
    assert_closed(&objects, 2);
    assert_order(&objects);
    assert_eq!(account(&objects, "two")["outcome"], "timed_out");
    assert_eq!(account(&objects, "two")["interruptions"], 0);
}

#[test]
fn the_past_of_all_hosts_has_an_end() {
    let base = Instant::now();
    let fakes = [Way::Unix, Way::Tcp].map(|way| Scripted::start(way, base, Duration::ZERO));
    for number in 0..10 {
        fakes[usize::from(number % 2 == 1)].record([number]);
    }
    let directory = tempfile::tempdir().unwrap();
    let mut hosts = vec![("one", fakes[0].address()), ("two", fakes[1].address())];
    hosts.extend(odd_hosts(directory.path()).into_iter().filter(|(name, _)| *name != "broken"));
    let context = context(&hosts);
    let observer = Observer::start(context.path(), &["-o", "json", "--oldest", "--max-wait", "700ms"]);
    let (code, objects, messages) = observer.end();
    assert_eq!(code, 3, "{messages}");
    assert_closed(&objects, 4);
    assert_order(&objects);
    let mut numbers = numbers(&objects);
    numbers.sort_unstable();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    let states = ["one", "two", "dead", "hung"].map(|host| account(&objects, host)["state"].clone());
    assert_eq!(states, ["ended", "ended", "given_up", "given_up"]);
}

#[test]
fn a_refusal_is_an_outcome_and_fail_fast_ends_the_run() {
    let base = Instant::now();
    let fake = Scripted::start(Way::Unix, base, Duration::ZERO);
    let context = context(&[("one", fake.address())]);
    let (code, objects, messages) =
        Observer::start(context.path(), &["-o", "json", "--filter", "dfd +3"]).end();
    assert_eq!(code, 1, "{messages}");
    assert_closed(&objects, 1);
    assert_eq!(account(&objects, "one")["outcome"], "refused");
    let directory = tempfile::tempdir().unwrap();
    let [dead, ..] = odd_hosts(directory.path());
    let context = self::context(&[("one", fake.address()), dead]);
    let (code, objects, messages) = Observer::start(context.path(), &["-o", "json", "--fail-fast"]).end();
    assert!(code == 3 || code == 4, "{code}: {messages}");
    assert_closed(&objects, 2);
    assert_eq!(account(&objects, "dead")["outcome"], "unreachable");
    for (arguments, message) in [
        (&["--cursor", "place"][..], "a place in the events of one host"),
        (&["--max-wait", "0s"], "every answer takes some time"),
    ] {
        let (code, _, messages) = Observer::start(context.path(), arguments).end();
        assert_eq!(code, 2, "{messages}");
        assert!(messages.contains(message), "{messages}");
    }
}

/// A host that is far ahead is not read: its events wait in its daemon, and come when the other one
/// has caught up.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_far_ahead_is_not_read() {
    const PIECES: u64 = 400;
    let base = Instant::now();
    let ahead = Scripted::start(Way::Unix, base, Duration::ZERO);
    let behind = Scripted::start(Way::Tcp, base, Duration::ZERO);
    let host = |name: &str, fake: &Scripted| Host {
        name: name.to_owned(),
        target: fake.address().parse().unwrap(),
        options: ConnectOptions::default(),
    };
    let hosts = vec![host("ahead", &ahead), host("behind", &behind)];
    let options = MergeOptions {
        read_ahead_events: 2_000,
        max_wait: Duration::from_mins(1),
        ..MergeOptions::default()
    };
    let mut merged = MergedStream::open(hosts, StreamRequest::new(), options);
    let mut live = 0;
    while live < 2 {
        let item = tokio::time::timeout(DEADLINE, merged.next()).await.unwrap().unwrap();
        live += usize::from(matches!(item, MergedItem::State(change) if change.state == HostState::Live));
    }
    behind.set_silent(true);
    let_time_pass();
    for _ in 0..PIECES {
        ahead.record(0..100);
    }
    // Everything that is read without the other one is read when nothing more comes for a while of
    // many beats.
    let (mut before, mut quiet) = (0, 0);
    while quiet < 5 {
        let waited = tokio::time::timeout(Duration::from_millis(100), merged.next()).await;
        assert!(
            !matches!(waited, Ok(Some(MergedItem::Event(_)))),
            "it may not go before the other one has spoken"
        );
        let read = merged.accounts()[0].read;
        quiet = if read == before && read > 0 { quiet + 1 } else { 0 };
        before = read;
    }
    assert!((1_000..3_000).contains(&before), "{before} of {}", ahead.sent_events());
    assert_eq!(merged.accounts().iter().map(|account| account.waiting).sum::<u64>(), before);
    behind.set_silent(false);
    let mut given = 0;
    while given < PIECES * 100 {
        match tokio::time::timeout(DEADLINE, merged.next()).await.unwrap().unwrap() {
            MergedItem::Event(event) => {
                assert!(!event.late);
                given += 1;
            }
            MergedItem::Loss { loss, .. } => panic!("{loss:?}"),
            _ => {}
        }
    }
    merged.finish();
    assert!(merged.next().await.is_none());
    for account in merged.accounts() {
        assert!(account.closes(), "{account:?}");
        assert_eq!(account.outcome, Outcome::Answered);
    }
}

/// By them a gap without a time has an end.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_comes_with_the_last_arrivals_before_it() {
    let mut dying = Scripted::start(Way::Unix, Instant::now(), Duration::ZERO);
    let host = Host {
        name: "dying".to_owned(),
        target: dying.address().parse().unwrap(),
        options: ConnectOptions::default(),
    };
    let mut merged = MergedStream::open(vec![host], StreamRequest::new(), MergeOptions::default());
    let mut given = Vec::new();
    let arrived = loop {
        match tokio::time::timeout(DEADLINE, merged.next()).await.unwrap().unwrap() {
            MergedItem::State(change) if change.state == HostState::Live => dying.record([0]),
            MergedItem::Event(event) => {
                given.push((event.row.cpu(), event.row.timestamp_ns()));
                dying.kill();
                dying.record(1..8);
                dying.forget_history();
                dying.revive();
            }
            MergedItem::Loss { arrived, .. } => break arrived,
            _ => {}
        }
    };
    assert_eq!(given.len(), 1);
    assert_eq!(arrived, given);
}
