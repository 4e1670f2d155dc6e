//! Commands that count in the kernel, and the calls below them.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use kprobed_client::api::aggregation_spec::Aggregation as Kind;
use kprobed_client::api::stream_aggregation_request::Source;
use kprobed_client::api::{AggregationSpec, HistogramSpec};
use kprobed_client::{Client, ConnectOptions, Target};

use super::fake::{Ending, Fake};

/// Waits until the log of the fake ends so.
fn counted(fake: &Fake, last: &str) -> Vec<String> {
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        let log = fake.counted();
        if log.last().is_some_and(|entry| entry == last) || Instant::now() > limit {
            return log;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Counts for a moment.
fn run(fake: &Fake, arguments: &[&str]) -> String {
    fake.run(&[arguments, &["--duration", "100ms"]].concat())
}

#[tokio::test]
async fn the_library_counts() {
    let fake = Fake::start(Ending::Open);
    let target = Target::Unix(fake.socket().to_owned());
    let client = Client::connect(target, ConnectOptions::default()).await.unwrap();
    let spec = || {
        let spec = HistogramSpec { probe: "open".to_owned(), ..Default::default() };
        AggregationSpec { aggregation: Some(Kind::Histogram(spec)) }
    };
    let made = client.create_aggregation("mine", spec(), Some(Duration::from_secs(60))).await.unwrap();
    assert_eq!((made.name.as_str(), made.bound_to_stream), ("mine", false));
    let error = client.create_aggregation("opens", spec(), None).await.unwrap_err();
    assert_eq!(error.rpc().unwrap().code, tonic::Code::AlreadyExists);
    let names: Vec<_> = client.list_aggregations().await.unwrap().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["opens", "reads"]);
    assert_eq!(client.get_aggregation("reads").await.unwrap().keys.len(), 2);
    assert_eq!(client.read_aggregation("opens").await.unwrap().hits, 8);
    assert_eq!(client.delete_aggregation("opens").await.unwrap().unwrap().hits, 32);
    let interval = Duration::from_millis(100);
    let mut stream = client.stream_aggregation(Source::Spec(spec()), interval, true).await.unwrap();
    assert!(stream.aggregation().bound_to_stream);
    assert!(!stream.next().await.unwrap().unwrap().delta);
    assert!(stream.next().await.unwrap().unwrap().delta);
    drop(stream);
    assert_eq!(counted(&fake, "the stream ended").last().unwrap(), "the stream ended");
}

#[test]
fn hist_counts_by_value() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["hist", "open"]), @"");
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "filename,comm", "--sum", "dfd"]), @"");
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "thread", "--sort", "key", "--top", "1"]), @"");
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "flags", "--by", "ip.sym", "--sum", "dfd", "--sort", "dfd"]), @"");
    assert_snapshot!(run(&fake, &["hist", "idle", "--by", "comm"]), @"");
}

#[test]
fn hist_draws_ranges() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "dfd.log2"]), @"");
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "comm,bytes.buckets=4096", "--sum", "bytes"]), @"");
}

#[test]
fn what_is_in_no_row_is_told() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["hist", "busy", "--by", "cpu", "--top", "2"]), @"");
    assert_snapshot!(run(&fake, &["latency", "busy", "opened"]), @"");
}

#[test]
fn latency() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["latency", "read", "read_return"]), @"");
    assert_snapshot!(run(&fake, &["latency", "read", "read_return", "--by", "comm", "--bucket", "100us", "--unit", "us", "--sort", "latency_ns"]), @"");
    assert_snapshot!(run(&fake, &["latency", "read", "read_return", "--by", "cpu", "--top", "1", "-o", "json"]), @"");
}

#[test]
fn stacks() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["stacks", "open", "--by", "comm", "--sum", "bytes"]), @"");
    assert_snapshot!(run(&fake, &["stacks", "open", "-o", "folded"]), @"");
    assert_snapshot!(run(&fake, &["stacks", "open", "--by", "filename", "--sum", "bytes", "-o", "folded"]), @"");
    assert_snapshot!(run(&fake, &["stacks", "open", "--top", "1", "-o", "yaml"]), @"");
}

#[test]
fn readings_in_between() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "comm", "--interval", "1s"]), @"");
    assert_snapshot!(run(&fake, &["hist", "open", "--interval", "1s", "--deltas", "-o", "json"]), @"");
}

