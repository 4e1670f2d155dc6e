//! Tests of the audit log in a stream of NATS.

use super::super::audit as log;
use super::*;
use crate::export::nats::{Connection, NatsSink};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_head_of_a_host_without_events_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start();
    let run = Run::start(directory.path()).await;
    let settings = nats(&server, "").nats.unwrap();
    let connection = Connection::new(&settings, "here").unwrap();
    let sink = NatsSink::new(connection, &run.host);
    let exporters = run.export_to(sink, Selection::default());
    run.drained(&exporters).await;
    for _ in 0..2 {
        log::audit(&run, 2).await;
        let head = run.store.audit_head().await.unwrap();
        log::eventually("the head", async || {
            (server.read().await.log.audit_head() == Some(head)).then_some(())
        })
        .await;
    }
    let read = server.read().await;
    assert_eq!((read.losses.len(), read.log.incomplete(), read.log.repeated()), (0, 0, 0));
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_entry_of_the_audit_log_is_in_the_stream_once_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start();
    let mut last = 0;
    for round in 0..3_u64 {
        let run = Run::start(directory.path()).await;
        let exporters = run.export(&nats(&server, "audit = true\nheartbeat_ms = 100"));
        run.drained(&exporters).await;
        log::audit(&run, 300).await;
        publish(&run.hub, &source("a", 1), 0, 100, (round + 1) * 1000);
        if round > 0 {
            // In the middle of what it gets.
            server.kill();
            log::audit(&run, 300).await;
            failing(&exporters).await;
            server.restart();
            last += 300;
        }
        last += 300;
        let counts = log::exported(&exporters, last).await;
        let acknowledged = if round == 0 { 300 } else { 600 };
        assert_eq!((counts.acknowledged, counts.dropped, counts.expired), (acknowledged, 0, 0));
        drained_again(&run, &exporters).await;
        let read = server.read().await;
        assert_eq!(log::entries_of(read.entries.lines()), (1..=last).collect::<Vec<_>>());
        assert_eq!((read.events.len() as u64, read.losses.len()), ((round + 1) * 100, 0));
        let head = run.store.audit_head().await.unwrap();
        log::eventually("the head", async || {
            (server.read().await.log.audit_head() == Some(head)).then_some(())
        })
        .await;
        run.stop().await;
    }
}
