//! Tests of a scrape: its text, the largest number of series, and its connection.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

use super::super::metrics::samples::figures;
use super::*;
use kprobed_control::samples::probe;
use kprobed_control::{Probe, ProbeState, Trouble};

/// Lines that are samples.
fn samples(figures: Metrics) -> Vec<String> {
    let text = text(figures).unwrap();
    assert!(text.ends_with("# EOF\n"));
    text.lines().filter(|line| !line.starts_with('#')).map(ToOwned::to_owned).collect()
}

#[test]
fn a_scrape_shows_the_ledger() {
    let samples = samples(figures(1));
    for expected in [
        r#"kprobed_probe_hits_total{probe="kprobes/p1"} 13"#,
        r#"kprobed_probe_missed_total{probe="kprobes/p1"} 2"#,
        r#"kprobed_probe_events_total{probe="kprobes/p1",term="read"} 6"#,
        r#"kprobed_probe_events_total{probe="kprobes/p1",term="own"} 3"#,
        r#"kprobed_probe_up{probe="kprobes/p1"} 1"#,
        r#"kprobed_buffer_events_total{term="overrun"} 4"#,
        "kprobed_buffer_resets_total 2",
        "kprobed_buffer_bytes 8192",
        r#"kprobed_exporter_queued_events{exporter="jsonl"} 7"#,
        r#"kprobed_exporter_acknowledged_timestamp_seconds{exporter="jsonl"} 5.0"#,
        "kprobed_tls_not_after_timestamp_seconds 86400.0",
        "kprobed_store_up 1",
        "kprobed_budget_trips_total 2",
    ] {
        assert!(samples.iter().any(|sample| sample == expected), "{expected}\n{}", samples.join("\n"));
    }
}

#[test]
fn what_is_not_known_has_no_series() {
    let mut some = figures(2);
    let unknown = some.ledger.probes.first_mut().unwrap();
    (unknown.terms.lost, unknown.terms.own) = (None, None);
    let trouble = Trouble { code: "SWITCHED_OFF", reason: String::new(), hint: String::new() };
    let problem = Probe { state: ProbeState::Drifted(trouble), ..probe(1, "kprobes/p1") };
    some.ledger.problems.push(Arc::new(problem));
    some.enabled[1] = false;
    let samples = samples(some);
    let has = |text: &str| samples.iter().any(|sample| sample.contains(text));
    assert!(!has(r#"{probe="kprobes/p1",term="lost"}"#) && has(r#"{probe="kprobes/p2",term="lost"}"#));
    assert!(
        has(r#"kprobed_probe_up{probe="kprobes/p1"} 0"#) && !has(r#"kprobed_probe_up{probe="kprobes/p2"}"#)
    );
}

/// Tasks have no series: the number depends on the probes and exporters alone.
#[test]
fn the_number_of_series_is_a_formula() {
    let count = |probes| i64::try_from(samples(figures(probes)).len()).unwrap();
    let (none, one, many) = (count(0), count(1), count(1000));
    // Hits, missed, up, and the terms.
    let of_a_probe = 3 + 8;
    assert_eq!(one - none, of_a_probe);
    assert_eq!(many - none, 1000 * of_a_probe);
    // Buffers, subscribers, one exporter, the daemon: the same on every host.
    assert_eq!(none, 26);
}

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n";

async fn large(_request: Request<Incoming>) -> Answer {
    plain(StatusCode::OK, "x".repeat(1 << 20))
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_read_is_given_up() {
    let (mut client, server) = duplex(1 << 10);
    client.write_all(REQUEST).await.unwrap();
    tokio::time::timeout(2 * CONNECTION, answer_one(server, large)).await.unwrap();
}

#[tokio::test]
async fn a_connection_is_for_one_scrape() {
    let (mut client, server) = duplex(4 << 20);
    client.write_all(&REQUEST.repeat(2)).await.unwrap();
    answer_one(server, large).await;
    let mut read = Vec::new();
    client.read_to_end(&mut read).await.unwrap();
    let text = String::from_utf8(read).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 1);
    assert!(text.ends_with('x'), "all of the answer");
}