#[test]
fn what_can_not_be_counted() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["hist", "absent"]), @"");
    assert_snapshot!(fake.run(&["hist", "open", "--filter", "a +3"]), @"");
    assert_snapshot!(fake.run(&["hist", "open", "--by", "dfd.log"]), @"");
    assert_snapshot!(fake.run(&["hist", "open", "--sum", "dfd", "--sort", "bytes"]), @"");
    assert_snapshot!(fake.run(&["stacks", "open", "--interval", "1s", "-o", "folded"]), @"");
    assert_snapshot!(fake.run(&["list", "-o", "folded"]), @"");
    assert_snapshot!(run(&fake, &["hist", "open", "--by", "comm", "-o", "folded"]), @"");
    assert_snapshot!(fake.run(&["latency", "a", "b", "--by", "stack"]), @"");
    assert_snapshot!(run(&fake, &["hist", "unread"]), @"");
    assert_snapshot!(fake.run(&["hist", "broken", "--by", "comm", "--interval", "1s"]), @"");
}

#[test]
fn aggregations() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["aggregations"]), @"");
    assert_snapshot!(fake.run(&["aggregations", "list", "-o", "wide"]), @"");
    assert_snapshot!(fake.run(&["aggregations", "-o", "json"]), @"");
    assert_snapshot!(fake.run(&["aggregations", "read", "opens", "--top", "1"]), @"");
    assert_snapshot!(fake.run(&["aggregations", "read", "absent"]), @"");
    assert_snapshot!(fake.run(&["aggregations", "read", "opens", "--duration", "1s"]), @"");
    assert_snapshot!(fake.run(&["aggregations", "delete", "opens", "absent", "reads"]), @"");
    assert_eq!(fake.counted(), ["deleted opens", "deleted absent", "deleted reads"]);
}

#[test]
fn aggregations_are_followed_and_stay() {
    let fake = Fake::start(Ending::Open);
    let arguments = ["aggregations", "read", "reads", "--interval", "1s", "--deltas", "--duration", "300ms"];
    assert_snapshot!(fake.run(&arguments), @"");
    assert_eq!(counted(&fake, "the stream ended"), ["the stream ended"], "nothing was deleted");
}

#[test]
fn keeping() {
    let fake = Fake::start(Ending::Open);
    assert_snapshot!(fake.run(&["hist", "open", "--by", "comm", "--keep", "mine", "--ttl", "1h"]), @"");
    let log = fake.counted();
    assert!(log.len() == 1 && log[0].starts_with("made mine for Some(3600) s: Histogram"), "{log:?}");
    assert_snapshot!(fake.run(&["latency", "a", "b", "--keep", "opens"]), @"");
    assert_snapshot!(fake.run(&["stacks", "open", "--keep", "mine", "--duration", "1s"]), @"");
}

/// Starts to count, waits until it does, and sends a signal.
fn interrupted(fake: &Fake, arguments: &[&str]) -> (Option<i32>, String) {
    let mut child = fake.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    let note = notes.next().unwrap().unwrap();
    assert!(note.contains("counting open"), "{note}");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut stdout = String::new();
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    (child.wait().unwrap().code(), stdout)
}

#[test]
fn what_was_counted_until_an_interrupt_is_shown() {
    let fake = Fake::start(Ending::Open);
    let (code, stdout) = interrupted(&fake, &["hist", "open"]);
    assert_eq!(code, Some(0), "that is how counting ends: {stdout}");
    assert!(stdout.contains("32 hits, 0 dropped"), "{stdout}");
    assert_eq!(counted(&fake, "the stream ended"), ["made open-0", "deleted open-0", "the stream ended"]);
    let (code, stdout) = interrupted(&fake, &["hist", "open", "--duration", "1h"]);
    assert_eq!(code, Some(4), "there was more to come");
    assert!(stdout.contains("32 hits, 0 dropped"), "{stdout}");
}

#[test]
fn a_killed_command_ends_its_stream() {
    let fake = Fake::start(Ending::Open);
    let mut child = fake.command(&["hist", "open"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    notes.next().unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(counted(&fake, "the stream ended"), ["made open-0", "the stream ended"]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let fake = Fake::start(Ending::Open);
    let mut command = fake.command(&["hist", "open", "--interval", "1s"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{stderr}");
    assert!(!stderr.contains("error"), "{stderr}");
    assert_eq!(counted(&fake, "the stream ended").last().unwrap(), "the stream ended");
}
