//! Test of CheckProbe streams through gRPC, on a stored kernel.

#![expect(clippy::disallowed_methods, reason = "tasks of a test end with it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kprobed::config::Listen;
use kprobed_client::Client;
use kprobed_client::api::{Arming, CheckProbeResponse, CheckedDefinition, Verdict};
use tokio_stream::wrappers::ReceiverStream;

use crate::server::Server;

/// The verdicts on a text that is sent in pieces of this many bytes.
#[cfg(test)]
async fn check_all(
    client: &Client,
    text: &str,
    piece_bytes: usize,
    listings: bool,
) -> Vec<CheckedDefinition> {
    let pieces: Vec<_> = text.as_bytes().chunks(piece_bytes).map(<[u8]>::to_vec).collect();
    let mut stream = client.check_probes(tokio_stream::iter(pieces), listings).await.unwrap();
    let mut checked = Vec::new();
    while let Some(one) = stream.next().await.unwrap() {
        checked.push(one);
    }
    checked
}

/// Answer of a stream without listings.
fn brief(answer: CheckProbeResponse) -> CheckProbeResponse {
    // If this place is refused, other places matter, and not what a probe would read there.
    let elsewhere = answer.verdict() == Verdict::Refused && answer.rule != "NOFENTRY_ARGS";
    CheckProbeResponse {
        nearest_before: answer.nearest_before.filter(|_| elsewhere),
        nearest_after: answer.nearest_after.filter(|_| elsewhere),
        listing: Vec::new(),
        // The checker distinguishes these only if there is time for it.
        arming: if answer.arming() == Arming::Optimised { Arming::Breakpoint.into() } else { answer.arming },
        spec: None,
        meaning: None,
        hit_cost: None,
        ..answer
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_says_what_single_checks_say() {
    let server = Server::open(Listen::default(), "").await;
    let client = server.client().await;
    let rows = crate::world::rows("oracle", "6.12");
    let places =
        rows.iter().step_by(131).map(|row| format!("p:x {}+{} a=$arg1:u64\n", row.function, row.offset));
    let returns = rows.iter().step_by(977).map(|row| format!("r:x {}+{} rv\n", row.function, row.offset));
    let others = [
        "p:x no_such_function\n",
        "# nothing\n",
        "\n",
        "-:open # gone\n",
        "p:x vfs_read \\\n a=+0(\n",
        "p:x vfs_read",
    ];
    let text: String = places.chain(returns).chain(others.map(str::to_owned)).collect();
    let checked = check_all(&client, &text, 1000, false).await;
    assert_eq!(checked.len(), text.lines().count() - 3, "all but comments, blank lines and joined ones");
    for one in &checked {
        let alone = client.check_probe(&one.definition).await.unwrap();
        assert_eq!(one.check.clone().unwrap(), brief(alone), "{}", one.definition);
        let offset = usize::try_from(one.offset).unwrap();
        assert_eq!(text[..offset].lines().count() + 1, usize::try_from(one.line).unwrap());
        let first_line = one.definition.split('\\').next().unwrap();
        assert!(text[offset..].starts_with(first_line.split("  ").next().unwrap()), "{one:?}");
    }
    let [.., deletes, unreadable, last] = checked.as_slice() else { panic!() };
    let deletes = deletes.check.as_ref().unwrap();
    assert_eq!((deletes.verdict(), deletes.canonical.as_str()), (Verdict::Accepted, "-:open"));
    assert_eq!(deletes.diagnostics[0].code, "NOTHING_TO_CHECK");
    assert_eq!(unreadable.check.as_ref().unwrap().rule, "DEREF_OPEN_BRACE");
    assert_eq!(last.check.as_ref().unwrap().canonical, "p:kprobes/x vfs_read");
    let with_listings = check_all(&client, "p:x vfs_read\np:x do_sys_openat2+1", 64, true).await;
    assert_eq!(with_listings.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_is_not_read_from() {
    const PIECE_BYTES: usize = 64 << 10;
    let server = Server::open(Listen::default(), "").await;
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let (pieces, endless) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        while pieces.send(b"p:x no_such_function\n".repeat(PIECE_BYTES / 21)).await.is_ok() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let silent = server.client().await;
    let mut stream = silent.check_probes(ReceiverStream::new(endless), false).await.unwrap();
    // However slow this machine is, the daemon takes no more input from some time on.
    let mut waiting = 0;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = sent.load(Ordering::Relaxed);
        assert!(now * PIECE_BYTES < 32 << 20, "{now} pieces were taken");
        if now == waiting {
            break;
        }
        waiting = now;
    }
    let other = server.client().await;
    let answer =
        tokio::time::timeout(Duration::from_secs(5), other.check_probe("p:x no_such_function")).await;
    assert_eq!(answer.unwrap().unwrap().verdict(), Verdict::Refused);
    assert_eq!(stream.next().await.unwrap().unwrap().line, 1, "and nothing was lost");
}
